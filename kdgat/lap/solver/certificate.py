"""Check an assignment against a label without trusting any solver: the label's duals prove what the optimum is."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-9  # relative to the largest allowed cost times the number of rows: what summation can lose


class CertificateError(ArithmeticError):
    """A solver's answer, or a label, is wrong: a defect of the program or of the data, never of the user's command."""


@dataclass(frozen=True)
class Problem:
    """A square instance and its label."""

    name: str  # "uniform, n = 512, instance 3"
    cost: NDArray[np.float64]  # [n, n]
    mask: NDArray[np.bool_] | None  # [n, n], True is forbidden
    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [n]
    optimum: float

    @property
    def slack(self) -> float:
        """Return by how much sums of this instance may differ."""
        allowed = self.cost if self.mask is None else np.where(self.mask, 0.0, self.cost)
        return TOLERANCE * max(1.0, float(np.abs(allowed).max(initial=0.0)) * self.cost.shape[0])


def check_label(problem: Problem) -> None:
    """Check that the label's duals are feasible and reach its optimum, hence prove it (weak duality)."""
    reduced = problem.cost - problem.u[:, None] - problem.v[None, :]
    if problem.mask is not None:
        reduced = np.where(problem.mask, np.inf, reduced)
    worst = float(reduced.min(initial=np.inf))
    if worst < -problem.slack:
        raise CertificateError(f"{problem.name}: the label's duals are not feasible, a reduced cost is {worst:.3g}")
    bound = float(problem.u.sum() + problem.v.sum())
    if abs(bound - problem.optimum) > problem.slack:
        raise CertificateError(
            f"{problem.name}: the label's duals reach {bound!r}, its cost is {problem.optimum!r}: that proves nothing"
        )


def check_assignment(problem: Problem, who: str, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
    """Check that every row and column is matched once, on allowed entries, at the label's cost."""
    n = problem.cost.shape[0]
    if not (np.array_equal(np.sort(rows), np.arange(n)) and np.array_equal(np.sort(columns), np.arange(n))):
        raise CertificateError(f"{problem.name}: {who} does not match every row and column once")
    if problem.mask is not None and problem.mask[rows, columns].any():
        raise CertificateError(f"{problem.name}: {who} uses a forbidden pair")
    total = float(problem.cost[rows, columns].sum())
    if abs(total - problem.optimum) > problem.slack:
        raise CertificateError(f"{problem.name}: {who} costs {total!r}, the optimum is {problem.optimum!r}")
