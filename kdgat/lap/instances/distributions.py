"""Distributions of assignment problems: square cost matrices as a pure function of (name, n, seed, parameters).

Users call a distribution a family: `data.families`, `--family`, and the key `family` of stored files keep that name. A
family of models (`kdgat.can`, `kdgat.lap`) is something else.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.base.text import suggest
from kdgat.lap.instances.draws import Draws

Costs = NDArray[np.float64]
Mask = NDArray[np.bool_]  # True = forbidden; the cost there is 0 and means nothing
Built = tuple[Costs, Mask | None]

MAX_SIZE: Final = 1 << 15  # rows; the costs of such a matrix take 8 GiB
MAX_SEED: Final = 2**63 - 1
_ROW_BLOCK: Final = 128  # rows of pairs of boxes compared at once
_NUM_FRAMES: Final = 8  # that the tracker has seen before the frame it predicts
_POSITION_GAIN, _VELOCITY_GAIN = 0.5, 0.2  # of a steady-state Kalman filter (alpha-beta filter)


@dataclass(frozen=True)
class Instance:
    """One assignment problem with where it came from.

    `cost` is float64 [n, n]; `mask` is bool [n, n], True where a pair is forbidden, or None if every pair is allowed.
    `parameters` holds all parameters of the family, defaults too; it is None if the instance was not generated here,
    and then `seed` is 0.
    """

    family: str
    seed: int
    cost: Costs
    mask: Mask | None
    noise_std: float = 0.0
    tag: str = ""
    parameters: dict[str, Any] | None = field(default=None)

    @property
    def n(self) -> int:
        """Return the number of rows, which is that of the columns."""
        return int(self.cost.shape[0])


def generate(family: str, n: int, seed: int, **parameters: Any) -> Instance:
    """Make an instance of `n` rows and columns; the same arguments give the same bits on every machine.

    Raises UserError naming an unknown family or parameter, a size outside 1..MAX_SIZE, or a negative seed.

    >>> generate("uniform", 3, seed=0).cost.shape
    (3, 3)
    """
    build = find_distribution(family)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise UserError(f"size n={n!r}: a matrix has at least one row; give a whole number of 1 or more")
    if n > MAX_SIZE:
        raise UserError(f"size n={n}: its costs take {n * n * 8 / 2**30:.0f} GiB; give a number up to {MAX_SIZE}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= MAX_SEED:
        raise UserError(f"seed={seed!r}: give a whole number from 0 to {MAX_SEED}")
    complete = complete_parameters(family, parameters)
    cost, mask = build(int(n), Draws(family, int(n), int(seed)), **complete)
    noise_std = float(complete.get("noise_std", 0.0))
    return Instance(family, int(seed), cost, mask, noise_std, parameters=complete)


def find_distribution(name: str) -> Callable[..., Built]:
    """Return the builder of a distribution; UserError names the nearest known one."""
    try:
        return DISTRIBUTIONS[name]
    except KeyError:
        hint = suggest(name, DISTRIBUTIONS, f"choose among {', '.join(DISTRIBUTIONS)}")
        raise UserError(f"family {name!r} is unknown: {hint}") from None


def complete_parameters(family: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a family with its defaults filled in; UserError for unknown or wrong ones."""
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(find_distribution(family)).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for name, value in parameters.items():
        if name not in known:
            raise UserError(
                f"family {family!r} has no parameter {name!r}: it has {', '.join(known) if known else 'none'}"
            )
        kind = type(known[name])
        low, high = _RANGES[name]
        is_kind = isinstance(value, kind | int) and not isinstance(value, bool)
        if not is_kind or not math.isfinite(value) or not low <= value <= high:
            article = "a whole number" if kind is int else "a number"
            raise UserError(f"{name}={value!r} of family {family!r}: give {article} from {low:g} to {high:g}")
    return {name: type(default)(parameters.get(name, default)) for name, default in known.items()}


