"""The process that does the work of an attempt: started, watched, asked to leave, and never left behind."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdgat.base import wait_until
from kdgat.base.environment import of_children
from kdgat.base.files import list_folder, list_folders
from kdgat.stage import Failed, FailureKind, Finished, Outcome, Paused, RunDirectory
from kdgat.stage.directory import CHECKPOINT_GLOB, JOINED_GLOB, PART_GLOB
from kdgat.stage.outcome import EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_FINISHED, EXIT_PAUSED
from kdgat.stage.process import PARENT_PROCESS_VARIABLE
from kdgat.stage.work import peak_kib

BUSY_WAIT_S: Final = 120.0  # a previous attempt may still be writing its checkpoint
STOP_GRACE_S: Final = 120.0  # from SIGTERM to SIGKILL
POLL_S: Final = 0.1
PROGRESS_INTERVAL_S: Final = 1.0
OWN_PAUSE_S: Final = 5.0  # between two looks at a process: longer, and it was this one that did not run
EVIDENCE_LINES: Final = 5

OnLine = Callable[[str], None]
OnProgress = Callable[[dict[str, Any]], None]


class StopRequest:
    """Somebody wants the stage to leave: a flag that whoever runs it looks at.

    Signal handlers set it. It holds no lock, therefore: a handler would wait for ever for one that the code beneath it,
    in the same thread, has taken.
    """

    def __init__(self) -> None:
        self._is_set = False
        self.reason = ""
        self.insisted = False
        self.leaves_jobs = False  # who watches jobs leaves, they go on

    def set(self, reason: str) -> None:
        """Ask for a checkpoint and an end; the first reason is kept."""
        self.reason = self.reason or reason
        self._is_set = True

    def detach(self, reason: str) -> None:
        """Ask whoever watches jobs to leave them alone; processes on this machine are asked for a checkpoint."""
        self.leaves_jobs = self.leaves_jobs or not self._is_set
        self.set(reason)

    def insist(self) -> None:
        """Ask for an end at once, without a checkpoint."""
        self.insisted = True

    def is_set(self) -> bool:
        """Return whether somebody asked."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait until somebody asks, at most `timeout_s` seconds; tell whether somebody did."""
        return wait_until(self.is_set, timeout_s, POLL_S)


@dataclass(frozen=True)
class ChildEnd:
    """How the process ended."""

    status: int  # negative: the signal that ended it
    outcome: Outcome | None  # what it wrote; None where it was killed before it could
    last_lines: tuple[str, ...]
    peak_memory_mib: int
    stalled: bool  # used no processor time for too long


def run_child(
    directory: RunDirectory,
    *,
    stop: StopRequest,
    environment: Mapping[str, str],
    on_line: OnLine,
    on_progress: OnProgress | None = None,
    stall_timeout_s: float | None = None,
) -> ChildEnd:
    """Run the stage of a directory once, in a process of its own, and return how that ended.

    Args:
        directory: the run directory.
        stop: when set, the process gets a SIGTERM, or the SIGINT that somebody sent; it has `STOP_GRACE_S` to save.
        environment: added to the environment of this process.
        on_line: gets each line that the process prints, in a thread.
        on_progress: gets what is new in `progress.json`, once a second; without it nobody reads the file.
        stall_timeout_s: a process that uses no processor time for this long is asked to leave, then killed.
    """
    previous = _written_at(directory)
    child = _start(directory, environment)
    last_lines: list[str] = []
    reader = threading.Thread(target=_forward, args=(child, on_line, last_lines), daemon=True)
    reader.start()
    activity = _Activity(child.pid, stall_timeout_s)
    try:
        _watch(child, directory, stop, on_progress, activity)
    finally:
        peak_kib = _end(child)
        reader.join(timeout=2.0)
    # A process inherits the peak of the one that it was forked from, which says nothing about it.
    own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mib = (peak_kib if peak_kib > own_kib else activity.peak_kib) // 1024
    outcome = _outcome_of(directory, child.returncode, previous, last_lines)
    return ChildEnd(child.returncode, outcome, tuple(last_lines), peak_mib, activity.stalled)


