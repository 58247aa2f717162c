"""What a job runs: a stage that needs nobody who watches, and a Dask worker for whoever does."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import distributed
import pytest
from distributed.security import Security

from kdgat.cluster import StopRequest, child, job
from kdgat.cluster.attendance import Connection, attend
from kdgat.cluster.job import run_attempt
from kdgat.cluster.report import JobFiles, NodeReport, parse_report
from kdgat.stage import Failed, RunDirectory, StageSpec
from kdgat.stage.errors import TAKEN_OVER
from kdgat.stage.outcome import EXIT_ENVIRONMENT, EXIT_PAUSED
from tests.cluster.attempts import CHECKPOINT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

JOB_ID = "17"
TIMEOUT_S = 60


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run").create(StageSpec(family="nowhere", stage="none", seed=0))


class Watcher:
    """A Dask scheduler as a flow has it, with the file that leads to it."""

    def __init__(self, path: Path) -> None:
        security = Security.temporary()
        self.cluster = distributed.LocalCluster(
            n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50, security=security
        )
        self.client = distributed.Client(self.cluster, set_as_default=False)
        Connection(
            address=self.cluster.scheduler_address, certificate=security.tls_ca_file, key=security.tls_worker_key
        ).write(path)

    def attend(self) -> "distributed.Future":
        self.client.wait_for_workers(1, timeout=TIMEOUT_S)
        return self.client.submit(attend, pure=False)

    def close(self) -> None:
        self.client.close()
        self.cluster.close()


class RunningJob:
    """A job's process as its script starts it."""

    def __init__(self, directory: RunDirectory, *options: str) -> None:
        self.directory, self.connection_path = directory, directory.path.parent / "connection.json"
        self.files = JobFiles(directory, JOB_ID)
        self.output = directory.path.parent / "job.log"
        words = ["tls://127.0.0.1:1", "--name", "a", "--nthreads", "1", "--host=127.0.0.1"]
        words += [f"--directory={directory.path}", f"--connection={self.connection_path}"]
        words += ["--stall-timeout-s=900", "--alive-interval-s=0.2", f"--local-directory={directory.path.parent}"]
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kdgat.cluster.job", *words, *options],
                stdout=log,
                stderr=log,
                env={**os.environ, "SLURM_JOB_ID": JOB_ID, "SLURMD_NODENAME": "n2"},
            )

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output.read_text(), text, timeout_s=TIMEOUT_S, log=self.output.read_text)

    def end(self) -> NodeReport:
        """Wait for its end and return the report that it left."""
        assert self.process.wait(timeout=TIMEOUT_S) == 0, self.output.read_text()
        report = self.files.read_report()
        assert report is not None
        return report

    def children(self) -> list[int]:
        """Return the processes that it started."""
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
def running(directory: RunDirectory) -> Iterator[RunningJob]:
    """A job whose stage waits for a directory that somebody else still writes into."""
    with directory.lock():
        started = RunningJob(directory)
        started.wait_for("waiting: ")
        try:
            yield started
        finally:
            started.process.kill()
            started.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_asks_the_stage_to_save_and_the_report_is_on_disk_though_nobody_watches(
    running: RunningJob, number: signal.Signals
) -> None:
    sign = running.files.sign_of_life()
    assert sign is not None
    assert sign[0] == "n2"
    wait_until(lambda: running.files.sign_of_life() != sign, "another sign of life")
    running.process.send_signal(number)
    report = running.end()
    assert (report.stop_reason, report.node) == (number.name, "n2")
    assert report.status == -signal.SIGTERM  # it was only waiting: there was nothing to save
    assert report.outcome is None
    assert (report.checkpoint, report.made_progress) == ("", False)
    assert running.files.sign_of_life() is None
    assert running.children() == []


def test_a_run_directory_that_the_node_does_not_see_is_no_fault_of_the_stage(tmp_path: Path) -> None:
    job = RunningJob(RunDirectory(tmp_path / "not mounted"))
    assert job.process.wait(TIMEOUT_S) == EXIT_ENVIRONMENT  # there is no place for a report
    assert f"{job.directory.path} is not there" in job.output.read_text()


