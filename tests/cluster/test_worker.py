import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import distributed
import pytest

from kdgat.cluster import child, worker
from kdgat.cluster.worker import NodeReport, run_attempt
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Failed, FailureKind
from kdgat.stage.spec import StageSpec
from tests.cluster.attempts import CHECKPOINT
from tests.support.waiting import wait_until

WORKER = ["-m", "distributed.cli.dask_worker", "--no-nanny", "--preload", "kdgat.cluster.worker", "--host", "127.0.0.1"]
QUIET = ["--dashboard-address", "127.0.0.1:0", "--nthreads", "1", "--death-timeout", "30"]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run").create(StageSpec(family="nowhere", stage="none", seed=0))


class RunningWorker:
    """A worker process as a job starts it, with a scheduler in this process in place of the flow's."""

    def __init__(self, cluster: distributed.LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.client = distributed.Client(cluster, set_as_default=False)
        self.output = folder / "worker.log"
        with self.output.open("wb") as log:
            command = [sys.executable, *WORKER, *QUIET, "--local-directory", str(folder), cluster.scheduler_address]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.client.wait_for_workers(1, timeout=30)

    def begin(self, directory: RunDirectory) -> "distributed.Future":
        """Start an attempt whose stage waits for a directory that somebody else still writes into."""
        future = self.client.submit(run_attempt, str(directory.path), {}, 900.0, (), pure=False, retries=0)
        wait_until(lambda: "waiting: " in self.output.read_text(), "the stage", log=self.output.read_text)
        return future

    def children(self) -> list[int]:
        """Return the processes that the worker started."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z" and int(fields[1]) == self.process.pid:
                found.append(int(stat.parent.name))
        return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningWorker]:
    with distributed.LocalCluster(
        n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        started = RunningWorker(cluster, tmp_path)
        try:
            yield started
        finally:
            started.client.close()
            started.process.kill()
            started.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_a_busy_worker_to_save_and_its_report_still_arrives(
    running: RunningWorker, directory: RunDirectory, number: signal.Signals
) -> None:
    with directory.lock():
        future = running.begin(directory)
        running.process.send_signal(number)
        report: NodeReport = future.result(timeout=30)
    assert report.stop_reason == number.name
    assert report.status == -signal.SIGTERM  # it was only waiting: there was nothing to save
    assert report.outcome is None
    assert report.checkpoint == ""
    assert not report.made_progress
    assert running.process.poll() is None
    assert running.children() == []


def test_an_idle_worker_ends_at_once_as_dask_means_it(running: RunningWorker) -> None:
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=30) == 0


def test_a_wish_to_stop_that_comes_before_the_attempt_is_not_forgotten(
    running: RunningWorker, directory: RunDirectory
) -> None:
    running.process.send_signal(signal.SIGUSR1)
    assert running.client.submit(os.getpid).result(timeout=30) == running.process.pid
    with directory.lock():  # without a wish to stop the stage would wait here
        future = running.client.submit(run_attempt, str(directory.path), {}, 900.0, (), pure=False, retries=0)
        report: NodeReport = future.result(timeout=30)
    assert report.stop_reason == "SIGUSR1"
    assert report.outcome is None


def test_a_worker_whose_flow_is_gone_asks_its_stage_to_save_and_leaves(
    running: RunningWorker, directory: RunDirectory
) -> None:
    with directory.lock():
        running.begin(directory)
        (stage,) = running.children()
        running.client.close()
        running.cluster.close()
        running.process.wait(timeout=30)
    wait_until(lambda: not Path(f"/proc/{stage}").exists(), "the end of the stage")


def test_an_epilogue_gives_way_to_the_end_of_the_job(running: RunningWorker, directory: RunDirectory) -> None:
    epilogue = ("echo begun; sleep 600 & wait",)
    future = running.client.submit(run_attempt, str(directory.path), {}, 900.0, epilogue, pure=False, retries=0)
    wait_until(lambda: "begun" in running.output.read_text(), "the epilogue", log=running.output.read_text)
    running.process.send_signal(signal.SIGTERM)
    report: NodeReport = future.result(timeout=30)
    assert isinstance(report.outcome, Failed)  # as the stage had ended before
    assert "epilogue: ended by SIGTERM" in running.output.read_text()
    assert running.children() == []


@pytest.fixture
def stage_does(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def replace_stage(code: str) -> None:
        monkeypatch.setattr(child, "child_command", lambda run: [sys.executable, "-c", code, str(run.path)])

    return replace_stage


def attempt(directory: RunDirectory, *epilogue: str) -> NodeReport:
    return run_attempt(str(directory.path), {}, 900.0, epilogue)


def test_a_stage_that_cannot_run_is_reported_and_not_raised(directory: RunDirectory) -> None:
    directory.spec_path.unlink()
    report = attempt(directory)
    assert report.status == 69
    assert isinstance(report.outcome, Failed)
    assert report.outcome.kind is FailureKind.ENVIRONMENT
    assert "no run directory" in report.outcome.evidence


def test_the_node_is_the_one_that_slurm_named(
    directory: RunDirectory, stage_does: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_does("pass")
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert attempt(directory).node == "n2"


def test_a_checkpoint_written_in_the_attempt_is_progress_and_an_older_one_is_none(
    directory: RunDirectory, stage_does: Callable[[str], None]
) -> None:
    stage_does(
        "import sys; from pathlib import Path\n"
        f"path = Path(sys.argv[1], {CHECKPOINT!r}); path.parent.mkdir(); path.touch(); sys.exit(75)"
    )
    report = attempt(directory)
    assert (report.status, report.checkpoint, report.made_progress) == (75, CHECKPOINT, True)
    stage_does("raise SystemExit(75)")
    report = attempt(directory)
    assert (report.status, report.checkpoint, report.made_progress) == (75, CHECKPOINT, False)


def test_a_kill_that_the_kernel_counts_is_one_for_memory(
    directory: RunDirectory, stage_does: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "OOM_NOTICE_S", 0.0)
    stage_does("import os; os.kill(os.getpid(), 9)")
    report = attempt(directory)
    assert (report.status, report.was_oom_killed) == (-signal.SIGKILL, False)
    counts = iter([4, 4, 5])  # before; after, where the kernel is late; and once more
    monkeypatch.setattr(worker, "num_oom_kills", lambda: next(counts))
    assert attempt(directory).was_oom_killed


def test_the_epilogue_runs_in_one_shell_after_the_stage(
    directory: RunDirectory, stage_does: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    stage_does("print('the stage', flush=True)")
    attempt(directory, "word=later", 'echo "$word"')
    assert capfd.readouterr().out.splitlines() == ["the stage", "later"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exit 3", "epilogue: exit status 3"),
        ("sleep 600", "epilogue: ended by its limit of 0.2 s"),
        ("(", "epilogue: exit status"),
    ],
)
def test_an_epilogue_that_fails_or_hangs_fails_nothing(
    directory: RunDirectory,
    stage_does: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    line: str,
    said: str,
) -> None:
    monkeypatch.setattr(worker, "EPILOGUE_TIMEOUT_S", 0.2)
    stage_does("raise SystemExit(75)")
    assert attempt(directory, line).status == 75
    assert said in capfd.readouterr().out
