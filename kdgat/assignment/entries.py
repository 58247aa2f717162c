"""Solve sparse matrices from their entries alone: what is not stored is forbidden, and never made.

The way is that of large problems (`large.py`), whose rows are lists here from the start.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, hstack

from kdgat.assignment.errors import CostError, CostTypeError, InfeasibleError
from kdgat.assignment.large import solve_rows
from kdgat.assignment.matrix import infeasible_edges, too_large
from kdgat.assignment.partial import check_price
from kdgat.assignment.result import Assignment
from kdgat.base.machine_code import compiled

MAX_DENSE = 1 << 20  # entries of a matrix up to which it is solved as a dense one
DENSE_SHARE = 0.125  # of the entries that are stored: from here on lists are longer than rows

Values = NDArray[np.float64]


@compiled
def nearest_entries(start, targets, prices, rows, v, columns, costs, count, beyond):  # type: ignore[no-untyped-def]
    """Write the entries with least C_ij - v_j of some rows, as many as fit, to `columns` and `costs`.

    beyond[r] is the least C_ij - v_j of the others, +inf if there are none.
    """
    size = columns.shape[1]
    for r in range(rows.size):
        first, last = start[rows[r]], start[rows[r] + 1]
        beyond[r] = np.inf
        if last - first <= size:
            count[r] = last - first
            for e in range(first, last):
                columns[r, e - first], costs[r, e - first] = targets[e], prices[e]
            continue
        slack = np.empty(last - first)
        for e in range(first, last):
            slack[e - first] = prices[e] - v[targets[e]]
        order = np.argsort(slack)
        count[r], beyond[r] = size, slack[order[size]]
        for k in range(size):
            columns[r, k], costs[r, k] = targets[first + order[k]], prices[first + order[k]]


@compiled
def entry_slacks(start, targets, prices, v, column_of, slack, paid):  # type: ignore[no-untyped-def]
    """Write min_j(C_ij - v_j) and the matched cost of every row, +inf if the pair is none of the entries."""
    for i in range(slack.size):
        slack[i] = paid[i] = np.inf
        for e in range(start[i], start[i + 1]):
            slack[i] = min(slack[i], prices[e] - v[targets[e]])
            if targets[e] == column_of[i]:
                paid[i] = prices[e]


class EntryCosts:
    """Costs [n, m], n <= m, of which only entries are stored, by rows; see `kdgat.assignment.large.RowCosts`."""

    def __init__(self, start: NDArray[np.int64], targets: NDArray[np.int32], prices: Values, num_columns: int) -> None:
        """Take where each row's entries begin [n + 1], and all columns and costs."""
        self.start, self.targets, self.prices = start, targets, prices
        self.shape = (start.size - 1, num_columns)

    def refresh(self, v: Values) -> None:
        """Nothing is known but the costs."""

    def nearest(self, rows: NDArray[np.int64], v: Values, size: int) -> tuple[NDArray[Any], ...]:
        """Return columns and costs [r, size] of the entries with least C_ij - v_j, how many, and a bound on others."""
        columns, costs = np.zeros((rows.size, size), np.int32), np.zeros((rows.size, size))
        count, beyond = np.empty(rows.size, np.int64), np.empty(rows.size)
        nearest_entries(self.start, self.targets, self.prices, rows, v, columns, costs, count, beyond)
        return columns, costs, count, beyond

    def row(self, i: int, out: Values) -> None:
        """Write all costs of a row to `out` [m], +inf where there is no entry."""
        part = slice(self.start[i], self.start[i + 1])
        out[:] = np.inf
        out[self.targets[part]] = self.prices[part]

    def check(self, v: Values, column_of: NDArray[np.int64]) -> tuple[Values, Values]:
        """Return min_j(C_ij - v_j) of every row and its matched cost [n], from every entry."""
        slack, paid = np.empty(self.shape[0]), np.empty(self.shape[0])
        entry_slacks(self.start, self.targets, self.prices, v, column_of, slack, paid)
        return slack, paid


def is_better_dense(matrix: Any) -> bool:
    """Return whether a sparse matrix is so small, or so full, that it is solved as a dense one."""
    size = matrix.shape[0] * matrix.shape[1] if len(matrix.shape) == 2 else 0
    return bool(size <= MAX_DENSE or matrix.nnz >= DENSE_SHARE * size)


