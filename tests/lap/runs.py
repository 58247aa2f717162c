"""Small LAP runs for tests: a configuration of seconds, and its plan executed in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdgat.family import family_config
from kdgat.lap.config import LapConfig
from kdgat.lap.family import FAMILY
from kdgat.lap.inputs import lap_run
from kdgat.lap.plan import plan_lap
from kdgat.run import OutputDirectory, PlannedStage, run_locally
from kdgat.stage import Outcome, RunDirectory

SMALL, MEDIUM, LARGE = "small_512_only", "small_1024_only", "mid_1536"
PROGRESSION: dict[str, Any] = {
    SMALL: {"size": 16, "train": 8, "validation": 2, "test": 2},
    MEDIUM: {"size": 24, "train": 4, "validation": 2, "test": 2},
    LARGE: {"size": 32, "train": 4, "validation": 2, "test": 2},
}
OVERRIDES = (
    "data.families=[uniform, sparse]",
    f"progression={PROGRESSION}",
    "training_of={}",
    "training.max_epochs=2",
    "training.max_edges=2048",
    "training.patience=null",
    "model.dual.hidden=12",
    "model.dual.rounds=2",
    "graph={row_neighbours: 16, column_neighbours: 16, witnesses: 0}",
    "evaluation.repeats=1",
    "evaluation.warm_ups=0",
    "evaluation.measured_instances=1",
    "resources={default: {}}",
)


def small_config(overrides: Sequence[str] = (), **given: Any) -> LapConfig:
    """Build the configuration of a run of three tiny sizes."""
    return make_config("quick", [*OVERRIDES, *overrides], **given)


def make_config(
    preset: str,
    overrides: Sequence[str] = (),
    *,
    source: str | None = None,
    stages: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> LapConfig:
    """Build the configuration that a command line with these options describes."""
    given = {name: value for name, value in (("data", source), ("stages", stages)) if value is not None}
    config = family_config(FAMILY, preset, given, seeds, overrides)
    assert isinstance(config, LapConfig)
    return config


def plan_of(config: LapConfig) -> dict[str, PlannedStage]:
    """Return the planned stages by name."""
    return {planned.name: planned for planned in plan_lap(config)}


def run_up_to(config: LapConfig, path: Path, last: str) -> dict[str, RunDirectory]:
    """Run a stage and what it needs in this process; return the directories of all that have finished."""
    finished = run_locally(lap_run(config), path, only=[last])
    assert last in finished, OutputDirectory(path).read_index()
    return finished


def outcome_of(path: Path, name: str) -> Outcome:
    """Return how the last attempt at a stage ended."""
    output = OutputDirectory(path)
    outcome = output.stage_directory(output.read_index().record(name)).read_outcome()
    assert outcome is not None
    return outcome
