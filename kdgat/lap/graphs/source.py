"""Batches of instance graphs for `kdgat.training.fit`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

from kdgat.graphs.batches import TensorColumns
from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.store import GraphStore
from kdgat.lap.graphs.bipartite import SCHEMA
from kdgat.training.config import TrainingConfig
from kdgat.training.limit import BatchLimit, GraphSizes
from kdgat.training.source import EpochSource, StatelessSource


class GraphSource(StatelessSource):
    """All graphs of a few stores, shuffled anew each epoch or in order, in batches as the configuration says."""

    def __init__(self, columns: GraphColumns, config: TrainingConfig, seed: int, shuffle: bool) -> None:
        self.limit = BatchLimit.of(config)
        self.graph_sizes = GraphSizes(columns.node_counts, columns.edge_counts)
        self.tensors = TensorColumns.from_columns(columns)
        self.seed = seed
        self.shuffle = shuffle

    def graphs(self) -> NDArray[np.int64]:
        """Return all graphs."""
        return np.arange(len(self.graph_sizes.nodes))

    def plan(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch: a pure function of seed, epoch and limit."""
        return self.limit.plan(self.graphs(), self.graph_sizes, self.seed, epoch, self.shuffle)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return one batch."""
        return self.tensors.gather(indices)


def make_source(paths: Sequence[Path], config: TrainingConfig, seed: int, shuffle: bool) -> EpochSource:
    """Return the graphs of stores as a source; one store is read from its memory map, several are joined in memory."""
    columns = [GraphStore.open(path, SCHEMA).columns for path in paths]
    joined = columns[0] if len(columns) == 1 else GraphColumns.concatenate(columns)
    return GraphSource(joined, config, seed, shuffle)