def test_a_report_reaches_one_watcher_after_the_other(running: RunningJob) -> None:
    first = Watcher(running.connection_path)
    first.attend()
    first.close()
    second = Watcher(running.connection_path)
    try:
        future = second.attend()
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGUSR1)
        report = parse_report(future.result(timeout=TIMEOUT_S))
        assert report == running.end()
    finally:
        second.close()


def test_the_file_with_the_key_is_private_at_all_times(tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    previous = os.umask(0)
    try:
        for _ in range(2):
            Connection(address="tls://127.0.0.1:1", certificate="a", key="b").write(path)
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(previous)


@pytest.mark.parametrize("content", ["", '{"address": 1', json.dumps({"address": "x", "certificate": "", "key": ""})])
def test_a_watcher_that_cannot_be_reached_harms_nothing(running: RunningJob, content: str) -> None:
    running.connection_path.write_text(content)
    if content.endswith("}"):
        running.wait_for("no scheduler: ")
    running.process.send_signal(signal.SIGTERM)
    assert running.end().stop_reason == "SIGTERM"


def test_a_job_leaves_without_a_watcher_where_the_site_wants_it_so(directory: RunDirectory) -> None:
    with directory.lock():
        code = f"from kdgat.cluster import attendance; attendance.LOST_S = 0.5; {MAIN}"
        words = ["tls://x", f"--directory={directory.path}", f"--connection={directory.path}/none"]
        words += ["--stall-timeout-s=900", "--alive-interval-s=9", "--on-lost-flow=stop"]
        environment = {**os.environ, "SLURM_JOB_ID": JOB_ID}
        subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True, timeout=TIMEOUT_S)
    report = JobFiles(directory, JOB_ID).read_report()
    assert report is not None
    assert report.stop_reason == "the flow is gone"


MAIN = "from kdgat.cluster.job import main; main()"


def test_an_epilogue_gives_way_to_the_end_of_the_job(directory: RunDirectory) -> None:
    started = RunningJob(directory, "--epilogue=echo begun; sleep 600 & wait")
    started.wait_for("begun")
    started.process.send_signal(signal.SIGTERM)
    report = started.end()
    assert isinstance(report.outcome, Failed)  # as the stage had ended before
    assert "epilogue: ended by SIGTERM" in started.output.read_text()
    assert started.children() == []


def test_a_report_that_cannot_be_written_is_no_success(directory: RunDirectory) -> None:
    JobFiles(directory, JOB_ID).report_path.mkdir()
    assert RunningJob(directory).process.wait(timeout=TIMEOUT_S) == 1


def test_a_report_of_another_version_is_read_as_far_as_it_goes(directory: RunDirectory) -> None:
    report = attempt(directory)
    assert parse_report(json.dumps({**json.loads(report.model_dump_json()), "added": "later"})) == report
    assert parse_report('{"status": 0}') is None


