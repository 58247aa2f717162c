"""The edges of a window: which identifier's message came after which other's, how often and how surprisingly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import UNCOUNTED, njit
from kdgat.canbus.features.features import COLUMN


class EdgeScratch(NamedTuple):
    """Room for the edges of windows of S messages and N nodes at most, one after the other."""

    by_source: NDArray[np.int32]  # [S]
    by_target: NDArray[np.int32]  # [S]
    begins: NDArray[np.int32]  # [N + 1]
    first_to: NDArray[np.int64]  # [N] first edge to a node


def edge_scratch(num_messages: int, num_nodes: int) -> EdgeScratch:
    """Make room for windows of so many messages and nodes."""
    return EdgeScratch(
        by_source=np.empty(num_messages, np.int32),
        by_target=np.empty(num_messages, np.int32),
        begins=np.empty(num_nodes + 1, np.int32),
        first_to=np.empty(num_nodes, np.int64),
    )


@njit(cache=True, fastmath=True, error_model="numpy", **UNCOUNTED)
def fill_edges(
    nodes: NDArray[np.int32],
    num_nodes: int,
    features: NDArray[np.float32],
    first_edge: int,
    last_edge: int,
    scratch: EdgeScratch,
    edge_index: NDArray[np.int32],
    edge_attr: NDArray[np.float32],
) -> None:
    """Fill the edges of a window of S messages, sorted by destination, then source.

    `nodes` [S] are its messages' nodes, numbered within the window, and `features` [S, NUM_MESSAGE_FEATURES] what is
    said of each; the edges are those from `first_edge` to before `last_edge`.
    """
    size = nodes.shape[0]
    by_source, by_target, first_to = scratch.by_source, scratch.by_target, scratch.first_to
    for message in range(size - 1):
        by_target[message] = np.int32(message + 1)
    _sort(by_target[: size - 1], nodes, 1, num_nodes, scratch.begins, by_source)
    _sort(by_source[: size - 1], nodes, 0, num_nodes, scratch.begins, by_target)
    edge = first_edge - 1
    last_source, last_target = np.int32(-1), np.int32(-1)
    first_to[:num_nodes] = last_edge
    for message in by_target[: size - 1]:
        source, target = nodes[message - 1], nodes[message]
        if source != last_source or target != last_target:
            edge += 1
            if target != last_target:
                first_to[target] = edge
            last_source, last_target = source, target
            edge_index[0, edge] = source
            edge_index[1, edge] = target
        surprise = features[message, COLUMN.order_surprise]
        edge_attr[edge, 0] += 1.0
        edge_attr[edge, 1] += surprise
        edge_attr[edge, 2] = max(edge_attr[edge, 2], surprise)
        edge_attr[edge, 3] += features[message, COLUMN.bus_gap]
        edge_attr[edge, 4] += message / max(size - 1, 1)
    for edge in range(first_edge, last_edge):
        times = edge_attr[edge, 0]
        edge_attr[edge, 0] = np.log2(1.0 + times)
        edge_attr[edge, 1] /= times
        edge_attr[edge, 3] /= times
        edge_attr[edge, 4] /= times
        source, target = edge_index[0, edge], edge_index[1, edge]
        edge_attr[edge, 6] = 1.0 if source == target else 0.0
        other = first_to[source]  # of those to the source, which are adjacent
        while other < last_edge and edge_index[1, other] == source and edge_index[0, other] < target:
            other += 1
        if other < last_edge and edge_index[1, other] == source and edge_index[0, other] == target:
            edge_attr[edge, 5] = 1.0


@njit(cache=True, **UNCOUNTED)
def _sort(
    messages: NDArray[np.int32],
    nodes: NDArray[np.int32],
    back: int,
    num_nodes: int,
    begins: NDArray[np.int32],
    ordered: NDArray[np.int32],
) -> None:
    """Order messages by the node of the one that came so many before, those of the same node in their order."""
    begins[: num_nodes + 1] = 0
    for message in messages:
        begins[nodes[message - back] + 1] += 1
    for node in range(num_nodes):
        begins[node + 1] += begins[node]
    for message in messages:
        node = nodes[message - back]
        ordered[begins[node]] = message
        begins[node] += 1
