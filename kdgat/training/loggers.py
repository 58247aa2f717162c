"""Copies of what training measures, for TensorBoard, MLflow and Weights & Biases, by Lightning's loggers.

`metrics.jsonl` is the record and these are copies: none of them may end training, hold it up, or change its weights. So
each logger works in a thread of its own that is waited for some seconds, never into the time that leaving takes.
Random states are put back after it; one that did not answer in time gets nothing more until training is over, as it
might draw from them meanwhile. Rows that it has missed are sent later, also by the next attempt. `loggers.json` of the
run directory says which run of a logger a fit continues, how many rows it has, and how it was told that training ended.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lightning.pytorch.loggers import Logger

from kdgat.base import to_json
from kdgat.base.files import write_snapshot
from kdgat.base.kept import refuse_newer
from kdgat.stage import RunDirectory
from kdgat.training.logger_services import ENVIRONMENT, SERVICES, End, Place
from kdgat.training.random_state import capture_random_state, restore_random_state

logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0  # that training waits for a logger after an epoch
OPEN_S: Final = 30.0  # after the first one: libraries are imported, databases made, servers asked
END_S: Final = 30.0  # after the last one, for what is still to be sent
LEAVE_S: Final = 1.0  # at the end, where training was asked to leave or has no time left; all is saved by then
LOOK_S: Final = 0.1  # between two looks at whether training was asked to leave
RETRY_S: Final = 300.0  # between two tries at a logger that failed
STATE_FILE: Final = "loggers.json"


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
        self._spare_s, self._is_stopped = spare_s, is_stopped
        if names:
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        self._copies = [_Copy(name, Place(directory, fit)) for name in names]

    def send(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Hand on the rows of epochs that the loggers do not have yet."""
        is_first = any(not copy.was_opened for copy in self._copies)
        self._for_each(lambda copy: copy.send(history), OPEN_S if is_first else WAIT_S)

    def close(self, history: Sequence[Mapping[str, Any]], end: End) -> None:
        """Hand on what is left and close; a fit that pauses does not wait long, its next attempt sends the rest.

        It raises nothing: the error that ended training must not give way to one of this.
        """
        try:
            self._for_each(
                lambda copy: copy.close(history, end),
                WAIT_S if end == "paused" else END_S,
                LEAVE_S,
                keeps_random_state=end != "failed",  # asking a GPU that failed for its state fails again
            )
        except Exception as error:  # of a library or the machine, whatever it is
            logger.warning("loggers were not closed (%s): their rows are in metrics.jsonl", _describe(error))

    def _for_each(
        self,
        begin: Callable[[_Copy], None],
        patience_s: float,
        leave_s: float = 0.0,
        *,
        keeps_random_state: bool = True,
    ) -> None:
        if not self._copies:
            return
        state = capture_random_state() if keeps_random_state else None
        started = time.monotonic()
        give_up_at = started + min(patience_s, max(leave_s, self._spare_s()))
        stop_at = min(give_up_at, started + leave_s)
        try:
            for copy in self._copies:
                begin(copy)
            for copy in self._copies:
                copy.wait(lambda: (stop_at if self._is_stopped() else give_up_at) - time.monotonic())
        finally:
            if state is not None:
                restore_random_state(state)  # their libraries draw numbers from Python's generator