@pytest.fixture
def stage_does(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def replace_stage(code: str) -> None:
        monkeypatch.setattr(child, "child_command", lambda run: [sys.executable, "-c", code, str(run.path)])

    return replace_stage


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PAUSES_S", (0.01, 0.02, 0.03))


def attempt(directory: RunDirectory, *epilogue: str, stop: StopRequest | None = None) -> NodeReport:
    return run_attempt(directory, {}, 900.0, epilogue, stop or StopRequest())


FAULTY = f"""
import sys; from pathlib import Path
run, tries = Path(sys.argv[1]), Path(sys.argv[1], "tries"); tries.open("a").write("x")
checkpoint = run / {CHECKPOINT!r}
if len(tries.read_text()) == WRITES: checkpoint.parent.mkdir(); checkpoint.touch()
raise SystemExit(75 if len(tries.read_text()) == ENDS else {EXIT_ENVIRONMENT})
"""


@pytest.mark.parametrize(
    ("writes", "ends", "status", "tries"),
    [(0, 3, EXIT_PAUSED, 3), (0, 0, EXIT_ENVIRONMENT, 4), (3, 0, EXIT_ENVIRONMENT, 6), (3, 6, EXIT_PAUSED, 6)],
)
def test_the_same_job_tries_again_what_node_or_filesystem_refuse_and_longer_where_there_was_progress(
    directory: RunDirectory, stage_does: Callable[[str], None], writes: int, ends: int, status: int, tries: int
) -> None:
    stage_does(FAULTY.replace("WRITES", str(writes)).replace("ENDS", str(ends)))
    report = attempt(directory)
    assert (report.status, report.made_progress) == (status, writes > 0)
    assert len((directory.path / "tries").read_text()) == tries


@pytest.mark.parametrize(
    "said",
    [
        "torch 2.13.0 has no kernels for Tesla V100-SXM2-32GB (capability 7.0)",
        "torch sees none: The NVIDIA driver on your system is too old (found version 12020)",
    ],
)
def test_the_same_job_has_the_same_card_and_tries_nothing_again_that_it_cannot_do(
    directory: RunDirectory, stage_does: Callable[[str], None], said: str
) -> None:
    code = FAULTY.replace("WRITES", "0").replace("ENDS", "0")
    stage_does(code.replace("raise SystemExit", f"print('error: {said}', file=sys.stderr); raise SystemExit"))
    report = attempt(directory)
    assert report.status == EXIT_ENVIRONMENT
    assert len((directory.path / "tries").read_text()) == 1


def test_a_job_that_is_asked_to_leave_tries_nothing_again(
    directory: RunDirectory, stage_does: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopRequest()
    monkeypatch.setattr(job, "say", lambda text: stop.set("SIGTERM"))  # while it waits to try again
    stage_does(FAULTY.replace("WRITES", "0").replace("ENDS", "0"))
    report = attempt(directory, stop=stop)
    assert report.stop_reason == "SIGTERM"
    assert len((directory.path / "tries").read_text()) == 1


def test_a_look_that_fails_once_costs_no_job(
    directory: RunDirectory, stage_does: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([OSError(errno.ESTALE, "Stale file handle")] * 2)

    def look(run: RunDirectory) -> tuple[tuple[str, int], ...]:
        for error in answers:
            raise error
        return ()

    monkeypatch.setattr(job, "checkpoint_marker", look)
    stage_does(f"raise SystemExit({EXIT_PAUSED})")
    assert attempt(directory).status == EXIT_PAUSED


def test_a_stage_that_cannot_run_is_reported_and_not_raised(directory: RunDirectory) -> None:
    directory.spec_path.unlink()
    report = attempt(directory)
    assert report.status == 69
    assert isinstance(report.outcome, Failed)
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
    monkeypatch.setattr(job, "OOM_NOTICE_S", 0.0)
    stage_does("import os; os.kill(os.getpid(), 9)")
    report = attempt(directory)
    assert (report.status, report.was_oom_killed) == (-signal.SIGKILL, False)
    counts = iter([4, 4, 5])  # before; after, where the kernel is late; and once more
    monkeypatch.setattr(job, "num_oom_kills", lambda: next(counts))
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
    monkeypatch.setattr(job, "EPILOGUE_TIMEOUT_S", 0.2)
    stage_does("raise SystemExit(75)")
    assert attempt(directory, line).status == 75
    assert said in capfd.readouterr().out


def test_a_directory_that_another_job_took_over_is_not_taken_back(
    directory: RunDirectory, stage_does: Callable[[str], None]
) -> None:
    stage_does(
        "import sys; from pathlib import Path; Path(sys.argv[1], 'tries').open('a').write('x')\n"
        f"print('error: it {TAKEN_OVER} 7 on n2'); raise SystemExit({EXIT_ENVIRONMENT})"
    )
    assert attempt(directory).status == EXIT_ENVIRONMENT
    assert (directory.path / "tries").read_text() == "x"
