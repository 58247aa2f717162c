"""A deployment whose stages are jobs of a real Slurm, ended as people do it: by a cancellation, by `make undeploy`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.cluster import AttemptLedger, AttemptRecord
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.stage import RunDirectory
from tests.deployments.installed import Installed
from tests.slurm.slurm import PrivateSlurm
from tests.support.small_runs import ENDLESS
from tests.support.waiting import wait_until


@pytest.fixture
def installed(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[Installed]:
    found = Installed(tmp_path, KDGAT_SITE="slurm-test")
    try:
        answer = found.command("up")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        yield found
    finally:
        found.command("down")
        assert found.processes() == {}
        assert slurm.jobs() == []


class Output:
    """What a run has left in its output directory so far."""

    def __init__(self, path: Path) -> None:
        self.output = OutputDirectory(path)

    @property
    def record(self) -> StageRecord:
        return self.output.read_index().record("normal-large-seed0")

    @property
    def directory(self) -> RunDirectory:
        (path,) = self.output.stages_path.glob("normal-*")
        return RunDirectory(path)

    @property
    def attempts(self) -> list[AttemptRecord]:
        return AttemptLedger(self.directory).records

    def has_checkpoint(self) -> bool:
        return any(self.output.stages_path.glob("normal-*/checkpoints/*.pt"))

    def has_resumed(self) -> bool:
        return "going on from checkpoint-" in self.directory.log_path.read_text()


@pytest.mark.nightly
def test_cancelling_a_run_ends_its_jobs_with_a_checkpoint_and_so_does_undeploy(
    installed: Installed, slurm: PrivateSlurm
) -> None:
    run = Output(installed.here.outputs / "can" / "synthetic")
    first = installed.start_run("can/synthetic", overrides=ENDLESS)
    wait_until(run.has_checkpoint, "a checkpoint", log=installed.log)
    assert len(slurm.jobs()) == 1
    assert installed.prefect("flow-run", "cancel", first).returncode == 0
    installed.wait_for_state(first, "Cancelled")
    wait_until(lambda: slurm.jobs() == [], "an empty queue", log=installed.log)
    assert run.record.state == StageState.PAUSED
    assert [(attempt.end, bool(attempt.job_id)) for attempt in run.attempts] == [("Paused", True)]

    second = installed.start_run("can/synthetic", overrides=ENDLESS)
    wait_until(run.has_resumed, "going on", log=installed.log)
    assert installed.run_state(second)["type"] == "RUNNING"
    assert len(slurm.jobs()) == 1
    assert installed.command("down").returncode == 0
    assert slurm.jobs() == []
    assert run.record.state == StageState.PAUSED
    assert [attempt.end for attempt in run.attempts] == ["Paused", "Paused"]
