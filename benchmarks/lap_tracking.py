"""Solve the frames of a tracker one after another: by scipy, lapx and ours, cold, or from what the frame before left.

    OMP_NUM_THREADS=1 python benchmarks/lap_tracking.py
    OMP_NUM_THREADS=1 python benchmarks/lap_tracking.py --kinds dispatch --sizes 2000 --changes 0.02 --frames 20

Three kinds of frames. `iou` and `metric`: objects move at nearly constant velocity, and each frame matches the
predicted positions of those tracked to the detections of the next; costs are 1 - IoU of boxes of side 1, of which each
meets twelve, or distances. `dispatch`: two sets of points that have nothing to do with each other, vehicles and orders
say, move by a tenth of their distance from frame to frame; costs are distances. In every frame a share of all is born,
and as many die (`--changes`), so matrices are rectangular by chance.

What is started from, the duals of the frame before being those of the cold solve, carried by the object:

    cold        nothing
    duals       u and v, NaN for lines that are new
    Reoptimiser what it keeps itself, after the lines were removed, added, and all costs updated
    zero        v, those of new columns from their nearest neighbour; a zero correction
    neighbours  the same, from the mean of the four nearest neighbours
    min-trick   min_i(C_ij - u_i), u as v in `neighbours`
    linear      `neighbours` with a linear correction of v, learned from sequences of other seeds
    network     the same by a small network (both in lap_tracking_corrections.py)

The last five, "on a square", add rows or columns of zeros to a rectangle first: the solver keeps more of the duals of a
square (their time includes that). The objects that detections belong to are not known to a tracker before it has
matched them, so for `iou` and `metric` all starts have it better than they would in use.

For each size and share of births, the means over frames after the first, and over the seeds with 95 % intervals:
entries that searches looked at, in passes over the matrix; the distance of the first bound from the optimum, as a share
of it; processor time as a ratio to cold. Every answer of ours is proved, and all are equal, scipy's and lapx's too.
These are called every `--every` frames, in turn with the others there, and compared with the cold time of the same
frames.
"""

import argparse
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import lap
import numpy as np
from lap_tracking_corrections import BASELINES, Carried, Correction, Start, Values, train
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from kdgat.assignment import Assignment, Reoptimiser, solve
from kdgat.run import Interval
from kdgat.training import one_thread

OVERLAP = 12.0  # boxes that a box meets
SPEED, NOISE = 0.1, 0.05  # of a frame, in sides of a box; of dispatch, in distances of points
TRAINING_SEED, TRAINING_SIZE, TRAINING_FRAMES, TRAINING_SEQUENCES = 1_000_000, 500, 12, 3
KINDS = ("iou", "metric", "dispatch")
COMPETITORS = ("scipy", "lapjv", "lapjvr")


@dataclass(frozen=True)
class Side:
    """Lines of one side: the object of each, by number, and where it is, in distances between objects."""

    objects: NDArray[np.int64]
    points: Values


@dataclass(frozen=True)
class Frame:
    """Costs of rows and columns."""

    cost: Values
    rows: Side
    columns: Side


class Objects:
    """Objects of a square arena, that move, are born and die."""

    def __init__(self, n: int, side: float, rng: np.random.Generator) -> None:
        self.n, self.side, self.rng = n, side, rng
        self.points, self.velocity = side * rng.random((n, 2)), SPEED * rng.normal(size=(n, 2))
        self.objects, self.following = np.arange(n), n

    def renew(self, change: float) -> None:
        """Let a share die, and as many be born on average."""
        stays, born = self.rng.random(self.objects.size) >= change, self.rng.poisson(change * self.n)
        self.points = np.concatenate([self.points[stays], self.side * self.rng.random((born, 2))])
        self.velocity = np.concatenate([self.velocity[stays], SPEED * self.rng.normal(size=(born, 2))])
        self.objects = np.append(self.objects[stays], self.following + np.arange(born))
        self.following += born

    def shuffle(self) -> None:
        """Put them in another order: a detector knows none."""
        order = self.rng.permutation(self.objects.size)
        self.points, self.velocity, self.objects = self.points[order], self.velocity[order], self.objects[order]


def frames(kind: str, n: int, change: float, number: int, seed: int) -> Iterator[Frame]:
    """Make the frames one by one."""
    rng = np.random.default_rng(seed)
    if kind == "dispatch":
        sides = [Objects(n, np.sqrt(n), rng) for _ in range(2)]
        for _ in range(number):
            yield Frame(cdist(sides[0].points, sides[1].points), *(Side(one.objects, one.points) for one in sides))
            for one in sides:
                one.renew(change)
                one.points = one.points + SPEED * rng.normal(size=one.points.shape)
        return
    apart = np.sqrt(4.0 / OVERLAP)
    tracked = Objects(n, np.sqrt(n) * apart, rng)
    for _ in range(number):
        predicted = tracked.points + tracked.velocity + NOISE * rng.normal(size=tracked.points.shape)
        rows = Side(tracked.objects, predicted / apart)
        tracked.renew(change)
        tracked.points = tracked.points + tracked.velocity
        tracked.shuffle()
        detected = tracked.points + NOISE * rng.normal(size=tracked.points.shape)
        cost = one_minus_iou(predicted, detected) if kind == "iou" else cdist(predicted, detected)
        yield Frame(cost, rows, Side(tracked.objects, detected / apart))


