"""Detectors that nobody trains: the habits of identifiers, and single features that a model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.models.names import BASELINE_PREFIX, HABITS

if TYPE_CHECKING:
    from kdgat.graphs import GraphColumns

CHUNK_WINDOWS: Final = 8192  # whose features are read at once: a store may be larger than memory

# Node features of which the largest of a window tells some attack by itself: a missing message, a changed payload, a
# message too many.
BASELINE_FEATURES: Final = ("double_interval_ratio_maximum", "toggle_surprise_maximum", "count_excess")


def habits_column(parts: Sequence[GraphColumns]) -> NDArray[np.float32]:
    """Return what the habits say [G] of every window of column sets, one after the other: 1 is an alarm, -1 is none."""
    return np.concatenate([np.where(part["suspicion"] != 0, 1.0, -1.0) for part in parts]).astype(np.float32)


def baseline_scores(parts: Sequence[GraphColumns], node_features: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Return the largest value [G] in each window of those BASELINE_FEATURES that the windows have, by detector."""
    return {
        f"{BASELINE_PREFIX}{name}": np.concatenate([_largest(part, node_features.index(name)) for part in parts])
        for name in BASELINE_FEATURES
        if name in node_features
    }


def is_untrained(model: str) -> bool:
    """Return whether a detector has learned nothing.

    >>> [is_untrained(name) for name in ("habits", "baseline: count_excess", "normal")]
    [True, True, False]
    """
    return model == HABITS or is_baseline(model)


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
