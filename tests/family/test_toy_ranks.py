"""A stage of several processes, through the ordinary command: what it trains, and what becomes of it when one dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kdgat.base import wait_until
from kdgat.family import Family
from kdgat.run import OutputDirectory, run_locally
from kdgat.run.plan import create_stage
from kdgat.stage import Failed, FailureKind, Paused, RunDirectory
from kdgat.stage.outcome import EXIT_ENVIRONMENT, EXIT_FINISHED, EXIT_PAUSED
from tests.support.processes import is_gone
from tests.support.toy import LONG

TWO_RANKS = (*LONG, "training.accumulate=2", "training.num_ranks=2")


def prepared(toy: Family, path: Path, overrides: Sequence[str] = TWO_RANKS) -> RunDirectory:
    """Return the directory of a stage that trains, and that has not begun."""
    run = toy.plan(toy.config.from_preset("quick", {}, overrides))
    output = OutputDirectory(path)
    return create_stage(run, run.plan[1], run_locally(run, path, only=["prepare"]), output)[0]


def start(directory: RunDirectory) -> "subprocess.Popen[bytes]":
    stage = [sys.executable, "-m", "kdgat.stage", str(directory.path), "--quiet"]
    return subprocess.Popen(stage, env={**os.environ, "OMP_NUM_THREADS": "1"})


def ranks_of(process: "subprocess.Popen[bytes]") -> list[int]:
    """Return the numbers of the processes that are the other ranks of a stage."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(one) for one in children if "kdgat.training.ranks.rank" in Path(f"/proc/{one}/cmdline").read_text()]


def rank_of(process: "subprocess.Popen[bytes]") -> int:
    (pid,) = ranks_of(process)
    return pid


def wait_for_checkpoint(directory: RunDirectory, process: "subprocess.Popen[bytes]") -> None:
    while not directory.newest_checkpoint() and process.poll() is None:
        time.sleep(0.01)
    assert process.poll() is None


@pytest.fixture
def undisturbed(toy: Family, tmp_path: Path) -> RunDirectory:
    """Run the same stage as one process; its identity is the same."""
    run = toy.plan(toy.config.from_preset("quick", {}, (*LONG, "training.accumulate=2")))
    return run_locally(run, tmp_path / "undisturbed", only=["line-seed0"])["line-seed0"]


@pytest.mark.processes
@pytest.mark.nightly  # processes that import torch, one after the other
def test_a_stage_of_two_processes_writes_the_weights_of_one(
    toy: Family, tmp_path: Path, undisturbed: RunDirectory
) -> None:
    directory = prepared(toy, tmp_path / "two")
    assert directory.path.name == undisturbed.path.name
    assert start(directory).wait() == EXIT_FINISHED
    assert directory.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()
    assert [row["step"] for row in directory.read_metrics()] == [row["step"] for row in undisturbed.read_metrics()]
    assert sorted(one.name for one in directory.path.iterdir()) == sorted(
        one.name for one in undisturbed.path.iterdir()
    )


@pytest.mark.processes
def test_a_rank_that_is_killed_ends_the_stage_and_the_next_attempt_ends_with_the_same_weights(
    toy: Family, tmp_path: Path, undisturbed: RunDirectory
) -> None:
    directory = prepared(toy, tmp_path / "killed")
    process = start(directory)
    wait_for_checkpoint(directory, process)
    pid = rank_of(process)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=60) == EXIT_ENVIRONMENT
    outcome = directory.read_outcome()
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.ENVIRONMENT
    assert f"rank 1 of the fit (process {pid}) was ended by SIGKILL" in outcome.evidence
    assert start(directory).wait() == EXIT_FINISHED
    assert directory.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()


@pytest.mark.processes
@pytest.mark.nightly  # processes that import torch, one after the other
def test_a_signal_to_the_other_rank_pauses_the_stage(toy: Family, tmp_path: Path, undisturbed: RunDirectory) -> None:
    directory = prepared(toy, tmp_path / "paused")
    process = start(directory)
    wait_for_checkpoint(directory, process)
    os.kill(rank_of(process), signal.SIGTERM)
    assert process.wait(timeout=60) == EXIT_PAUSED
    outcome = directory.read_outcome()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "SIGTERM received by rank 1"
    assert outcome.checkpoint
    assert start(directory).wait() == EXIT_FINISHED
    assert directory.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()


@pytest.mark.processes
@pytest.mark.nightly  # processes that import torch, one after the other
def test_a_stage_that_is_asked_to_leave_while_its_ranks_start_does_not_wait_for_them(
    toy: Family, tmp_path: Path
) -> None:
    directory = prepared(toy, tmp_path / "starting")
    process = start(directory)
    assert wait_until(lambda: len(ranks_of(process)) == 1, limit_s=60)
    (pid,) = ranks_of(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == EXIT_PAUSED
    assert is_gone(pid)
    outcome = directory.read_outcome()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, outcome.checkpoint) == ("SIGTERM received", "")


@pytest.mark.processes
def test_no_rank_outlives_its_stage(toy: Family, tmp_path: Path) -> None:
    directory = prepared(toy, tmp_path / "orphans")
    process = start(directory)
    wait_for_checkpoint(directory, process)
    pid = rank_of(process)
    process.kill()
    process.wait()
    assert wait_until(lambda: is_gone(pid), limit_s=10)


@pytest.mark.processes
def test_a_rank_that_cannot_begin_is_named_with_what_it_said(
    toy: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the rank finds no family of that name, which this process knows."""
    run = toy.plan(toy.config.from_preset("quick", {}, ("training.num_ranks=2",)))
    run_locally(run, tmp_path, only=["prepare"])
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert "line-seed0" not in run_locally(run, tmp_path, only=["line-seed0"])
    message = OutputDirectory(tmp_path).read_index().record("line-seed0").message
    assert "rank 1 of the fit" in message
    assert "family 'toy' is unknown" in message
