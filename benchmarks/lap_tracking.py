"""Solve the frames of a tracker one after another: by scipy, lapx and ours, cold or from the duals of the last frame.

    OMP_NUM_THREADS=1 python benchmarks/lap_tracking.py --sizes 20 200 1000 4000 --changes 0 0.02 0.1

Objects move at nearly constant velocity; each frame matches the predicted positions of those tracked to the detections
of the next frame. In each frame a part of the objects is born and as many die (`--changes`), so the matrices are
rectangular by chance. Costs are 1 - IoU of boxes of side 1 in an arena where each meets twelve, or distances. Times are
of the process's CPU, all frames together, solvers in turns, frame by frame; every answer is compared with scipy's.
"duals" gives the v of the frame before to `solve`, for detections that were there before by the object they belong to,
for new ones the mean.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from kdgat.lap.solver.exact import solve

OVERLAP = 12.0  # boxes that a box meets
SPEED, NOISE = 0.1, 0.05  # of a frame, in sides of a box


@dataclass(frozen=True)
class Frame:
    """Costs of tracked objects (rows) and detections (columns), and which object each is, by number."""

    cost: NDArray[np.float64]
    objects: NDArray[np.int64]  # of the columns


def frames(kind: str, n: int, change: float, number: int, seed: int) -> Iterator[Frame]:
    """Make the frames one by one."""
    rng = np.random.default_rng(seed)
    arena = np.sqrt(4.0 * n / OVERLAP)
    position, velocity = arena * rng.random((n, 2)), SPEED * rng.normal(size=(n, 2))
    numbers, following = np.arange(n), n
    for _ in range(number):
        predicted = position + velocity + NOISE * rng.normal(size=position.shape)
        stays = rng.random(len(numbers)) >= change
        born = rng.poisson(change * n)
        velocity = np.concatenate([velocity[stays], SPEED * rng.normal(size=(born, 2))])
        position = np.concatenate([position[stays], arena * rng.random((born, 2))])
        position = position + velocity
        numbers = np.concatenate([numbers[stays], following + np.arange(born)])
        following += born
        order = rng.permutation(len(numbers))
        position, velocity, numbers = position[order], velocity[order], numbers[order]
        detected = position + NOISE * rng.normal(size=position.shape)
        apart = np.abs(predicted[:, None, :] - detected[None, :, :])
        if kind == "iou":
            shared = np.prod(np.maximum(1.0 - apart, 0.0), axis=2)
            yield Frame(1.0 - shared / (2.0 - shared), numbers)
        else:
            yield Frame(np.sqrt((apart**2).sum(axis=2)), numbers)


def compare(kind: str, n: int, change: float, number: int) -> dict[str, float]:
    """Return the milliseconds a frame of each solver."""
    import lap

    spent: dict[str, float] = {}
    before: dict[int, float] = {}
    for frame in frames(kind, n, change, number, seed=n):
        cost = frame.cost
        mean = float(np.mean(list(before.values()))) if before else 0.0
        v = np.array([before.get(k, mean) for k in frame.objects.tolist()])
        calls: dict[str, Callable[[], float]] = {
            "scipy": lambda cost=cost: float(cost[linear_sum_assignment(cost)].sum()),
            "lapjvr": lambda cost=cost: float(lap.lapjvr(cost, extend_cost=True)[0]),
            "lapjvx": lambda cost=cost: float(lap.lapjvx(cost, extend_cost=True)[0]),
            "cold": lambda cost=cost: solve(cost).cost,
            "duals": lambda cost=cost, v=v: solve(cost, v=v).cost,
        }
        found = {}
        for name, call in calls.items():
            start = time.process_time()
            found[name] = call()
            spent[name] = spent.get(name, 0.0) + time.process_time() - start
        for name, value in found.items():
            if abs(value - found["scipy"]) > 1e-9 * max(1.0, abs(found["scipy"])):
                raise AssertionError(f"{kind}, n = {n}: {name} costs {value!r}, scipy {found['scipy']!r}")
        before = dict(zip(frame.objects.tolist(), solve(cost).v.tolist(), strict=True))
    return {name: 1e3 * seconds / number for name, seconds in spent.items()}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[20, 200, 1000, 4000])
    parser.add_argument("--changes", nargs="+", type=float, default=[0.0, 0.02, 0.1])
    parser.add_argument("--kinds", nargs="+", default=["iou", "metric"], choices=["iou", "metric"])
    parser.add_argument("--frames", type=int, default=100)
    arguments = parser.parse_args()
    solve(np.random.default_rng(0).random((160, 161)))
    solve(np.random.default_rng(0).random((160, 161)), v=np.zeros(161))
    print("milliseconds of CPU a frame; ratios to ours, cold")
    for size in arguments.sizes:
        for kind in arguments.kinds:
            for change in arguments.changes:
                times = compare(kind, size, change, arguments.frames)
                lapx = min(times["lapjvr"], times["lapjvx"])
                columns = "  ".join(f"{name} {ms:9.4g}" for name, ms in times.items())
                print(
                    f"{size:5} {kind:6} {change:4.0%}  {columns}  scipy/ours {times['scipy'] / times['cold']:5.2f}"
                    f"  lapx/ours {lapx / times['cold']:5.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
