"""A night whose stages, the comparison with the model in service among them, are jobs of a real Slurm."""

from pathlib import Path

import pytest

from flows.embedded.server import prefect_api
from kdgat.cluster import AttemptLedger
from kdgat.stage import RunDirectory
from tests.flows.nights import NightlyRuns
from tests.slurm.cluster_run import stray_processes
from tests.slurm.slurm import PrivateSlurm
from tests.support.small_runs import UNTRAINED


@pytest.mark.nightly
def test_a_night_trains_and_compares_in_jobs(slurm: PrivateSlurm, tmp_path: Path) -> None:
    nights = NightlyRuns(tmp_path)
    with prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"):
        state = nights.run(*UNTRAINED, site="slurm-test")
    assert state.is_completed(), state.message
    assert nights.in_service()
    (run,) = nights.directory.records()
    for stage in ("stages/normal-*", "comparisons/comparison-*"):
        (directory,) = run.glob(stage)
        assert [(record.end, record.job_id.isdigit()) for record in AttemptLedger(RunDirectory(directory)).records] == [
            ("Completed", True)
        ]
    assert slurm.jobs() == []
    assert stray_processes(tmp_path) == []
