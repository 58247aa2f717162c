"""What one logger has of one fit, and how it comes to have all of it, whatever fails on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from lightning.pytorch.loggers import Logger

from kdgat.base import to_json
from kdgat.base.files import write_snapshot
from kdgat.training.loggers.beside import STATE_FILE, End, Sent, read_state
from kdgat.training.loggers.services import Place, close_logger, open_logger

logger = logging.getLogger(__name__)

RETRY_S: Final = 300.0  # between two tries at a logger that failed


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
            close_logger(opened, end)
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


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if isinstance(value, int | float) and key != "step"}


def _describe(error: BaseException) -> str:
    """Return kind and first line of the error behind an error: Lightning says a full disk is a wrong value."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
