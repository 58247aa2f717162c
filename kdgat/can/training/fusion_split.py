"""Which validation windows fusions learn from and which they are chosen by, and the choice."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.data.pool import PooledStores
from kdgat.can.models.names import FUSION_KINDS, FusionKind

MIN_BLOCKS: Final = 8  # of validation windows, to learn from and to choose by in turn
SMALLEST_SIDE: Final = 0.25  # share of windows and of attacked ones that either side must have
BUDGET: Final = 1e-3  # share of benign windows in alarm that every kind may have


def recordings_of(pool: PooledStores) -> NDArray[np.int64]:
    """Return the recording [G] of every window, numbered on over the stores of a pool."""
    numbers, first = [], 0
    for part in pool.parts:
        own = np.asarray(part["recording"], np.int64)
        numbers.append(own + first)
        first += int(own.max(initial=-1)) + 1
    return np.concatenate(numbers)


def learned_recordings(recording: NDArray[np.int64], labels: NDArray[np.int8]) -> list[int] | None:
    """Choose the recordings whose windows fusions learn from: about half of the windows, and of the attacked ones.

    Neighbouring windows are alike, so no recording is on both sides. None where recordings are too few for either side
    to have a quarter of both.
    """
    numbers, place = np.unique(recording, return_inverse=True)
    attacked = np.bincount(place, labels == 1, len(numbers)) / max(int(np.count_nonzero(labels == 1)), 1)
    benign = np.bincount(place, labels != 1, len(numbers)) / max(int(np.count_nonzero(labels != 1)), 1)
    shares = np.stack([attacked, benign], axis=1)
    sums = np.zeros((2, 2))  # [side, class]
    sides = np.zeros(len(numbers), np.int64)
    for row in np.argsort(-shares.sum(axis=1), kind="stable"):  # the largest first
        # The side that is left more even by it: what counts is the class that is further apart.
        apart = [np.abs(sums[side] + shares[row] - sums[1 - side]).max() for side in (0, 1)]
        sides[row] = int(apart[1] < apart[0])
        sums[sides[row]] += shares[row]
    return [int(number) for number in numbers[sides == 0]] if sums.min() >= SMALLEST_SIDE else None


def learned_blocks(num_windows: int, block: int) -> NDArray[np.bool_]:
    """Mark the validation windows [G] that fusions learn from where recordings are too few: every other block.

    Blocks are shorter where there are few windows, so that both sides have several.
    """
    return np.arange(num_windows) // min(block, max(1, num_windows // MIN_BLOCKS)) % 2 == 0


def learned_windows(description: Mapping[str, Any], recording: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the validation windows [G] that fusions of this description have learned from."""
    if description.get("learned_recordings") is not None:
        return np.isin(recording, description["learned_recordings"])
    if description["learned_block"] is not None:
        return learned_blocks(len(recording), description["learned_block"])
    return np.zeros(len(recording), bool)


def choose_kind(rates: Mapping[FusionKind, Mapping[str, float]], labels: NDArray[np.int8]) -> FusionKind:
    """Choose a fusion by its rates on windows that none has learned from.

    Only kinds with at most BUDGET of false alarms are asked, or those within a standard error of the lowest rate, if it
    is higher. Of them the simplest whose F1 is within a standard error of the best.
    """
    num_attacks = max(int(np.count_nonzero(labels == 1)), 1)
    num_benign = max(int(np.count_nonzero(labels != 1)), 1)
    lowest = min(found["false_alarm_rate"] for found in rates.values())
    allowed = max(BUDGET, lowest + _standard_error(lowest, num_benign))
    affordable = [kind for kind in FUSION_KINDS if rates[kind]["false_alarm_rate"] <= allowed]
    best = max(rates[kind]["f1"] for kind in affordable)
    return next(kind for kind in affordable if rates[kind]["f1"] >= best - _standard_error(best, num_attacks))


def _standard_error(share: float, count: int) -> float:
    return float((share * (1.0 - share) / count) ** 0.5)
