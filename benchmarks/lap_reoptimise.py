"""Compare solving again after a change with solving anew: scipy, our solver cold, from yesterday's duals, Reoptimiser.

    OMP_NUM_THREADS=1 python benchmarks/lap_reoptimise.py
    OMP_NUM_THREADS=1 python benchmarks/lap_reoptimise.py --sizes 512 2048 --families points uniform tracking

Each scenario changes the problem again and again; all methods solve each of these problems in turn, in one process, the
answers have to have the same cost, and all of ours are proved before they are returned. Medians over the problems,
without the first, in milliseconds of processor time of the one thread, which other processes disturb less than they do
the clock; and entries looked at in searches. Times of Reoptimiser include the change itself. Lines of `points` are
distances from points that were drawn anew; those of other families are another instance's.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment

from kdgat.assignment import Assignment, Reoptimiser, solve
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate

FIRST_SEED = 6_000_000_000  # far from those of training
Change = Callable[[Reoptimiser], None]


def blocked(cost: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return costs with +inf where a pair is forbidden."""
    return cost if mask is None else np.where(mask, np.inf, cost)


def replaced(family: str, n: int, rows: int, columns: int, count: int) -> Iterator[tuple[np.ndarray, Change]]:
    """Yield problems of which some lines are another instance's, and what tells the Reoptimiser."""
    rng = np.random.default_rng(0)
    first = generate(family, n, FIRST_SEED)
    cost = blocked(first.cost, first.mask).copy()
    for k in range(count):
        fresh = generate(family, n, FIRST_SEED + 1 + k)
        other = blocked(fresh.cost, fresh.mask)
        i, j = rng.permutation(n)[:rows], rng.permutation(n)[:columns]
        before = cost
        cost = cost.copy()
        cost[i] = other[i]
        cost[:, j] = other[:, j]
        try:
            linear_sum_assignment(cost)
        except ValueError:  # no matching is left: another change
            cost = before
            continue

        blocks = []  # as a user has them: costs, and a mask if there are forbidden pairs
        for block in (cost[i], cost[:, j]):
            is_forbidden = ~np.isfinite(block)
            blocks.append((np.where(is_forbidden, 0.0, block), is_forbidden if is_forbidden.any() else None))

        def change(
            problem: Reoptimiser,
            lines: tuple[np.ndarray, np.ndarray] = (i, j),
            blocks: list[tuple[np.ndarray, np.ndarray | None]] = blocks,
        ) -> None:
            if lines[0].size:
                problem.replace_rows(lines[0], *blocks[0])
            if lines[1].size:
                problem.replace_columns(lines[1], *blocks[1])

        yield cost, change


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the distances between two sets of points in the plane."""
    return np.hypot(a[:, :1] - b[:, 0], a[:, 1:] - b[:, 1])


def points(n: int, rows: int, columns: int, shift: float, count: int) -> Iterator[tuple[np.ndarray, Change]]:
    """Yield distances between two sets of points: some are drawn anew, or all move by a part of their distance."""
    rng = np.random.default_rng(0)
    a, b = rng.random((n, 2)), rng.random((n, 2))
    for _ in range(count):
        i, j = rng.permutation(n)[:rows], rng.permutation(n)[:columns]
        a[i], b[j] = rng.random((rows, 2)), rng.random((columns, 2))
        a += shift / np.sqrt(n) * rng.normal(size=a.shape)
        b += shift / np.sqrt(n) * rng.normal(size=b.shape)
        cost = distances(a, b)

        def change(problem: Reoptimiser, cost: np.ndarray = cost, i: np.ndarray = i, j: np.ndarray = j) -> None:
            if shift:
                problem.update(cost)
                return
            problem.replace_rows(i, cost[i])
            problem.replace_columns(j, cost[:, j])

        yield cost, change


def compare(name: str, problems: Iterator[tuple[np.ndarray, Change]]) -> None:
    """Print medians over a scenario's problems."""
    times: dict[str, list[float]] = {}
    looked_at: dict[str, list[int]] = {}
    problem: Reoptimiser | None = None
    last: Assignment | None = None
    for cost, change in problems:
        mask = ~np.isfinite(cost)
        finite, mask = (np.where(mask, 0.0, cost), mask) if mask.any() else (cost, None)
        if problem is None or last is None:
            problem = Reoptimiser(finite, mask=mask)
            last = problem.solve()
            continue

        def again(problem: Reoptimiser = problem, change: Change = change) -> Assignment:
            change(problem)
            return problem.solve()

        methods: dict[str, Callable[[], Assignment]] = {
            "cold": partial(solve, finite, mask=mask),
            "duals of before": partial(solve, finite, last.u, last.v, mask=mask),
            "Reoptimiser": again,
        }
        start = time.process_time()
        rows, columns = linear_sum_assignment(cost)
        times.setdefault("scipy", []).append(1e3 * (time.process_time() - start))
        paid = cost[rows, columns]
        for key, method in methods.items():
            start = time.process_time()
            last = method()
            times.setdefault(key, []).append(1e3 * (time.process_time() - start))
            looked_at.setdefault(key, []).append(last.counters.scanned_columns)
            if abs(last.cost - paid.sum()) > 1e-9 * np.abs(paid).sum():
                raise AssertionError(f"{name}: {key} costs {last.cost}, scipy {paid.sum()}")
    base = float(np.median(times["cold"]))
    print(name)
    for key, values in times.items():
        entries = f"{np.median(looked_at[key]) / 1e6:8.3f} M entries" if key in looked_at else ""
        print(
            f"    {key:16s} {np.median(values):8.2f} ms (worst {max(values):8.2f})"
            f"   {base / np.median(values):6.1f} times cold {entries}",
            flush=True,
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["points", "uniform"], choices=["points", *DISTRIBUTIONS])
    parser.add_argument("--sizes", nargs="+", type=int, default=[2048])
    parser.add_argument("--changes", type=int, default=9)
    arguments = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):  # compiles, or loads machine code: takes no part
        compare("", points(200, 4, 4, 0.0, 3))
    for n in arguments.sizes:
        part = max(1, n // 50)
        for name, rows, columns in (
            ("1 row replaced", 1, 0),
            ("1 column replaced", 0, 1),
            ("2 % of the rows replaced", part, 0),
            ("2 % of both sides replaced", part, part),
        ):
            for family in arguments.families:
                if family == "points":
                    problems = points(n, rows, columns, 0.0, arguments.changes + 1)
                else:
                    problems = replaced(family, n, rows, columns, arguments.changes + 1)
                compare(f"{family}, n = {n}: {name}", problems)
        compare(f"points, n = {n}: all moved by 0.1 of their distance", points(n, 0, 0, 0.1, arguments.changes + 1))


if __name__ == "__main__":
    main()
