"""Compare the exact assignment solver with scipy's and each of lapx, family by family, size by size.

    OMP_NUM_THREADS=1 python benchmarks/lap_solver.py --out rows.jsonl      # all; the same command goes on where it was
    OMP_NUM_THREADS=1 python benchmarks/lap_solver.py --families metric tracking --sizes 10 100 1024
    OMP_NUM_THREADS=1 python benchmarks/lap_solver.py --seeds --sizes 2048  # what optimal and noisy duals are worth

Times are of the process's CPU: what others do on the machine counts little. All solvers take turns in one process, and
the best of their turns counts, a mean over the instances of a row: up to 100 rows these are 50, because a processor
that solves one small matrix again and again learns its branches by heart (at 50 rows scipy then takes a quarter of the
time, lapx half). `--instances 1` measures that. Every answer is compared with scipy's. Costs are float64; lapx gets
forbidden pairs as a price that no optimum pays. Ours checks its input and proves its answer, the others do neither;
"auto" is what `solve(cost)` does, "core" and "dense" are its other methods. A row says who is ahead, of all but these
two. A cell that would take longer than --longest, by its time at the size before and n^3, is skipped, and says so;
those of scipy and auto never are.
Agreement on random and adversarial problems: `python -m tests.assignment.agreement 100000`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from kdgat.assignment import solve
from kdgat.lap.instances.distributions import DISTRIBUTIONS, Instance, generate

FIRST_SEED = 5_000_000_000  # far from those of training
SIZES = (10, 20, 50, 100, 200, 512, 1024, 2048, 4096)
LAPX = ("lapjv", "lapjvx", "lapjvc", "lapjvs", "lapjvr")
OURS = ("auto", "core", "dense")
SHOWN = ("scipy", *LAPX, *OURS)
INSTANCES = {10: 50, 20: 50, 50: 50, 100: 50, 200: 10}  # of a size; 1 of others
SHORTEST_S = 2e-3  # a turn repeats a shorter solve until it has taken so long
NOISE = (0.0, 0.03, 0.1, 0.3)  # standard deviations of u


def turn_ms(action: Callable[[], object], calls: int) -> float:
    """Return the CPU time of one of so many calls in milliseconds."""
    start = time.process_time()
    for _ in range(calls):
        action()
    return 1e3 * (time.process_time() - start) / calls


def with_price(instance: Instance) -> np.ndarray:
    """Return costs where forbidden pairs have a price that no optimum pays."""
    if instance.mask is None:
        return instance.cost
    allowed = instance.cost[~instance.mask]
    return np.where(instance.mask, allowed.max() + instance.n * (allowed.max() - allowed.min()) + 1.0, instance.cost)


def contenders(instances: list[Instance]) -> dict[str, Callable[[], float]]:
    """Return each solver as a call that solves all instances and returns the sum of the costs of its answers."""
    import lap

    rows = np.arange(instances[0].n)
    masked = [(one.cost, one.mask) for one in instances]
    priced = [(one.cost, with_price(one)) for one in instances]
    blocked = [(cost, cost if mask is None else np.where(mask, np.inf, cost)) for cost, mask in masked]

    def by_scipy() -> float:
        return sum(float(cost[linear_sum_assignment(prices)].sum()) for cost, prices in blocked)

    def by_lapx(name: str) -> float:
        place, solver = int(name != "lapjv"), getattr(lap, name)
        return sum(float(cost[rows, solver(prices, return_cost=False)[place]].sum()) for cost, prices in priced)

    def by_ours(method: Any) -> float:
        return sum(solve(cost, mask=mask, method=method).cost for cost, mask in masked)

    calls = {"scipy": by_scipy} | {name: partial(by_lapx, name) for name in LAPX}
    return calls | {method: partial(by_ours, method) for method in OURS}


def too_slow(before: dict[str, Any] | None, size: int, longest_s: float) -> set[str]:
    """Return the solvers that would take too long, by the row of a smaller size; what was skipped there is here."""
    if before is None:
        return set()
    growth = (size / before["size"]) ** 3
    expected = {name: before["ms"].get(name, np.inf) * growth for name in (*LAPX, *OURS[1:])}
    return {name for name, ms in expected.items() if ms > 1e3 * longest_s}


def compare(family: str, size: int, number: int, repeats: int, longest_s: float, skipped: set[str]) -> dict[str, Any]:
    """Return the best times of one family and size in milliseconds; solvers in `skipped` are left out."""
    instances = [generate(family, size, FIRST_SEED + k) for k in range(number)]
    calls = {name: call for name, call in contenders(instances).items() if name not in skipped}
    slack = 1e-9 * size * sum(float(np.abs(one.cost).max()) for one in instances)
    optimum = calls["scipy"]()
    times: dict[str, float] = {}
    repeat: dict[str, int] = {}
    for name, call in calls.items():
        start = time.process_time()
        if abs(call() - optimum) > slack:
            raise AssertionError(f"{family}, n = {size}: {name} has not scipy's optimum")
        seconds = time.process_time() - start
        times[name] = 1e3 * seconds
        repeat[name] = 0 if seconds > longest_s else max(1, int(SHORTEST_S / max(seconds, 1e-6)))
    for _ in range(repeats):
        for name, call in calls.items():
            if repeat[name]:
                times[name] = min(times[name], turn_ms(call, repeat[name]))
    return {"family": family, "size": size, "ms": {name: ms / number for name, ms in times.items()}}


def shown(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    times = row["ms"]
    ours, lapx = times["auto"], {name: ms for name, ms in times.items() if name in LAPX}
    best = min(lapx, key=lambda name: lapx[name], default="")
    rivals = {name: ms for name, ms in times.items() if name not in OURS}
    first = min(rivals, key=lambda name: rivals[name])
    ahead = "ours" if ours <= rivals[first] else first
    own = min(times[name] for name in OURS if name in times)
    columns = " ".join(f"{times[name]:9.4g}" if name in times else f"{'skipped':>9}" for name in SHOWN)
    ratio = f"{lapx[best] / ours:6.2f}" if best else f"{'-':>6}"
    return (
        f"{row['size']:5} {row['family']:13}{columns} {times['scipy'] / ours:6.2f} {ratio} {best:7}"
        f"{own / ours:5.2f}  {ahead}"
    )


def compare_all(arguments: argparse.Namespace) -> None:
    """Print the table; what the file of rows holds is not measured again."""
    done: dict[tuple[str, int], dict[str, Any]] = {}
    if arguments.out is not None and arguments.out.exists():
        rows = [json.loads(line) for line in arguments.out.read_text().splitlines()]
        done = {(row["family"], row["size"]): row for row in rows}
    names = " ".join(f"{name:>9}" for name in SHOWN)
    print(f"    n family       {names} /scipy  /lapx best   /own  ahead   (milliseconds of CPU; ratios of auto)")
    print(f"skipped: would take more than {arguments.longest:g} s; /own: the best of our methods, relative to auto")
    last: dict[str, dict[str, Any]] = {}
    behind = 0
    for size in arguments.sizes:
        for family in arguments.families or DISTRIBUTIONS:
            row = done.get((family, size))
            if row is None:
                skipped = too_slow(last.get(family), size, arguments.longest)
                number = arguments.instances or INSTANCES.get(size, 1)
                row = compare(family, size, number, arguments.repeats, arguments.longest, skipped)
                if arguments.out is not None:
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            last[family] = row
            line = shown(row)
            behind += not line.endswith("ours")
            print(line, flush=True)
    print(f"{behind} rows behind")


def compare_seeds(family: str, size: int, instances: int, repeats: int) -> None:
    """Print what optimal duals, and noisy ones, are worth to each method: medians over instances."""
    times: dict[str, list[float]] = {}
    for k in range(instances):
        instance = generate(family, size, FIRST_SEED + k)
        cost, mask = instance.cost, instance.mask
        for method in ("core", "dense"):
            found = solve(cost, mask=mask, method=method)
            runs: dict[str, np.ndarray | None] = {"untrained": None}
            for noise in NOISE:
                shift = noise * found.u.std() * np.random.default_rng(k).normal(size=size)
                runs[f"u* + {noise} std" if noise else "u*"] = found.u + shift
            for name, u in runs.items():
                action = partial(solve, cost, u, mask=mask, method=method)
                times.setdefault(f"{method}, {name}", []).append(min(turn_ms(action, 1) for _ in range(repeats)))
    print(f"{family}, n = {size}")
    for name, values in times.items():
        print(f"    {name:22s} {float(np.median(values)):9.1f} ms", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=None, choices=list(DISTRIBUTIONS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--longest", type=float, default=2.0, help="seconds; longer cells are skipped or run once")
    parser.add_argument("--out", type=Path, help="keep rows here, and go on after those that are there")
    parser.add_argument("--seeds", action="store_true", help="compare seeds of our solver instead")
    parser.add_argument("--instances", type=int, help="of each row instead of 50 to 1; of --seeds instead of 3")
    arguments = parser.parse_args()
    for method in OURS:
        solve(np.random.default_rng(0).random((150, 151)), method=method)  # compiled, or from the cache
    if not arguments.seeds:
        compare_all(arguments)
        sys.exit(0)
    for size in arguments.sizes:
        for family in arguments.families or ("uniform", "sparse", "metric"):
            compare_seeds(family, size, arguments.instances or 3, arguments.repeats)


if __name__ == "__main__":
    main()