class _Copy:
    """What one logger has of one fit."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self._place, self._service = name, place, SERVICES[name]
        self.was_opened = False
        self._opened: Logger | None = None
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._done = threading.Event()  # of what was begun last: there may be older work before it
        self._done.set()
        self._is_given_up = False  # was not done in time, and may be at it still: it gets nothing until the end
        self._has_warned = False
        self._retry_at = 0.0
        self._state_path = place.directory.path / STATE_FILE
        noted = _read_state(self._state_path).get(place.fit, {}).get(name, {})
        self._run, self._rows, self._end = str(noted.get("run", "")), int(noted.get("rows", 0)), noted.get("end")

    def send(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Begin to send the rows that are missing, unless it was too late before or has failed a moment ago."""
        if not self._is_given_up and len(history) > self._rows and time.monotonic() >= self._retry_at:
            rows = [dict(row) for row in history]
            self._begin(lambda: self._send(rows))

    def close(self, history: Sequence[Mapping[str, Any]], end: End) -> None:
        """Begin to send what is left, and to close."""
        self._is_given_up = False  # whatever it is at
        rows = [dict(row) for row in history]
        if self._opened is not None or not self._done.is_set() or len(rows) > self._rows or self._has_to_hear(end):
            self._begin(lambda: self._send(rows), lambda: self._close(end))

    def wait(self, left_s: Callable[[], float]) -> None:
        """Wait until what was begun is done, or until no time is left; what is not done goes on by itself."""
        while not self._is_given_up and not self._done.wait(min(LOOK_S, max(0.0, left_s()))):
            if left_s() <= 0.0:
                self._is_given_up = True
                self._warn("does not answer in time")
        self.was_opened = True

    def _begin(self, *tasks: Callable[[], None]) -> None:
        if self._thread is None:
            # A daemon: a server that does not answer must not keep a stage from ending.
            self._thread = threading.Thread(target=self._serve, name=f"logger {self.name}", daemon=True)
            self._thread.start()
        self._done = threading.Event()
        for task in (*tasks, self._done.set):
            self._work.put(task)

    def _serve(self) -> None:
        while True:
            task = self._work.get()
            try:
                task()
            except Exception as error:  # whatever their libraries raise: training goes on
                self._retry_at = time.monotonic() + RETRY_S
                self._drop()
                self._warn(f"fails ({_describe(error)})")

    def _send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        missing = rows[self._rows :]
        if not missing:
            return
        if self._opened is None:
            opened = self._service.open(self._place, self._run, int(missing[0]["step"]))
            is_new = not self._run
            self._run, self._end = self._service.run_of(opened), None
            self._opened = opened
            self._note()
            if is_new and self._rows == 0:
                opened.log_hyperparams(self._place.parameters())
        for row in missing:
            self._opened.log_metrics(_numbers(row), step=int(row["step"]))
            self._rows += 1
        self._opened.save()
        self._note()
        if self._has_warned:
            self._has_warned = False
            logger.info("logger %s has all rows again", self.name)

    def _has_to_hear(self, end: End) -> bool:
        """Return whether its run is not told yet how training ended, by an attempt that was killed before it did so."""
        return bool(self._run) and end != "paused" and self._end != end

    def _close(self, end: End) -> None:
        opened, self._opened = self._opened, None
        if opened is None and self._has_to_hear(end):
            opened = self._service.open(self._place, self._run, 0)
            self._service.run_of(opened)  # of which Lightning's loggers connect
        if opened is not None:
            self._service.close(opened, end)
            if end != "paused":
                self._end = end
                self._note()

    def _drop(self) -> None:
        """Give up what was opened: a writer that has failed once writes no more."""
        with suppress(Exception):
            self._close("paused")
        self._rows = int(_read_state(self._state_path).get(self._place.fit, {}).get(self.name, {}).get("rows", 0))

    def _note(self) -> None:
        with _STATE_LOCK:
            state = _read_state(self._state_path)
            state.setdefault(self._place.fit, {})[self.name] = {
                "run": self._run,
                "rows": self._rows,
                "end": self._end,
            }
            write_snapshot(self._state_path, to_json(state))

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "logger %s %s: training goes on, its rows are in metrics.jsonl and follow later",
                self.name,
                problem,
            )


_STATE_LOCK: Final = threading.Lock()


def _read_state(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
        refuse_newer(content, path)
    except (OSError, ValueError):  # nothing is resumed from it: at worst a logger begins another run
        return {}
    return content if isinstance(content, dict) else {}


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if isinstance(value, int | float) and key != "step"}


def _describe(error: BaseException) -> str:
    """Return kind and first line of the error behind an error: Lightning says a full disk is a wrong value."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
