"""Detectors that nobody trains: the arrival clock, and single features that a model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from kdgat.base import Config
from kdgat.can.models.names import BASELINE_PREFIX, CLOCK

if TYPE_CHECKING:
    from kdgat.graphs import GraphColumns

CHUNK_WINDOWS: Final = 8192  # whose features are read at once: a store may be larger than memory

# Node features of which the largest of a window tells some attack by itself: a missing message, a changed payload, a
# message too many.
BASELINE_FEATURES: Final = ("double_interval_ratio_maximum", "toggle_surprise_maximum", "count_excess")


class ClockBounds(Config):
    """State from which margins on the arrival clock raises an alarm, in powers of two beyond an id's own intervals.

    The defaults gave 4 false alarms in 15,232 benign windows of recordings of three real cars, none of them in those
    without attacks: development numbers, by which they were chosen.
    """

    early: float = Field(0.6, gt=0.0, allow_inf_nan=False)
    overdue: float = Field(1.0, gt=0.0, allow_inf_nan=False)

    def sentence(self) -> str:
        """State the rule in words, to follow an `if`."""
        return (
            f"the arrival clock finds that an identifier comes {2.0**self.early:.3g} times sooner, or is waited for "
            f"{2.0**self.overdue:.3g} times longer, than its own intervals explain"
        )


CLOCK_BOUNDS: Final = ClockBounds()


def clock_scores(early: ArrayLike, overdue: ArrayLike, bounds: ClockBounds = CLOCK_BOUNDS) -> NDArray[np.float32]:
    """Return the clock's score [G] from its margins [G]; from 0 on it is an alarm.

    >>> clock_scores([0.6, -9.0], [-9.0, 3.0]).tolist()
    [0.0, 2.0]
    """
    early_part = np.asarray(early, np.float32) / np.float32(bounds.early)
    overdue_part = np.asarray(overdue, np.float32) / np.float32(bounds.overdue)
    return np.maximum(early_part, overdue_part) - np.float32(1.0)


def clock_column(parts: Sequence[GraphColumns]) -> NDArray[np.float32]:
    """Return the clock's score [G] of every window of column sets, one after the other."""
    return np.concatenate([clock_scores(part["early"], part["overdue"]) for part in parts])


def baseline_scores(parts: Sequence[GraphColumns], node_features: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Return the largest value [G] in each window of those BASELINE_FEATURES that the windows have, by detector."""
    return {
        f"{BASELINE_PREFIX}{name}": np.concatenate([_largest(part, node_features.index(name)) for part in parts])
        for name in BASELINE_FEATURES
        if name in node_features
    }


def is_untrained(model: str) -> bool:
    """Return whether a detector has learned nothing.

    >>> [is_untrained(name) for name in ("clock", "baseline: count_excess", "normal")]
    [True, True, False]
    """
    return model == CLOCK or is_baseline(model)


def is_baseline(model: str) -> bool:
    """Return whether a detector is one feature alone: its score has any scale, as a log error has."""
    return model.startswith(BASELINE_PREFIX)


def _largest(part: GraphColumns, column: int) -> NDArray[np.float32]:
    found = np.empty(part.num_graphs, np.float32)
    for start in range(0, part.num_graphs, CHUNK_WINDOWS):
        stop = min(start + CHUNK_WINDOWS, part.num_graphs)
        pointers = np.asarray(part.node_ptr[start : stop + 1])
        values = np.asarray(part.x[pointers[0] : pointers[-1], column])
        found[start:stop] = np.maximum.reduceat(values, pointers[:-1] - pointers[0])  # no window is without nodes
    return found
