"""Solve problems whose matrix is large or is never made: points in the plane, float32 in blocks; time and memory.

    OMP_NUM_THREADS=1 python benchmarks/lap_large.py                              # points, n = 2,048 to 8,192; scipy
    OMP_NUM_THREADS=1 python benchmarks/lap_large.py --sizes 32768 --methods points

Every answer is proved from all its costs before it is returned, and compared with scipy's where that is run. Each
method runs in a process of its own, so that memory is its own: the peak of resident memory beyond what imports and
compiled code take. Seconds are of the processor (one thread), and of the clock. scipy needs the whole matrix as float64
(8 n^2 bytes): where that is more than --memory, its line says so.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

METHODS = ("points", "blocks", "float32", "core", "scipy")


def points(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two sets of points in the unit square."""
    rng = np.random.default_rng(seed)
    return rng.random((n, 2)), rng.random((n, 2))


def run(method: str, n: int, seed: int) -> dict[str, object]:
    """Solve one problem by one method, after a small one that compiles."""
    from scipy.optimize import linear_sum_assignment

    from kdgat.assignment import solve, solve_blocks, solve_points

    def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.hypot(a[:, :1] - b[:, 0], a[:, 1:] - b[:, 1])

    def solved(a: np.ndarray, b: np.ndarray) -> tuple[float, object]:
        if method == "points":
            found = solve_points(a, b)
        elif method == "blocks":
            found = solve_blocks(lambda start, stop: distances(a[start:stop], b), (len(a), len(b)))
        elif method == "float32":
            matrix = np.empty((len(a), len(b)), np.float32)
            for start in range(0, len(a), 256):
                matrix[start : start + 256] = distances(a[start : start + 256], b)
            found = solve_blocks(matrix)
        elif method == "core":
            found = solve(distances(a, b))
        else:
            cost = distances(a, b)
            return float(cost[linear_sum_assignment(cost)].sum()), None
        return found.cost, found.counters

    solved(*points(200, seed))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, processor = time.perf_counter(), time.process_time()
    cost, counters = solved(*points(n, seed))
    return {
        "cost": cost,
        "processor_s": time.process_time() - processor,
        "clock_s": time.perf_counter() - clock,
        "memory_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "counters": str(counters),
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[2048, 4096, 8192])
    parser.add_argument("--methods", nargs="+", default=["points", "core", "scipy"], choices=METHODS)
    parser.add_argument("--memory", type=float, default=4.0, help="GiB that a matrix may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(arguments.methods[0], arguments.sizes[0], arguments.seed)))
        return
    for n in arguments.sizes:
        print(f"{n} points in the plane, matched to {n}")
        costs = {}
        for method in arguments.methods:
            needed = {"core": 8, "scipy": 8, "float32": 4}.get(method, 0) * n * n / 2**30
            if needed > arguments.memory:
                print(f"    {method:8s} not run: its matrix takes {needed:.1f} GiB")
                continue
            command = [sys.executable, __file__, "--one", "--sizes", str(n), "--methods", method]
            done = subprocess.run([*command, "--seed", str(arguments.seed)], capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            costs[method] = found["cost"]
            print(
                f"    {method:8s} {found['processor_s']:8.2f} s of the processor, {found['clock_s']:8.2f} s, "
                f"{found['memory_mb']:7.0f} MB   {found['counters']}",
                flush=True,
            )
        exact = {method: cost for method, cost in costs.items() if method != "float32"}  # which has other costs
        if exact and max(exact.values()) - min(exact.values()) > 1e-9 * max(exact.values()):
            raise AssertionError(f"n = {n}: costs differ: {costs}")


if __name__ == "__main__":
    main()
