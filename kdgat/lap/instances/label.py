"""An instance with its label: an optimum and the duals that are to prove it, and answers held to them."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment import CertificateError
from kdgat.assignment.certificate import (
    ROUNDING,
    SPARE,
    TOLERANCE,
    Costs,
    check_duals,
    check_lines,
    matched_costs,
    prove_lines,
)
from kdgat.assignment.matrix import Matrix, make_matrix
from kdgat.assignment.rows import row_slack


@dataclass(frozen=True)
class Problem:
    """A square instance and its label."""

    name: str  # "uniform, n = 512, instance 3"
    cost: NDArray[np.float64]  # [n, n]
    mask: NDArray[np.bool_] | None  # [n, n], True is forbidden
    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [n]
    optimum: float

    @cached_property
    def matrix(self) -> Matrix:
        """Return the costs as the solver reads them."""
        return make_matrix(self.cost, self.mask)

    @cached_property
    def slack(self) -> NDArray[np.float64]:
        """Return min_j(C_ij - v_j) of each row with the label's v [n]."""
        return row_slack(self.matrix.cost, self.matrix.mask, check_duals(self.v, self.cost.shape[1], "v"))


def check_label(problem: Problem) -> None:
    """Check that the label's duals are feasible and reach its optimum, hence prove it (weak duality)."""
    n = problem.cost.shape[0]
    try:
        u, v = check_duals(problem.u, n, "u"), check_duals(problem.v, n, "v")
    except CertificateError as error:
        raise CertificateError(f"{problem.name}: the label's {error}") from error
    rounding = ROUNDING * (SPARE + n)
    largest = max(float(np.abs(u).max()), float(np.abs(v).max()))
    worst = float((problem.slack - u).min())
    if not worst >= -(TOLERANCE * abs(problem.optimum) / n + rounding * largest):
        raise CertificateError(f"{problem.name}: the label's duals are not feasible, a reduced cost is {worst:.3g}")
    bound = math.fsum((math.fsum(u), math.fsum(v)))
    size = float(np.abs(u).sum() + np.abs(v).sum())
    if not abs(bound - problem.optimum) <= TOLERANCE * abs(problem.optimum) + rounding * size:
        raise CertificateError(
            f"{problem.name}: the label's duals reach {bound!r}, its cost is {problem.optimum!r}: that proves nothing"
        )


def check_assignment(problem: Problem, who: str, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
    """Check that every row and column is matched once, on allowed entries, as cheaply as the label's duals prove.

    Any order of the rows will do.
    """
    n = problem.cost.shape[0]
    try:
        column_of = np.empty(n, np.int64)
        column_of[check_lines(rows, n, n, "row")] = check_lines(columns, n, n, "column")
    except CertificateError as error:
        raise CertificateError(f"{problem.name}: {who} does not match every row and column once: {error}") from error
    try:
        costs = matched_costs(problem.matrix, column_of)
        total = math.fsum(costs)
        prove_lines(costs, problem.slack, problem.u, problem.v, column_of, Costs.of(problem.matrix))
    except CertificateError as error:
        total = math.fsum(problem.cost[rows, columns])
        raise CertificateError(
            f"{problem.name}: {who} costs {total!r}, the optimum is {problem.optimum!r}: {error}"
        ) from error
    if not abs(total - problem.optimum) <= TOLERANCE * float(np.abs(costs).sum()) + ROUNDING * n * abs(total):
        raise CertificateError(f"{problem.name}: {who} costs {total!r}, the optimum is {problem.optimum!r}")
