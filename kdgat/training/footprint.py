"""Memory of a training step as sums of bytes, by a table of each architecture; plans read it, so torch is not here.

A table says what tensors have one row for (nodes, edges, paths), and how many bytes such a row takes for each product
of widths: `{"edge": {"": 8, "rounds heads": 16}}` are eight bytes of an edge, and sixteen for each head of each round.
Tests hold the tables to what torch allocates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

from kdgat.training.batch_size.limit import BatchLimit
from kdgat.training.config import TrainingConfig

FLOAT: Final = 4  # bytes
UNLIMITED: Final = 1 << 62

Footprint = Mapping[str, Mapping[str, float]]


def total_bytes(rows: Mapping[str, float], widths: Mapping[str, float], *footprints: Footprint) -> float:
    """Return the bytes of so many rows with these widths, of several tables together."""
    return sum(
        rows[row] * amount * prod(widths[width] for width in product.split())
        for footprint in footprints
        for row, products in footprint.items()
        for product, amount in products.items()
    )


@dataclass(frozen=True)
class Architecture:
    """The tables of a network that is trained: of its weights, and of bytes where a step can have most of them."""

    weights: Sequence[Footprint]
    forwards: Sequence[Footprint]
    backwards: Sequence[Footprint]

    def num_parameters(self, widths: Mapping[str, float]) -> int:
        """Return the number of weights."""
        return round(total_bytes({"network": 1}, widths, *self.weights))

    def peak_bytes(self, rows: Mapping[str, float], widths: Mapping[str, float], training: TrainingConfig) -> int:
        """Return the most that a step has at one time, weights and the states of AdamW included."""
        weights = self.num_parameters(widths)
        rows = {**rows, "weight": weights}
        most = max(total_bytes(rows, widths, *tables) for tables in (self.forwards, self.backwards))
        # Two moments of each weight; its gradient is there at the end, or from the second part of a batch on.
        during = 3 + (training.accumulate > 1)
        return round(max(4 * FLOAT * weights, during * FLOAT * weights + most))


@dataclass(frozen=True)
class BatchShape:
    """The largest batch of a stage, as its budget and `training.accumulate` cut it."""

    num_graphs: int
    num_parts: int  # that it goes through the model in

    @property
    def graphs_at_once(self) -> int:
        """Return how many graphs are in the model at one time."""
        return ceil(self.num_graphs / self.num_parts)


def batch_shape(
    training: TrainingConfig, available: int, *, nodes: float, edges: float, max_graphs: float | None = None
) -> BatchShape:
    """Return the largest batch of `available` graphs of one size; `max_graphs` replaces the budget of `training`."""
    if max_graphs is None:
        limit = BatchLimit.of(training)
        max_graphs = limit.size // {"graphs": 1, "nodes": nodes, "edges": edges}[limit.unit]
    count = max(1, min(int(max_graphs), available))  # one that is above the budget forms a batch of its own
    return BatchShape(count, min(training.accumulate, count))


def largest_that_fits(fits: Callable[[int], bool], start: int, cap: int = UNLIMITED, *, is_exact: bool = True) -> int:
    """Return the largest size up to `cap` that fits, 0 if none does: by doubling from `start`, or halving, then halves.

    >>> largest_that_fits(lambda size: size <= 700, 32, 5000)
    700
    >>> largest_that_fits(lambda size: size <= 700, 32, 5000, is_exact=False)
    512
    """
    low, high = 0, min(start, cap)
    while fits(high):
        if high == cap:
            return cap
        low, high = high, min(2 * high, cap)
    while low == 0 and high > 1:
        if fits(high // 2):
            low = high // 2
        else:
            high //= 2
    while is_exact and high - low > 1 and low > 0:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
