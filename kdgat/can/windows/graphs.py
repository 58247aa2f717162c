"""Graphs of message windows: identifiers are nodes, consecutive messages are edges.

A window is `size` messages of one recording; windows start every `stride` messages. A node carries the features of
its messages, reduced, beside counts and positions; an edge says how often and how surprisingly one id followed
another. Everything is relative to the id's or the bus's own past, so that it carries over to another vehicle.

An identifier that is overdue when a window ends is a node of it even without a message: silence is seen, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kdgat.can.sections import WindowConfig, num_windows
from kdgat.can.windows.bus_time import BusClock
from kdgat.can.windows.clock import ARRIVAL_FEATURES, NONE, Arrivals, ClockState, arrivals
from kdgat.can.windows.feature_names import (
    EDGE_FEATURES,
    LOG_MIXED_PERIOD,
    LOSSLESS_MARGIN,
    NODE_FEATURES,
    REDUCTIONS,
)
from kdgat.can.windows.features import MESSAGE_FEATURES, FeatureState, popcount
from kdgat.can.windows.fields import FIELD_FEATURES, FieldState
from kdgat.can.windows.rounding import round_features
from kdgat.can.windows.schema import ATTACK_KINDS, SCHEMA
from kdgat.can.windows.timer import REST
from kdgat.graphs.columns import GraphColumns

if TYPE_CHECKING:
    from kdgat.can.recordings.messages import AttackCampaign, Messages

_FEATURES: Final = (*MESSAGE_FEATURES, *ARRIVAL_FEATURES, *FIELD_FEATURES)
# Which of the sums, the least and the largest of the features of a node's messages its columns are.
_REDUCED_COLUMN = np.array(
    [_FEATURES.index(name) for name, reductions in REDUCTIONS.items() for _ in reductions],
    np.int64,
)
_REDUCED_BY = np.array(
    [("mean", "minimum", "maximum").index(reduction) for reductions in REDUCTIONS.values() for reduction in reductions],
    np.int64,
)
_ORDER_SURPRISE: Final = MESSAGE_FEATURES.index("order_surprise")
_BUS_GAP: Final = MESSAGE_FEATURES.index("bus_gap")
_LOG_PERIOD: Final = MESSAGE_FEATURES.index("log_period")
_PERIOD_KNOWN: Final = MESSAGE_FEATURES.index("period_known")
_FIRST_ARRIVAL: Final = len(MESSAGE_FEATURES)
_FIRST_FIELD: Final = _FIRST_ARRIVAL + len(ARRIVAL_FEATURES)
_NUM_FEATURES: Final = len(_FEATURES)
_EARLY: Final = ARRIVAL_FEATURES.index("early")
_OVERDUE: Final = ARRIVAL_FEATURES.index("overdue")
_LOSSES: Final = ARRIVAL_FEATURES.index("losses")
# Columns of a node that is waited for.
_OVERDUE_COLUMN: Final = NODE_FEATURES.index("overdue_maximum")
_NOVELTY_COLUMN: Final = NODE_FEATURES.index("overdue_novelty_maximum")
_MISSED_COLUMN: Final = NODE_FEATURES.index("missed_maximum")
_LOG_PERIOD_COLUMN: Final = NODE_FEATURES.index("log_period_mean")
_PERIOD_KNOWN_COLUMN: Final = NODE_FEATURES.index("period_known_mean")
_LOSSES_COLUMN: Final = NODE_FEATURES.index("losses_mean")
_REGULAR_COLUMN: Final = NODE_FEATURES.index("regular_mean")
_AT_REST: Final = np.array(
    [
        NODE_FEATURES.index(name)
        for name in (
            "early_maximum", "phase_mean", "phase_minimum", "phase_maximum", "frozen_mean", "frozen_maximum",
            "still_mean", "still_maximum",
        )
    ],
    np.int64,
)  # fmt: skip
_OTHER_NAMES: Final = {"malfunction": "spoofing"}  # of kinds of attack


@njit(cache=True, error_model="numpy", nogil=True)
def _count_parts(
    dense: NDArray[np.int32],
    num_ids: int,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    waiting_window: NDArray[np.int64],
    waiting_number: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count each window's nodes and distinct transitions, as pointers [G + 1] each."""
    num_graphs = starts.shape[0]
    node_ptr = np.zeros(num_graphs + 1, np.int64)
    edge_ptr = np.zeros(num_graphs + 1, np.int64)
    node_mark = np.full(num_ids, -1, np.int64)
    local = np.zeros(num_ids, np.int64)
    waiting = 0
    for graph in range(num_graphs):
        size = stops[graph] - starts[graph]
        nodes = 0
        edges = 0
        pair_mark = np.zeros((size, size), np.uint8) if size <= 128 else np.zeros((1, 1), np.uint8)
        seen = set([np.int64(-1)])  # numba needs a typed set
        previous = np.int64(-1)
        for message in range(starts[graph], stops[graph]):
            index = dense[message]
            if node_mark[index] != graph:
                node_mark[index] = graph
                local[index] = nodes
                nodes += 1
            current = local[index]
            if previous >= 0:
                if size <= 128:
                    if pair_mark[previous, current] == 0:
                        pair_mark[previous, current] = 1
                        edges += 1
                else:
                    key = previous * size + current
                    if key not in seen:
                        seen.add(key)
                        edges += 1
            previous = current
        while waiting < waiting_window.shape[0] and waiting_window[waiting] == graph:
            nodes += node_mark[waiting_number[waiting]] != graph
            waiting += 1
        node_ptr[graph + 1] = node_ptr[graph] + nodes
        edge_ptr[graph + 1] = edge_ptr[graph] + edges
    return node_ptr, edge_ptr


