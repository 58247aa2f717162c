"""Small LAP runs for tests: a configuration of seconds, and its plan executed in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdgat.lap.config import LapConfig, make_config
from kdgat.lap.specs import lap_run
from kdgat.run.plan import PlannedStage, make_spec
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished, Outcome
from kdgat.stage.runner import run_stage

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


def small_config(overrides: Sequence[str] = (), **said: Any) -> LapConfig:
    """Build the configuration of a run of three tiny sizes."""
    return make_config("quick", [*OVERRIDES, *overrides], **said)


class SmallRun:
    """Execute the stages of a plan one after the other, as the flow does, and keep their directories."""

    def __init__(self, config: LapConfig, path: Path) -> None:
        self.run = lap_run(config)
        self.path = path
        self.finished: dict[str, RunDirectory] = {}

    def planned(self, name: str) -> PlannedStage:
        return next(planned for planned in self.run.plan if planned.name == name)

    def create(self, name: str) -> RunDirectory:
        """Make the run directory of a stage whose dependencies have finished."""
        planned = self.planned(name)
        spec = make_spec(self.run.family, planned, self.finished, self.run.external_inputs(planned))
        return RunDirectory(self.path / "stages" / spec.directory_name()).create(spec)

    def attempt(self, name: str) -> Outcome:
        """Run one stage once."""
        directory = self.create(name)
        outcome = run_stage(directory, quiet=True)
        if isinstance(outcome, Finished):
            self.finished[name] = directory
        return outcome

    def up_to(self, last: str) -> RunDirectory:
        """Run what a stage needs, then the stage; return its directory."""
        for name in self.planned(last).depends_on:
            if name not in self.finished:
                self.up_to(name)
        outcome = self.attempt(last)
        assert isinstance(outcome, Finished), outcome
        return self.finished[last]
