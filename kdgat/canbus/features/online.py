"""Windows of a stream of messages: the same graphs as of the whole recording, each as soon as it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from kdgat.canbus.features.graphs import graphs_of, windows_to_graphs
from kdgat.canbus.features.schema import EDGE_FEATURES, NODE_FEATURES, SCHEMA
from kdgat.canbus.features.suspicion import Known
from kdgat.canbus.features.traffic_state import DescribedMessages, TrafficState
from kdgat.canbus.messages import MAX_PAYLOAD_BYTES, Messages
from kdgat.canbus.settings import WindowConfig
from kdgat.graphs import GraphColumns

CHUNK_MESSAGES: Final = 1 << 14  # described at once: their features stay in the cache until graphs are built


class OnlineWindows:
    """Turn messages as they come into the graphs of windows, those of `windows_to_graphs` bit for bit.

    Only the messages of unfinished windows are kept, beside a state that is bounded by the number of identifiers.

    >>> from kdgat.canbus import make_vehicle, simulate
    >>> messages = simulate(make_vehicle(5), 2.0, "malfunction", seed=1)
    >>> windows = OnlineWindows(WindowConfig(size=100, stride=100))
    >>> [windows.feed(messages.select(slice(start, start + 700))).num_graphs for start in (0, 700, 1400)]
    [7, 7, 6]
    """

    def __init__(self, config: WindowConfig, known: Known | None = None) -> None:
        """Judge by what a profile knows of identifiers, too, if it is given."""
        self.config = config
        self._known = known
        self._state = TrafficState(known)
        self._kept: DescribedMessages | None = None  # of unfinished windows
        self._last: Messages | None = None  # none of the last messages: where they come from
        self._first = 0  # row of the first of them in the recording
        self._next_start = 0  # row at which the next window begins
        self.log_times = np.zeros((2, 0))  # s on the log's clock: begin and end of the windows returned last

    @property
    def num_messages(self) -> int:
        """Count the messages so far."""
        return self._state.num_messages

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the bus time of the first message and of the latest."""
        return self._state.span_s

    @property
    def num_bytes(self) -> int:
        """Return the memory that is kept from one feed to the next."""
        return self._state.num_bytes + sum(column.nbytes for column in self._kept or ())

    def count_judged(self) -> tuple[int, int]:
        """Count the identifiers that could be judged by their times so far, and those that came often enough for it."""
        return self._state.count_judged()

    def feed(self, messages: Messages) -> GraphColumns:
        """Return the graphs of the windows that these messages complete; `first_message` counts from the first feed."""
        size, stride = self.config.size, self.config.stride
        before = self._state.num_messages
        total = before + len(messages)
        num_complete = max((total - size - self._next_start) // stride + 1, 0)
        starts = self._next_start + stride * np.arange(num_complete, dtype=np.int64)
        if self._kept is None or not len(self._kept.timestamp):
            self._kept, self._first = None, before
        self._kept, waiting = self._state.describe(messages, starts + size - before, kept=self._kept)
        self._last = messages.select(slice(0))
        graphs = graphs_of(
            self._kept,
            waiting,
            starts - self._first,
            starts + size - self._first,
            num_ids=self._state.num_ids,
            first=self._first,
            campaigns=messages.campaigns,
        )
        log_time = self._kept.log_time
        self.log_times = np.stack([log_time[starts - self._first], log_time[starts + size - self._first - 1]])
        self._next_start += num_complete * stride
        self._drop(min(self._next_start, total) - self._first)
        return graphs

    def finish(self) -> GraphColumns:
        """Return what is left at the end of a recording that is shorter than one window: one short graph, else none."""
        if self._next_start or self._last is None or not self.num_messages:
            self.log_times = np.zeros((2, 0))
            return GraphColumns.empty(
                SCHEMA, num_node_features=len(NODE_FEATURES), num_edge_features=len(EDGE_FEATURES)
            )
        kept = self._kept
        assert kept is not None
        payload = kept.payload.view(np.uint8).reshape(-1, MAX_PAYLOAD_BYTES)
        messages = replace(
            self._last,
            timestamp=kept.timestamp,
            identifier=kept.identifier,
            payload=payload,
            length=kept.length,
            label=kept.label,
        )
        self.log_times = kept.log_time[[[0], [-1]]]
        return windows_to_graphs(messages, self.config, known=self._known)

    def _drop(self, num_rows: int) -> None:
        """Forget the first rows; the others are copied, lest they keep the memory of all."""
        assert self._kept is not None
        columns: list[Any] = [column[num_rows:].copy() for column in self._kept]
        self._kept = DescribedMessages(*columns)
        self._first += num_rows


def window_chunks(
    messages: Messages,
    config: WindowConfig,
    size: int = CHUNK_MESSAGES,
    *,
    num_windows: int | None = None,
    known: Known | None = None,
) -> Iterator[GraphColumns]:
    """Yield the graphs of a recording, those of `windows_to_graphs`, some messages or windows at a time.

    `known`: what a profile knows of the vehicle.
    """
    first = size
    if num_windows is not None:  # each window has its last message `stride` after that of the one before
        first, size = config.size + (num_windows - 1) * config.stride, num_windows * config.stride
    stream = OnlineWindows(config, known)
    for start in (0, *range(first, len(messages), size)):
        yield stream.feed(messages.select(slice(start, start + size if start else first)))
    yield stream.finish()
