"""Largest matchings of a bipartite graph, and which rows compete for too few columns.

By Hopcroft and Karp (1973): in each of at most about sqrt(n) phases, one breadth-first search gives the rows their
layers, and a depth-first search that never looks at an edge twice follows them. The searches keep a stack and a place
in each row, so neither long paths nor many layers make them slow.
"""

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import compiled

UNREACHED = -1


def edges_of(allowed: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the True entries of a matrix by rows: where each row's begin [n + 1], and their columns."""
    n, m = allowed.shape
    start = np.zeros(n + 1, np.int64)
    np.cumsum(np.count_nonzero(allowed, axis=1), out=start[1:])
    columns = np.empty(start[-1], np.int32)
    every = np.arange(m, dtype=np.int32)
    for i in range(n):
        columns[start[i] : start[i + 1]] = every[allowed[i]]
    return start, columns


@compiled
def largest_matching(start, columns, num_columns):  # type: ignore[no-untyped-def]
    """Return each row's column [n] and each column's row [m] in a largest matching, -1 where there is none."""
    n = start.size - 1
    column_of, row_of = np.full(n, -1, np.int64), np.full(num_columns, -1, np.int64)
    for i in range(n):
        for e in range(start[i], start[i + 1]):
            if row_of[columns[e]] < 0:
                column_of[i], row_of[columns[e]] = columns[e], i
                break
    layer, queue, path = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    edge = np.empty(n, np.int64)  # the next one of each row to be looked at
    while True:
        tail = 0
        for i in range(n):
            edge[i] = start[i]
            layer[i] = UNREACHED
            if column_of[i] < 0:
                layer[i] = 0
                queue[tail] = i
                tail += 1
        head, last = 0, n + 1
        while head < tail and layer[queue[head]] < last:
            i = queue[head]
            head += 1
            for e in range(start[i], start[i + 1]):
                other = row_of[columns[e]]
                if other < 0:
                    last = layer[i]
                elif layer[other] == UNREACHED:
                    layer[other] = layer[i] + 1
                    queue[tail] = other
                    tail += 1
        if last > n:
            return column_of, row_of
        for origin in range(n):
            if column_of[origin] >= 0:
                continue
            depth = 0
            path[0] = origin
            while depth >= 0:
                i = path[depth]
                if edge[i] == start[i + 1]:
                    layer[i] = UNREACHED
                    depth -= 1
                    if depth >= 0:
                        edge[path[depth]] += 1
                    continue
                other = row_of[columns[edge[i]]]
                if other < 0:
                    for k in range(depth, -1, -1):
                        column_of[path[k]] = columns[edge[path[k]]]
                        row_of[column_of[path[k]]] = path[k]
                        layer[path[k]] = UNREACHED
                    break
                if layer[i] < last and layer[other] == layer[i] + 1:
                    depth += 1
                    path[depth] = other
                else:
                    edge[i] += 1


@compiled
def competing(start, columns, row_of, origin):  # type: ignore[no-untyped-def]
    """Return which rows [n] and columns [m] alternating paths reach from a row without a match (Hall's condition)."""
    n = start.size - 1
    rows, reached = np.zeros(n, np.bool_), np.zeros(row_of.size, np.bool_)
    stack = np.empty(n, np.int64)
    stack[0] = origin
    rows[origin] = True
    size = 1
    while size > 0:
        size -= 1
        i = stack[size]
        for e in range(start[i], start[i + 1]):
            j = columns[e]
            if not reached[j]:
                reached[j] = True
                other = row_of[j]
                if other >= 0 and not rows[other]:
                    rows[other] = True
                    stack[size] = other
                    size += 1
    return rows, reached
