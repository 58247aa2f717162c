"""Read what is to change in a problem: which lines, and their new costs."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment.errors import CostError
from kdgat.assignment.matrix import check_mask, check_type, too_large
from kdgat.assignment.rows import first_bad_row, no_mask

LARGE_CHANGE = 0.25  # of the lines: from here on a solve from the duals that are known is quicker

Lines = Sequence[int] | NDArray[np.integer[Any]]


def read_block(
    cost: ArrayLike, mask: ArrayLike | None, shape: tuple[int, int], num_entries: int, *, maximize: bool
) -> NDArray[np.float64]:
    """Return costs of some lines to be minimised, +inf where forbidden; CostError if they cannot be used.

    `num_entries` is how many the whole matrix has: so many may be added up.
    """
    values = check_type(cost)
    if values.shape != shape:
        raise CostError(f"cost has shape {values.shape}: {list(shape)} is needed for these lines")
    forbidden = check_mask(mask, shape)
    block = np.array(values, np.float64, order="C")
    if maximize:
        np.negative(block, out=block)
    if forbidden is not None:
        block[forbidden] = 0.0
    limit = too_large(max(num_entries, block.size, 1))
    i = first_bad_row(block.view(np.int64), no_mask(), False, np.float64(limit).view(np.int64))
    if i < block.shape[0]:
        j = int(np.flatnonzero(~(np.abs(block[i]) < limit))[0])
        raise CostError(
            f"cost[{i}, {j}] is {values[i, j]}: every allowed cost has to be finite, and sums of them, too; "
            "replace it, scale the costs, or say mask[i, j] = True for pairs that are forbidden"
        )
    if forbidden is not None:
        block[forbidden] = np.inf
    return block


def line_numbers(lines: Lines, count: int, name: str) -> NDArray[np.int64]:
    """Check that lines are there, each named once."""
    found = np.asarray(lines, np.int64 if len(lines) == 0 else None)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise CostError(f"{name}s have shape {found.shape} and dtype {found.dtype}: a list of whole numbers is needed")
    outside = (found < 0) | (found >= count)
    if outside.any():
        raise CostError(f"{name} {int(found[outside][0])}: there are {count} {name}s, from 0")
    if np.unique(found).size < found.size:
        raise CostError(f"{name} {int(np.bincount(found).argmax())} is named twice")
    return found.astype(np.int64)


def count_lines(lines: ArrayLike, axis: Literal[0, 1]) -> int:
    shape = np.shape(lines)
    if len(shape) != 2:
        raise CostError(f"cost has shape {shape}: a matrix [rows, columns] is needed")
    return int(shape[axis])


def lines_of(differs: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return few rows and columns that hold all entries which differ."""
    rows, columns = np.flatnonzero(differs.any(1)), np.flatnonzero(differs.any(0))
    if min(rows.size, columns.size) <= LARGE_CHANGE * min(differs.shape):
        nothing = np.zeros(0, np.int64)
        return (rows, nothing) if rows.size <= columns.size else (nothing, columns)
    many = np.count_nonzero(differs, axis=1) > differs.shape[1] // 2
    return np.flatnonzero(many), np.flatnonzero(differs[~many].any(0))
