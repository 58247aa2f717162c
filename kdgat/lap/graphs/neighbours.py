"""The k nearest columns of each row and rows of each column of a reduced cost matrix, in three passes, row-major.

To find the k smallest of many numbers, cut them into blocks: the k-th smallest block minimum is at least the k-th
smallest number, and few numbers lie below it. The minima of all blocks are vector operations; only what lies below
the limit is sorted in one by one. What is left after the column minima is float32: a network reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import compiled

NO_MASK = np.zeros((0, 0), np.bool_)
_BLOCK = 16  # entries of a block
_ZERO = np.float32(0.0)
_INFINITY = np.float32(np.inf)
_TINY = np.float32(1e-30)
_FAR = np.float32(1e38)  # beyond every cost, but not infinite: inf - inf has no order


@compiled(fastmath={"nnan", "nsz"})
def column_base(cost: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the minima [m] of the columns over allowed entries; `mask` [n, m] True = forbidden, or NO_MASK.

    A column without an allowed entry has 0.
    """
    num_rows, num_columns = cost.shape
    minima = np.full(num_columns, np.inf)
    if mask.shape[0] == 0:
        for i in range(num_rows):
            for j in range(num_columns):
                minima[j] = min(minima[j], cost[i, j])
    else:
        for i in range(num_rows):
            for j in range(num_columns):
                value = cost[i, j] if not mask[i, j] else np.inf
                minima[j] = min(minima[j], value)
        for j in range(num_columns):
            if minima[j] == np.inf:
                minima[j] = 0.0
    return minima


@compiled(inline="always")
def _insert(values: NDArray[Any], indices: NDArray[Any], value: float, index: int) -> None:
    """Put a value below the last into a rising list and drop the last; equal values stay in the order they came."""
    place = len(values) - 1
    while place > 0 and values[place - 1] > value:
        values[place] = values[place - 1]
        indices[place] = indices[place - 1]
        place -= 1
    values[place] = value
    indices[place] = index


@compiled(fastmath={"nnan", "nsz"})
def _limit(minima: NDArray[np.float32], count: int, spread: Any) -> tuple[Any, Any]:
    """Return a value that at least `count` block minima do not exceed, and not many more; _FAR if there are fewer.

    `spread` is a guess how far it lies above the least of them, as the last call returned it. Bisection: counting is a
    vector operation, and sorting would wait for its branches.
    """
    least = _FAR
    for block in range(len(minima)):
        least = min(least, minima[block])
    if len(minima) < count or least == _FAR:
        return _FAR, spread
    below, above = _ZERO, np.float32(spread)
    while _count(minima, least + above) < count:
        below, above = above, np.float32(2.0) * above
        if least + above >= _FAR:
            return _FAR, spread
    for _ in range(8):
        middle = np.float32(0.5) * (below + above)
        found = _count(minima, least + middle)
        if found < count:
            below = middle
        else:
            above = middle
            if found <= count + 2:
                break
    return least + above, max(above, np.float32(0.25) * np.float32(spread), _TINY)


@compiled(fastmath={"nnan", "nsz"})
def _count(minima: NDArray[np.float32], limit: Any) -> Any:
    found = np.int32(0)
    for block in range(len(minima)):
        found += np.int32(minima[block] <= limit)
    return found


@compiled(fastmath={"nnan", "nsz"})
def _reduce_row(
    row: NDArray[np.float32], cost: NDArray[Any], mask: NDArray[np.bool_], i: int, base: NDArray[np.float64]
) -> None:
    """Write row i of C - base, inf where forbidden, into the front of `row`."""
    if mask.shape[0] == 0:
        for j in range(len(base)):
            row[j] = np.float32(cost[i, j] - base[j])
    else:
        for j in range(len(base)):
            row[j] = np.float32(cost[i, j] - base[j]) if not mask[i, j] else _INFINITY


@compiled(fastmath={"nnan", "nsz"})
def _block_minima(row: NDArray[np.float32], best: NDArray[np.float32]) -> None:
    """Write the minima of blocks: block b of `width` holds the entries b, b + width, b + 2 width, ..."""
    width = len(best)
    for block in range(width):
        best[block] = row[block]
    for start in range(width, len(row), width):
        for block in range(width):
            best[block] = min(best[block], row[start + block])


@compiled
def nearest(
    cost: NDArray[Any],
    mask: NDArray[np.bool_],
    column_minima: NDArray[np.float64],
    num_row_neighbours: int,
    num_column_neighbours: int,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Find the nearest entries by reduced cost: C - column minima for rows, that less the row's minimum for columns.

    Args:
        cost: [n, m].
        mask: [n, m] bool, True = forbidden, or NO_MASK.
        column_minima: [m] what is taken off each column first.
        num_row_neighbours: R, at most m.
        num_column_neighbours: K, at most n.

    Returns:
        float32 minima [n] of the rows of C - column minima (0 where a row has no allowed entry), columns [n, R] int32
        and their reduced costs [n, R] less the row's minimum, rows [m, K] int32 and their reduced costs [m, K]; each
        list rises. Where there are fewer allowed entries than places, index -1 and cost inf.
    """
    num_rows, num_columns = cost.shape
    row_minima = np.zeros(num_rows, np.float32)
    row_values = np.full((num_rows, num_row_neighbours), _INFINITY, np.float32)
    row_indices = np.full((num_rows, num_row_neighbours), -1, np.int32)
    width = (num_columns + _BLOCK - 1) // _BLOCK
    row = np.full(width * _BLOCK, _INFINITY, np.float32)
    best = np.empty(width, np.float32)
    spread = _TINY
    of_columns = np.full(
        ((num_rows + _BLOCK - 1) // _BLOCK, num_columns), _INFINITY, np.float32
    )  # minima of blocks of rows
    for i in range(num_rows):
        _reduce_row(row, cost, mask, i, column_minima)
        _block_minima(row, best)
        limit, spread = _limit(best, num_row_neighbours, spread)
        values, indices = row_values[i], row_indices[i]
        for block in range(width):
            if best[block] <= limit:
                for j in range(block, len(row), width):
                    if row[j] <= limit and row[j] < values[num_row_neighbours - 1]:
                        _insert(values, indices, row[j], j)
        base = values[0]
        if base == _INFINITY:
            continue
        row_minima[i] = base
        for place in range(num_row_neighbours):
            values[place] -= base
        minima = of_columns[i // _BLOCK]
        for j in range(num_columns):
            minima[j] = min(minima[j], row[j] - base)

    column_values = np.full((num_columns, num_column_neighbours), _INFINITY, np.float32)
    column_indices = np.full((num_columns, num_column_neighbours), -1, np.int32)
    limits = np.full(width * _BLOCK, -_INFINITY, np.float32)
    turned = np.ascontiguousarray(of_columns.T)
    for j in range(num_columns):
        limits[j], spread = _limit(turned[j], num_column_neighbours, spread)
    excess = np.full(width * _BLOCK, _INFINITY, np.float32)
    for i in range(num_rows):
        if row_values[i, 0] == _INFINITY:
            continue
        _reduce_row(row, cost, mask, i, column_minima)
        base = row_minima[i]
        for j in range(num_columns):
            excess[j] = row[j] - base - limits[j]
        _block_minima(excess, best)
        for block in range(width):
            if best[block] <= _ZERO:
                for j in range(block, len(row), width):
                    value = row[j] - base
                    if value <= limits[j] and value < column_values[j, num_column_neighbours - 1]:
                        _insert(column_values[j], column_indices[j], value, i)
    return row_minima, row_indices, row_values, column_indices, column_values
