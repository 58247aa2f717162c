"""Rooted trees from graphs in space, as lines of a map and skeletons of a mask are: shortest paths to a root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from kdgat.trees.reading.result import ReadTree
from kdgat.trees.structure.tree import Tree, edge_lengths


@dataclass(frozen=True, eq=False)
class SpaceGraph:
    """Hold N nodes in space and M edges between them.

    Attributes:
        position: [N, 3].
        ends: [M, 2] nodes, each pair once, none with itself.
        radius: [N], 0 where it is not known.
    """

    position: NDArray[np.float64]
    ends: NDArray[np.int64]
    radius: NDArray[np.float64]

    @property
    def lengths(self) -> NDArray[np.float64]:
        """Return the straight length of each edge, [M]."""
        return np.linalg.norm(self.position[self.ends[:, 0]] - self.position[self.ends[:, 1]], axis=1)

    def components(self) -> tuple[int, NDArray[np.int64]]:
        """Return how many components there are, and that of each node, [N]."""
        count, label = connected_components(self._matrix(), directed=False)
        return int(count), label.astype(np.int64)

    def _matrix(self) -> csr_array:
        count = len(self.position)
        return coo_array((self.lengths, (self.ends[:, 0], self.ends[:, 1])), shape=(count, count)).tocsr()

    def parents(self, roots: Sequence[int]) -> NDArray[np.int64]:
        """Return each node's parent on its shortest path to the nearest root, [N]; -1 at roots."""
        _, parent, _ = dijkstra(self._matrix(), False, list(roots), return_predecessors=True, min_only=True)
        return np.where(parent < 0, -1, parent).astype(np.int64)


def unique_edges(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each pair of nodes once, smaller index first, without pairs of a node and itself."""
    ends = np.sort(ends.reshape(-1, 2), axis=1)
    return np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)


def grow_trees(
    graph: SpaceGraph,
    find_root: Callable[[NDArray[np.int64]], tuple[int, Sequence[str]]],
    name: str,
    min_nodes: int = 2,
) -> tuple[list[ReadTree], int]:
    """Make a tree of each component, that with most nodes first; loops are cut where farthest from the root.

    Args:
        find_root: from the nodes of a component to its root, and notes on the choice.
        name: of the trees; where there are several, a number follows.
        min_nodes: smaller components are left out.

    Returns:
        The trees, and how many components were left out.
    """
    count, label = graph.components()
    sizes = np.bincount(label, minlength=count)
    order = np.argsort(label, kind="stable")
    starts = np.append(0, np.cumsum(sizes))
    chosen = [int(part) for part in np.argsort(-sizes, kind="stable") if sizes[part] >= min_nodes]
    members = [order[starts[part] : starts[part + 1]] for part in chosen]
    if not members:
        return [], count
    roots = [find_root(nodes) for nodes in members]
    parent = graph.parents([root for root, _ in roots])
    num_edges = np.bincount(label[graph.ends[:, 0]], minlength=count)
    place = np.empty(len(label), np.int64)
    trees = []
    for number, (part, nodes, (_, notes)) in enumerate(zip(chosen, members, roots, strict=True), 1):
        place[nodes] = np.arange(len(nodes))
        above = np.where(parent[nodes] >= 0, place[parent[nodes]], -1)
        position = graph.position[nodes]
        title = name if len(chosen) == 1 else f"{name}-{number}"
        tree = Tree.from_parents(above, position, graph.radius[nodes], length=edge_lengths(above, position), name=title)
        loops = int(num_edges[part]) - len(nodes) + 1
        cut = [f"{loops} loop{'s' if loops > 1 else ''} cut where farthest from the root"] if loops else []
        trees.append(ReadTree(tree, (*notes, *cut)))
    return trees, count - len(chosen)
