"""Compare the exact assignment solver with scipy's, from untrained, optimal and noisy optimal seeds.

    OMP_NUM_THREADS=1 python benchmarks/lap_solver.py                       # times, n = 2048
    OMP_NUM_THREADS=1 python benchmarks/lap_solver.py --check 10000         # agreement on small instances instead

Times: both solvers take turns in one process; the best of the repeats counts, because other processes only ever add.
Ratios mean more than milliseconds. "u* + 0.1 std" is the optimum's u with noise of a tenth of its standard deviation.
The phases are passes over the matrix on their own. Checks: every family, random sizes 1 to 200, every fourth one with
a random seed, both methods in turn; each answer must have scipy's cost, and has proved itself already.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment

from kdgat.lap.instances.distributions import DISTRIBUTIONS, Instance, generate
from kdgat.lap.solver import core, kernels, seeds
from kdgat.lap.solver.exact import solve
from kdgat.lap.solver.matrix import make_matrix

FIRST_SEED = 5_000_000_000  # far from those of training
NOISE = (0.0, 0.03, 0.1, 0.3)  # standard deviations of u


def best_ms(action: Callable[[], object], repeats: int) -> float:
    """Return the best wall time of an action in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def reference(instance: Instance) -> tuple[np.ndarray, Callable[[], float]]:
    """Return the matrix as scipy wants it, and scipy's optimum."""
    blocked = instance.cost if instance.mask is None else np.where(instance.mask, np.inf, instance.cost)
    return blocked, lambda: float(instance.cost[linear_sum_assignment(blocked)].sum())


def check_agreement(family: str, number: int) -> None:
    """Compare costs on `number` instances; raise AssertionError at the first that differs."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for k in range(number):
        instance = generate(family, int(rng.integers(1, 201)), FIRST_SEED + k)
        scale = float(np.abs(instance.cost).max())
        u = scale * 10.0 ** rng.integers(-6, 4) * rng.normal(size=instance.n) if k % 4 == 3 else None
        found = solve(instance.cost, u, mask=instance.mask, method="core" if k % 2 else "dense")
        difference = abs(found.cost - reference(instance)[1]())
        worst = max(worst, difference / max(scale * instance.n, 1e-300))
        if difference > 1e-9 * scale * instance.n:
            raise AssertionError(
                f"{family}, n = {instance.n}, seed {FIRST_SEED + k}: {difference} from scipy's optimum"
            )
    print(f"{family:13s} {number} agree; largest difference {worst:.1e} of n times the largest cost", flush=True)


def compare(family: str, size: int, instances: int, repeats: int) -> None:
    """Print the times of one family and size: medians over instances of the best of the repeats."""
    times: dict[str, list[float]] = {}
    counts = []
    for k in range(instances):
        instance = generate(family, size, FIRST_SEED + k)
        cost, mask = instance.cost, instance.mask
        _, optimum = reference(instance)
        times.setdefault("scipy", []).append(best_ms(optimum, min(repeats, 3)))
        for method in ("core", "dense"):
            found = solve(cost, mask=mask, method=method)
            if abs(found.cost - optimum()) > 1e-9 * np.abs(cost).max() * size:
                raise AssertionError(f"{family}, n = {size}, instance {k}: not scipy's optimum")
            if method == "core":
                counts.append(found.counters)
            runs: dict[str, np.ndarray | None] = {"untrained": None}
            for noise in NOISE:
                shift = noise * found.u.std() * np.random.default_rng(k).normal(size=size)
                runs[f"u* + {noise} std" if noise else "u*"] = found.u + shift
            for name, u in runs.items():
                action = partial(solve, cost, u, mask=mask, method=method)
                times.setdefault(f"{method}, {name}", []).append(best_ms(action, repeats))
    print(f"{family}, n = {size}: first instance {counts[0]}")
    base = float(np.median(times["scipy"]))
    for name, values in times.items():
        median = float(np.median(values))
        print(f"    {name:22s} {median:9.1f} ms   {base / median:5.1f} times scipy", flush=True)


def phases(size: int, repeats: int) -> None:
    """Print what single passes over a uniform matrix take."""
    matrix = make_matrix(generate("uniform", size, FIRST_SEED).cost)
    cost, mask = matrix.cost, matrix.mask
    rows, columns = seeds.line_minima(matrix)
    passes = {
        "finite": lambda: kernels.first_bad_row(cost.view(np.int64), mask, False),
        "row and column minima": lambda: kernels.minima(cost, mask),
        "min-trick": lambda: kernels.column_slack(cost, mask, rows),
        "tightening of rows, proof": lambda: kernels.row_slack(cost, mask, columns),
        "candidate lists": lambda: core.make_core(cost, mask, columns),
    }
    print(f"passes over a matrix of n = {size}:")
    for name, action in passes.items():
        action()
        print(f"    {name:26s} {best_ms(action, repeats):6.2f} ms")


def main() -> None:
    """Measure or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=None, choices=list(DISTRIBUTIONS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[2048])
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", type=int, metavar="N", help="compare N small instances of each family with scipy")
    arguments = parser.parse_args()
    start = time.perf_counter()
    solve(np.eye(3))
    solve(np.eye(3), method="dense")
    print(f"first solve, compiled or from the cache: {time.perf_counter() - start:.1f} s")
    if arguments.check is not None:
        for family in arguments.families or DISTRIBUTIONS:
            check_agreement(family, arguments.check)
        return
    for size in arguments.sizes:
        phases(size, arguments.repeats)
        for family in arguments.families or ("uniform", "sparse", "metric"):
            compare(family, size, arguments.instances, arguments.repeats)


if __name__ == "__main__":
    main()
