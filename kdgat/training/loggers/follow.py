"""`python -m kdgat.training.loggers.follow DIR LOGGER...`: hand the rows of `metrics.jsonl` on to loggers.

Training starts this process beside itself, and says at the end, through its standard input, how it ended. Where that
is closed without a word, or nobody is left to close it, the next attempt sends what is missing.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kdgat.base.files import to_json, write_snapshot
from kdgat.stage import RunDirectory
from kdgat.stage.log import stage_log
from kdgat.stage.outcome import EXIT_FAILED, EXIT_FINISHED
from kdgat.stage.process import leave, signal_on_parent_death
from kdgat.stage.signals import STOP_SIGNALS
from kdgat.training.loggers.beside import STATE_FILE, End, Sent, read_state
from kdgat.training.loggers.services import Place, close_logger, open_logger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

logger = logging.getLogger("kdgat.training.loggers")  # as a process this module has another name

LOOK_S: Final = 1.0  # between two looks at metrics.jsonl
RETRY_S: Final = 300.0  # between two tries at a logger that failed
# What their libraries do unless told otherwise: try for minutes, and report to their makers.
ENVIRONMENT: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "DO_NOT_TRACK": "1",
}


class Copy:
    """One logger of one fit."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self._place = name, place
        self.fails = False
        self._sent = Sent.read(place.directory, place.fit, name)
        self._opened: Logger | None = None
        self._size = 0  # of metrics.jsonl when all its rows were sent
        self._retry_at = 0.0

    def update(self, end: End | None = None) -> None:
        """Send the rows that are missing, unless it failed a moment ago; where training is over, say how it ended."""
        if end is None and time.monotonic() < self._retry_at:
            return
        try:
            directory, fit = self._place.directory, self._place.fit
            size = directory.metrics_path.stat().st_size
            if size != self._size or end:
                self._send([row for row in directory.read_metrics() if row.get("fit", "") == fit])
                self._size = size
            if end:
                self._close(end)
        except Exception as error:  # whatever their libraries raise
            self._retry_at = time.monotonic() + RETRY_S
            self._drop()
            if not self.fails:
                logger.warning(
                    "logger %s fails (%s): training goes on, its rows are in metrics.jsonl and follow later",
                    self.name,
                    _describe(error),
                )
            self.fails = True

    def _send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        missing = rows[self._sent.rows :]
        if not missing:
            return
        if self._opened is None:
            opened = open_logger(self.name, self._place, self._sent.run, int(missing[0]["step"]))
            is_new = not self._sent.run
            self._sent.run, self._sent.end = str(opened.version), None
            self._opened = opened
            self._note()
            if is_new and self._sent.rows == 0:
                opened.log_hyperparams(self._place.parameters())
        for row in missing:
            self._opened.log_metrics(_numbers(row), step=int(row["step"]))
            self._sent.rows += 1
        self._opened.save()
        self._note()
        if self.fails:
            self.fails = False
            logger.info("logger %s has all rows again", self.name)

    def _close(self, end: End) -> None:
        opened, self._opened = self._opened, None
        if opened is None and self._sent.has_to_hear(end):
            opened = open_logger(self.name, self._place, self._sent.run, 0)
            _ = opened.version  # of which Lightning's loggers connect
        if opened is not None:
            close_logger(self.name, opened, end)
            if end != "paused":
                self._sent.end = end
                self._note()

    def _drop(self) -> None:
        """Give up what was opened: a writer that has failed once writes no more."""
        with suppress(Exception):
            self._close("paused")
        self._sent.rows = Sent.read(self._place.directory, self._place.fit, self.name).rows

    def _note(self) -> None:
        path = self._place.directory.path / STATE_FILE
        state = read_state(path)
        state.setdefault(self._place.fit, {})[self.name] = asdict(self._sent)
        write_snapshot(path, to_json(state))


def feed(copies: Sequence[Copy], descriptor: int) -> None:
    """Send rows as they come, until a word says how training ended, or nobody is left to say it."""
    end: End | None = None
    while end is None:
        if select.select([descriptor], [], [], LOOK_S)[0]:
            if not (word := os.read(descriptor, 100)):
                return
            end = cast(End, word.decode())
        # One that may take its time before it fails again keeps no other waiting.
        for copy in sorted(copies, key=lambda copy: copy.fails):
            copy.update(end)


def main(arguments: Sequence[str] | None = None) -> int:
    """Feed the loggers of a fit; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kdgat.training.loggers.follow", description="Feed loggers.")
    parser.add_argument("directory", type=Path, help="run directory of the stage")
    parser.add_argument("loggers", nargs="+", help="their names")
    parser.add_argument("--fit", required=True, help="its name")
    parser.add_argument("--parent", type=int, required=True, help="process without which this one is of no use")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parsed = parser.parse_args(arguments)
    if not signal_on_parent_death(signal.SIGKILL, parsed.parent):
        return EXIT_FAILED
    with suppress(OSError):  # of Linux: where memory runs out, this process shall end, not training
        Path("/proc/self/oom_score_adj").write_text("1000")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    threading.excepthook = lambda _: None  # of libraries: who hands rows to their threads gets the same error
    directory = RunDirectory(parsed.directory)
    # Signals are for training, which says what follows from them, however often they come. Not SIG_IGN: processes
    # that libraries start would inherit that.
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    with stage_log(directory, parsed.quiet):
        place = Place(directory, parsed.fit)
        feed([Copy(name, place) for name in parsed.loggers], sys.stdin.fileno())
    return EXIT_FINISHED


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if isinstance(value, int | float) and key != "step"}


def _describe(error: BaseException) -> str:
    """Return kind and first line of the error behind an error: Lightning says a full disk is a wrong value."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


if __name__ == "__main__":
    leave(main())
