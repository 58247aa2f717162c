"""The compiled passes that count and fill the nodes and edges of windows, from the features of each message."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import UNCOUNTED, njit
from kdgat.canbus.features.clock import Arrivals
from kdgat.canbus.features.edges import EdgeScratch, edge_scratch, fill_edges
from kdgat.canbus.features.features import COLUMN, MESSAGE_FEATURES, popcount
from kdgat.canbus.features.field_rules import changed_bytes
from kdgat.canbus.features.fields import FIELD_FEATURES
from kdgat.canbus.features.intervals import ARRIVAL_FEATURES
from kdgat.canbus.features.schema import NODE_FEATURES, REDUCTIONS
from kdgat.canbus.features.timer import REST
from kdgat.canbus.features.traffic_state import DescribedMessages

_FEATURES: Final = (*MESSAGE_FEATURES, *ARRIVAL_FEATURES, *FIELD_FEATURES)
# Which of the sums, the least and the largest of the features of a node's messages its columns are.
REDUCED_COLUMN: Final = np.array(
    [_FEATURES.index(name) for name, reductions in REDUCTIONS.items() for _ in reductions],
    np.int64,
)
REDUCED_BY: Final = np.array(
    [("mean", "minimum", "maximum").index(reduction) for reductions in REDUCTIONS.values() for reduction in reductions],
    np.int64,
)
_FIRST_ARRIVAL: Final = len(MESSAGE_FEATURES)
_FIRST_FIELD: Final = _FIRST_ARRIVAL + len(ARRIVAL_FEATURES)
_NUM_FEATURES: Final = len(_FEATURES)
_WIDTH: Final = -(-_NUM_FEATURES // 16) * 16  # with some to spare, so that no loop has a rest to be taken one by one
# Columns of a node that is waited for.
_OVERDUE_COLUMN: Final = NODE_FEATURES.index("overdue_maximum")
_NOVELTY_COLUMN: Final = NODE_FEATURES.index("overdue_novelty_maximum")
_MISSED_COLUMN: Final = NODE_FEATURES.index("missed_maximum")
_LOG_PERIOD_COLUMN: Final = NODE_FEATURES.index("log_period_mean")
_PERIOD_KNOWN_COLUMN: Final = NODE_FEATURES.index("period_known_mean")
_LOSSES_COLUMN: Final = NODE_FEATURES.index("losses_mean")
_REGULAR_COLUMN: Final = NODE_FEATURES.index("regular_mean")
AT_REST: Final = np.array(
    [
        NODE_FEATURES.index(name)
        for name in (
            "early_maximum", "phase_mean", "phase_minimum", "phase_maximum", "frozen_mean", "frozen_maximum",
            "still_mean", "still_maximum",
        )
    ],
    np.int64,
)  # fmt: skip


class Scratch(NamedTuple):
    """Room for what is known of one window after the other, of S messages and N nodes at most."""

    mark: NDArray[np.int64]  # [I] by number: the last window in which the identifier was seen,
    local: NDArray[np.int64]  # [I] and its node there
    order: NDArray[np.int32]  # [S] numbers, within the window, of the messages' nodes
    described: NDArray[np.float32]  # [_WIDTH] one message, all of _FEATURES
    # Sums, least and largest of each node's messages: all of all features, so that one pass takes several at once.
    reduced: NDArray[np.float32]  # [N, 3, _WIDTH]
    counts: NDArray[np.int64]  # [N] messages
    log_period: NDArray[np.float64]  # [N]
    known: NDArray[np.float64]  # [N]
    edges: EdgeScratch


def scratch_for(num_ids: int, num_messages: int, num_nodes: int) -> Scratch:
    """Make room for windows of so many messages and nodes."""
    return Scratch(
        mark=np.full(num_ids, -1, np.int64),
        local=np.zeros(num_ids, np.int64),
        order=np.empty(num_messages, np.int32),
        described=np.zeros(_WIDTH, np.float32),
        reduced=np.empty((num_nodes, 3, _WIDTH), np.float32),
        counts=np.empty(num_nodes, np.int64),
        log_period=np.empty(num_nodes),
        known=np.empty(num_nodes),
        edges=edge_scratch(num_messages, num_nodes),
    )


@njit(cache=True, error_model="numpy", nogil=True)
def count_parts(
    dense: NDArray[np.int32],
    num_ids: int,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    clock: Arrivals,
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
        while waiting < clock.waiting_window.shape[0] and clock.waiting_window[waiting] == graph:
            nodes += node_mark[clock.waiting_number[waiting]] != graph
            waiting += 1
        node_ptr[graph + 1] = node_ptr[graph] + nodes
        edge_ptr[graph + 1] = edge_ptr[graph] + edges
    return node_ptr, edge_ptr


@njit(cache=True, fastmath=True, error_model="numpy", nogil=True, **UNCOUNTED)
def fill(
    messages: DescribedMessages,
    clock: Arrivals,
    first: int,
    scratch: Scratch,
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
) -> None:
    """Fill the columns of all windows in one pass."""
    num_reduced = reduced_column.shape[0]
    described, reduced, order = scratch.described, scratch.reduced, scratch.order
    node_mark, local = scratch.mark, scratch.local
    counts, log_period, known = scratch.counts, scratch.log_period, scratch.known
    column: Any
    waited = 0
    for graph in range(starts.shape[0]):
        start, stop = starts[graph], stops[graph]
        size = stop - start
        node_base, edge_base = node_ptr[graph], edge_ptr[graph]
        num_nodes = node_ptr[graph + 1] - node_base
        counts[:num_nodes] = 0
        known[:num_nodes] = 0.0
        nodes = 0
        duration = 1e-6
        for message in range(start, stop):
            index = messages.number[message]
            position = (message - start) / max(size - 1, 1)
            if message > start:
                duration += max(messages.time[message] - messages.time[message - 1], 0.0)
            for feature in range(_FIRST_ARRIVAL):
                described[feature] = messages.features[message, feature]
            for feature in range(_FIRST_FIELD - _FIRST_ARRIVAL):
                described[_FIRST_ARRIVAL + feature] = messages.arrival_features[message, feature]
            for feature in range(_NUM_FEATURES - _FIRST_FIELD):
                described[_FIRST_FIELD + feature] = messages.field_features[message, feature]
            if node_mark[index] != graph:
                node_mark[index] = graph
                local[index] = nodes
                row = node_base + nodes
                node_id[row] = np.int32(messages.identifier[message])
                x[row, num_reduced + 2] = position
                for column in range(_WIDTH):
                    reduced[nodes, 0, column] = described[column]
                    reduced[nodes, 1, column] = described[column]
                    reduced[nodes, 2, column] = described[column]
                nodes += 1
            else:
                node = local[index]
                for column in range(_WIDTH):
                    reduced[node, 0, column] += described[column]
                for column in range(_WIDTH):
                    reduced[node, 1, column] = min(reduced[node, 1, column], described[column])
                for column in range(_WIDTH):
                    reduced[node, 2, column] = max(reduced[node, 2, column], described[column])
            current = local[index]
            row = node_base + current
            counts[current] += 1
            x[row, num_reduced + 3] = position
            if messages.features[message, COLUMN.period_known] > 0.0:
                log_period[current] = 8.0 * messages.features[message, COLUMN.log_period]
                known[current] = 1.0
            num_bytes: Any = max(np.int64(messages.length[message]), 1)
            word = messages.payload[message]
            used = word & (~np.uint64(0) >> np.uint64(64 - 8 * num_bytes))
            zero_bytes = num_bytes - popcount(changed_bytes(used, np.uint64(0), 8))
            x[row, num_reduced + 5] += zero_bytes / num_bytes
            x[row, num_reduced + 6] += popcount(used) / (8.0 * num_bytes)
            x[row, num_reduced + 7] += messages.length[message] / 8.0
            if messages.label[message] != 0:
                node_y[row] = 1
                attack_count[graph] += 1
            order[message - start] = current
        before = first + start  # messages of the recording before the window
        mean_gap = messages.elapsed[start] / before if before > 0 else duration / max(size - 1, 1)
        log_ratio = np.log2(duration / max((size - 1) * mean_gap, 1e-6))
        log_ratio = min(max(log_ratio, -4.0), 4.0)
        sending = nodes
        for node in range(sending):
            for column in range(_WIDTH):
                reduced[node, 0, column] /= counts[node]
            for column in range(num_reduced):
                x[node_base + node, column] = reduced[node, reduced_by[column], reduced_column[column]]
        while waited < clock.waiting_window.shape[0] and clock.waiting_window[waited] == graph:
            index, identifier = clock.waiting_number[waited], clock.waiting_id[waited]
            late, novelty, missed = clock.waiting[waited, 0], clock.waiting[waited, 1], clock.waiting[waited, 2]
            period, losses = np.float64(clock.waiting[waited, 3]), clock.waiting[waited, 4]
            waited += 1
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
        fill_edges(
            order[:size], sending, messages.features[start:stop], edge_base, edge_ptr[graph + 1], scratch.edges,
            edge_index, edge_attr,
        )  # fmt: skip
