"""`kdgat stage run DIR --site NAME` on a real Slurm: one stage from the terminal, without a flow around it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.cluster import AttemptLedger
from kdgat.stage import Finished, Paused, RunDirectory
from tests.can.stage_inputs import FAST, SMALL_GAT, make_stage, make_stores
from tests.slurm.cluster_run import WORKER, stray_processes
from tests.slurm.slurm import PrivateSlurm
from tests.support.command_line import run_kdgat
from tests.support.waiting import wait_until

TIMEOUT_S = 180.0
SITE = ("--site", "slurm-test")
ENDLESS = {"max_epochs": 100_000, "patience": None, "checkpoint_every_steps": 1, "checkpoint_interval_s": 0}


def stage(path: Path, **training: object) -> RunDirectory:
    return make_stage(path / "run", "normal", {"gat": SMALL_GAT, "training": {**FAST, **training}}, make_stores(path))


@pytest.fixture
def directory(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[RunDirectory]:
    yield stage(tmp_path)
    assert slurm.jobs() == []
    assert stray_processes(tmp_path) == []


@pytest.fixture
def endless(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[RunDirectory]:
    yield stage(tmp_path, **ENDLESS)
    assert slurm.jobs() == []
    assert stray_processes(tmp_path) == []


@contextlib.contextmanager
def started(directory: RunDirectory, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "kdgat.cli.main", "stage", "run", str(directory.path), *SITE]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def test_a_stage_runs_as_a_job_and_exits_0(directory: RunDirectory, slurm: PrivateSlurm) -> None:
    words = ("stage", "run", str(directory.path), *SITE, "--walltime", "5", "--memory", "1200M", "--gpus", "1")
    done = run_kdgat(*words, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    (record,) = AttemptLedger(directory).records
    job = slurm.job(record.job_id)
    assert job["JobState"] == "COMPLETED"
    assert job["TimeLimit"] == "00:05:00"
    assert job["MinMemoryNode"] == "1200M"
    assert job["TresPerNode"] == "gres:gpu:v100:1"
    for text in (f"job {record.job_id} on {record.node}", "epoch 2:", "finished: "):
        assert text in done.stderr

    again = run_kdgat(*words, timeout_s=TIMEOUT_S)
    assert again.returncode == 0
    assert "finished already" in again.stderr
    assert len(AttemptLedger(directory).records) == 1


@pytest.mark.nightly
def test_ctrl_c_gets_a_checkpoint_and_75_and_the_same_command_goes_on(
    endless: RunDirectory, tmp_path: Path, slurm: PrivateSlurm
) -> None:
    log = tmp_path / "stderr.txt"
    with started(endless, log) as process:
        wait_until(endless.newest_checkpoint, "a checkpoint")
        busy = run_kdgat("stage", "run", str(endless.path), *SITE, timeout_s=TIMEOUT_S)
        assert busy.returncode == 1
        assert f"in use by pid {process.pid}" in busy.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 75, log.read_text()
    assert "SIGINT: the jobs are asked for their checkpoints" in log.read_text()
    outcome = endless.read_outcome()
    assert isinstance(outcome, Paused)
    assert f"goes on from {outcome.checkpoint}" in log.read_text()
    (record,) = AttemptLedger(endless).records
    assert slurm.job(record.job_id)["JobState"] == "COMPLETED"

    with started(endless, log) as process:
        wait_until(lambda: "going on from" in log.read_text(), "going on")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 75, log.read_text()


def test_a_second_ctrl_c_cancels_the_job(endless: RunDirectory, tmp_path: Path, slurm: PrivateSlurm) -> None:
    log = tmp_path / "stderr.txt"
    with started(endless, log) as process:
        wait_until(endless.newest_checkpoint, "a checkpoint")
        child = int(json.loads(endless.owner_path.read_bytes())["pid"])
        os.kill(child, signal.SIGSTOP)  # it cannot hear what it is asked for
        worker = next(iter(slurm.processes_of(AttemptLedger(endless).records[-1].job_id) - {child}))
        os.kill(worker, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "is asked for a checkpoint\n" in log.read_text(), "the request")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 75, log.read_text()
    wait_until(lambda: slurm.jobs() == [], "the end of the job")
    assert slurm.job(AttemptLedger(endless).records[-1].job_id)["JobState"] == "CANCELLED"


def test_a_lost_job_is_told_and_replaced(tmp_path: Path, directory: RunDirectory, slurm: PrivateSlurm) -> None:
    log = tmp_path / "stderr.txt"
    with started(directory, log) as process:
        wait_until(lambda: killed_worker(slurm, directory), "a worker")
        assert process.wait(TIMEOUT_S) == 0, log.read_text()
    assert "attempt 1: SlurmJobLost: " in log.read_text()
    assert [record.end for record in AttemptLedger(directory).records] == ["SlurmJobLost", "Completed"]
    assert isinstance(directory.read_outcome(), Finished)


def killed_worker(slurm: PrivateSlurm, directory: RunDirectory) -> bool:
    """Kill the worker of the first job, once there is one."""
    records = AttemptLedger(directory).records
    if not records or not records[0].job_id:
        return False
    for pid in slurm.processes_of(records[0].job_id):
        with contextlib.suppress(OSError):
            if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def test_a_stage_that_fails_exits_1_and_says_why(tmp_path: Path, directory: RunDirectory) -> None:
    (tmp_path / "validation.h5").unlink()
    done = run_kdgat("stage", "run", str(directory.path), *SITE, "--quiet", timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert "failed: input " in done.stderr
    assert "validation.h5" in done.stderr
