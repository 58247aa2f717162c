"""The edges of a window: which identifier's message came after which other's, how often and how surprisingly."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.windows.features import MESSAGE_FEATURES
from kdgat.family.machine_code import njit

_ORDER_SURPRISE: Final = MESSAGE_FEATURES.index("order_surprise")
_BUS_GAP: Final = MESSAGE_FEATURES.index("bus_gap")


@njit(cache=True, fastmath=True, error_model="numpy")
def fill_edges(
    nodes: NDArray[np.int32],
    num_nodes: int,
    features: NDArray[np.float32],
    first_edge: int,
    last_edge: int,
    edge_index: NDArray[np.int32],
    edge_attr: NDArray[np.float32],
) -> None:
    """Fill the edges of a window of S messages, sorted by destination, then source.

    `nodes` [S] are its messages' nodes, numbered within the window, and `features` [S, NUM_MESSAGE_FEATURES] what is
    said of each; the edges are those from `first_edge` to before `last_edge`.
    """
    size = nodes.shape[0]
    by_source = _sorted(np.arange(1, size, dtype=np.int32), nodes, 1, num_nodes)
    by_target = _sorted(by_source, nodes, 0, num_nodes)
    edge = first_edge - 1
    last_source, last_target = np.int32(-1), np.int32(-1)
    first_to = np.full(num_nodes, last_edge, np.int64)  # first edge to a node
    for message in by_target:
        source, target = nodes[message - 1], nodes[message]
        if source != last_source or target != last_target:
            edge += 1
            if target != last_target:
                first_to[target] = edge
            last_source, last_target = source, target
            edge_index[0, edge] = source
            edge_index[1, edge] = target
        surprise = features[message, _ORDER_SURPRISE]
        edge_attr[edge, 0] += 1.0
        edge_attr[edge, 1] += surprise
        edge_attr[edge, 2] = max(edge_attr[edge, 2], surprise)
        edge_attr[edge, 3] += features[message, _BUS_GAP]
        edge_attr[edge, 4] += message / max(size - 1, 1)
    for edge in range(first_edge, last_edge):
        times = edge_attr[edge, 0]
        edge_attr[edge, 0] = np.log2(1.0 + times)
        edge_attr[edge, 1] /= times
        edge_attr[edge, 3] /= times
        edge_attr[edge, 4] /= times
        source, target = edge_index[0, edge], edge_index[1, edge]
        edge_attr[edge, 6] = 1.0 if source == target else 0.0
        other = first_to[source]  # of those to the source, which stand together
        while other < last_edge and edge_index[1, other] == source and edge_index[0, other] < target:
            other += 1
        if other < last_edge and edge_index[1, other] == source and edge_index[0, other] == target:
            edge_attr[edge, 5] = 1.0


@njit(cache=True)
def _sorted(messages: NDArray[np.int32], nodes: NDArray[np.int32], back: int, num_nodes: int) -> NDArray[np.int32]:
    """Return messages by the node of the one that came so many before, those of the same node in their order."""
    begins = np.zeros(num_nodes + 1, np.int32)
    for message in messages:
        begins[nodes[message - back] + 1] += 1
    for node in range(num_nodes):
        begins[node + 1] += begins[node]
    ordered = np.empty_like(messages)
    for message in messages:
        node = nodes[message - back]
        ordered[begins[node]] = message
        begins[node] += 1
    return ordered
