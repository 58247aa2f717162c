"""Preparations of both families that are of several parts and done in seconds."""

from pathlib import Path
from typing import Any

from kdgat.base import sha256_of_file
from kdgat.can.kinds import KINDS as CAN_KINDS
from kdgat.canbus import write_recording
from kdgat.lap.plan import KINDS as LAP_KINDS
from kdgat.run.kinds import StageKind
from kdgat.stage import Finished, RunDirectory, StageInput, StageSpec
from tests.canbus.traffic import bus_traffic

NUM_VARIANTS = 60
CAN: dict[str, Any] = {
    "data": {"dataset": "hand"},
    "windows": {"size": 50, "stride": 20},
    "injection": {"duration_s": [5.0, 8.0]},
}
CAN_PARTS = 7  # two recordings that train, 60 + 12 virtual ones in parts of 25, one recording that tests
LAP: dict[str, Any] = {
    "size": 16,
    "generate": {"families": ["uniform", "metric"], "train": 128, "validation": 32, "test": 32, "seed": 1},
}
LAP_PARTS = 6  # of 32 instances


def make_preparation(family: str, path: Path, times: int = 1) -> RunDirectory:
    """Make the run directory of a preparation that has not begun; all of a family's make the same bytes.

    Args:
        family: of the preparation.
        path: folder that gets it.
        times: as many parts, about.
    """
    inputs: dict[str, StageInput] = {}
    if family == "can":
        path.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(("train/train_01/one", "train/train_01/two", "test/test_01/drive")):
            recording = path / f"{name.replace('/', '__')}.parquet"
            write_recording(recording, bus_traffic(num_ids=6, duration_s=12.0, seed=number))
            inputs[name] = StageInput.of_file(recording)
    if family == "can":
        config = {**CAN, "injection": {**CAN["injection"], "variants": times * NUM_VARIANTS}}
    else:
        config = {**LAP, "generate": {**LAP["generate"], "train": times * LAP["generate"]["train"]}}
    spec = StageSpec(
        family=family,
        stage="prepare",
        seed=0,
        config=config,
        inputs=inputs,
        code_version=_kind(family).code_version,
    )
    return RunDirectory(path / "run").create(spec)


def parts_function(family: str) -> str:
    """Return what makes the parts of a preparation."""
    return _kind(family).parts


def _kind(family: str) -> StageKind:
    return (CAN_KINDS if family == "can" else LAP_KINDS)["prepare"]


def artifacts(directory: RunDirectory) -> dict[str, str]:
    """Hash what a finished preparation has made."""
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished), outcome
    return {name: sha256_of_file(directory.path / path) for name, path in sorted(outcome.artifacts.items())}
