"""Random and adversarial problems through every entrance of the solver, compared with scipy's optimum.

python -m tests.assignment.agreement 100000     # some minutes; `make test` does a few hundred
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment as scipy_assignment
from scipy.spatial.distance import cdist

from kdgat.assignment import (
    Assignment,
    Reoptimiser,
    linear_sum_assignment,
    solve,
    solve_batch,
    solve_blocks,
    solve_points,
)
from kdgat.assignment.points import METRICS

BATCH = 50  # problems solved by one call of `solve_batch`
POINTS = 10  # point problems for each of these
RELATIVE = 1e-9  # of the matched costs: what the solver proves


@dataclass(frozen=True)
class Case:
    """A problem with a seed, and what scipy says of it."""

    kind: str
    cost: NDArray[np.float64]
    mask: NDArray[np.bool_] | None
    maximize: bool
    u: NDArray[np.float64] | None
    v: NDArray[np.float64] | None
    optimum: float
    tolerance: float

    def blocked(self) -> NDArray[np.float64]:
        """Return the matrix with infinities for the mask."""
        return blocked(self.cost, self.mask, self.maximize)


def blocked(cost: NDArray[np.float64], mask: NDArray[np.bool_] | None, maximize: bool) -> NDArray[np.float64]:
    return cost if mask is None else np.where(mask, -np.inf if maximize else np.inf, cost)


def draw_cost(rng: np.random.Generator, n: int, m: int) -> tuple[str, NDArray[np.float64]]:
    """Return a matrix of a random kind."""
    uniform = rng.random((n, m))
    rare = rng.random((n, m)) < rng.random() * 0.15
    constant = float(rng.choice([1.0, 0.0, -3.0, 1e5]))
    kinds = {
        "uniform": lambda: uniform,
        "whole": lambda: rng.integers(-1000, 1000, (n, m)).astype(float),
        "ties": lambda: rng.integers(0, 4, (n, m)).astype(float),
        "huge": lambda: uniform * 1e150 - 3e149,
        "tiny": lambda: uniform * 1e-150,
        "decades": lambda: 10.0 ** (16.0 * uniform - 8.0),
        "product": lambda: np.outer(rng.permutation(n) + 1.0, rng.permutation(m) + 1.0),
        "rank one": lambda: np.outer(rng.normal(size=n), rng.normal(size=m)),
        "distances": lambda: np.abs(rng.random(n)[:, None] - rng.random(m)),
        "rows alike": lambda: np.repeat(uniform[:1], n, 0),
        "constant": lambda: np.full((n, m), constant),
        "prohibitive": lambda: np.where(uniform < 0.3, uniform, 1e6),
        "background": lambda: np.where(rare, constant - rng.random((n, m)), constant),
        "background, whole": lambda: np.where(rare, constant + rng.integers(-3, 2, (n, m)), constant),
    }
    name = list(kinds)[rng.integers(len(kinds))]
    return name, kinds[name]()


def draw_seed(rng: np.random.Generator, size: int, scale: float) -> NDArray[np.float64] | None:
    """Return duals that know nothing: none, noise of any size, a constant, or one spike."""
    noise = rng.normal(size=size)
    spike = np.zeros(size)
    spike[rng.integers(size)] = 1e9 * scale
    return [None, None, noise * scale, noise * 1e6 * scale, noise * 1e-12 * scale, np.full(size, 7.0), spike][
        rng.integers(7)
    ]


def draw(rng: np.random.Generator, largest: int) -> Case:
    """Return a problem that has a solution."""
    n, m = rng.integers(1, largest, 2).tolist()
    m = n if rng.random() < 0.4 else m
    kind, cost = draw_cost(rng, n, m)
    mask = None
    if rng.random() < 0.4:
        mask = rng.random((n, m)) < rng.random() * rng.choice([0.05, 1.0])
        size = min(n, m)
        mask[rng.permutation(n)[:size], rng.permutation(m)[:size]] = False
    maximize = bool(rng.random() < 0.3)
    if maximize and kind.startswith("background"):
        cost = -cost
    rows, columns = scipy_assignment(blocked(cost, mask, maximize), maximize)
    matched = cost[rows, columns]
    scale = float(np.abs(cost).max())
    tolerance = RELATIVE * float(np.abs(matched).sum()) + 1e-15 * rows.size * scale
    u, v = draw_seed(rng, n, scale), draw_seed(rng, m, scale)
    return Case(kind, cost, mask, maximize, u, v, float(matched.sum()), tolerance)


def check(case: Case, entrance: str, rows: NDArray[np.int64], columns: NDArray[np.int64], cost: float) -> None:
    """Raise AssertionError unless a matching is complete, allowed and as good as scipy's."""
    about = f"{entrance}, {case.kind}, {case.cost.shape}"
    size = min(case.cost.shape)
    assert len(set(rows.tolist())) == len(set(columns.tolist())) == rows.size == size, about
    assert case.mask is None or not case.mask[rows, columns].any(), about
    difference = max(abs(cost - case.optimum), abs(float(case.cost[rows, columns].sum()) - case.optimum))
    assert difference <= case.tolerance, f"{about}: {cost!r}, scipy {case.optimum!r}"


