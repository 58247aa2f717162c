"""The k nearest columns of each row and rows of each column of a reduced cost matrix: two passes, row-major."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

NO_MASK = np.zeros((0, 0), np.bool_)
# Entries of a row that are passed over together: they lie apart, so the minima of all blocks are vector operations.
_BLOCK = 16
_FAR = 1e300  # beyond every cost, but not infinite: inf - inf has no order


@njit(cache=True, fastmath={"nnan", "nsz"})
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


@njit(cache=True, inline="always")
def _insert(values: NDArray[Any], indices: NDArray[Any], value: float, index: int) -> None:
    """Put a value below the last into a rising list and drop the last; equal values stay in the order they came."""
    place = len(values) - 1
    while place > 0 and values[place - 1] > value:
        values[place] = values[place - 1]
        indices[place] = indices[place - 1]
        place -= 1
    values[place] = value
    indices[place] = index


@njit(cache=True, fastmath={"nnan", "nsz"})
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
        row minima [n] of C - column minima (0 where a row has no allowed entry), columns [n, R] int32 and their
        reduced costs [n, R] less the row's minimum, rows [m, K] int32 and their reduced costs [m, K]; each list rises.
        Where there are fewer allowed entries than places, index -1 and cost inf.
    """
    num_rows, num_columns = cost.shape
    row_minima = np.zeros(num_rows)
    row_values = np.full((num_rows, num_row_neighbours), np.inf)
    row_indices = np.full((num_rows, num_row_neighbours), -1, np.int32)
    column_values = np.full((num_columns, num_column_neighbours), _FAR)
    column_indices = np.full((num_columns, num_column_neighbours), -1, np.int32)
    width = (num_columns + _BLOCK - 1) // _BLOCK  # block b holds the entries b, b + width, b + 2 width, ...
    padded = width * _BLOCK
    row = np.full(padded, np.inf)
    limits = np.full(padded, -np.inf)  # the K-th smallest of each column so far; padding is never below
    limits[:num_columns] = _FAR
    best = np.empty(width)
    for i in range(num_rows):
        if mask.shape[0] == 0:
            for j in range(num_columns):
                row[j] = cost[i, j] - column_minima[j]
        else:
            for j in range(num_columns):
                row[j] = cost[i, j] - column_minima[j] if not mask[i, j] else np.inf
        for block in range(width):
            best[block] = row[block]
        for start in range(width, padded, width):
            for block in range(width):
                best[block] = min(best[block], row[start + block])
        values, indices = row_values[i], row_indices[i]
        for block in range(width):
            if best[block] < values[num_row_neighbours - 1]:
                for j in range(block, padded, width):
                    if row[j] < values[num_row_neighbours - 1]:
                        _insert(values, indices, row[j], j)
        base = values[0]
        if base == np.inf:
            continue
        row_minima[i] = base
        for place in range(num_row_neighbours):
            values[place] -= base
        for block in range(width):
            best[block] = row[block] - base - limits[block]
        for start in range(width, padded, width):
            for block in range(width):
                best[block] = min(best[block], row[start + block] - base - limits[start + block])
        for block in range(width):
            if best[block] < 0.0:
                for j in range(block, padded, width):
                    value = row[j] - base
                    if value < limits[j]:
                        _insert(column_values[j], column_indices[j], value, i)
                        limits[j] = column_values[j, num_column_neighbours - 1]
    for j in range(num_columns):
        for place in range(num_column_neighbours):
            if column_indices[j, place] < 0:
                column_values[j, place] = np.inf
    return row_minima, row_indices, row_values, column_indices, column_values
