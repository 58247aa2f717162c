"""A short soak: what two hours of it do, in one round (`python -m tests.slurm.soak`)."""

from pathlib import Path

import pytest

from tests.slurm.slurm import PrivateSlurm
from tests.slurm.soak import Soak

pytestmark = pytest.mark.nightly


def test_eight_stages_come_to_the_same_weights_whatever_slurm_answers_and_files_do(
    slurm: PrivateSlurm, tmp_path: Path
) -> None:
    report = Soak(tmp_path, minutes=1, seed=1, odds=0.02, epochs=8).go(slurm)
    assert report.commands
    assert report.files
    assert report.wrong == [], report.rows()