def one_minus_iou(a: Values, b: Values) -> Values:
    """Return the costs [n, m] of boxes of side 1 with these centres."""
    cost = np.ones((len(a), len(b)))
    near = KDTree(a).sparse_distance_matrix(KDTree(b), 1.0, p=np.inf, output_type="ndarray")
    i, j = near["i"], near["j"]
    shared = np.prod(1.0 - np.abs(a[i] - b[j]), axis=1)
    cost[i, j] = 1.0 - shared / (2.0 - shared)
    return cost


@dataclass(frozen=True)
class Solved:
    """A frame and its optimal duals."""

    frame: Frame
    u: Values
    v: Values

    def carried_to(self, frame: Frame) -> Carried:
        """Return what the next frame can be started from."""
        sides = ((self.frame.rows, frame.rows), (self.frame.columns, frame.columns))
        u, v = (
            carry(before.objects, duals, now.objects)
            for (before, now), duals in zip(sides, (self.u, self.v), strict=True)
        )
        lost = [before.points[~np.isin(before.objects, now.objects)] for before, now in sides]
        return Carried(frame.cost, frame.rows.points, frame.columns.points, u, v, lost[0], lost[1])


def carry(before: NDArray[np.int64], values: Values, objects: NDArray[np.int64]) -> Values:
    """Return the values of objects that were there before, NaN for the others."""
    order = np.argsort(before)
    place = np.minimum(np.searchsorted(before, objects, sorter=order), before.size - 1)
    return np.where(before[order[place]] == objects, values[order[place]], np.nan)


class Held:
    """A Reoptimiser whose lines are kept in the order of their objects' coming."""

    def __init__(self, frame: Frame) -> None:
        self.rows, self.columns = frame.rows.objects, frame.columns.objects
        self.problem = Reoptimiser(frame.cost)
        self.problem.solve()

    def next(self, frame: Frame) -> Callable[[], Assignment]:
        """Return the call that takes the next frame; its costs are put in order before, as a tracker holds them."""
        lost = [
            np.flatnonzero(~np.isin(old, new))
            for old, new in ((self.rows, frame.rows.objects), (self.columns, frame.columns.objects))
        ]
        kept_rows, kept_columns = np.delete(self.rows, lost[0]), np.delete(self.columns, lost[1])
        self.rows = np.append(kept_rows, np.setdiff1d(frame.rows.objects, kept_rows))
        self.columns = np.append(kept_columns, np.setdiff1d(frame.columns.objects, kept_columns))
        places = [
            np.argsort(side.objects)[np.searchsorted(np.sort(side.objects), order)]
            for side, order in ((frame.rows, self.rows), (frame.columns, self.columns))
        ]
        cost = np.ascontiguousarray(frame.cost[np.ix_(*places)])

        def call() -> Assignment:
            self.problem.remove(rows=lost[0], columns=lost[1])
            self.problem.add(columns=cost[: kept_rows.size, kept_columns.size :], rows=cost[kept_rows.size :])
            self.problem.update(cost)
            return self.problem.solve()

        return call


def learn(kind: str, seed: int, changes: list[float]) -> dict[str, Correction]:
    """Train on sequences that no test has."""
    examples: list[tuple[Carried, Values]] = []
    for change in changes:
        for number in range(TRAINING_SEQUENCES):
            before: Solved | None = None
            for frame in frames(kind, TRAINING_SIZE, change, TRAINING_FRAMES, TRAINING_SEED + 1000 * seed + number):
                found = solve(frame.cost, method="core")
                if before is not None:
                    examples.append((before.carried_to(frame), found.v))
                before = Solved(frame, found.u, found.v)
    return train(examples, seed)


@dataclass
class Tally:
    """Sums over the frames of a sequence."""

    count: int = 0
    seconds: float = 0.0
    cold_seconds: float = 0.0  # of the same frames
    passes: float = 0.0
    gap: float = 0.0


