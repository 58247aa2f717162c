"""Batches of graphs by index, for any split whose graphs can be gathered."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.graphs import GraphColumns, TensorColumns
from kdgat.training.batch_size import BatchLimit, GraphSizes
from kdgat.training.config import TrainingConfig
from kdgat.training.source import StatelessSource

Gather = Callable[[NDArray[np.int64]], Any]  # indices -> their batch


class GraphSource(StatelessSource):
    """All graphs, or chosen ones, shuffled anew each epoch or in order, in batches up to a limit."""

    def __init__(
        self,
        gather: Gather,
        sizes: GraphSizes,
        limit: BatchLimit,
        seed: int,
        shuffle: bool,
        chosen: NDArray[np.int64] | None = None,
    ) -> None:
        self.gather = gather
        self.graph_sizes, self.limit = sizes, limit
        self.seed, self.shuffle = seed, shuffle
        self.chosen = np.arange(len(sizes.nodes)) if chosen is None else chosen

    @classmethod
    def of(cls, columns: GraphColumns, config: TrainingConfig, seed: int, shuffle: bool) -> "GraphSource":
        """Return all graphs of columns, in batches as the configuration says."""
        sizes = GraphSizes(columns.node_counts, columns.edge_counts)
        return cls(TensorColumns.from_columns(columns).gather, sizes, BatchLimit.of(config), seed, shuffle)

    def graphs(self) -> NDArray[np.int64]:
        """Return every graph that some epoch may bring."""
        return self.chosen

    def epoch_graphs(self, epoch: int) -> NDArray[np.int64]:
        """Return the graphs of an epoch: a pure function of seed and epoch."""
        return self.chosen

    def plan(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch: a pure function of seed, epoch and limit."""
        return self.limit.plan(self.epoch_graphs(epoch), self.graph_sizes, self.seed, epoch, self.shuffle)
