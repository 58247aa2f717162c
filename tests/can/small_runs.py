"""Whole training runs on tiny recordings, in this process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kdgat.can.config import CanConfig
from kdgat.can.inputs import can_run
from kdgat.run import OutputDirectory, run_locally

OVERRIDES = (
    "stages=[normal, evaluation]",
    "injection.enabled=false",  # while the preset asks for a share of injected windows
    "training.max_epochs=2",
    "gat.large.hidden=4",
    "gat.large.heads=2",
)


def make_config(
    preset: str, overrides: Sequence[str] = (), *, data: Mapping[str, Any], seeds: Sequence[int] | None = None
) -> CanConfig:
    """Build the configuration that a preset makes for this data, with overrides on top."""
    given = {"data": dict(data)} | ({} if seeds is None else {"seeds": list(seeds)})
    return CanConfig.from_preset(preset, given, overrides)


def small_config(data_root: Path, *overrides: str, **data: object) -> CanConfig:
    """Return a configuration that trains one small network."""
    return make_config(
        "quick", (*OVERRIDES, *overrides), data={"dataset": "synthetic", "data_root": str(data_root), **data}
    )


def train_here(path: Path, config: CanConfig) -> OutputDirectory:
    """Run all stages of a plan."""
    run = can_run(config)
    finished = run_locally(run, path)
    assert list(finished) == [planned.name for planned in run.plan], OutputDirectory(path).read_index()
    return OutputDirectory(path)