def make_dense(matrix: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return costs and mask of a sparse matrix: where it has no entry, a pair is forbidden."""
    entries = coo_array(matrix)
    entries.sum_duplicates()
    cost, mask = np.zeros(entries.shape, entries.dtype), np.ones(entries.shape, bool)
    cost[entries.coords] = entries.data
    mask[entries.coords] = False
    return cost, mask


def solve_entries(matrix: Any, *, maximize: bool = False, unmatched_cost: float | None = None) -> Assignment:
    """Return the best matching of the whole smaller side over the entries of a sparse matrix, and duals that prove it.

    Args:
        matrix: [n, m] of scipy.sparse, real numbers; a stored 0 is a cost, what is not stored is forbidden.
        maximize: seek the largest total.
        unmatched_cost: what each row costs that is left without a column; None if the smaller side is to be matched.

    Raises:
        CostError: naming a cost that cannot be used.
        InfeasibleError: if no such matching is allowed.

    >>> found = solve_entries(csr_array([[4.0, 1.0, 0.0], [2.0, 9.0, 0.0], [0.0, 5.0, 3.0]]))
    >>> found.columns.tolist(), found.cost
    ([1, 0, 2], 6.0)
    """
    sign = -1.0 if maximize else 1.0
    if unmatched_cost is not None:  # an infinite cost is one that is never paid, as in a dense matrix
        stored = coo_array(matrix)
        is_paid = stored.data * sign != np.inf
        matrix = coo_array((stored.data[is_paid], tuple(line[is_paid] for line in stored.coords)), shape=stored.shape)
    work = _checked(matrix, sign)
    n, m = work.shape
    if unmatched_cost is not None:
        # A column of its own for each row: no other row can take it, so its dual may be moved to the row.
        own = sign * check_price(unmatched_cost)
        entries = work.tocoo()
        (rows, columns), cheap = entries.coords, entries.data < own
        work = csr_array((entries.data[cheap], (rows[cheap], columns[cheap])), shape=(n, m))
        work = csr_array(hstack([work, csr_array((np.full(n, own), np.arange(n), np.arange(n + 1)), shape=(n, n))]))
    swapped = work.shape[0] > work.shape[1]
    if swapped:
        work = work.T.tocsr()
    start, targets = work.indptr.astype(np.int64), work.indices.astype(np.int32)
    costs = EntryCosts(start, targets, work.data, work.shape[1])
    try:
        found = solve_rows(costs, swapped=swapped)
    except InfeasibleError:
        raise infeasible_edges(start, targets, work.shape[1], transposed=swapped) from None
    u, v, rows, columns = found.u, found.v, found.rows, found.columns
    if unmatched_cost is not None:
        u, v = u + v[m:], v[:m]
        rows, columns = rows[columns < m], columns[columns < m]
    return replace(
        found,
        rows=rows,
        columns=columns,
        cost=sign * found.cost,
        u=sign * u,
        v=sign * v,
        dual_bound=sign * found.dual_bound,
        seed_bound=sign * found.seed_bound,
    )


def _checked(matrix: Any, sign: float) -> csr_array:
    """Return the entries by rows as costs to be minimised; CostError."""
    if matrix.dtype.kind not in "fiub" or matrix.dtype.itemsize > np.dtype(np.float64).itemsize:
        raise CostTypeError(f"Cannot cast array data from {matrix.dtype!r} to dtype('float64'): convert the matrix")
    work = csr_array(matrix).astype(np.float64)  # a copy
    work.sum_duplicates()
    limit = too_large(max(work.nnz, 1))
    wrong = np.flatnonzero(~(np.abs(work.data) < limit))
    if wrong.size:
        i, value = int(np.searchsorted(work.indptr, wrong[0], side="right")) - 1, work.data[wrong[0]]
        raise CostError(
            f"cost[{i}, {work.indices[wrong[0]]}] is {value}: matrix contains invalid numeric entries; costs and sums "
            "of them have to be finite; store no entry where a pair is forbidden"
        )
    work.data *= sign
    return work