def yesterday(rng: np.random.Generator, found: Assignment) -> list[NDArray[np.float64] | None]:
    """Return duals that know something: optimal or nearly so, of both sides or of one, perhaps unknown in places."""
    duals: list[NDArray[np.float64] | None] = []
    noise, unknown, absent = rng.choice([0.0, 1e-12, 0.1]), rng.choice([0.0, 0.2, 1.0]), rng.integers(4)
    for side, values in enumerate((found.u, found.v)):
        some = values + noise * np.abs(values).mean() * rng.normal(size=values.size)
        some[rng.random(values.size) < unknown] = np.nan
        duals.append(None if side == absent else some)
    return duals


def check_reused(rng: np.random.Generator, case: Case) -> None:
    """Check a Reoptimiser before, and after some lines were others for a while."""
    problem = Reoptimiser(case.cost, mask=case.mask, maximize=case.maximize)
    found = problem.solve()
    check(case, "Reoptimiser", found.rows, found.columns, found.cost)
    n, m = case.cost.shape
    rows, columns = rng.permutation(n)[: rng.integers(1, 3)], rng.permutation(m)[: rng.integers(3)]
    low, high = float(np.min(case.cost)), float(np.max(case.cost))
    problem.replace_rows(rows, low + (high - low) * rng.random((rows.size, m)))
    problem.solve()
    problem.replace_rows(rows, case.cost[rows], None if case.mask is None else case.mask[rows])
    if columns.size:
        problem.replace_columns(columns, case.cost[:, columns], None if case.mask is None else case.mask[:, columns])
    found = problem.solve()
    check(case, f"Reoptimiser, {found.counters.seed}", found.rows, found.columns, found.cost)


def check_blocks(case: Case) -> None:
    """Check the way that reads rows in blocks and knows no maximum."""
    sign = -1.0 if case.maximize else 1.0
    found = solve_blocks(sign * case.blocked())
    check(case, "solve_blocks", found.rows, found.columns, sign * found.cost)


def check_points(rng: np.random.Generator, largest: int) -> None:
    """Check points of some dimension and metric, on a grid, in clusters or anywhere."""
    n, m, dimension = *rng.integers(1, largest, 2).tolist(), int(rng.integers(1, 5))
    metric = str(rng.choice(METRICS))
    scale = 10.0 ** rng.integers(-6, 7)
    kind = rng.integers(3)
    a, b = rng.normal(size=(n, dimension)), rng.normal(size=(m, dimension))
    if kind == 0:
        a, b = np.rint(2.0 * a), np.rint(2.0 * b)
    elif kind == 1:
        a[: n // 2] += 50.0
        b[: m // 3] += 50.0
    cost = cdist(scale * a, scale * b, metric)
    rows, columns = scipy_assignment(cost)
    optimum = float(cost[rows, columns].sum())
    tolerance = RELATIVE * optimum + 1e-13 * rows.size * float(cost.max())
    case = Case(f"points, {metric}", cost, None, False, None, None, optimum, tolerance)
    found = solve_points(scale * a, scale * b, metric)
    check(case, "solve_points", found.rows, found.columns, found.cost)


def check_all(number: int, seed: int, largest: int = 40, *, shows: bool = False) -> Counter[str]:
    """Check so many problems through every entrance; return how many there were of each kind."""
    rng = np.random.default_rng(seed)
    kinds: Counter[str] = Counter()
    for first in range(0, number, BATCH):
        cases = [draw(rng, largest) for _ in range(min(BATCH, number - first))]
        kinds.update(case.kind for case in cases)
        for k, case in enumerate(cases):
            options = {"mask": case.mask, "maximize": case.maximize}
            found = solve(case.cost, **options)
            check(case, "solve", found.rows, found.columns, found.cost)
            method = ("core", "dense", "auto")[k % 3]
            for u, v in ((case.u, case.v), yesterday(rng, found)):
                seeded = solve(case.cost, u, v, method=method, **options)
                check(case, f"solve, {method}", seeded.rows, seeded.columns, seeded.cost)
            rows, columns = linear_sum_assignment(case.blocked(), case.maximize)
            check(case, "linear_sum_assignment", rows, columns, float(case.cost[rows, columns].sum()))
            check_reused(rng, case)
            check_blocks(case)
        for _ in range(POINTS):
            check_points(rng, largest)
        for maximize in (False, True):
            some = [case for case in cases if case.maximize == maximize]
            batch = solve_batch([c.cost for c in some], mask=[c.mask for c in some], maximize=maximize)
            for k, case in enumerate(some):
                check(case, "solve_batch", batch[k].rows, batch[k].columns, float(batch.cost[k]))
        if shows and (first // BATCH) % 100 == 99:
            print(f"{first + BATCH:,} agree", flush=True)
    return kinds


def main() -> None:
    """Check, and say how many of each kind agreed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=40, help="number of rows and columns, at most")
    arguments = parser.parse_args()
    kinds = check_all(arguments.number, arguments.seed, arguments.largest, shows=True)
    print(", ".join(f"{number:,} {kind}" for kind, number in kinds.items()))
    sys.exit(0)


if __name__ == "__main__":
    main()
