"""One stage, run to its end: a child process per attempt, started again as long as it pauses and makes progress."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kdgat.cli.stage import PARENT_PROCESS_VARIABLE
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import EXIT_FAILED, EXIT_FINISHED, EXIT_PAUSED, Failed, FailureKind, Finished, Outcome, Paused

MAX_STALE_ATTEMPTS: Final = 3  # attempts in a row that leave no new checkpoint
BUSY_WAIT_S: Final = 120.0  # a previous attempt may still be writing its checkpoint
STOP_GRACE_S: Final = 120.0  # from SIGTERM to SIGKILL
POLL_S: Final = 0.5
EVIDENCE_LINES: Final = 5

OnLine = Callable[[str], None]
OnProgress = Callable[[dict[str, Any]], None]


class StopRequest:
    """The flow was asked to stop: a flag that all stages look at."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        self.insisted = False

    def set(self, reason: str) -> None:
        """Ask every running stage to write a checkpoint and leave; the first reason is kept."""
        self.reason = self.reason or reason
        self._event.set()

    def insist(self) -> None:
        """Ask for an end at once, without checkpoints."""
        self.insisted = True

    def is_set(self) -> bool:
        """Tell whether somebody asked."""
        return self._event.is_set()


@dataclass(frozen=True)
class Conclusion:
    """How a stage ended after all its attempts; paused means that somebody asked it to stop."""

    outcome: Outcome
    attempts: int


def run_to_end(
    directory: RunDirectory,
    *,
    stop: StopRequest,
    environment: Mapping[str, str],
    on_line: OnLine,
    on_progress: OnProgress,
) -> Conclusion:
    """Run the stage of a directory until it finishes, fails, or is asked to stop.

    An attempt that paused (exit status 75) or was killed by a signal is followed by another one, unless
    `MAX_STALE_ATTEMPTS` in a row left no new checkpoint.
    """
    attempts = stale = 0
    while True:
        before = checkpoint_marker(directory)
        attempts += 1
        outcome = run_attempt(directory, stop=stop, environment=environment, on_line=on_line, on_progress=on_progress)
        if not isinstance(outcome, Paused) or stop.is_set():
            return Conclusion(outcome, attempts)
        stale = 0 if checkpoint_marker(directory) != before else stale + 1
        if stale == MAX_STALE_ATTEMPTS:
            evidence = f"no new checkpoint in {stale} attempts; the last one: {outcome.reason}"
            return Conclusion(Failed(kind=FailureKind.ERROR, evidence=evidence), attempts)
        on_line(f"attempt {attempts} paused ({outcome.reason}); starting again from its checkpoint")


def run_attempt(
    directory: RunDirectory,
    *,
    stop: StopRequest,
    environment: Mapping[str, str],
    on_line: OnLine,
    on_progress: OnProgress,
) -> Outcome:
    """Run one child process and return how it ended; Paused also if a signal killed it."""
    if stop.is_set():
        return Paused(checkpoint="", reason=stop.reason)
    previous = _written_at(directory)
    child = _start(directory, environment)
    last_lines: list[str] = []
    reader = threading.Thread(target=_forward, args=(child, on_line, last_lines), daemon=True)
    reader.start()
    try:
        _watch(child, directory, stop, on_progress)
    finally:
        _end(child)
        reader.join(timeout=POLL_S)
    return _outcome_of(directory, child.returncode, previous, last_lines)


def checkpoint_marker(directory: RunDirectory) -> tuple[tuple[str, int], ...]:
    """Return what changes whenever a checkpoint is written: names and modification times."""
    if not directory.checkpoints_path.is_dir():
        return ()
    files = []
    for path in sorted(directory.checkpoints_path.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # replaced by a newer one while we look
            files.append((path.name, path.stat().st_mtime_ns))
    return tuple(files)


def child_command(directory: RunDirectory) -> list[str]:
    """Return the command that runs a stage: the one that a person would type."""
    stage_run = ("stage", "run", str(directory.path), "--wait-s", str(BUSY_WAIT_S))
    return [sys.executable, "-m", "kdgat.cli.main", *stage_run]


def _start(directory: RunDirectory, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        child_command(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # The terminal's Ctrl-C must not reach the child: the flow forwards it once, as SIGTERM.
        start_new_session=True,
        env={**os.environ, **environment, PARENT_PROCESS_VARIABLE: str(os.getpid())},
    )


def _forward(child: "subprocess.Popen[str]", on_line: OnLine, last_lines: list[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        text = line.rstrip()
        if text:
            last_lines[:] = [*last_lines[1 - EVIDENCE_LINES :], text]
            on_line(text)


def _watch(child: "subprocess.Popen[str]", directory: RunDirectory, stop: StopRequest, on_progress: OnProgress) -> None:
    seen: dict[str, Any] = {}
    kill_at: float | None = None
    while child.poll() is None:
        if stop.is_set() and kill_at is None:
            child.send_signal(signal.SIGTERM)
            kill_at = time.monotonic() + STOP_GRACE_S
        if stop.insisted or (kill_at is not None and time.monotonic() > kill_at):
            return
        progress = read_progress(directory)
        if progress and progress != seen:
            seen = progress
            on_progress(progress)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_S)


def read_progress(directory: RunDirectory) -> dict[str, Any]:
    """Read `progress.json`; empty before the stage wrote any, or if it cannot be read."""
    try:
        content = json.loads(directory.progress_path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):  # not durable: a power cut may leave it empty
        return {}
    return content if isinstance(content, dict) else {}


def _end(child: "subprocess.Popen[str]") -> None:
    """Make sure that nothing of the child is left: its whole session, should it have children of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _written_at(directory: RunDirectory) -> tuple[int, int] | None:
    """Tell one `outcome.json` from the next, even of the same text: each is a new file."""
    try:
        found = directory.outcome_path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _outcome_of(
    directory: RunDirectory, status: int, previous: tuple[int, int] | None, last_lines: list[str]
) -> Outcome:
    is_new = _written_at(directory) != previous
    outcome = directory.read_outcome() if is_new or status == EXIT_FINISHED else None
    if status == EXIT_FINISHED and isinstance(outcome, Finished):
        return outcome
    if status == EXIT_PAUSED:
        return outcome if isinstance(outcome, Paused) else Paused(checkpoint="", reason="exit status 75")
    if status == EXIT_FAILED and isinstance(outcome, Failed):
        return outcome
    if status < 0:
        name = signal.Signals(-status).name
        return Paused(checkpoint="", reason=f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else ""))
    said = " | ".join(last_lines) or "it printed nothing"
    return Failed(kind=FailureKind.ERROR, evidence=f"exit status {status} without an outcome: {said}")
