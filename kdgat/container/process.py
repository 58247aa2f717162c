"""Run a program that takes minutes: show what it says, keep it in a log, and leave nothing behind when interrupted."""

import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

NUM_LAST_LINES: Final = 15
GRACE_S: Final = 10.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ending:
    """Exit status of a program, and the last lines it said."""

    status: int
    last_lines: tuple[str, ...]


def run_streaming(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None],
    *,
    folder: Path | None = None,
    uid: int | None = None,
) -> Ending:
    """Run a program to its end, passing each line on as it comes and adding it to `log`.

    Args:
        uid: the user and group to run as, with no other groups; None for this process's own.

    An exception that arrives meanwhile, KeyboardInterrupt and SystemExit too, ends the program and all it started.
    """
    identity = {} if uid is None else {"user": uid, "group": uid, "extra_groups": ()}
    last: deque[str] = deque(maxlen=NUM_LAST_LINES)
    with (
        log.open("a", encoding="utf-8") as kept,
        # A session of its own: Ctrl-C comes to us alone, and we end it as a whole.
        subprocess.Popen(
            list(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
            env=dict(environment), start_new_session=True, errors="replace", **identity,  # type: ignore[call-overload]
        ) as process,
    ):  # fmt: skip
        try:
            for line in process.stdout:
                kept.write(line)
                kept.flush()
                if line.strip():
                    last.append(line.rstrip())
                    on_line(line.rstrip())
            return Ending(process.wait(), tuple(last))
        except BaseException:
            _end_group(process)
            raise


def _end_group(process: "subprocess.Popen[str]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue


@contextmanager
def signals_as_exit() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP unwind what is half done, and end with the status that shells give to them.

    The first one counts: those that follow find the unwinding under way, which ends by itself. What is ignored already
    stays so, as SIGHUP under nohup and Ctrl-C for what a shell runs in the background.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        for taken in before:
            signal.signal(taken, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