def say(text: str) -> None:
    """Print a line into the job's output; where that cannot be written, the job goes on without."""
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)


def child_command(directory: RunDirectory) -> list[str]:
    """Return the command that runs a stage: what `kdgat stage run DIR` does."""
    return [sys.executable, "-P", "-m", "kdgat.stage", str(directory.path), "--wait-s", str(BUSY_WAIT_S)]


def describe_limit(number: int) -> str:
    """Name the limit of this machine that a signal enforces; empty for other signals."""
    option = {signal.SIGXCPU: "t", signal.SIGXFSZ: "f"}.get(number)  # type: ignore[call-overload]
    return f" ({signal.Signals(number).name}: raise `ulimit -{option}` of the shell, or of jobs)" if option else ""


def checkpoint_marker(directory: RunDirectory) -> tuple[tuple[str, int], ...]:
    """Return what changes whenever a checkpoint is written, a part is done or parts are joined: names, and a time.

    What stands beside checkpoints does not count: the beginning of one whose writer was killed is no progress. Parts
    can be many, and each look may be refused: that they are there is enough.
    """
    parts = [*list_folder(directory.path, JOINED_GLOB), *sorted(list_folders(directory.parts_path, PART_GLOB))]
    files = [(str(path.relative_to(directory.path)), 0) for path in parts]
    for path in sorted(list_folders(directory.checkpoints_path, CHECKPOINT_GLOB)):
        with contextlib.suppress(FileNotFoundError):  # replaced by a newer one while we look
            files.append((str(path.relative_to(directory.path)), path.stat().st_mtime_ns))
    return tuple(files)


def read_progress(directory: RunDirectory) -> dict[str, Any]:
    """Read `progress.json`; empty before the stage wrote any, or if it cannot be read."""
    try:
        content = json.loads(directory.progress_path.read_bytes())
    except (OSError, ValueError):  # not durable: a power cut may leave it empty
        return {}
    return content if isinstance(content, dict) else {}


