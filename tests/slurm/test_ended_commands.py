"""A `kdgat train` that is ended or killed: its jobs save or go on, and so does the command, to the same weights."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster_run import STAGE, ClusterRun, ending, stray_processes
from tests.slurm.slurm import PrivateSlurm
from tests.support.servers import PrefectServer
from tests.support.waiting import wait_until


@pytest.fixture
def run(
    undisturbed: ClusterRun, tmp_path: Path, slurm: PrivateSlurm, prefect_server: PrefectServer
) -> Iterator[ClusterRun]:
    """A run with its data prepared, so that the one job that is left is the one that trains."""
    shutil.copytree(undisturbed.out, tmp_path / "out", ignore=shutil.ignore_patterns(f"{STAGE}-*", "prefect"))
    run = ClusterRun(undisturbed.data_root, tmp_path / "out")
    with ending(run):
        yield run
    assert slurm.jobs() == []
    assert stray_processes(run.out) == []


def results(run: ClusterRun) -> tuple[bytes, bytes]:
    """Return weights and metric rows, to be compared byte by byte."""
    return run.weights(), run.directory.metrics_path.read_bytes()


def kill(run: ClusterRun) -> None:
    assert run.process is not None
    run.process.kill()
    run.process.wait()


def test_scancel_stops_with_a_checkpoint_and_the_same_command_goes_on(
    run: ClusterRun, undisturbed: ClusterRun, slurm: PrivateSlurm
) -> None:
    run.start().hold()
    slurm.command("scancel", run.job_id(slurm))
    assert run.finish() == 130, run.printed()
    assert run.ends == ["SlurmCancelled"]
    assert "somebody cancelled job" in run.printed()
    assert slurm.jobs() == []
    run.start()
    assert run.finish() == 0, run.printed()
    assert run.lost_nothing()
    assert results(run) == results(undisturbed)


def test_a_killed_flow_goes_on_when_started_again(
    run: ClusterRun, undisturbed: ClusterRun, slurm: PrivateSlurm
) -> None:
    run.start().hold()
    job_id = run.job_id(slurm)
    kill(run)
    run.start()
    run.wait_until(lambda: run.printed().count(f"job {job_id} on ") == 2, "the job to be watched again")
    run.release()
    assert run.finish() == 0, run.printed()
    assert [(attempt.job_id, attempt.end) for attempt in run.attempts] == [(job_id, "Completed")]
    assert results(run) == results(undisturbed)


@pytest.mark.nightly
def test_the_jobs_of_a_killed_flow_end_by_themselves_where_somebody_wants_that(
    run: ClusterRun, undisturbed: ClusterRun, slurm: PrivateSlurm
) -> None:
    run.start("--on-lost-flow", "stop").hold()
    kill(run)
    wait_until(lambda: slurm.jobs() == [], "the end of the job")
    assert run.directory.newest_checkpoint()
    run.start()
    assert run.finish() == 0, run.printed()
    assert run.lost_nothing()
    assert results(run) == results(undisturbed)


def test_ctrl_c_says_so_and_cancels_the_job(run: ClusterRun, undisturbed: ClusterRun, slurm: PrivateSlurm) -> None:
    run.start().hold()
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130, run.printed()
    assert "the jobs are asked for their checkpoints, then cancelled" in run.printed()
    assert slurm.jobs() == []
    run.start()
    assert run.finish() == 0, run.printed()
    assert run.lost_nothing()
    assert results(run) == results(undisturbed)