@njit(cache=True, fastmath=True, error_model="numpy", nogil=True)
def _fill(
    time: NDArray[np.float64],
    elapsed: NDArray[np.float64],
    identifiers: NDArray[np.uint32],
    dense: NDArray[np.int32],
    payload: NDArray[np.uint64],
    length: NDArray[np.uint8],
    label: NDArray[np.uint8],
    features: NDArray[np.float32],
    arrival_features: NDArray[np.float32],
    field_features: NDArray[np.float32],
    waiting_window: NDArray[np.int64],
    waiting_number: NDArray[np.int32],
    waiting_id: NDArray[np.uint32],
    waiting: NDArray[np.float32],
    first: int,
    num_ids: int,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    node_ptr: NDArray[np.int64],
    edge_ptr: NDArray[np.int64],
    reduced_column: NDArray[np.int64],
    reduced_by: NDArray[np.int64],
    at_rest: NDArray[np.int64],
    x: NDArray[np.float32],
    edge_index: NDArray[np.int32],
    edge_attr: NDArray[np.float32],
    node_y: NDArray[np.int8],
    node_id: NDArray[np.int32],
    attack_count: NDArray[np.int32],
    early: NDArray[np.float32],
    overdue: NDArray[np.float32],
) -> None:
    """Fill the columns of all windows in one pass."""
    num_reduced = reduced_column.shape[0]
    described = np.empty(_NUM_FEATURES, np.float32)  # one message, all of _FEATURES
    # Sums, least and largest of each node's messages: all of all features, so that one pass takes several at once.
    room = 1
    for graph in range(starts.shape[0]):
        room = max(room, node_ptr[graph + 1] - node_ptr[graph])
    reduced = np.empty((room, 3, _NUM_FEATURES), np.float32)
    column: Any
    node_mark = np.full(num_ids, -1, np.int64)
    local = np.zeros(num_ids, np.int64)
    waited = 0
    for graph in range(starts.shape[0]):
        start, stop = starts[graph], stops[graph]
        size = stop - start
        node_base, edge_base = node_ptr[graph], edge_ptr[graph]
        num_nodes = node_ptr[graph + 1] - node_base
        counts = np.zeros(num_nodes, np.int64)
        log_period = np.zeros(num_nodes)
        known = np.zeros(num_nodes)
        keys = np.empty(max(size - 1, 0), np.int64)
        nodes = 0
        previous = np.int64(-1)
        duration = 1e-6
        for message in range(start, stop):
            index = dense[message]
            position = (message - start) / max(size - 1, 1)
            if message > start:
                duration += max(time[message] - time[message - 1], 0.0)
            for feature in range(_FIRST_ARRIVAL):
                described[feature] = features[message, feature]
            for feature in range(_FIRST_FIELD - _FIRST_ARRIVAL):
                described[_FIRST_ARRIVAL + feature] = arrival_features[message, feature]
            for feature in range(_NUM_FEATURES - _FIRST_FIELD):
                described[_FIRST_FIELD + feature] = field_features[message, feature]
            if node_mark[index] != graph:
                node_mark[index] = graph
                local[index] = nodes
                row = node_base + nodes
                node_id[row] = np.int32(identifiers[message])
                x[row, num_reduced + 2] = position
                for column in range(_NUM_FEATURES):
                    reduced[nodes, 0, column] = described[column]
                    reduced[nodes, 1, column] = described[column]
                    reduced[nodes, 2, column] = described[column]
                nodes += 1
            else:
                node = local[index]
                for column in range(_NUM_FEATURES):
                    reduced[node, 0, column] += described[column]
                for column in range(_NUM_FEATURES):
                    reduced[node, 1, column] = min(reduced[node, 1, column], described[column])
                for column in range(_NUM_FEATURES):
                    reduced[node, 2, column] = max(reduced[node, 2, column], described[column])
            if arrival_features[message, _EARLY] > REST and 8.0 * features[message, _LOG_PERIOD] < LOG_MIXED_PERIOD:
                early[graph] = max(early[graph], arrival_features[message, _EARLY])
            if arrival_features[message, _OVERDUE] > REST:
                lossless = LOSSLESS_MARGIN if arrival_features[message, _LOSSES] == 0.0 else 0.0
                overdue[graph] = max(overdue[graph], arrival_features[message, _OVERDUE] + lossless)
            current = local[index]
            row = node_base + current
            counts[current] += 1
            x[row, num_reduced + 3] = position
            if features[message, _PERIOD_KNOWN] > 0.0:
                log_period[current] = 8.0 * features[message, _LOG_PERIOD]
                known[current] = 1.0
            num_bytes: Any = max(np.int64(length[message]), 1)
            word = payload[message]
            zero_bytes = 0
            for byte in range(num_bytes):
                if (word >> np.uint64(8 * byte)) & np.uint64(255) == 0:
                    zero_bytes += 1
            x[row, num_reduced + 5] += zero_bytes / num_bytes
            used = word & (~np.uint64(0) >> np.uint64(64 - 8 * num_bytes))
            x[row, num_reduced + 6] += popcount(used) / (8.0 * num_bytes)
            x[row, num_reduced + 7] += length[message] / 8.0
            if label[message] != 0:
                node_y[row] = 1
                attack_count[graph] += 1
            if previous >= 0:
                # destination first: edges are stored sorted by destination, then source
                keys[message - start - 1] = ((current * size + previous) * size) + (message - start)
            previous = current
        before = first + start  # messages of the recording before the window
        mean_gap = elapsed[start] / before if before > 0 else duration / max(size - 1, 1)
        log_ratio = np.log2(duration / max((size - 1) * mean_gap, 1e-6))
        log_ratio = min(max(log_ratio, -4.0), 4.0)
        sending = nodes
        for node in range(sending):
            for column in range(_NUM_FEATURES):
                reduced[node, 0, column] /= counts[node]
            for column in range(num_reduced):
                x[node_base + node, column] = reduced[node, reduced_by[column], reduced_column[column]]
        while waited < waiting_window.shape[0] and waiting_window[waited] == graph:
            index, identifier = waiting_number[waited], waiting_id[waited]
            late, novelty, missed = waiting[waited, 0], waiting[waited, 1], waiting[waited, 2]
            period, losses = np.float64(waiting[waited, 3]), waiting[waited, 4]
            waited += 1
            overdue[graph] = max(overdue[graph], late + (LOSSLESS_MARGIN if losses == 0.0 else 0.0))
            if node_mark[index] != graph:
                row = node_base + nodes
                nodes += 1
                node_id[row] = np.int32(identifier)
                for column in at_rest:
                    x[row, column] = REST
                x[row, _OVERDUE_COLUMN] = REST
                x[row, _LOG_PERIOD_COLUMN] = period / 8.0
                x[row, _PERIOD_KNOWN_COLUMN] = 1.0
                x[row, _REGULAR_COLUMN] = 1.0
                x[row, _LOSSES_COLUMN] = losses
                x[row, num_reduced] = -0.25  # as of half a message
                x[row, num_reduced + 1] = max(np.log2(0.5 / (duration * np.exp2(-period) + 1.0)), -6.0)
                x[row, num_reduced + 2] = 1.0
                x[row, num_reduced + 3] = 1.0
                x[row, num_reduced + 4] = log_ratio
            else:
                row = node_base + local[index]
            x[row, _OVERDUE_COLUMN] = max(x[row, _OVERDUE_COLUMN], late)
            x[row, _NOVELTY_COLUMN] = max(x[row, _NOVELTY_COLUMN], novelty)
            x[row, _MISSED_COLUMN] = max(x[row, _MISSED_COLUMN], missed)
            x[row, num_reduced + 8] = 1.0
        for node in range(sending):
            row = node_base + node
            times = counts[node]
            x[row, num_reduced] = np.log2(times) / 4.0
            if known[node] > 0.0:
                expected = duration * np.exp2(-log_period[node])
                excess = np.log2((times + 0.5) / (expected + 1.0))
                x[row, num_reduced + 1] = min(max(excess, -6.0), 6.0)
            x[row, num_reduced + 4] = log_ratio
            for column in range(num_reduced + 5, num_reduced + 8):
                x[row, column] /= times
        keys.sort()
        edge = edge_base - 1
        last_pair = np.int64(-1)
        for key in keys:
            pair = key // size
            message = start + key % size
            if pair != last_pair:
                edge += 1
                last_pair = pair
                edge_index[0, edge] = pair % size
                edge_index[1, edge] = pair // size
            surprise = features[message, _ORDER_SURPRISE]
            edge_attr[edge, 0] += 1.0
            edge_attr[edge, 1] += surprise
            edge_attr[edge, 2] = max(edge_attr[edge, 2], surprise)
            edge_attr[edge, 3] += features[message, _BUS_GAP]
            edge_attr[edge, 4] += (message - start) / max(size - 1, 1)
        last = edge_ptr[graph + 1]
        for edge in range(edge_base, last):
            times = edge_attr[edge, 0]
            edge_attr[edge, 0] = np.log2(1.0 + times)
            edge_attr[edge, 1] /= times
            edge_attr[edge, 3] /= times
            edge_attr[edge, 4] /= times
            source, target = edge_index[0, edge], edge_index[1, edge]
            edge_attr[edge, 6] = 1.0 if source == target else 0.0
            # edges are sorted by (destination, source): search the reversed pair
            wanted = np.int64(source) * size + target
            low, high = edge_base, last
            while low < high:
                middle = (low + high) // 2
                if np.int64(edge_index[1, middle]) * size + edge_index[0, middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            if low < last and edge_index[1, low] == source and edge_index[0, low] == target:
                edge_attr[edge, 5] = 1.0


class DescribedMessages(NamedTuple):
    """Consecutive messages of a recording, M of them, with what their past says of each."""

    timestamp: NDArray[np.float64]  # [M] s, as in the log
    time: NDArray[np.float64]  # [M] s, on the bus
    elapsed: NDArray[np.float64]  # [M] s from the recording's first message, steps backwards left out
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

    def __init__(self) -> None:
        self.num_messages = 0
        self.num_ids = 0
        self._features = FeatureState()
        self._clock = ClockState()
        self._fields = FieldState()
        self._bus_clock = BusClock()
        self._latest = -np.inf  # time on the bus
        self._previous = np.zeros(0)  # that of the last message, if there was one
        self._elapsed = 0.0

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is remembered."""
        return self._features.num_bytes + self._clock.num_bytes + self._fields.num_bytes

    def describe(
        self, messages: Messages, stops: NDArray[np.int64], wanted: NDArray[np.bool_] | None = None
    ) -> tuple[DescribedMessages, Arrivals]:
        """Describe the next messages, and who is waited for at the ends of windows.

        `stops` are the rows after the last ones of the windows that end among these messages, ascending [G]; messages
        that are not `wanted` [M] are remembered only.
        """
        timestamp = np.ascontiguousarray(messages.timestamp)
        identifier = np.ascontiguousarray(messages.identifier)
        payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
        length = np.ascontiguousarray(messages.length)
        time, breaks = self._bus_clock.read(timestamp)
        numbered, features = self._features.describe(time, identifier, payload, length, wanted)
        steps = np.diff(time, prepend=self._previous if self.num_messages else time[:1])
        # One after the other, so that pieces have the sums of the whole, bit for bit.
        elapsed = np.cumsum(np.concatenate([[self._elapsed], np.maximum(steps, 0.0)]))[1:]
        monotonic = np.maximum(np.maximum.accumulate(time), self._latest)
        clock = arrivals(monotonic, identifier, numbered, stops, self._clock, breaks, wanted)
        fields = self._fields.describe(monotonic, numbered, payload, length, wanted)
        if len(timestamp):
            self._previous, self._elapsed = time[-1:].copy(), float(elapsed[-1])
            self._latest = float(monotonic[-1])
        self.num_messages += len(timestamp)
        self.num_ids = numbered.num_numbers
        label = np.ascontiguousarray(messages.label)
        described = (timestamp, time, elapsed, identifier, numbered.number, payload, length, label)
        return DescribedMessages(*described, features, clock.features, fields), clock


def window_rows(num_messages: int, config: WindowConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each window of a recording [G], and the row after its last one."""
    starts = np.arange(num_windows(num_messages, config), dtype=np.int64) * config.stride
    return starts, np.minimum(starts + config.size, num_messages)


def build_graphs(messages: Messages, config: WindowConfig, chosen: NDArray[np.int64] | None = None) -> GraphColumns:
    """Cut a recording into windows and build their graphs, or those of the windows `chosen`, ascending.

    Features have the names NODE_FEATURES and EDGE_FEATURES. A window is an attack if any of its messages is injected,
    or if it overlaps a campaign that keeps messages off the bus; a node, if any of its messages in the window is
    injected, or if it is waited for because of such a campaign. Messages after the last whole window belong to none.
    """
    starts, stops = window_rows(len(messages), config)
    wanted = None
    if chosen is not None:
        starts, stops = starts[chosen], stops[chosen]
        wanted = _within(starts, stops, len(messages))
    state = TrafficState()
    described, waiting = state.describe(messages, stops, wanted)
    return graphs_of(described, waiting, starts, stops, num_ids=state.num_ids, campaigns=messages.campaigns)


def _within(starts: NDArray[np.int64], stops: NDArray[np.int64], num_messages: int) -> NDArray[np.bool_]:
    """Say which of M messages are in any of some windows."""
    depth = np.bincount(starts, minlength=num_messages + 1) - np.bincount(stops, minlength=num_messages + 1)
    return np.cumsum(depth[:num_messages]) > 0


def attacked_windows(
    messages: Messages, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Say which windows are attacked [G], and how many messages of each are injected, without building them."""
    injected = np.concatenate([[0], np.cumsum(messages.label != 0)])
    attack_count = (injected[stops] - injected[starts]).astype(np.int32)
    y = (attack_count > 0).astype(np.int8)
    for campaign in messages.campaigns:
        if campaign.silences and len(starts):
            y[_overlap(campaign, messages.timestamp[starts], messages.timestamp[stops - 1])] = 1
    return y, attack_count


def _overlap(
    campaign: AttackCampaign, start_time: NDArray[np.float64], end_time: NDArray[np.float64]
) -> NDArray[np.bool_]:
    return (start_time <= campaign.end_s) & (end_time >= campaign.begin_s)


def graphs_of(
    described: DescribedMessages,
    clock: Arrivals,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    num_ids: int,
    first: int = 0,
    campaigns: tuple[AttackCampaign, ...] = (),
) -> GraphColumns:
    """Build the graphs of windows, given as rows of described messages, the first of which is row `first` on the whole.

    `clock` says who is waited for at the end of each window.
    """
    num_graphs = len(starts)
    timestamp = described.timestamp
    waiting = (clock.waiting_window, clock.waiting_number)
    node_ptr, edge_ptr = _count_parts(described.number, num_ids, starts, stops, *waiting)
    num_nodes, num_edges = int(node_ptr[-1]), int(edge_ptr[-1])
    x = np.zeros((num_nodes, len(NODE_FEATURES)), np.float32)
    edge_index = np.zeros((2, num_edges), np.int32)
    edge_attr = np.zeros((num_edges, len(EDGE_FEATURES)), np.float32)
    node_y = np.zeros(num_nodes, np.int8)
    node_id = np.zeros(num_nodes, np.int32)
    attack_count = np.zeros(num_graphs, np.int32)
    early, overdue = np.full(num_graphs, NONE, np.float32), np.full(num_graphs, NONE, np.float32)
    _fill(
        *described[1:], *waiting, clock.waiting_id, clock.waiting, first, num_ids, starts, stops,
        node_ptr, edge_ptr, _REDUCED_COLUMN, _REDUCED_BY, _AT_REST,
        x, edge_index, edge_attr, node_y, node_id, attack_count, early, overdue,
    )  # fmt: skip
    round_features(x, NODE_FEATURES)
    round_features(edge_attr, EDGE_FEATURES)
    start_time = timestamp[starts] if num_graphs else np.zeros(0)
    end_time = timestamp[stops - 1] if num_graphs else np.zeros(0)
    y, kind = (attack_count > 0).astype(np.int8), np.zeros(num_graphs, np.int8)
    kind[y == 1] = ATTACK_KINDS.index("unknown")
    is_waited_for = x[:, NODE_FEATURES.index("waiting")] > 0.0
    for campaign in campaigns:
        active = _overlap(campaign, start_time, end_time)
        if campaign.silences:
            y[active] = 1
            of_nodes = np.repeat(active, np.diff(node_ptr))
            node_y[of_nodes & is_waited_for & np.isin(node_id, np.array(campaign.identifiers, np.int32))] = 1
        name = campaign.kind.lower()
        name = _OTHER_NAMES.get(name, name)
        kind[active & (y == 1)] = ATTACK_KINDS.index(name if name in ATTACK_KINDS else "unknown")
    return GraphColumns(
        SCHEMA,
        node_ptr=node_ptr,
        edge_ptr=edge_ptr,
        x=x,
        edge_index=edge_index,
        edge_attr=edge_attr,
        y=y,
        node_y=node_y,
        node_id=node_id,
        recording=np.zeros(num_graphs, np.int32),
        first_message=first + starts,
        start_time=start_time,
        end_time=end_time,
        message_count=(stops - starts).astype(np.int32),
        attack_count=attack_count,
        kind=kind,
        early=early,
        overdue=overdue,
    )