_RANGES: Final = {
    "density": (1e-6, 1.0),
    "noise_std": (0.0, 1e6),
    "dimension": (1, 64),
    "blocks": (1, 4096),
    "discount": (0.0, 1e6),
    "rank": (1, 4096),
    "overlap": (0.0, 1e6),
    "entries": (1, 4096),
    "spread": (0.0, 1e3),
    "bins": (1, 1 << 20),
    "jitter": (0.0, 1.0),
}


def uniform(n: int, draws: Draws) -> Built:
    """Independent costs, uniform in [0, 1)."""
    return draws.uniform(n, n), None


def sparse(n: int, draws: Draws, *, density: float = 0.3) -> Built:
    """Uniform costs of which a share is kept and the rest forbidden; a random permutation is always kept."""
    mask = draws.uniform(n, n) >= density
    mask[np.arange(n), draws.permutation(n)] = False
    cost = draws.uniform(n, n)
    cost[mask] = 0.0
    return cost, mask


def metric(n: int, draws: Draws, *, dimension: int = 2) -> Built:
    """Distances between two sets of points, uniform in the unit square."""
    rows = draws.uniform(dimension, n)
    columns = draws.uniform(dimension, n)
    squares = np.zeros((n, n))
    for row, column in zip(rows, columns, strict=True):
        difference = np.subtract.outer(row, column)
        difference *= difference
        squares += difference
    return np.sqrt(squares, out=squares), None


def clustered(n: int, draws: Draws, *, blocks: int = 4, discount: float = 0.4, noise_std: float = 0.1) -> Built:
    """Uniform costs, cheaper within the blocks on the diagonal, with normal noise; not clipped."""
    cost = draws.uniform(n, n)
    block = np.arange(n) * blocks // n
    cost -= discount * (block[:, None] == block[None, :])
    _add_noise(cost, draws, noise_std)
    return cost, None


def low_rank(n: int, draws: Draws, *, rank: int = 12, noise_std: float = 0.1) -> Built:
    """Products of two normal factors, of variance 1, with normal noise; not clipped."""
    rows = draws.normal(rank, n)
    columns = draws.normal(rank, n)
    cost = np.zeros((n, n))
    for row, column in zip(rows, columns, strict=True):  # no matrix product: a BLAS adds in an order of its own
        cost += np.multiply.outer(row, column)
    cost /= np.sqrt(float(rank))
    _add_noise(cost, draws, noise_std)
    return cost, None


def noisy_linear(n: int, draws: Draws, *, noise_std: float = 0.1) -> Built:
    """Products of a row's and a column's number with normal noise, shifted to a least cost of 0."""
    cost = np.multiply.outer(draws.uniform(n), draws.uniform(n))
    _add_noise(cost, draws, noise_std)
    cost -= cost.min()
    return cost, None


def machol_wien(n: int, draws: Draws) -> Built:
    """Cost i·j (i, j = 1..n), with rows and columns in a random order (Machol and Wien 1976): long augmenting paths."""
    rows = draws.permutation(n) + 1.0
    columns = draws.permutation(n) + 1.0
    return np.multiply.outer(rows, columns), None