def sequence(
    kind: str, n: int, change: float, number: int, every: int, seed: int, learned: Mapping[str, Start]
) -> dict[str, Tally]:
    """Solve a sequence of frames by everything, in turn; AssertionError if answers differ."""
    tallies: dict[str, Tally] = {}
    before: Solved | None = None
    held: Held | None = None
    for k, frame in enumerate(frames(kind, n, change, number, seed)):
        cost = frame.cost
        if before is None or held is None:
            held = Held(frame)
        else:
            carried = before.carried_to(frame)
            calls: dict[str, Callable[[], Assignment | float]] = {
                "cold": partial(solve, cost),
                "duals": partial(solve, cost, carried.u, carried.v),
                "Reoptimiser": held.next(frame),
            }
            for name, start in {**BASELINES, **learned}.items():
                calls[name] = partial(solve_square, carried, start)
            if k % every == 0:
                calls |= {name: partial(compete, name, cost) for name in COMPETITORS}
            add(tallies, calls, f"{kind}, n = {n}, frame {k}", k)
        found = solve(cost)
        before = Solved(frame, found.u, found.v)
    return tallies


def solve_square(carried: Carried, start: Start) -> Assignment:
    """Return the solution from duals of columns; of a rectangle, after lines of zeros made a square of it."""
    cost, v = carried.cost, start(carried)
    n, m = cost.shape
    if n == m:
        return solve(cost, v=v)
    whole = np.zeros((max(n, m),) * 2)
    whole[:n, :m] = cost
    return solve(whole, v=np.append(v, np.full(whole.shape[1] - m, np.nan)))


def compete(name: str, cost: Values) -> float:
    """Return the least cost, by somebody else's solver."""
    if name == "scipy":
        return float(cost[linear_sum_assignment(cost)].sum())
    return float(getattr(lap, name)(cost, extend_cost=True)[0])


def add(tallies: dict[str, Tally], calls: Mapping[str, Callable[[], Assignment | float]], text: str, turn: int) -> None:
    """Call all on one frame, beginning with another one each time, and add up what they cost."""
    names = list(calls)
    found, spent = {}, {}
    for name in names[turn % len(names) :] + names[: turn % len(names)]:
        started = time.process_time()
        found[name] = calls[name]()
        spent[name] = time.process_time() - started
    cold = found["cold"]
    assert isinstance(cold, Assignment)
    for name, answer in found.items():
        paid = answer.cost if isinstance(answer, Assignment) else answer
        if abs(paid - cold.cost) > 1e-9 * max(1.0, abs(cold.cost)):
            raise AssertionError(f"{text}: {name} costs {paid!r}, cold {cold.cost!r}")
        tally = tallies.setdefault(name, Tally())
        tally.count += 1
        tally.seconds += spent[name]
        tally.cold_seconds += spent["cold"]
        if isinstance(answer, Assignment):
            tally.passes += answer.counters.scanned_columns / (answer.u.size * answer.v.size)
            tally.gap += (cold.cost - answer.seed_bound) / abs(cold.cost)


def print_scenario(title: str, runs: Sequence[Mapping[str, Tally]], learned: Collection[str]) -> None:
    """Print the means over seeds with intervals."""
    cold = Interval.of([1e3 * run["cold"].seconds / run["cold"].count for run in runs])
    print(f"{title}; cold {cold.mean:.3g} ms a frame")
    for name in runs[0]:
        values = [run[name] for run in runs]
        ratio = Interval.of([one.seconds / max(one.cold_seconds, 1e-9) for one in values])
        print(f"    {name:12s} time/cold {ratio.text:24s}", end="")
        if name not in COMPETITORS:
            passes = Interval.of([one.passes / one.count for one in values])
            gap = Interval.of([one.gap / one.count for one in values])
            print(f" passes {passes.text:24s} gap {gap.text:24s}", end="")
            if name in learned:
                kept = [run[name].passes / max(run["neighbours"].passes, 1e-9) for run in runs]
                print(f" passes/neighbours {Interval.of(kept).text}", end="")
        print("", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[20, 100, 500, 1000, 2000, 4000])
    parser.add_argument("--changes", nargs="+", type=float, default=[0.0, 0.02, 0.1])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--every", type=int, default=1, help="frames from one call of scipy and lapx to the next")
    parser.add_argument("--untrained", action="store_true", help="leave learned corrections out")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    with one_thread():
        for kind in arguments.kinds:
            learned: dict[int, dict[str, Correction]] = {
                seed: {} if arguments.untrained else learn(kind, seed, arguments.changes) for seed in arguments.seeds
            }
            for size in (20, 200, 820):  # compiles, takes no part
                for change in (0.0, 0.1):
                    sequence(kind, size, change, 4, 9, 0, learned[arguments.seeds[0]])
            for size in arguments.sizes:
                for change in arguments.changes:
                    runs = [
                        sequence(kind, size, change, arguments.frames, arguments.every, seed, learned[seed])
                        for seed in arguments.seeds
                    ]
                    title = f"{kind}, n = {size}, births and deaths {change:.0%}"
                    print_scenario(
                        f"{title}, {arguments.frames} frames, {len(runs)} seeds",
                        runs,
                        list(learned[arguments.seeds[0]]),
                    )


if __name__ == "__main__":
    main()
