"""Costs that are read in blocks of rows: by a function, or from an array of any type, perhaps mapped from a file."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment.core import candidates
from kdgat.assignment.errors import CostError
from kdgat.assignment.matrix import check_type, too_large
from kdgat.assignment.rows import LANES, first_bad_row, no_mask, row_slack
from kdgat.base.machine_code import compiled

BLOCK_ENTRIES = 1 << 21  # of a block in float64: 16 MB
ENTRIES_PER_GROUP = 5  # of a list: a list of k holds the entries below the largest of k / 5 minima

Values = NDArray[np.float64]


@compiled
def block_candidates(block, v, groups, capacity, columns, costs, count, beyond):  # type: ignore[no-untyped-def]
    """Write the entries with small C_ij - v_j of each row of a block to a row of `columns` and `costs`."""
    m = v.size
    slack, lane = np.empty(m), np.empty(max(m, LANES))
    for r in range(block.shape[0]):
        count[r], beyond[r] = candidates(block[r], v, slack, lane, r * 7 % m, groups, capacity, columns[r], costs[r], 0)


class BlockCosts:
    """Costs [n, m], n <= m, of which `rows(start, stop)` returns [stop - start, m]; +inf is a forbidden pair."""

    def __init__(self, rows: Callable[[int, int], ArrayLike], shape: tuple[int, int]) -> None:
        """Take a function; nothing is read yet."""
        n, m = shape
        if not 0 < n <= m:
            raise CostError(
                f"shape is {shape}: no more rows than columns are needed; give blocks of the transposed costs"
            )
        self.rows, self.shape = rows, (n, m)
        self.block_rows = max(1, BLOCK_ENTRIES // m)
        self.limit = too_large(n * m)

    def read(self, start: int, stop: int) -> Values:
        """Return a block; CostError if it cannot be used."""
        block = np.require(check_type(self.rows(start, stop)), np.float64, ["C", "A", "W"])
        if block.shape != (stop - start, self.shape[1]):
            raise CostError(f"rows({start}, {stop}) has shape {block.shape}: {(stop - start, self.shape[1])} is needed")
        row = first_bad_row(block.view(np.int64), no_mask(), True, np.float64(self.limit).view(np.int64))
        if row < block.shape[0]:
            j = int(np.flatnonzero(~((np.abs(block[row]) < self.limit) | (block[row] == np.inf)))[0])
            raise CostError(
                f"cost[{start + row}, {j}] is {block[row, j]}: costs and sums of them have to be finite; "
                "+inf forbids a pair"
            )
        return block

    def refresh(self, v: Values) -> None:
        """Nothing is known but the costs."""

    def nearest(self, rows: NDArray[np.int64], v: Values, size: int) -> tuple[NDArray, ...]:  # type: ignore[type-arg]
        """Return columns and costs [r, size] of entries with small C_ij - v_j, how many, and the bound on others."""
        found = (
            np.zeros((rows.size, size), np.int32),
            np.zeros((rows.size, size)),
            np.empty(rows.size, np.int64),
            np.empty(rows.size),
        )
        groups = 1 << int(np.log2(max(1, size // ENTRIES_PER_GROUP)))
        begin = 0
        while begin < rows.size:
            end = begin + 1
            while end < rows.size and rows[end] == rows[end - 1] + 1 and end - begin < self.block_rows:
                end += 1
            block = self.read(int(rows[begin]), int(rows[end - 1]) + 1)
            block_candidates(block, v, min(groups, LANES), size, *(part[begin:end] for part in found))
            begin = end
        return found

    def row(self, i: int, out: Values) -> None:
        """Write all costs of a row to `out` [m]."""
        out[:] = self.read(i, i + 1)[0]

    def check(self, v: Values, column_of: NDArray[np.int64]) -> tuple[Values, Values]:
        """Return min_j(C_ij - v_j) of every row and its matched cost [n], from every entry."""
        n = self.shape[0]
        slack, paid = np.empty(n), np.empty(n)
        for start in range(0, n, self.block_rows):
            stop = min(start + self.block_rows, n)
            block = self.read(start, stop)
            slack[start:stop] = row_slack(block, no_mask(), v)
            paid[start:stop] = block[np.arange(stop - start), column_of[start:stop]]
        return slack, paid
