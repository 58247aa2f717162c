"""What a person says of a recording that it does not say itself: the unit of its stamps, and that it holds echoes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import DIFFERENCES, ECHO, UNITS_PER_S, Messages, ReadOptions, RecordingError
from kdgat.canbus.readers.rows import Rows

ECHO_S: Final = 1e-3
"""Seconds within which the same message again is taken for its echo."""
_FEWEST_RISES: Final = 50  # of differences, of which about as many fall
_FALLS_OF_RISES: Final = 0.1  # of times, some of which step back


class Conversion:
    """Turn the rows and messages of one recording, portion after portion, into what they mean."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        """Begin before the first row."""
        self._path = path
        self._options = options
        self._clock = 0.0
        self._before = np.zeros(0)  # the stamp before, once there is one
        self._rises = self._falls = 0  # of stamps against the one before
        # Of each identifier the last message, unless its echo has come: time, payload and length.
        self._last: dict[int, list[float]] = {}

    def convert_stamps(self, rows: Rows) -> None:
        """Make seconds of the stamps, those of rows that are no messages included; RecordingError where they are."""
        unit = self._options.time_unit
        if unit is None:
            return
        if rows.stated.unit:
            raise RecordingError(
                self._path, f"time_unit={unit!r}: its format states the unit of its times; leave --time-unit out"
            )
        rows.stated = rows.stated._replace(said=True)
        if unit != DIFFERENCES:
            rows.timestamp /= UNITS_PER_S[unit]
            return
        self._refuse_times(rows.timestamp[np.isfinite(rows.timestamp)])
        steps = np.where(np.isfinite(rows.timestamp), rows.timestamp, 0.0)
        # One after the other, so that portions have the sums of the whole, bit for bit.
        rows.timestamp = np.cumsum(np.concatenate([[self._clock], steps]))[1:]
        self._clock = float(rows.timestamp[-1]) if len(steps) else self._clock

    def _refuse_times(self, stamps: NDArray[np.float64]) -> None:
        """Refuse stamps that grow as times do, and differences do not; added up they would be times without meaning."""
        stamps = np.concatenate([self._before, stamps])
        self._before = stamps[-1:]
        changes = np.diff(stamps)
        self._rises += int(np.count_nonzero(changes > 0.0))
        self._falls += int(np.count_nonzero(changes < 0.0))
        if self._rises >= _FEWEST_RISES and self._falls <= _FALLS_OF_RISES * self._rises:
            raise RecordingError(
                self._path,
                f"time_unit={DIFFERENCES!r}: its times grow from row to row, so they are no differences: leave "
                "--time-unit out, or say in which unit they are, as --time-unit ms",
            )

    def drop_echoes(self, messages: Messages) -> Messages:
        """Leave out messages that come a second time within ECHO_S, if that is asked for; count them."""
        if not self._options.drop_echo or not len(messages):
            return messages
        is_echo = self._echoes(messages)
        kept = messages.select(~is_echo)
        kept.bad_rows, kept.num_bad_rows = messages.bad_rows, messages.num_bad_rows
        kept.passed_over = messages.passed_over + Counter({ECHO: int(np.count_nonzero(is_echo))})
        return kept

    def _echoes(self, messages: Messages) -> NDArray[np.bool_]:
        """Mark every second one of the same messages of an identifier in a row."""
        is_echo = np.zeros(len(messages), bool)
        words = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
        columns = (messages.identifier, messages.timestamp, words, messages.length)
        for row, (identifier, *content) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            last = self._last.get(identifier)
            if last is not None and content[1:] == last[1:] and abs(content[0] - last[0]) <= ECHO_S:
                is_echo[row] = True
                del self._last[identifier]
            else:
                self._last[identifier] = content
        return is_echo
