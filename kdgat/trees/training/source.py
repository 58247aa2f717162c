"""Batches of trees, filled up to a number of paths: what memory goes by is known before anything is allocated."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

from kdgat.graphs import ColumnStore, GraphColumns
from kdgat.training import BatchLimit, GraphSizes, GraphSource, TrainingConfig
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.sections import EncoderConfig, PathBudgetConfig
from kdgat.trees.training.memory import TreeCounts


def path_sizes(columns: GraphColumns, encoder: EncoderConfig) -> NDArray[np.int64]:
    """Return how many paths an encoder reads of each tree, [G]: those upwards and those of its kind."""
    below = columns["branches"] if encoder.kind == "gtmp" else columns["general"]
    return np.asarray(columns["ancestors"]) + np.asarray(below)


def counts_of(columns: GraphColumns, chosen: Sequence[int] | NDArray[np.int64]) -> TreeCounts:
    """Sum the counts of trees."""
    paths = (float(np.asarray(columns[name])[chosen].sum()) for name in ("ancestors", "branches", "general"))
    return TreeCounts(float(columns.node_counts[chosen].sum()), *paths)


def limit_of(batches: PathBudgetConfig, training: TrainingConfig) -> BatchLimit:
    """Return what a batch holds at most: so many paths, or as `training.batch_by` says.

    Where the number of paths is searched for, `training.batch_size` is no second limit.
    """
    if batches.max_paths is None:
        return BatchLimit.of(training)
    max_graphs = training.batch_size if training.batch_size_mode == "fixed" else None
    return BatchLimit("paths", batches.max_paths, max_graphs)


class TreeBatchSource(GraphSource):
    """Chosen networks of a store, shuffled anew each epoch or in order; each is a tree, or several that span it.

    An epoch has one tree of each network: the next one if it is shuffled, the first one if it is not.
    """

    def __init__(
        self,
        columns: GraphColumns,
        encoder: EncoderConfig,
        batches: PathBudgetConfig,
        training: TrainingConfig,
        seed: int,
        *,
        shuffle: bool,
        chosen: NDArray[np.int64] | None = None,
        least_batches: int = 1,
        every_tree: bool = False,
    ) -> None:
        """Hold the networks `chosen`, or all; an epoch passes over them again until it has `least_batches`.

        With `every_tree` each pass has all trees of each network.
        """
        sizes = GraphSizes(columns.node_counts, columns.edge_counts, path_sizes(columns, encoder))
        limit = limit_of(batches, training)
        self.networks = Networks.of(columns)
        networks = np.arange(len(self.networks)) if chosen is None else chosen
        super().__init__(ColumnStore(columns), sizes, limit, seed, shuffle, networks)
        # So that not all networks of two trees show the first one in the same epochs.
        self.offset = np.random.default_rng([seed, 4]).integers(self.networks.count)
        self.every_tree = every_tree
        self.least_batches = least_batches

    def plan(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch: a pure function of seed and epoch."""
        first = self._pass(epoch * self.least_batches, epoch)
        if not first:
            return first
        plan = list(first)
        for number in range(1, -(-self.least_batches // len(first))):
            plan += self._pass(epoch * self.least_batches + number, epoch + number)
        return plan

    def trees(self, turn: int) -> NDArray[np.int64]:
        """Return the trees of one pass; where networks have several, each turn has the next one."""
        chosen, networks = self.chosen, self.networks
        if self.every_tree:
            return networks.trees_of(chosen)
        place = (self.offset[chosen] + turn) % networks.count[chosen] if self.shuffle else 0
        return networks.first[chosen] + place

    def graphs(self) -> NDArray[np.int64]:
        """Return all trees of the chosen networks."""
        return self.networks.trees_of(self.chosen)

    def _pass(self, epoch: int, turn: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of one pass over the trees."""
        return self.limit.plan(self.trees(turn), self.graph_sizes, self.seed, epoch, self.shuffle)

    def batches(self) -> Iterator[Batch]:
        """Yield the trees of one pass, batch by batch."""
        return (self.gather(indices) for indices in self._pass(0, 0))
