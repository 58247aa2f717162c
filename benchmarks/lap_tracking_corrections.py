"""Duals to start a frame from: those of the frame before, and corrections of them that are learned.

Nothing here looks at more of the matrix than one pass. What is learned is how far the optimal dual of a column lies
from the one that was carried to it. Features of a column, in units of the mean row minimum, are what the carried duals
of the rows leave it (the min-trick), how many rows have it as their cheapest and how much they would lose elsewhere,
how much its neighbours' are, and where lines came and went nearby: each adds or takes one of supply or demand. All but
the last two are differences, so that a constant on all duals changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import nn

from kdgat.assignment import warm_start
from kdgat.assignment.rows import no_mask

Values = NDArray[np.float64]

NEAR = 4  # neighbours from which a new line has its dual
RANGES = (1.0, 2.0, 4.0, 8.0)  # distances within which lines that came and went are felt
AROUND = 8  # neighbours whose features count beside a column's own
HIDDEN, STEPS, RATE = 32, 800, 0.005
LISTED = 32  # entries of each row that the bound of an example is over
HUBER = 0.1  # weight of the distance to the optimal duals beside the bound


@dataclass(frozen=True)
class Carried:
    """What a frame is started from: costs [n, m], places, duals of the frame before (NaN: new), places of what left."""

    cost: Values
    rows: Values  # [n, 2]
    columns: Values  # [m, 2]
    u: Values  # [n]
    v: Values  # [m]
    lost_rows: Values  # [k, 2]
    lost_columns: Values  # [l, 2]


Start = Callable[[Carried], Values]


def zero(carried: Carried) -> Values:
    """Return duals of columns, of new ones those of the nearest known one."""
    return filled(carried.v, carried.columns, 1)


def neighbours(carried: Carried) -> Values:
    """Return duals of columns, of new ones the mean of the nearest known ones."""
    return filled(carried.v, carried.columns, NEAR)


def min_trick(carried: Carried) -> Values:
    """Return the best duals of columns that the rows' carried duals allow."""
    u = filled(carried.u, carried.rows, NEAR)
    return warm_start.slacks(carried.cost, no_mask(), u[None], np.zeros((0, carried.v.size)))[1][0]


BASELINES: Mapping[str, Start] = {"zero": zero, "neighbours": neighbours, "min-trick": min_trick}


def filled(duals: Values, points: Values, count: int) -> Values:
    """Return duals with those that are unknown set to the mean of the nearest known ones."""
    is_new = np.isnan(duals)
    if not is_new.any() or is_new.all():
        return np.nan_to_num(duals)
    known = duals[~is_new]
    _, near = KDTree(points[~is_new]).query(points[is_new], k=min(count, known.size))
    found = duals.copy()
    found[is_new] = known[near].reshape(int(is_new.sum()), -1).mean(axis=1)
    return found


def features(carried: Carried) -> tuple[Values, Values, float]:
    """Return features of columns [m, f], the duals that are to be corrected [m], and the unit of both."""
    cost, columns = carried.cost, carried.columns
    u, v = filled(carried.u, carried.rows, NEAR), neighbours(carried)
    found = warm_start.slacks(cost, no_mask(), u[None], np.array([v, np.zeros(v.size)]))
    slack, left, load = found[0][0], found[1][0], found[3][0]
    unit = max(float(found[0][1].mean()), 1e-12)
    residual = left - v
    residual -= np.median(residual)
    tree = KDTree(columns)
    _, around = tree.query(columns, k=min(AROUND, v.size))
    around = around.reshape(v.size, -1)
    _, of_row = tree.query(carried.rows)
    change = slack - u  # of a row: what the carried duals of columns leave it, beyond its own
    change -= np.median(change)
    received = np.bincount(of_row, change, v.size) / np.maximum(np.bincount(of_row, minlength=v.size), 1)
    parts = [
        residual / unit,
        residual[around].mean(axis=1) / unit,
        (v - v[around].mean(axis=1)) / unit,
        received / unit,
        received[around].mean(axis=1) / unit,
        load - 1.0,
        load[around].mean(axis=1) - 1.0,
        np.isnan(carried.v).astype(np.float64),
    ]
    sources = (
        carried.rows[np.isnan(carried.u)],
        carried.lost_rows,
        columns[np.isnan(carried.v)],
        carried.lost_columns,
    )
    for places in sources:
        if len(places) == 0:
            parts += [np.zeros(v.size)] * len(RANGES)
            continue
        other = KDTree(places)
        parts += [other.query_ball_point(columns, reach, return_length=True).astype(np.float64) for reach in RANGES]
    balance = sum(sign * len(places) for sign, places in zip((1.0, -1.0, -1.0, 1.0), sources, strict=True))
    parts.append(np.full(v.size, balance / np.sqrt(v.size)))
    return np.stack(parts, axis=1), v, unit


