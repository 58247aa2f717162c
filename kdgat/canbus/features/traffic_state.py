"""What the next messages of a recording are described against: their identifiers' own past, and the bus's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features.bus_time import BusClock
from kdgat.canbus.features.clock import Arrivals, ClockState, arrivals
from kdgat.canbus.features.features import NUM_MESSAGE_FEATURES, FeatureState
from kdgat.canbus.features.fields import NUM_FIELD_FEATURES, FieldState
from kdgat.canbus.features.intervals import NUM_ARRIVAL_FEATURES
from kdgat.canbus.features.suspicion import Known, SuspicionState

if TYPE_CHECKING:
    from kdgat.canbus.messages import Messages


class DescribedMessages(NamedTuple):
    """Consecutive messages of a recording, M of them, with the features of each."""

    timestamp: NDArray[np.float64]  # [M] s, as in the log
    log_time: NDArray[np.float64]  # [M] s, on the clock of the log: `timestamp` where that is believed
    reason: NDArray[np.int8]  # [M] why the message is an alarm by the habits of identifiers, if it is,
    suspect: NDArray[np.uint32]  # [M] and the identifier that this speaks against
    time: NDArray[np.float64]  # [M] s, on the bus
    elapsed: NDArray[np.float64]  # [M] s from the first message, without steps back and pauses of the log
    identifier: NDArray[np.uint32]  # [M]
    number: NDArray[np.int32]  # [M] of the identifier
    payload: NDArray[np.uint64]  # [M] little-endian words
    length: NDArray[np.uint8]  # [M]
    label: NDArray[np.uint8]  # [M]
    features: NDArray[np.float32]  # [M, NUM_MESSAGE_FEATURES]
    arrival_features: NDArray[np.float32]  # [M, NUM_ARRIVAL_FEATURES]
    field_features: NDArray[np.float32]  # [M, NUM_FIELD_FEATURES]


class TrafficState:
    """Remember what the next messages of a recording are described against; bounded by the number of identifiers."""

    def __init__(self, known: Known | None = None) -> None:
        """Judge by what a profile knows of identifiers, too, if it is given."""
        self.num_messages = 0
        self.num_ids = 0
        self._features = FeatureState()
        self._clock = ClockState()
        self._fields = FieldState()
        self._suspicions = SuspicionState(known)
        self._bus_clock = BusClock()
        self._first, self._latest = np.nan, -np.inf  # time on the bus
        self._previous = np.zeros(0)  # of the last message, if there was one, but for pauses
        self._elapsed = 0.0

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is remembered."""
        states = (self._features, self._clock, self._fields, self._suspicions)
        return sum(state.num_bytes for state in states)

    def count_judged(self) -> tuple[int, int]:
        """Count the identifiers that could be judged by their times, and those that came often enough for it."""
        return self._suspicions.count_judged()

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the bus time of the first message and of the latest."""
        return self._first, self._latest

    def describe(
        self,
        messages: Messages,
        stops: NDArray[np.int64],
        wanted: NDArray[np.bool_] | None = None,
        kept: DescribedMessages | None = None,
    ) -> tuple[DescribedMessages, Arrivals]:
        """Describe the next messages, and who is waited for at the ends of windows.

        `stops` are the rows after the last ones of the windows that end among these messages, ascending [G]; messages
        that are not `wanted` [M] are remembered only. With `kept`, which were described before, these come first in
        what is returned.
        """
        timestamp = np.ascontiguousarray(messages.timestamp)
        identifier = np.ascontiguousarray(messages.identifier)
        payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
        length = np.ascontiguousarray(messages.length)
        num_kept = 0 if kept is None else len(kept.timestamp)
        total = num_kept + len(timestamp)
        features = np.zeros((total, NUM_MESSAGE_FEATURES), np.float32)
        arrival_features = np.empty((total, NUM_ARRIVAL_FEATURES), np.float32)
        field_features = np.zeros((total, NUM_FIELD_FEATURES), np.float32)
        time, log_time, awake, breaks = self._bus_clock.read(timestamp)
        numbered, _ = self._features.describe(awake, identifier, payload, length, wanted, features[num_kept:])
        steps = np.diff(awake, prepend=self._previous if self.num_messages else awake[:1])
        # One after the other, so that pieces have the sums of the whole, bit for bit.
        elapsed = np.cumsum(np.concatenate([[self._elapsed], np.maximum(steps, 0.0)]))[1:]
        monotonic = np.maximum(np.maximum.accumulate(time), self._latest)
        clock = arrivals(
            monotonic, identifier, numbered, stops, self._clock, breaks, wanted, arrival_features[num_kept:]
        )
        self._fields.describe(monotonic, numbered, payload, length, wanted, field_features[num_kept:])
        if len(timestamp):
            self._previous, self._elapsed = awake[-1:].copy(), float(elapsed[-1])
            self._latest = float(monotonic[-1])
            self._first = self._first if self.num_messages else float(time[0])
        self.num_messages += len(timestamp)
        self.num_ids = numbered.num_numbers
        label = np.ascontiguousarray(messages.label)
        found = self._suspicions.judge(monotonic, identifier, numbered, payload, length, breaks)
        described = DescribedMessages(
            timestamp, log_time, *found, time, elapsed, identifier, numbered.number, payload, length, label, features,
            arrival_features, field_features,
        )  # fmt: skip
        return described if kept is None else _after(kept, described), clock


def _after(kept: DescribedMessages, described: DescribedMessages) -> DescribedMessages:
    """Put what was kept before what is new; features have room for it already."""
    columns: list[Any] = []
    for name in DescribedMessages._fields:
        before, new = getattr(kept, name), getattr(described, name)
        if new.ndim == 1:
            columns.append(np.concatenate([before, new]))
        else:
            new[: len(before)] = before
            columns.append(new)
    return DescribedMessages(*columns)
