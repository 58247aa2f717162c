"""Batches of graphs by index, for any split whose graphs can be gathered."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kdgat.graphs import ColumnStore, GraphColumns, Placed
from kdgat.training.batch_size import BatchLimit, GraphSizes
from kdgat.training.config import TrainingConfig
from kdgat.training.source import StatelessSource


class Store(Protocol):
    """What batches are gathered from."""

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Return the batch of these graphs."""
        ...

    def place_on(self, device: torch.device) -> None:
        """Gather on a device from now on, where that is faster and there is room; batches stay the same."""
        ...

    def placed(self) -> Placed | None:
        """Return the graphs that lie on a GPU; None where they do not."""
        ...


class GraphSource(StatelessSource):
    """All graphs, or chosen ones, shuffled anew each epoch or in order, in batches up to a limit."""

    def __init__(
        self,
        store: Store,
        sizes: GraphSizes,
        limit: BatchLimit,
        seed: int,
        shuffle: bool,
        chosen: NDArray[np.int64] | None = None,
    ) -> None:
        self.store = store
        self.graph_sizes, self.limit = sizes, limit
        self.seed, self.shuffle = seed, shuffle
        self.chosen = np.arange(len(sizes.nodes)) if chosen is None else chosen

    @classmethod
    def of(cls, columns: GraphColumns, config: TrainingConfig, seed: int, shuffle: bool) -> "GraphSource":
        """Return all graphs of columns, in batches as the configuration says."""
        sizes = GraphSizes(columns.node_counts, columns.edge_counts)
        return cls(ColumnStore(columns), sizes, BatchLimit.of(config), seed, shuffle)

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Return the batch of these graphs."""
        return self.store.gather(indices)

    def place_on(self, device: torch.device) -> None:
        """Gather on a device from now on, where that is faster and there is room; batches stay the same."""
        self.store.place_on(device)

    def placed(self) -> Placed | None:
        """Return the graphs that lie on a GPU; None where they do not."""
        return self.store.placed()

    def graphs(self) -> NDArray[np.int64]:
        """Return every graph that some epoch may bring."""
        return self.chosen

    def epoch_graphs(self, epoch: int) -> NDArray[np.int64]:
        """Return the graphs of an epoch: a pure function of seed and epoch."""
        return self.chosen

    def plan(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch: a pure function of seed, epoch and limit."""
        return self.limit.plan(self.epoch_graphs(epoch), self.graph_sizes, self.seed, epoch, self.shuffle)
