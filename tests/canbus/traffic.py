"""Small recordings made by hand, for tests of features, windows, injection and preparation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus import Messages
from kdgat.canbus.features import NODE_FEATURES
from kdgat.canbus.features.features import MESSAGE_FEATURES, FeatureState
from kdgat.canbus.features.suspicion import Reason
from kdgat.graphs import GraphColumns


def make_messages(
    timestamp: Sequence[float] | NDArray[np.float64],
    identifier: Sequence[int] | NDArray[np.integer] | int,
    payload: NDArray[np.integer] | None = None,
    length: NDArray[np.integer] | None = None,
    label: NDArray[np.integer] | None = None,
    name: str = "drive",
) -> Messages:
    """Make a recording of given columns; payloads are zero, 8 bytes long and benign where nothing else is said."""
    num = len(timestamp)
    return Messages(
        timestamp=np.asarray(timestamp, np.float64),
        identifier=np.broadcast_to(np.asarray(identifier), num).astype(np.uint32),
        payload=(np.zeros((num, 8)) if payload is None else np.asarray(payload)).astype(np.uint8),
        length=(np.full(num, 8) if length is None else np.asarray(length)).astype(np.uint8),
        label=(np.zeros(num) if label is None else np.asarray(label)).astype(np.uint8),
        name=name,
        scenario="train_hand",
    )


def largest(graphs: GraphColumns, feature: str) -> NDArray[np.float32]:
    """Return the largest value of a node feature in each window [G]."""
    return np.asarray(np.maximum.reduceat(graphs.x[:, NODE_FEATURES.index(feature)], graphs.node_ptr[:-1]))


def merge(*parts: Messages) -> Messages:
    """Merge recordings by time."""
    time = np.concatenate([part.timestamp for part in parts])
    order = np.argsort(time, kind="stable")
    columns = {
        column: np.concatenate([getattr(part, column) for part in parts])[order]
        for column in ("identifier", "payload", "length", "label")
    }
    return make_messages(time[order], **columns)


def bus_traffic(
    num_ids: int = 12, duration_s: float = 20.0, seed: int = 0, start_s: float = 0.0, name: str = "drive"
) -> Messages:
    """Make periodic traffic of several ids: counters, constants and some random bytes."""
    random = np.random.default_rng(seed)
    parts = []
    for identifier in np.sort(random.choice(np.arange(16, 2000), num_ids, replace=False)):
        period_s = float(random.choice([0.01, 0.02, 0.05, 0.1]))
        times = start_s + np.arange(random.uniform(0, period_s), duration_s, period_s)
        times = times + random.normal(0.0, 0.01 * period_s, len(times))
        payload = np.tile(random.integers(0, 256, 8), (len(times), 1))
        payload[:, 0] = np.arange(len(times)) & 255
        payload[:, 1] = random.integers(0, 4, len(times))
        parts.append(make_messages(times, int(identifier), payload))
    messages = merge(*parts)
    messages.name = name
    return messages


def features_of(messages: Messages) -> dict[str, NDArray[np.float32]]:
    """Compute the message features by name, each [M]."""
    payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
    _, table = FeatureState().describe(messages.timestamp, messages.identifier, payload, messages.length)
    assert table.shape == (len(messages), len(MESSAGE_FEATURES))
    return dict(zip(MESSAGE_FEATURES, table.T, strict=True))


class Judged(NamedTuple):
    """What the columns of windows say."""

    reason: NDArray[np.int8]
    suspect: NDArray[np.int32]

    @property
    def is_alarm(self) -> NDArray[np.bool_]:
        """Return which windows are alarms."""
        return self.reason != Reason.NOTHING
