"""Memory of a training step as sums of bytes, by a table of each architecture; plans read it, so torch is not here.

A table says what tensors have one row for (nodes, edges, paths), and how many bytes such a row takes for each product
of widths: `{"edge": {"": 8, "rounds heads": 16}}` are eight bytes of an edge, and sixteen for each head of each round.
Tests hold the tables to what torch allocates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

from kdgat.training.config import TrainingConfig

FLOAT: Final = 4  # bytes

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
        budgets = {
            "graphs": training.batch_size,
            "nodes": training.max_nodes // nodes,
            "edges": training.max_edges // edges,
        }
        max_graphs = budgets[training.batch_by]
    count = max(1, min(int(max_graphs), available))  # one that is above the budget forms a batch of its own
    return BatchShape(count, min(training.accumulate, count))
