"""The process beside training that feeds loggers: started with a fit, told how the fit ended, and ended soon after.

A logger may neither end training nor hold it up nor change its weights, so training knows no more of it than this.
`loggers.json` of the run directory says which run of a logger a fit continues, how many rows it has, and how it was
told that training ended. What is missing there when an attempt ends, the next one sends.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from kdgat.base import wait_until
from kdgat.base.kept import refuse_newer
from kdgat.stage import RunDirectory
from kdgat.stage.work import peak_kib

logger = logging.getLogger(__name__)

END_S: Final = 30.0  # that a fit that is over waits for what is still to be sent
LEAVE_S: Final = 1.0  # that one waits which was asked to leave, or has no time left; all is saved by then
STATE_FILE: Final = "loggers.json"
End = Literal["success", "failed", "paused"]


@dataclass
class Sent:
    """What one logger has of one fit."""

    run: str = ""  # identifier of its run; empty: it has none, or needs none
    rows: int = 0
    end: End | None = None  # as it was told

    def has_to_hear(self, end: End) -> bool:
        """Return whether its run is not told yet how training ended, by an attempt that was killed before it did so."""
        return bool(self.run) and end != "paused" and self.end != end

    @classmethod
    def read(cls, directory: RunDirectory, fit: str, name: str) -> Sent:
        """Read what is noted of a logger; nothing where nothing is."""
        noted = read_state(directory.path / STATE_FILE).get(fit, {}).get(name, {})
        return cls(str(noted.get("run", "")), int(noted.get("rows", 0)), noted.get("end"))


class Loggers:
    """All loggers of one fit; without any, nothing happens.

    Args:
        names: which loggers.
        directory: of the run.
        fit: its name; empty where a stage has a single one.
        spare_s: seconds that training can wait now and still save and leave in time.
        is_stopped: whether training was asked to leave.
    """

    def __init__(
        self,
        names: Sequence[str],
        directory: RunDirectory,
        fit: str = "",
        *,
        spare_s: Callable[[], float] = lambda: math.inf,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._names, self._directory, self._fit = names, directory, fit
        self._spare_s, self._is_stopped = spare_s, is_stopped
        self._process: subprocess.Popen[bytes] | None = None

    def follow(self) -> None:
        """Start the process; `metrics.jsonl` must have lost what a resumed fit computes again."""
        if not self._names:
            return
        command = [
            sys.executable, "-P", "-m", "kdgat.training.loggers.follow", str(self._directory.path), *self._names,
            f"--fit={self._fit}", f"--parent={os.getpid()}", *["--quiet"] * self._directory.quiet,
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        except OSError as error:
            self._warn(self._names, f"cannot be started ({error})")

    def close(self, num_rows: int, end: End) -> None:
        """Say how training ended after so many rows, and wait for the process, not for long.

        It raises nothing: the error that ended training must not give way to one of this.
        """
        if self._process is None and end != "paused" and self._behind(num_rows, end):
            self.follow()
        problem = self._end(self._process, end) if self._process is not None else ""
        if problem and (names := self._behind(num_rows, end)):
            self._warn(names, problem, is_done=end == "success")

    def _behind(self, num_rows: int, end: End) -> list[str]:
        """Name the loggers that have something to hear."""
        sent = {name: Sent.read(self._directory, self._fit, name) for name in self._names}
        return [name for name, one in sent.items() if one.rows < num_rows or one.has_to_hear(end)]

    def _end(self, process: subprocess.Popen[bytes], end: End) -> str:
        """End the process; return what was wrong with it, empty if nothing was."""
        assert process.stdin is not None
        leave_at = time.monotonic() + LEAVE_S

        def is_over() -> bool:
            with suppress(OSError):  # it has just ended
                self._directory.work.note_others("loggers", (peak_kib(process.pid) or 0) >> 10)
            return process.poll() is not None or (self._is_stopped() and time.monotonic() >= leave_at)

        with process.stdin, suppress(OSError):  # it may be gone, and its end closed
            process.stdin.write(end.encode())
            wait_until(is_over, LEAVE_S if end == "paused" else min(END_S, max(LEAVE_S, self._spare_s())))
        if process.poll() is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a filesystem that does not answer holds it
                process.wait(LEAVE_S)
            return "does not answer in time"
        return f"has lost its process, which ended with status {process.returncode}" if process.returncode else ""

    def _warn(self, names: Sequence[str], problem: str, *, is_done: bool = False) -> None:
        """Say what is wrong; of a fit that is done no attempt comes that would send the rest."""
        rest = (
            "its last rows are in metrics.jsonl alone"
            if is_done
            else "training goes on, its rows are in metrics.jsonl and follow later"
        )
        logger.warning("logger %s %s: %s", ", ".join(names), problem, rest)


def read_state(path: Path) -> dict[str, dict[str, Any]]:
    """Read `loggers.json`, by fit and logger; nothing where it cannot be understood."""
    try:
        content = json.loads(path.read_bytes())
        refuse_newer(content, path)
    except (OSError, ValueError):  # nothing is resumed from it: at worst a logger begins another run
        return {}
    return content if isinstance(content, dict) else {}