class Correction:
    """A learned correction of carried duals of columns."""

    def __init__(self, layers: Sequence[tuple[Values, Values]], mean: Values, spread: Values) -> None:
        """Keep weights and biases of layers, and how features are scaled."""
        self.layers, self.mean, self.spread = layers, mean, spread

    def __call__(self, carried: Carried) -> Values:
        """Return corrected duals of columns."""
        x, v, unit = features(carried)
        x = (x - self.mean) / self.spread
        for number, (weight, bias) in enumerate(self.layers):
            x = x @ weight + bias
            if number + 1 < len(self.layers):
                x = np.maximum(x, 0.0)
        return v + unit * x[:, 0]


@dataclass(frozen=True)
class Example:
    """A frame to learn from: features and carried duals of columns, the entries that count, and what is right."""

    inputs: torch.Tensor  # [m, f]
    v: torch.Tensor  # [m], in units
    columns: torch.Tensor  # [n, k], of the entries that carried duals leave the least slack
    costs: torch.Tensor  # [n, k], in units
    goal: torch.Tensor  # [m], optimal duals less the carried ones, centred

    def loss(self, correction: torch.Tensor) -> torch.Tensor:
        """Return how far the dual bound is from 0, a row, and a little of the distance to the goal."""
        v = self.v + correction
        slack = (self.costs - v[self.columns]).amin(dim=1)
        n, m = len(slack), len(v)
        bound = v.sum() + (slack.sum() - (m - n) * v.amax() if n <= m else slack.topk(m, largest=False).values.sum())
        return -bound / n + HUBER * nn.functional.smooth_l1_loss(correction - correction.mean(), self.goal)


def make_example(carried: Carried, best: Values, mean: Values, spread: Values) -> Example:
    """Return an example from a frame and its optimal duals of columns."""
    x, v, unit = features(carried)
    count = min(LISTED, v.size)
    columns = np.argpartition(carried.cost - v, count - 1, axis=1)[:, :count]
    goal = (best - v) / unit
    return Example(
        torch.from_numpy((x - mean) / spread).float(),
        torch.from_numpy(v / unit).float(),
        torch.from_numpy(columns),
        torch.from_numpy(np.take_along_axis(carried.cost, columns, axis=1) / unit).float(),
        torch.from_numpy(goal - goal.mean()).float(),
    )


def train(examples: Sequence[tuple[Carried, Values]], seed: int) -> dict[str, Correction]:
    """Learn from frames and their optimal duals of columns [m], by the bound that corrected duals prove."""
    x = np.concatenate([features(carried)[0] for carried, _ in examples])
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    made = [make_example(carried, best, mean, spread) for carried, best in examples]
    found = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models = {
            "linear": nn.Sequential(nn.Linear(x.shape[1], 1)),
            "network": nn.Sequential(
                nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
            ),
        }
        for name, model in models.items():
            nn.init.zeros_(model[-1].weight)  # so that it begins as the zero correction
            nn.init.zeros_(model[-1].bias)
            optimiser = torch.optim.Adam(model.parameters(), RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
            for _ in range(STEPS):
                example = made[int(torch.randint(len(made), ()))]
                optimiser.zero_grad()
                example.loss(model(example.inputs)[:, 0]).backward()
                optimiser.step()
                schedule.step()
            layers = [
                (part.weight.detach().double().numpy().T.copy(), part.bias.detach().double().numpy())
                for part in model
                if isinstance(part, nn.Linear)
            ]
            found[name] = Correction(layers, mean, spread)
    return found
