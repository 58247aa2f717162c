"""Costs on two levels: beside a large one that has to be paid, all smaller ones would be rounded away.

A number that stands for "forbidden", 1e20 or `sys.maxsize`, ends up in the answer where not all lines can be matched
without it. Sums with it do not tell 1 from 7, so that neither searches nor the proof see which of the other costs are
paid. Where costs of the matching are that far apart, and no entry of the matrix lies between, they are minimised one
after the other. On the first level large entries count in units of the largest, others nothing; its duals say which
pairs an optimum of that level may use. On the second level only these are allowed, large ones at no cost. Lines whose
first dual is below 0 have to stay matched, which a discount on all of their entries sees to.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.matrix import Matrix
from kdgat.assignment.result import Assignment
from kdgat.base.machine_code import compiled

APART = 2.0**23  # times a smaller cost: from here on a sum may round a billionth of it away
NEAR = 2.0**10  # entries less than so many times below the largest cost that is paid are large, too
TIGHT = 2.0**-50  # of the first level's reduced costs, times the number of lines


@compiled
def are_apart(paid):  # type: ignore[no-untyped-def]
    """Return whether the smallest of some costs are rounded away beside the largest: what most problems have not."""
    largest, least = 0.0, np.inf
    for value in paid:
        largest, least = max(largest, abs(value)), min(least, abs(value))
    return least * APART < largest


@compiled
def has_levels(cost, mask, num_rows, num_columns, paid):  # type: ignore[no-untyped-def]
    """Return whether what is `paid` [n] has two levels, with no entry of cost[:num_rows, :num_columns] between."""
    if not are_apart(paid):
        return False
    largest = np.abs(paid).max()
    found = False
    for i in range(num_rows):
        for j in range(num_columns):
            size = abs(cost[i, j])
            if 0.0 < size < largest / NEAR and (mask.shape[0] == 0 or mask[i, j] == 0):
                if size * APART >= largest:
                    return False
                found = True
    return found


def solve_levels(
    matrix: Matrix, paid: NDArray[np.float64], solve: Callable[[Matrix], Assignment]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return duals u [n], v [m], rounded to the larger level, and the column of each row [n].

    Args:
        matrix: of which `has_levels` is true.
        paid: [n], costs of a matching that is optimal on the first level.
        solve: solves a matrix of one level, in terms of its rows and columns.
    """
    n, m = matrix.cost.shape
    unit = float(np.abs(paid).max())
    is_large = ~(np.abs(matrix.cost) < unit / NEAR)
    first = solve(Matrix(np.where(is_large, matrix.cost / unit, 0.0), matrix.mask, False, False))
    forbidden = ~matrix.allowed()
    rest = np.where(is_large | forbidden, 0.0, matrix.cost)
    reduced = np.where(is_large, matrix.cost / unit, 0.0) - first.u[:, None] - first.v
    forbidden |= ~(reduced <= n * TIGHT)
    discount = np.where((first.v < -n * TIGHT) & (n < m), (2 * n + 1) * np.abs(rest).max(), 0.0)
    second = solve(Matrix(rest - discount, forbidden.view(np.uint8), False, False))
    return unit * first.u + second.u, unit * first.v + (second.v + discount), second.columns
