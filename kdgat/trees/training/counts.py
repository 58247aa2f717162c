"""How large the trees of a run are, before they are prepared: a few of them are drawn or read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kdgat.base import UserError
from kdgat.trees.config import TreesConfig
from kdgat.trees.inputs import find_trees
from kdgat.trees.reading import ReadError
from kdgat.trees.reading.collection import TreeSource
from kdgat.trees.reading.settings import ReadSettings
from kdgat.trees.structure.tree import Tree, contract, count_paths
from kdgat.trees.training.memory import TreeCounts
from kdgat.trees.training.splits import SHARES

NUM_SAMPLES: Final = 20  # trees that are drawn, or files that are read


@dataclass(frozen=True)
class DatasetCounts:
    """State how large trees are."""

    mean: TreeCounts  # of an average tree
    largest: TreeCounts  # the most of each among those that were looked at
    num_training: int  # trees that train
    source: str  # what was looked at, for people

    @classmethod
    def of(cls, trees: Iterable[Tree], num_training: int, source: str) -> DatasetCounts:
        """Count some trees, at least one."""
        columns = list(zip(*map(count_tree, trees), strict=True))
        mean = TreeCounts(*(sum(column) / len(column) for column in columns))
        return cls(mean, TreeCounts(*map(max, columns)), num_training, source)

    def of_part(self, num_trees: int) -> TreeCounts:
        """Return the counts of some trees in the model at one time, of which one is the largest."""
        counted = zip(self.mean, self.largest, strict=True)
        return TreeCounts(*(mean * (num_trees - 1) + largest for mean, largest in counted))


def count_tree(tree: Tree) -> TreeCounts:
    """Count the nodes and paths of a tree."""
    paths = count_paths(tree)
    return TreeCounts(tree.num_nodes, paths.ancestors, paths.branches, paths.general)


def estimate_counts(config: TreesConfig) -> DatasetCounts:
    """Draw, or read, some of the trees of a run.

    Raises:
        UserError: if none of the files that were tried can be read.
    """
    data = config.data
    if data.data_root is None:
        from kdgat.trees.synthetic.dataset import draw

        drawn = [one.tree for one in draw(data.kind, data.classes, min(NUM_SAMPLES, data.train), data.seed)]
        trees = [contract(tree) for tree in drawn] if data.contract else drawn
        return DatasetCounts.of(trees, data.train, f"{len(trees)} drawn trees")
    sources = find_trees(data).sources
    # Evenly through the folder: files beside each other are alike.
    step = max(1, len(sources) // NUM_SAMPLES)
    tried = list(islice(sources, 0, None, step))[:NUM_SAMPLES]
    read = [_read(source, data.reading) for source in tried]
    found = [tree for trees in read for tree in trees]
    if not found:
        raise UserError(
            f"{data.data_root}: none of {len(tried)} files that were tried can be read: `kdgat data inspect` says why"
        )
    trees = [contract(tree) for tree in found] if data.contract else found
    share = 1 - sum(SHARES.values())
    num_training = max(1, round(share * len(sources) * len(trees) / len(tried)))
    damaged = f", of which {read.count([])} cannot be read" if [] in read else ""
    return DatasetCounts.of(trees, num_training, f"an estimate from {len(tried)} of {len(sources)} files{damaged}")


def _read(source: TreeSource, settings: ReadSettings) -> list[Tree]:
    try:
        return [one.tree for one in source.read(settings) if one.tree.num_nodes > 1]
    except ReadError:
        return []  # the preparation says why