def tracking(n: int, draws: Draws, *, overlap: float = 12.0, noise_std: float = 0.1) -> Built:
    """Tracked boxes against detected ones, 1 - IoU; `overlap` boxes meet each on average, 1 in 20 is a false alarm.

    Objects move at nearly constant velocity; a steady-state Kalman filter predicts where each is in the next frame.
    `noise_std` is that of a detected position, in sides of a box. Pairs that do not meet all cost 1.
    """
    arena = np.sqrt(4.0 * n / overlap) if overlap > 0 else 4.0 * n  # side of the square, in sides of a box
    position = arena * draws.uniform(2, n)
    velocity = 0.1 * draws.normal(2, n)
    size = 0.5 + draws.uniform(2, n)
    estimate, estimated_velocity = position + noise_std * draws.normal(2, n), np.zeros((2, n))
    for _ in range(_NUM_FRAMES):
        velocity = velocity + 0.01 * draws.normal(2, n)
        position = position + velocity
        predicted = estimate + estimated_velocity
        residual = position + noise_std * draws.normal(2, n) - predicted
        estimate = predicted + _POSITION_GAIN * residual
        estimated_velocity = estimated_velocity + _VELOCITY_GAIN * residual
    tracked = _corners(estimate + estimated_velocity, size)
    detected_position = position + velocity + noise_std * draws.normal(2, n)
    detected_size = size * (0.9 + 0.2 * draws.uniform(2, n))
    false_alarms = draws.uniform(n) < 0.05
    detected_position = np.where(false_alarms, arena * draws.uniform(2, n), detected_position)
    order = draws.permutation(n)
    return _one_minus_iou(tracked, _corners(detected_position, detected_size)[:, :, order]), None


def mc64(n: int, draws: Draws, *, entries: int = 16, spread: float = 2.0) -> Built:
    """Matching that puts large entries of a sparse matrix on its diagonal: log max|a_i.| - log|a_ij| (MC64, job 5).

    The matrix has a full transversal and about `entries` entries a row, log-normal with standard deviation `spread` of
    the logarithm, on rows and columns of very different scale. Where it has no entry, the pair is forbidden.
    Source: Duff and Koster, SIAM J. Matrix Anal. Appl. 22(4), 2001.
    """
    mask = draws.uniform(n, n) >= entries / n
    mask[np.arange(n), draws.permutation(n)] = False
    rows, columns = np.nonzero(~mask)
    # The logarithms themselves are drawn: exp and log would round differently on another machine.
    logarithm = spread * draws.normal(len(rows)) + 4.0 * draws.normal(n)[rows] + 4.0 * draws.normal(n)[columns]
    largest = np.full(n, -np.inf)
    np.maximum.at(largest, rows, logarithm)
    cost = np.zeros((n, n))
    cost[rows, columns] = largest[rows] - logarithm
    return cost, mask


def tie(n: int, draws: Draws, *, bins: int = 5, jitter: float = 1e-6) -> Built:
    """Uniform costs rounded down to a few values, with a tiny jitter: a stress test, nearly every cost is a tie."""
    cost = np.floor(bins * draws.uniform(n, n))
    cost /= bins
    cost += jitter * draws.uniform(n, n)
    return cost, None


def _add_noise(cost: Costs, draws: Draws, noise_std: float) -> None:
    noise = draws.normal(*cost.shape)
    noise *= noise_std
    cost += noise


def _corners(centre: Costs, size: Costs) -> Costs:
    """Return low and high corner of boxes, [2, 2, n]."""
    return np.stack([centre - 0.5 * size, centre + 0.5 * size])


def _one_minus_iou(rows: Costs, columns: Costs) -> Costs:
    """Return 1 - intersection over union of all pairs of boxes."""
    n = rows.shape[2]
    cost = np.empty((n, n))
    row_area, column_area = (np.prod(boxes[1] - boxes[0], axis=0) for boxes in (rows, columns))
    for start in range(0, n, _ROW_BLOCK):
        some = slice(start, start + _ROW_BLOCK)
        high = np.minimum(rows[1, :, some, None], columns[1, :, None, :])
        sides = np.maximum(high - np.maximum(rows[0, :, some, None], columns[0, :, None, :]), 0.0)
        shared = sides[0] * sides[1]
        cost[some] = 1.0 - shared / (row_area[some, None] + column_area[None, :] - shared)
    return cost


DISTRIBUTIONS: Final = MappingProxyType(
    {
        build.__name__: build
        for build in (
            uniform,
            sparse,
            metric,
            clustered,
            low_rank,
            noisy_linear,
            machol_wien,
            tracking,
            mc64,
            tie,
        )
    }
)
"""Builder of each family: `(n, draws, **parameters) -> (cost, mask)`; the first line of its text describes it."""
