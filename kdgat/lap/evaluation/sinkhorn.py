"""Duals by Sinkhorn's iteration, a way to start that needs no training either: what an evaluation compares with."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment import CostError
from kdgat.assignment.matrix import make_matrix
from kdgat.assignment.rows import ORDERED, allowed_row, lesser
from kdgat.assignment.warm_start import column_seed, line_minima, row_seed, user_duals
from kdgat.base.machine_code import compiled

FIRST_TEMPERATURE, LAST_TEMPERATURE = 3.0, 0.01  # in units of the cost's local scale
SCALE_RANK = 8  # the local scale is the mean over rows of (8th smallest - smallest) cost

Duals = tuple[NDArray[np.float64], NDArray[np.float64]]


def sinkhorn(cost: ArrayLike, iterations: int = 30, mask: ArrayLike | None = None) -> Duals:
    """Return duals by Sinkhorn's iteration in the log domain, made feasible at the end.

    Each iteration is one pass over the matrix, an update of u and one of v; the temperature falls geometrically from
    3 to 0.01 times the mean over rows of (8th smallest - smallest) cost. Source: Cuturi 2013; annealing as in Schmitzer
    2019.
    """
    if iterations < 1:
        raise CostError(f"iterations is {iterations}: at least 1 is needed")
    matrix = make_matrix(cost, mask)
    _, columns = line_minima(matrix)
    scale = local_scale(matrix.cost, matrix.mask, SCALE_RANK)
    seed = column_seed(matrix, columns)
    if scale > 0.0:
        temperatures = scale * np.geomspace(FIRST_TEMPERATURE, LAST_TEMPERATURE, iterations)
        smooth = sinkhorn_rounds(matrix.cost, matrix.mask, seed.v.copy(), temperatures)
        seed = row_seed(matrix, smooth, "sinkhorn")
    return user_duals(matrix, seed)


@compiled(fastmath=ORDERED)
def local_scale(cost, mask, rank):  # type: ignore[no-untyped-def]
    """Return the mean over rows of (rank-th smallest - smallest) allowed cost; rows with fewer give their range."""
    n, m = cost.shape
    buffer = np.empty(m)
    total = 0.0
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        finite = np.sort(row[row < np.inf])
        total += finite[min(rank, finite.size) - 1] - finite[0]
    return total / n


@compiled(fastmath=ORDERED)
def sinkhorn_rounds(cost, mask, v, temperatures):  # type: ignore[no-untyped-def]
    """Return u [n] after one update of u and of v at each temperature, from v [m], which is changed."""
    n, m = cost.shape
    buffer = np.empty(m)
    slack = np.empty(m)
    u = np.empty(n)
    for temperature in temperatures:
        sums = np.zeros(m)
        nearest = np.full(m, np.inf)
        cut = 30.0 * temperature  # e^-30 adds nothing
        for i in range(n):
            row = allowed_row(cost, mask, i, buffer)
            first = np.inf
            for j in range(m):
                slack[j] = row[j] - v[j]
                first = lesser(first, slack[j])
            total = 0.0
            for j in range(m):
                if slack[j] - first < cut:
                    total += np.exp((first - slack[j]) / temperature)
            u[i] = first - temperature * np.log(total)
            for j in range(m):
                value = slack[j] - u[i]
                nearest[j] = value if value < nearest[j] else nearest[j]
                if value < cut:
                    sums[j] += np.exp(-value / temperature)
        for j in range(m):
            if sums[j] > 0.0:
                v[j] -= temperature * np.log(sums[j])
            elif nearest[j] < np.inf:
                v[j] += nearest[j] - cut  # so that its sum is not lost in the next round
    return u
