"""How many paths of third order a tree has, known before any is made: what memory and time of an encoder go by."""

from dataclasses import dataclass

import numpy as np

from kdgat.trees.structure.tree import Tree


@dataclass(frozen=True)
class PathCounts:
    """Count the paths of one tree.

    Attributes:
        branches: downwards, from a node to a descendant three edges below it, and those that end earlier at a leaf.
        ancestors: upwards, one from each node but the root, up to three edges.
        general: between nodes three edges apart in any direction, both ways: what SGMP reads of a tree.
    """

    branches: int
    ancestors: int
    general: int


def count_paths(tree: Tree) -> PathCounts:
    """Count the paths of a tree in time linear in its nodes."""
    children = tree.num_children
    is_leaf = children == 0
    short = int((is_leaf & (tree.depth >= 1)).sum() + (is_leaf & (tree.depth >= 2)).sum())
    degree = children + (tree.parent >= 0)
    below, above = degree[1:] - 1, degree[tree.parent[1:]] - 1  # neighbours besides the other end of each edge
    return PathCounts(
        branches=int((tree.depth >= 3).sum()) + short,
        ancestors=tree.num_nodes - 1,
        general=2 * int(np.dot(below, above)),
    )
