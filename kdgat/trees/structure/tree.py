"""One rooted tree in space: its nodes in preorder, so that each subtree is a slice and each parent stands before."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.base import UserError
from kdgat.trees.structure.tours import tour


@dataclass(frozen=True, eq=False)
class Tree:
    """Hold N nodes in preorder; node 0 is the root. Make one with `from_parents`.

    Attributes:
        parent: [N] index of each node's parent, -1 at the root.
        position: [N, 3] in whatever unit its source has.
        radius: [N] in the same unit; 0 where it is not known.
        kind: [N] type of SWC: 1 soma, 2 axon, 3 basal dendrite, 4 apical dendrite, 0 or more others.
        length: [N] along the edge to the parent: its straight length, or more where nodes between were contracted.
        depth: [N] edges to the root.
        size: [N] nodes of the subtree, its root included: those of node i are i to i + size[i] - 1.
        name: where it comes from.
    """

    parent: NDArray[np.int64]
    position: NDArray[np.float64]
    radius: NDArray[np.float64]
    kind: NDArray[np.int64]
    length: NDArray[np.float64]
    depth: NDArray[np.int64]
    size: NDArray[np.int64]
    name: str = field(default="")

    @classmethod
    def from_parents(
        cls,
        parent: ArrayLike,
        position: ArrayLike,
        radius: ArrayLike | None = None,
        kind: ArrayLike | None = None,
        length: ArrayLike | None = None,
        name: str = "",
    ) -> Tree:
        """Put nodes that come in any order into preorder, siblings in the order in which they come.

        Args:
            parent: [N] index of the parent, -1 at the root.
            position: [N, 3], or [N, 2] in a plane.
            radius, kind: [N]; 0 where they are left out.
            length: [N] along the edge to the parent; None: the straight length.
            name: for messages.

        Raises:
            UserError: if there is no node, not one root, a cycle, or a number that is not finite.

        >>> tree = Tree.from_parents([-1, 0, 0, 1], [[0, 0], [1, 0], [0, 1], [2, 0]])
        >>> tree.parent.tolist(), tree.depth.tolist(), tree.size.tolist()
        ([-1, 0, 1, 0], [0, 1, 2, 1], [4, 2, 1, 1])
        """
        parent = np.asarray(parent, np.int64)
        count = len(parent)
        place = np.zeros((count, 3))
        given = np.asarray(position, np.float64)
        if given.ndim != 2 or len(given) != count or given.shape[1] not in (2, 3):
            raise UserError(f"{name}: positions have shape {given.shape}, expected ({count}, 3) or ({count}, 2)")
        place[:, : given.shape[1]] = given
        roots = np.flatnonzero(parent == -1)
        if len(roots) != 1:
            raise UserError(f"{name}: {len(roots)} of {count} nodes are roots, expected one")
        walked = tour(parent)
        order = np.empty(count, np.int64)  # new place -> node
        order[walked.enter] = np.arange(count)
        new_parent = np.where(parent >= 0, walked.enter[parent], -1)[order]
        radii = np.zeros(count) if radius is None else np.asarray(radius, np.float64)
        kinds = np.zeros(count, np.int64) if kind is None else np.asarray(kind, np.int64)
        lengths = edge_lengths(parent, place) if length is None else np.asarray(length, np.float64)
        for key, array in (("position", place), ("radius", radii), ("kind", kinds), ("length", lengths)):
            if len(array) != count:
                raise UserError(f"{name}: {key} has {len(array)} entries, expected {count}")
            bad = ~np.isfinite(array).reshape(count, -1).all(axis=1)
            if bad.any():
                raise UserError(f"{name}: {key} of node {int(bad.argmax())} is not finite")
        return cls(
            new_parent,
            place[order],
            radii[order],
            kinds[order],
            lengths[order],
            walked.depth[order],
            walked.sizes[order],
            name,
        )

    @property
    def num_nodes(self) -> int:
        """Return N."""
        return len(self.parent)

    @property
    def num_children(self) -> NDArray[np.int64]:
        """Return the number of children of each node, [N]."""
        return np.bincount(self.parent[1:], minlength=self.num_nodes)

    def is_ancestor(self, above: ArrayLike, below: ArrayLike) -> NDArray[np.bool_]:
        """Return for pairs of nodes whether the first is a proper ancestor of the second; O(1) per pair."""
        above, below = np.asarray(above), np.asarray(below)
        return (above < below) & (below < above + self.size[above])


def edge_lengths(parent: NDArray[np.int64], position: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the straight length [N] of each node's edge to its parent, 0 at roots."""
    return np.where(parent >= 0, np.linalg.norm(position - position[np.maximum(parent, 0)], axis=1), 0.0)


def contract(tree: Tree) -> Tree:
    """Keep the root, the branch points and the leaves; a traced neuron of 10,000 nodes becomes a few hundred.

    Lengths along the tree are summed, so that each edge's tortuosity is its `length` over the straight distance between
    its ends. Nodes that stay keep position, radius and kind.

    >>> tree = contract(Tree.from_parents([-1, 0, 1, 2], [[0, 0], [1, 0], [1, 1], [2, 1]]))
    >>> tree.length.tolist(), tree.position[1].tolist()
    ([0.0, 3.0], [2.0, 1.0, 0.0])
    """
    kept = tree.num_children != 1
    kept[0] = True
    nodes = np.flatnonzero(kept)
    # In preorder an only child stands behind its parent: between two kept nodes lies the chain above the second.
    start = np.append(0, nodes[:-1] + 1)
    place = np.cumsum(kept) - 1
    above = tree.parent[start]
    return Tree.from_parents(
        np.where(above >= 0, place[above], -1),
        tree.position[nodes],
        tree.radius[nodes],
        tree.kind[nodes],
        np.add.reduceat(tree.length, start),
        tree.name,
    )


@dataclass(frozen=True)
class PathCounts:
    """Count the paths of third order of one tree, known before any is made: what an encoder's memory and time go by.

    Attributes:
        branches: downwards, from a node to a descendant three edges below it, and those that end earlier at a leaf.
        ancestors: upwards, one from each node but the root, up to three edges.
        general: between nodes three edges apart in any direction, both ways: what SGMP reads of a tree.
    """

    branches: int
    ancestors: int
    general: int


def count_paths(tree: Tree) -> PathCounts:
    """Count the paths of third order of a tree, in time linear in its nodes."""
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
