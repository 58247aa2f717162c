"""Dual seeds that need no training: from one pass over the matrix, or from some rounds of Sinkhorn's iteration.

Each function returns feasible duals (u [n], v [m]) of min sum C_ij x_ij: u_i + v_j <= C_ij on allowed entries; the
larger side's duals are <= 0. Raise CostError and InfeasibleError as `kdgat.assignment.exact.solve` does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment import kernels
from kdgat.assignment.errors import CostError
from kdgat.assignment.matrix import Matrix, check_duals, infeasible, make_matrix
from kdgat.assignment.result import COLUMN_MINIMA as COLUMN_MINIMA

PREDICTION, ROW_MINIMA = "prediction", "row minima"
FIRST_TEMPERATURE, LAST_TEMPERATURE = 3.0, 0.01  # in units of the cost's local scale
SCALE_RANK = 8  # the local scale is the mean over rows of (8th smallest - smallest) cost

Duals = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Seed:
    """Feasible duals of a `Matrix`, the rows' as large as the columns' allow and the other way round."""

    name: str
    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [m]; <= 0 if n < m
    fallback: "Seed | None" = None  # to start from again if searches from this one are long; None: go on

    @property
    def bound(self) -> float:
        """Return the lower bound on the optimum that they prove."""
        return float(self.u.sum() + self.v.sum())


def project(cost: ArrayLike, u: ArrayLike, mask: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return the largest v [m] with u_i + v_j <= C_ij: v_j = min_i(C_ij - u_i), the min-trick.

    With n < m it is cut at 0, as the rectangular problem demands; with n > m, u has to be <= 0.
    """
    matrix = make_matrix(cost, mask)
    n, m = _user_shape(matrix)
    duals = check_duals(u, n, "u")
    assert duals is not None
    if not matrix.transposed:
        v = kernels.column_slack(matrix.cost, matrix.mask, duals)
        return np.minimum(v, 0.0) if n < m else v
    if (duals > 0).any():
        place = int(np.flatnonzero(duals > 0)[0])
        raise CostError(f"u[{place}] is {duals[place]}: with more rows than columns, duals of rows have to be <= 0")
    return kernels.row_slack(matrix.cost, matrix.mask, duals)


def dual_bound(cost: ArrayLike, u: ArrayLike, v: ArrayLike | None = None, mask: ArrayLike | None = None) -> float:
    """Return the lower bound on the optimum that duals prove, after making them feasible.

    Without v: by `project`. With v: each u_i is cut at min_j(C_ij - v_j).
    """
    matrix = make_matrix(cost, mask)
    n, m = _user_shape(matrix)
    rows, columns = check_duals(u, n, "u"), check_duals(v, m, "v")
    assert rows is not None
    if columns is None:
        return float(rows.sum() + project(cost, rows, mask).sum())
    small, large = (columns, rows) if matrix.transposed else (rows, columns)
    if n != m:
        large = np.minimum(large, 0.0)
    return float(np.minimum(small, kernels.row_slack(matrix.cost, matrix.mask, large)).sum() + large.sum())


def column_minima(cost: ArrayLike, mask: ArrayLike | None = None) -> Duals:
    """Return v = column minima, u = row minima of what is left (for a rectangle: shifted so that v <= 0)."""
    matrix = make_matrix(cost, mask)
    _, columns = line_minima(matrix)
    return _user_duals(matrix, column_seed(matrix, columns))


def row_minima(cost: ArrayLike, mask: ArrayLike | None = None) -> Duals:
    """Return u = row minima, v = column minima of what is left."""
    matrix = make_matrix(cost, mask)
    rows, _ = line_minima(matrix)
    return _user_duals(matrix, row_seed(matrix, rows, ROW_MINIMA))


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
    scale = kernels.local_scale(matrix.cost, matrix.mask, SCALE_RANK)
    seed = column_seed(matrix, columns)
    if scale > 0.0:
        temperatures = scale * np.geomspace(FIRST_TEMPERATURE, LAST_TEMPERATURE, iterations)
        smooth = kernels.sinkhorn_rounds(matrix.cost, matrix.mask, seed.v.copy(), temperatures)
        seed = row_seed(matrix, smooth, "sinkhorn")
    return _user_duals(matrix, seed)


def line_minima(matrix: Matrix) -> Duals:
    """Return the minima of rows [n] and columns [m]; raise InfeasibleError if a line that must be matched has none."""
    rows, columns = kernels.minima(matrix.cost, matrix.mask)
    check_minima(matrix, rows, columns)
    return rows, columns


def check_minima(matrix: Matrix, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> None:
    """Raise InfeasibleError if a line that must be matched has no allowed entry."""
    n, m = matrix.cost.shape
    if np.isinf(rows).any() or np.isinf(columns).sum() > m - n:
        raise infeasible(matrix)


def column_seed(matrix: Matrix, columns: NDArray[np.float64]) -> Seed:
    """Return the seed that column minima give; `columns` are `line_minima`'s."""
    n, m = matrix.cost.shape
    v = columns if n == m else np.minimum(columns - gauge(columns, n), 0.0)
    return Seed(COLUMN_MINIMA, kernels.row_slack(matrix.cost, matrix.mask, v), v)


def row_seed(matrix: Matrix, u: NDArray[np.float64], name: str) -> Seed:
    """Return the seed that any duals of the rows give, by the min-trick and a tightening of the rows.

    For a rectangle, u is first shifted by the constant that gives the best bound. Row minima of a square matrix are
    tight as they are: v is 0 in the columns where they lie.
    """
    n, m = matrix.cost.shape
    v = kernels.column_slack(matrix.cost, matrix.mask, u)
    if n == m and name == ROW_MINIMA:
        return Seed(name, u, v)
    if n < m:
        v = np.minimum(v - gauge(v, n), 0.0)
    return Seed(name, kernels.row_slack(matrix.cost, matrix.mask, v), v)


def gauge(slack: NDArray[np.float64], n: int) -> float:
    """Return the shift c that maximises n c + sum_j min(0, slack_j - c): the n-th smallest slack."""
    return float(np.partition(slack, n - 1)[n - 1])


def _user_shape(matrix: Matrix) -> tuple[int, int]:
    n, m = matrix.cost.shape
    return (m, n) if matrix.transposed else (n, m)


def _user_duals(matrix: Matrix, seed: Seed) -> Duals:
    return (seed.v, seed.u) if matrix.transposed else (seed.u, seed.v)
