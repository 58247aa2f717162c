"""A stage of several fits by two processes: each fit begins with a second process that skips the fits before it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kdgat.stage import Finished, RunDirectory
from tests.lap.runs import MEDIUM, SMALL, run_up_to, small_config

GROUP = f"{SMALL}_and_{MEDIUM}-seed0"
OVERRIDES = (f"jobs=[[{SMALL}, {MEDIUM}]]", "training.accumulate=2", "training.checkpoint_every_epoch=true")


def trained(path: Path, overrides: Sequence[str]) -> RunDirectory:
    """Train two sizes in one stage."""
    return run_up_to(small_config([*OVERRIDES, *overrides], stages=[SMALL, MEDIUM]), path, GROUP)[GROUP]


@pytest.mark.processes
@pytest.mark.nightly  # four processes that import torch
def test_two_processes_train_every_fit_of_a_stage_to_the_weights_of_one(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", [])
    together = trained(tmp_path / "together", ["training.num_ranks=2"])
    assert together.path.name == alone.path.name
    outcome = alone.read_outcome()
    assert isinstance(outcome, Finished)
    for name, artifact in outcome.artifacts.items():
        assert (together.path / artifact).read_bytes() == (alone.path / artifact).read_bytes(), name
    assert together.log_path.read_text().count("2 processes train together") == 2
