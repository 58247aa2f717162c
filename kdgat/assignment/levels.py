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

from kdgat.assignment.result import Assignment
from kdgat.base.machine_code import compiled

APART = 2.0**23  # times a smaller cost: from here on a sum may round a billionth of it away
NEAR = 2.0**10  # entries less than so many times below the largest cost that is paid are large, too
TIGHT = 2.0**-50  # of the first level's reduced costs, times the number of lines

Values = NDArray[np.float64]
Change = Callable[[Values, int], Values]  # of some rows of costs [r, m], from which row on; +inf forbids a pair
Solution = tuple[Values, Values, NDArray[np.int64]]  # u [n], v [m], column of each row [n]


@compiled
def are_apart(paid):  # type: ignore[no-untyped-def]
    """Return whether the smallest of some costs are rounded away beside the largest: what most problems have not."""
    largest, least = 0.0, np.inf
    for value in paid:
        largest, least = max(largest, abs(value)), min(least, abs(value))
    return least * APART < largest


@compiled
def level_below(cost, mask, num_rows, num_columns, paid):  # type: ignore[no-untyped-def]
    """Return the largest entry of cost[:num_rows, :num_columns] below what is `paid` [n] on the first level.

    0 if there is no second level, +inf if some entry lies between.
    """
    if not are_apart(paid):
        return 0.0
    largest = np.abs(paid).max()
    found = 0.0
    for i in range(num_rows):
        for j in range(num_columns):
            size = abs(cost[i, j])
            if found < size < largest / NEAR and (mask.shape[0] == 0 or mask[i, j] == 0):
                if size * APART >= largest:
                    return np.inf
                found = size
    return found


def solve_levels(paid: Values, below: float, num_columns: int, solve: Callable[[Change], Assignment]) -> Solution:
    """Return duals, rounded to the larger level, and the column of each row.

    Args:
        paid: [n], costs of a matching that is optimal on the first level.
        below: what `level_below` returns, neither 0 nor infinite.
        num_columns: m, no fewer than n.
        solve: solves costs [n, m] that are changed, whole rows at a time.
    """
    n, unit = paid.size, float(np.abs(paid).max())
    tight = n * TIGHT

    def on_first(cost: Values, start: int) -> Values:
        return np.where(np.abs(cost) < unit / NEAR, 0.0, cost / unit)

    first = solve(on_first)
    discount = np.where((first.v < -tight) & (n < num_columns), (2 * n + 1) * below, 0.0)

    def on_second(cost: Values, start: int) -> Values:
        reduced = on_first(cost, start) - first.u[start : start + len(cost), None] - first.v
        rest = np.where(np.abs(cost) < unit / NEAR, cost, 0.0) - discount
        return np.where(reduced <= tight, rest, np.inf)

    second = solve(on_second)
    return unit * first.u + second.u, unit * first.v + (second.v + discount), second.columns
