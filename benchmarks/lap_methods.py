"""Compare what `solve(cost)` chooses with the other methods of our solver, on some instances of each family and size.

    OMP_NUM_THREADS=1 python benchmarks/lap_methods.py                       # sizes from 200 to 2048, two instances
    OMP_NUM_THREADS=1 python benchmarks/lap_methods.py --sizes 700 1024 --instances 5 --first-seed 7000000100

Methods take turns in one process; the least processor time of their turns counts. "auto loses" is its time over that of
the faster of "core" and "dense", on one instance; the limit is 1.1. Its thresholds were chosen with seeds 101 to 207 of
`kdgat.lap.instances.distributions`; the default seeds here are others.
"""

import argparse
import time

import numpy as np

from kdgat.assignment import solve
from kdgat.assignment.exact import METHODS
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate

FIRST_SEED = 7_000_000_000
LIMIT = 1.1
LONGEST_MS = 3e3  # who took longer once is not measured again


def measure(family: str, size: int, seed: int, turns: int) -> dict[str, float]:
    """Return the least processor time of each method in milliseconds; AssertionError if their costs differ."""
    instance = generate(family, size, seed)
    times: dict[str, float] = {}
    costs: dict[str, float] = {}
    for turn in range(turns):
        for method in (*METHODS[turn % len(METHODS) :], *METHODS[: turn % len(METHODS)]):
            if times.get(method, 0.0) > LONGEST_MS:
                continue
            start = time.process_time()
            costs[method] = solve(instance.cost, mask=instance.mask, method=method).cost
            times[method] = min(times.get(method, np.inf), 1e3 * (time.process_time() - start))
    if max(costs.values()) - min(costs.values()) > 1e-9 * size * float(np.abs(instance.cost).max()):
        raise AssertionError(f"{family}, n = {size}, seed {seed}: costs differ: {costs}")
    return times


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(DISTRIBUTIONS), choices=list(DISTRIBUTIONS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 300, 400, 512, 700, 810, 1024, 1200, 1448, 2048])
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--turns", type=int, default=6)
    arguments = parser.parse_args()
    for method in METHODS:
        solve(np.random.default_rng(0).random((150, 151)), method=method)  # compiled, or from the cache
    losses: list[float] = []
    print(f"    n family       {' '.join(f'{method:>9}' for method in METHODS)}  auto loses  (milliseconds of CPU)")
    for size in arguments.sizes:
        for family in arguments.families:
            for k in range(arguments.instances):
                times = measure(family, size, arguments.first_seed + k, arguments.turns)
                losses.append(times["auto"] / min(times["core"], times["dense"]))
                columns = " ".join(f"{times[method]:9.3f}" for method in METHODS)
                print(f"{size:5} {family:13}{columns} {losses[-1]:6.2f}{'  *' * (losses[-1] > LIMIT)}", flush=True)
    beyond = sum(loss > LIMIT for loss in losses)
    print(f"{len(losses)} instances: worst {max(losses):.2f}, {beyond} beyond {LIMIT}, median {np.median(losses):.2f}")


if __name__ == "__main__":
    main()
