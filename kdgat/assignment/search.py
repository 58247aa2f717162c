"""Dijkstra's search for a shortest augmenting path over lists of entries: its heap, its steps, and what it leaves.

A search begins at a free row and reaches columns at a `distance` [m], +inf of those not reached. `reached` and
`scanned` [m] are columns in the order in which that happened, `predecessor` [m] is the row from which a column was
reached. Columns that are matched wait in a heap of `keys` and `nodes`; `place` [nodes] is where a node is in it, -1 if
it is not. Between searches `distance` is +inf and `place` is -1 everywhere; nothing else is kept.

Every function is inlined where it is called: what a caller does at a column, and with which rows, stands in its loop.
"""

import numpy as np

from kdgat.base.machine_code import njit


@njit(inline="always")
def rise(keys, nodes, place, position, key, node):  # type: ignore[no-untyped-def]
    """Move a node of the heap up from `position` to where `key` belongs."""
    while position > 0:
        parent = (position - 1) >> 1
        if keys[parent] <= key:
            break
        keys[position] = keys[parent]
        nodes[position] = nodes[parent]
        place[nodes[position]] = position
        position = parent
    keys[position] = key
    nodes[position] = node
    place[node] = position


@njit(inline="always")
def sink(keys, nodes, place, size, key, node):  # type: ignore[no-untyped-def]
    """Move a node down from the top of the heap of `size` nodes to where `key` belongs."""
    position = 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[position] = keys[child]
        nodes[position] = nodes[child]
        place[nodes[position]] = position
        position = child
    keys[position] = key
    nodes[position] = node
    place[node] = position


@njit(inline="always")
def push(keys, nodes, place, size, key, node):  # type: ignore[no-untyped-def]
    """Put a node into the heap, or give it a smaller key; return the new size."""
    position = place[node]
    if position < 0:
        position = size
        size += 1
    rise(keys, nodes, place, position, key, node)
    return size


@njit(inline="always")
def pop(keys, nodes, place, size):  # type: ignore[no-untyped-def]
    """Take the first node off the heap; return the new size."""
    place[nodes[0]] = -1
    size -= 1
    if size > 0:
        sink(keys, nodes, place, size, keys[size], nodes[size])
    return size


@njit(inline="always")
def reach(j, value, i, distance, predecessor, reached, num_reached):  # type: ignore[no-untyped-def]
    """Note that row i reaches column j at a smaller distance; return how many columns are reached."""
    if distance[j] == np.inf:
        reached[num_reached] = j
        num_reached += 1
    distance[j] = value
    predecessor[j] = i
    return num_reached


@njit(inline="always")
def settle(best, origin, u, v, row_of, distance, scanned, num_scanned):  # type: ignore[no-untyped-def]
    """Make a path of length `best` tight: change the duals of the origin, of columns scanned and of their rows."""
    u[origin] += best
    for k in range(num_scanned):
        j = scanned[k]
        u[row_of[j]] += best - distance[j]
        v[j] -= best - distance[j]


@njit(inline="always")
def clear(distance, reached, num_reached, nodes, place, size):  # type: ignore[no-untyped-def]
    """Empty the heap, and forget the distances of all columns reached."""
    for k in range(size):
        place[nodes[k]] = -1
    for k in range(num_reached):
        distance[reached[k]] = np.inf


@njit(inline="always")
def flip(origin, end, predecessor, column_of, row_of):  # type: ignore[no-untyped-def]
    """Give every row of an alternating path the column before which it stands: `end` is free, row `origin` too."""
    j = end
    while True:
        i = predecessor[j]
        row_of[j] = i
        following = column_of[i]
        column_of[i] = j
        if i == origin:
            break
        j = following
