"""Nodes, filesystems, controllers and networks that misbehave for a while, on a real Slurm: the same weights after it.

By night alone: what the tests of `kdgat.stage.faults`, `decision` and `JobWatch` show for every build.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from kdgat.cluster import EndKind
from kdgat.cluster.attendance import CONNECTION_FILE
from kdgat.stage import Finished
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import CHECKPOINT_STEPS, RESUMED, STEADY, StageJob, keep_row, site, watched
from tests.support.commands import write_commands
from tests.support.failing_files import FailingFiles
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nightly

EPOCHS = 12  # 96 steps
QUOTA_S = 30.0
CUT_S = 60.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Weights and metric rows of a run that nobody touched, on this machine."""
    job = StageJob(tmp_path_factory.mktemp("undisturbed"), **STEADY, max_epochs=EPOCHS)
    assert isinstance(job.run_here().outcome, Finished), job.log
    return job.result


@pytest.fixture
def make_job(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[Callable[..., StageJob]]:
    with ExitStack() as stack:

        def make(name: str = "job", epochs: int = EPOCHS) -> StageJob:
            return stack.enter_context(watched(StageJob(tmp_path / name, **STEADY, max_epochs=epochs), slurm))

        yield make


@pytest.fixture
def files(tmp_path: Path) -> FailingFiles:
    return FailingFiles(tmp_path / "files")


def check(job: StageJob, undisturbed: tuple[bytes, bytes], fault: str, over_at: float, done: int) -> None:
    """See that the stage came to the same weights and metric rows; keep a row where it is asked for.

    Args:
        job: whose stage has been hurt.
        undisturbed: weights and metric rows of a run that was not.
        fault: what happened.
        over_at: when it was over, in seconds since the epoch.
        done: steps that were done when it began.
    """
    assert isinstance(job.finish().outcome, Finished), job.log
    assert job.result == undisturbed
    resumed = job.steps(RESUMED)
    again = [when for when in _times(job, RESUMED) if when > over_at]
    row = {
        "fault": fault,
        "ends": job.ends,
        "steps_lost": max(0, done - resumed[0]) if resumed else 0,
        "again_s": round(again[0] - over_at, 1) if again else 0.0,
    }
    keep_row(row)


def _times(job: StageJob, pattern: re.Pattern[str]) -> list[float]:
    lines = [line for line in job.log.splitlines() if pattern.search(line)]
    return [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() for line in lines]


QUOTAS = {  # files, and whether the process ends that cannot write them
    "checkpoints": ("checkpoints/*", True),
    "metric rows": ("metrics.jsonl", True),
    "the log": ("stage.log", False),
    "progress": ("*progress.json*", False),
    "weights": ("*weights*", True),
    "the outcome": ("*outcome.json*", True),
    "signs of life": ("*alive-*", False),
    "every file of the run directory": ("*", True),
}


def test_a_quota_that_is_exceeded_for_a_while_costs_an_interval_at_most(
    make_job: Callable[..., StageJob], undisturbed: tuple[bytes, bytes], tmp_path: Path
) -> None:
    jobs, done = {}, {}
    for number, name in enumerate(QUOTAS):  # side by side: all of them wait for the same half minute
        files = FailingFiles(tmp_path / f"files{number}")
        job = make_job(f"job{number}").start(site(prologue=files.prologue), memory="1G")
        jobs[name] = job, files
    with ExitStack() as stack:
        for name, (job, files) in jobs.items():
            child = job.hold()
            done[name] = job.steps_done()
            stack.enter_context(files.failing(errno.EDQUOT, f"{job.directory.path}/{QUOTAS[name][0]}"))
            os.kill(child, signal.SIGCONT)
        over_at = time.time() + QUOTA_S
        while time.time() < over_at:
            for name, (job, _) in jobs.items():
                if not job.steps(RESUMED):  # how far it came before it ended, or at all
                    done[name] = max(done[name], job.steps_done())
            time.sleep(0.2)
    for name, (job, _) in jobs.items():
        check(job, undisturbed, f"quota exceeded for {QUOTA_S:.0f} s: {name}", over_at, done[name])
        assert job.ends == [EndKind.FINISHED.value], (name, job.lines)  # the same job tries again
        assert ("the same job tries again" in job.output) == QUOTAS[name][1], (name, job.output)
        assert not job.steps(RESUMED) or done[name] - job.steps(RESUMED)[0] <= CHECKPOINT_STEPS


def test_a_stale_handle_is_outlived_by_the_same_job(
    make_job: Callable[..., StageJob], undisturbed: tuple[bytes, bytes], files: FailingFiles
) -> None:
    job = make_job().start(site(prologue=files.prologue))
    child, done = job.hold(), job.steps_done()
    with files.failing(errno.ESTALE, f"{job.directory.path}/*", reads=True):
        os.kill(child, signal.SIGCONT)
        time.sleep(QUOTA_S)
    check(job, undisturbed, f"stale handle for {QUOTA_S:.0f} s", time.time(), done)
    assert job.ends == [EndKind.FINISHED.value], job.lines
    assert "Stale file handle" in job.output


def test_a_run_directory_that_one_node_does_not_see_is_seen_by_another(
    make_job: Callable[..., StageJob], undisturbed: tuple[bytes, bytes], tmp_path: Path
) -> None:
    job = make_job()
    began = time.time()
    # A job that begins on the first node finds an empty folder where the run directories are.
    python, first = tmp_path / "python", tmp_path / "first"
    hidden = f'mount -t tmpfs none {job.directory.path.parent} && exec "$@"'
    python.write_text(
        f"""#!/bin/sh
set -- {sys.executable} "$@"
[ -e {first} ] || echo $SLURMD_NODENAME >{first}
[ $SLURMD_NODENAME = "$(cat {first})" ] || exec "$@"
exec unshare --mount sh -c '{hidden}' sh "$@"
"""
    )
    python.chmod(0o755)
    job.start(site(python=str(python), silence_timeout_s=600))
    check(job, undisturbed, "directory not mounted on a node", began, 0)
    assert job.ends == [EndKind.FAILED.value, EndKind.FINISHED.value], job.lines
    assert job.attempts[1].excluded_nodes == (first.read_text().strip(),)


COMMANDS_FAIL = 'if [ -e {flag} ]; then echo "$(basename "$0"): error: {text}" >&2; exit 1; fi\nexec {real} "$@"'


@contextmanager
def failing_commands(path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *names: str) -> Iterator[None]:
    """Let commands of Slurm fail with its words for as long as the context lasts."""
    flag = path / "fails"
    flag.touch()
    lines = {name: COMMANDS_FAIL.format(flag=flag, text=text, real=shutil.which(name)) for name in names}
    monkeypatch.setenv("PATH", write_commands(path / "commands", **lines))
    try:
        yield
    finally:
        flag.unlink()


def test_a_submit_limit_is_waited_for(
    make_job: Callable[..., StageJob],
    undisturbed: tuple[bytes, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size limits)"
    job = make_job()
    with failing_commands(tmp_path, monkeypatch, words, "sbatch"):
        job.start(site())
        time.sleep(QUOTA_S)
    over_at = time.time()
    check(job, undisturbed, f"submit limit reached for {QUOTA_S:.0f} s", over_at, 0)
    assert set(job.ends[:-1]) == {EndKind.DEFERRED.value}


def test_a_controller_in_standby_ends_nothing(
    make_job: Callable[..., StageJob],
    undisturbed: tuple[bytes, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = make_job().start(site())
    child, done = job.hold(), job.steps_done()
    words = "Unable to contact slurm controller: Slurm backup controller in standby mode"
    with failing_commands(tmp_path, monkeypatch, words, "sbatch", "squeue", "scontrol", "scancel"):
        time.sleep(QUOTA_S)
        os.kill(child, signal.SIGKILL)  # while nobody says how the job stands
        time.sleep(QUOTA_S)
    check(job, undisturbed, f"controller in standby for {2 * QUOTA_S:.0f} s, process killed", time.time(), done)
    assert done - job.steps(RESUMED)[0] <= CHECKPOINT_STEPS


def test_time_in_which_a_job_is_suspended_is_nobodys_fault(
    make_job: Callable[..., StageJob], undisturbed: tuple[bytes, bytes], slurm: PrivateSlurm
) -> None:
    job = make_job().start(site(silence_timeout_s=15))
    job.wait_for_checkpoint()
    slurm.command("scontrol", "suspend", job.job_id)
    done = job.steps_done()
    time.sleep(QUOTA_S)  # some hundred times a step
    slurm.command("scontrol", "resume", job.job_id)
    over_at = time.time()
    check(job, undisturbed, f"suspended for {QUOTA_S:.0f} s", over_at, done)
    assert job.ends == [EndKind.FINISHED.value]


class Proxy:
    """Forwards connections to an address, until the network is cut; then bytes wait for nobody."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.is_cut = False
        self.num_forwarded = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        wait_until(lambda: not self.is_cut, "the network", interval_s=0.2)
        far = socket.create_connection(self._target)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                wait_until(lambda: not self.is_cut, "the network", interval_s=0.2)
                sink.sendall(data)
                self.num_forwarded += len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_network_that_is_cut_for_a_minute_ends_nothing(
    make_job: Callable[..., StageJob], undisturbed: tuple[bytes, bytes], slurm: PrivateSlurm
) -> None:
    job = make_job().start(site(silence_timeout_s=15))
    path = job.path / "slurm" / CONNECTION_FILE
    job.wait_until(path.exists, "the address of the scheduler")
    where = json.loads(path.read_bytes())
    host, port = where["address"].removeprefix("tls://").rsplit(":", 1)
    proxy = Proxy(host, int(port))
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**where, "address": f"tls://127.0.0.1:{proxy.port}"}))
    new.chmod(0o600)
    new.rename(path)
    child, done = job.hold(), job.steps_done()
    job.wait_until(lambda: proxy.num_forwarded > 1000, "a connection through the proxy")
    proxy.is_cut = True
    time.sleep(CUT_S / 2)
    os.kill(child, signal.SIGCONT)  # it comes to its end while the network is cut
    job.wait_until(lambda: isinstance(job.directory.read_outcome(), Finished), "the end", may_end=True)
    time.sleep(CUT_S / 2)
    proxy.is_cut = False
    check(job, undisturbed, f"network cut for {CUT_S:.0f} s", time.time(), done)
    assert job.ends == [EndKind.FINISHED.value]
    proxy.close()
