import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.attempts import (
    FLOW_LOST,
    Attempt,
    AttemptRunner,
    Conclusion,
    LocalAttempts,
    Stage,
    run_to_end,
)
from kdgat.cluster import AttemptLedger, Resources, StopRequest, child, decision
from kdgat.cluster.child import checkpoint_marker, child_command
from kdgat.cluster.decision import MAX_ENVIRONMENT, MAX_STALE_ATTEMPTS
from kdgat.cluster.ending import AttemptEnd
from kdgat.cluster.report import JobFiles
from kdgat.cluster.usage import read_usages
from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory, StageBusyError, StageSpec
from kdgat.stage.process import PARENT_PROCESS_VARIABLE
from tests.can.stage_inputs import FAST, SMALL_GAT, make_stage, make_stores
from tests.support.waiting import when

pytestmark = pytest.mark.processes

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
# Long enough to be stopped in, and with a checkpoint at every step to be stopped at.
ENDLESS = {"max_epochs": 100_000, "patience": None, "checkpoint_every_steps": 1, "checkpoint_interval_s": 0}


def training(path: Path, **settings: Any) -> RunDirectory:
    config = {"gat": SMALL_GAT, "training": {**FAST, **settings}}
    return make_stage(path / "run", "normal", config, make_stores(path))


def run(
    directory: RunDirectory,
    stop: StopRequest | None = None,
    runner: AttemptRunner | None = None,
    usage_path: Path | None = None,
) -> tuple[Conclusion, list[str]]:
    lines: list[str] = []
    conclusion = run_to_end(
        Stage(
            directory,
            runner=runner or LocalAttempts(ENVIRONMENT),
            stop=stop or StopRequest(),
            attempt_context=lambda record, body: body(lines.append, lambda progress: None, lambda name, message: None),
            on_line=lines.append,
            usage_path=usage_path,
        )
    )
    return conclusion, lines


def owner_of(directory: RunDirectory) -> int:
    return int(json.loads(directory.owner_path.read_text())["pid"])


def test_a_stage_runs_in_a_child_process_and_its_log_arrives(tmp_path: Path) -> None:
    directory = training(tmp_path)
    directory.progress_path.touch()  # what a power cut may leave of it stops nothing
    conclusion, lines = run(directory)
    assert isinstance(conclusion.outcome, Finished)
    assert conclusion.attempts == 1
    assert any("parameters" in line for line in lines)


def test_a_stop_request_leaves_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    directory, stop = training(tmp_path, **ENDLESS), StopRequest()
    when(lambda: checkpoint_marker(directory), lambda: stop.set("a test"))
    conclusion, _ = run(directory, stop)
    assert isinstance(conclusion.outcome, Paused)
    assert (directory.path / conclusion.outcome.checkpoint).exists()
    (record,) = AttemptLedger(directory).records
    assert record.decision == f"a test: the next run goes on from {conclusion.outcome.checkpoint}"


def test_a_killed_child_is_started_again_from_its_checkpoint(tmp_path: Path) -> None:
    directory, stop = training(tmp_path, **ENDLESS), StopRequest()
    killed: list[int] = []

    def kill() -> None:
        killed.append(owner_of(directory))
        os.kill(killed[0], signal.SIGKILL)
        when(lambda: directory.owner_path.exists() and owner_of(directory) != killed[0], lambda: stop.set("a test"))

    when(lambda: checkpoint_marker(directory), kill)
    conclusion, lines = run(directory, stop, usage_path=tmp_path / "history" / "run.jsonl")
    assert killed
    assert conclusion.attempts == 2
    assert any("SIGKILL" in line for line in lines)
    first, second = read_usages(tmp_path / "history")
    assert (first.end, second.end) == ("ProcessKilled", "Paused")
    assert first.run == second.run == "run/run"
    assert (first.stage, first.device, first.units) == ("normal", "cpu", "steps")
    assert min(first.unit_s, first.startup_s, first.wall_s, first.parameters, first.left) > 0
    assert first.size.keys() == {"bytes", "graphs"}