def _start(directory: RunDirectory, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        child_command(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # The terminal's Ctrl-C must not reach the child: who runs it forwards it once, as SIGTERM.
        start_new_session=True,
        env={**of_children(os.environ), **environment, PARENT_PROCESS_VARIABLE: str(os.getpid())},
    )


def _forward(child: "subprocess.Popen[str]", on_line: OnLine, last_lines: list[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        text = line.rstrip()
        if text:
            last_lines[:] = [*last_lines[1 - EVIDENCE_LINES :], text]
            with contextlib.suppress(Exception):  # of a full disk: a pipe that nobody reads would hold the stage
                on_line(text)


def _watch(
    child: "subprocess.Popen[str]",
    directory: RunDirectory,
    stop: StopRequest,
    on_progress: OnProgress | None,
    activity: "_Activity",
) -> None:
    """Wait for the end of the child, or until it must be killed."""
    seen: dict[str, Any] = {}
    next_progress = 0.0
    kill_at: float | None = None
    while not _has_ended(child):
        activity.look()
        if kill_at is None and (stop.is_set() or activity.stalled):
            os.kill(child.pid, _stop_signal(child.pid, stop))
            os.kill(child.pid, signal.SIGCONT)  # a process that was stopped must wake up to leave
            kill_at = time.monotonic() + STOP_GRACE_S
        if stop.insisted or (kill_at is not None and time.monotonic() > kill_at):
            break
        if time.monotonic() >= next_progress:
            next_progress = time.monotonic() + PROGRESS_INTERVAL_S
            seen = _pass_on_progress(directory, on_progress, seen)
        time.sleep(POLL_S)
    _pass_on_progress(directory, on_progress, seen)


def _stop_signal(pid: int, stop: StopRequest) -> int:
    """Return SIGINT for somebody's Ctrl-C, so that logs say so, once the stage handles signals; SIGTERM otherwise.

    Until then Python would answer a SIGINT with a traceback.
    """
    if stop.reason != signal.SIGINT.name:
        return signal.SIGTERM
    try:
        found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), flags=re.MULTILINE)
    except OSError:  # it ended, or this is no Linux
        return signal.SIGTERM
    handles = found is not None and int(found[1], 16) >> (signal.SIGTERM - 1) & 1
    return signal.SIGINT if handles else signal.SIGTERM


def _pass_on_progress(directory: RunDirectory, on_progress: OnProgress | None, seen: dict[str, Any]) -> dict[str, Any]:
    """Pass on what is new, and return it."""
    if on_progress is None:
        return seen
    progress = read_progress(directory)
    if progress and progress != seen:
        with contextlib.suppress(Exception):  # of whoever shows it: the stage goes on
            on_progress(progress)
    return progress


def _has_ended(child: "subprocess.Popen[str]") -> bool:
    """Look without reaping: until `_end` no other process can get the number that signals are sent to."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Activity:
    """What the kernel counts for a process: its peak memory, and its processor time.

    One that uses none for a while is stopped, deadlocked, or waits for a dead disk. Time in which this process did not
    run either (Slurm had suspended the job, a virtual machine was moved) says nothing about it.
    """

    def __init__(self, pid: int, stall_timeout_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._used = -1
        self._since = self._looked_at = clock()
        self.stalled = False  # once true it stays so
        self.peak_kib = 0

    def look(self) -> None:
        """Look once."""
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
            peak = peak_kib(self._pid)
        except OSError:  # it ended, or this is no Linux
            return
        self.peak_kib = max(self.peak_kib, peak or 0)
        used = sum(int(field) for field in fields[11:15])  # user and system time, its own and its children's, in ticks
        now = self._clock()
        was_away = now - self._looked_at > OWN_PAUSE_S
        self._looked_at = now
        if used != self._used or was_away:
            self._used, self._since = used, now
        if self._stall_timeout_s is not None and now - self._since > self._stall_timeout_s:
            self.stalled = True


def _end(child: "subprocess.Popen[str]") -> int:
    """Make sure that nothing of the child is left, its own children included; return its peak memory in KiB."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    # Not RUSAGE_CHILDREN: that is the largest of all stages which this process ever ran.
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss


def _written_at(directory: RunDirectory) -> tuple[int, int] | None:
    """Tell one `outcome.json` from the next, even of the same text: each is a new file."""
    try:
        found = directory.outcome_path.stat()
    except OSError:  # none yet, or a filesystem that does not answer: then what is read later counts as new
        return None
    return found.st_ino, found.st_mtime_ns


def _outcome_of(
    directory: RunDirectory, status: int, previous: tuple[int, int] | None, last_lines: list[str]
) -> Outcome | None:
    is_new = _written_at(directory) != previous
    try:
        outcome = directory.read_outcome() if is_new or status == EXIT_FINISHED else None
    except OSError as error:  # a file that is there and cannot be read: the stage is not what is at fault
        return Failed(kind=FailureKind.ENVIRONMENT, evidence=str(error))
    if status < 0:
        # Killed on its way out: what it had written down by then is true all the same.
        return outcome if isinstance(outcome, Finished | Paused) else None
    if status == EXIT_FINISHED and outcome is not None:
        return outcome
    if status == EXIT_PAUSED:
        return outcome if isinstance(outcome, Paused) else Paused(checkpoint="", reason="exit status 75")
    if status in (EXIT_FAILED, EXIT_ENVIRONMENT) and isinstance(outcome, Failed):
        return outcome
    output = " | ".join(last_lines) or "it printed nothing"
    kind = FailureKind.ENVIRONMENT if status == EXIT_ENVIRONMENT else FailureKind.ERROR
    return Failed(kind=kind, evidence=f"exit status {status} without an outcome: {output}")