def test_attempts_whose_process_did_not_begin_leave_no_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, history = training(tmp_path), tmp_path / "history" / "run.jsonl"
    conclusion, _ = run(directory, usage_path=history)
    assert isinstance(conclusion.outcome, Finished)
    directory.outcome_path.unlink()
    monkeypatch.setattr(child, "child_command", lambda _: [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"])
    run(directory, usage_path=history)
    (finished,) = read_usages(history.parent)
    assert (finished.end, finished.left) == ("Completed", 0)
    assert finished.done * finished.unit_s < finished.wall_s


def test_attempts_that_get_nowhere_come_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = training(tmp_path)
    # A process that crashes before it can do anything. One that is killed by SIGKILL is tried for a quarter of an hour.
    monkeypatch.setattr(child, "child_command", lambda _: [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"])
    conclusion, _ = run(directory)
    assert isinstance(conclusion.outcome, Failed)
    assert conclusion.attempts == MAX_STALE_ATTEMPTS
    assert "SIGSEGV" in conclusion.outcome.evidence
    conclusion, _ = run(directory)  # giving the command again is one more attempt, not three
    assert conclusion.attempts == 1


@pytest.mark.parametrize("limit", ["-f 0", "-f 8"], ids=["nothing can be written", "a checkpoint cannot be written"])
def test_a_quota_that_is_exceeded_for_a_while_costs_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(decision, "FIRST_DELAY_S", 0.5)
    undisturbed = training(tmp_path / "undisturbed")
    run(undisturbed)
    directory, exceeded, command = training(tmp_path), tmp_path / "exceeded", child_command
    exceeded.touch()
    # No file may grow above that many KiB: every write fails in the process of the stage, as it does with a quota.
    script = f'test -e {exceeded} && ulimit {limit}; exec "$@"'
    monkeypatch.setattr(child, "child_command", lambda of: ["bash", "-c", script, "bash", *command(of)])
    when(lambda: len(AttemptLedger(directory).records) > 1, exceeded.unlink)
    conclusion, lines = run(directory)
    assert isinstance(conclusion.outcome, Finished)
    assert conclusion.attempts >= 2
    ends = [(record.end, record.failure) for record in AttemptLedger(directory).records]
    assert ends == [("StageFailed", "ENVIRONMENT")] * (len(ends) - 1) + [("Completed", None)]
    assert any("File too large" in line and "again from the start of the stage in 0 s" in line for line in lines)
    assert directory.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()


def test_a_run_directory_that_is_away_for_a_while_costs_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "FIRST_DELAY_S", 0.5)
    directory, away = training(tmp_path), tmp_path / "away"
    directory.spec_path.rename(away)  # as a node sees it whose filesystem is not mounted
    when(lambda: len(AttemptLedger(directory).records) > 1, lambda: away.rename(directory.spec_path))
    conclusion, lines = run(directory)
    assert isinstance(conclusion.outcome, Finished)
    assert any("spec.json is missing" in line for line in lines)


class BrokenLoginNode(LocalAttempts):
    """Cannot start anything for a while."""

    def __init__(self, error: OSError, times: int) -> None:
        super().__init__(ENVIRONMENT)
        self.error, self.times = error, times

    def run(self, attempt: Attempt) -> AttemptEnd:
        if attempt.record.number <= self.times:
            raise self.error
        return super().run(attempt)


def test_an_error_of_the_machine_that_starts_attempts_ends_no_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "FIRST_DELAY_S", 0.01)
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE), "slurm")
    conclusion, lines = run(training(tmp_path), runner=BrokenLoginNode(stale, 2))
    assert isinstance(conclusion.outcome, Finished)
    assert conclusion.attempts == 3
    assert sum("Stale file handle" in line for line in lines) == 2
    conclusion, _ = run(training(tmp_path / "for ever"), runner=BrokenLoginNode(stale, 99))
    assert isinstance(conclusion.outcome, Failed)
    assert (conclusion.attempts, conclusion.outcome.kind) == (MAX_ENVIRONMENT, FailureKind.ENVIRONMENT)
    assert "10 attempts since the last checkpoint found something broken" in conclusion.outcome.evidence
    assert "Stale file handle" in conclusion.outcome.evidence
    with pytest.raises(FileNotFoundError):
        run(training(tmp_path / "other"), runner=BrokenLoginNode(FileNotFoundError(errno.ENOENT, "no", "sbatch"), 1))


def test_a_damaged_input_fails_once_with_its_evidence(tmp_path: Path) -> None:
    directory = training(tmp_path)
    with (tmp_path / "train.h5").open("ab") as store:
        store.write(b"more")
    conclusion, _ = run(directory)
    assert isinstance(conclusion.outcome, Failed)
    assert conclusion.outcome.kind is FailureKind.BAD_INPUT
    assert "train.h5" in conclusion.outcome.evidence
    assert conclusion.attempts == 1


def test_a_child_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    directory = training(tmp_path, **ENDLESS)
    script = (
        "import os, subprocess, sys, time\n"
        f"env = {{**os.environ, {PARENT_PROCESS_VARIABLE!r}: str(os.getpid()), 'OMP_NUM_THREADS': '1'}}\n"
        f"command = [sys.executable, '-m', 'kdgat.cli.main', 'stage', 'run', {str(directory.path)!r}]\n"
        "child = subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    try:
        when(lambda: checkpoint_marker(directory), parent.kill).join()
        parent.wait()
        when(lambda: not Path(f"/proc/{child_pid}").exists() or _is_zombie(child_pid), lambda: None).join()
        assert isinstance(directory.read_outcome(), Paused)
    finally:
        parent.kill()
        parent.stdout.close()


def _is_zombie(pid: int) -> bool:
    try:
        return "Z (zombie)" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_a_stage_that_a_job_trains_is_not_trained_here_as_well(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run").create(StageSpec(family="nowhere", stage="none", seed=0))
    ledger = AttemptLedger(directory)
    ledger.submitted(ledger.open(Resources(walltime_s=60, memory_mib=1, cores=1, gpus=0)), "17")
    JobFiles(directory, "17").begin("n1")
    with pytest.raises(StageBusyError, match="job 17 trains run: give --site as before"):
        run(directory)
    os.utime(JobFiles(directory, "17").alive_path, (0, 0))  # its node died long ago
    conclusion, _ = run(directory)
    assert isinstance(conclusion.outcome, Failed)
    assert [record.end for record in AttemptLedger(directory).records] == [FLOW_LOST, "StageFailed"]
