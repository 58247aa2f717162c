"""Rooted trees from graphs in space, as lines of a map and skeletons of a mask are.

Where a graph has loops, its tree is that of the shortest paths to the root, or several random spanning trees are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, dijkstra, minimum_spanning_tree

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

    def _matrix(self, weights: NDArray[np.float64] | None = None) -> csr_array:
        count = len(self.position)
        values = self.lengths if weights is None else weights
        return coo_array((values, (self.ends[:, 0], self.ends[:, 1])), shape=(count, count)).tocsr()

    def parents(self, roots: Sequence[int]) -> NDArray[np.int64]:
        """Return each node's parent on its shortest path to the nearest root, [N]; -1 at roots."""
        _, parent, _ = dijkstra(self._matrix(), False, list(roots), return_predecessors=True, min_only=True)
        return np.where(parent < 0, -1, parent).astype(np.int64)

    def draw_forest(self, generator: np.random.Generator) -> SpaceGraph:
        """Return the same nodes with the edges of a random spanning tree of each component.

        It is the one of least weight where edges weigh independent random numbers: linear but for a sort. Every
        spanning tree is possible; where loops share edges some are likelier than others, of a single loop none is.
        """
        kept = minimum_spanning_tree(self._matrix(1.0 - generator.random(len(self.ends)))).tocoo()
        return replace(self, ends=np.column_stack([kept.row, kept.col]).astype(np.int64))


def unique_edges(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each pair of nodes once, smaller index first, without pairs of a node and itself."""
    ends = np.sort(ends.reshape(-1, 2), axis=1)
    return np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)


def grow_trees(
    graph: SpaceGraph,
    find_root: Callable[[NDArray[np.int64]], tuple[int, Sequence[str]]],
    name: str,
    min_nodes: int = 2,
    generators: Sequence[np.random.Generator] = (),
) -> tuple[list[ReadTree], int]:
    """Make a tree of each component, that with most nodes first.

    Without generators loops are cut where they are farthest from the root; otherwise a component with loops has a
    random spanning tree of each generator.

    Args:
        find_root: from the nodes of a component to its root, and notes on the choice.
        name: of the trees; where there are several, a number follows.
        min_nodes: smaller components are left out.
        generators: of the random spanning trees.

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
    forests = [graph.draw_forest(generator) for generator in generators] or [graph]
    parents = [forest.parents([root for root, _ in roots]) for forest in forests]
    num_edges = np.bincount(label[graph.ends[:, 0]], minlength=count)
    place = np.empty(len(label), np.int64)
    trees = []
    for number, (part, nodes, (_, notes)) in enumerate(zip(chosen, members, roots, strict=True), 1):
        place[nodes] = np.arange(len(nodes))
        position, radius = graph.position[nodes], graph.radius[nodes]
        title = name if len(chosen) == 1 else f"{name}-{number}"
        loops = int(num_edges[part]) - len(nodes) + 1
        spanning = []
        for parent in parents if loops else parents[:1]:
            above = np.where(parent[nodes] >= 0, place[parent[nodes]], -1)
            lengths = edge_lengths(above, position)
            spanning.append(Tree.from_parents(above, position, radius, length=lengths, name=title))
        cut = [_describe_loops(loops, len(generators))] if loops else []
        trees.append(ReadTree(spanning[0], (*notes, *cut), loops, tuple(spanning[1:])))
    return trees, count - len(chosen)


def _describe_loops(loops: int, num_trees: int) -> str:
    number = f"{loops} loop{'s' if loops > 1 else ''}"
    return f"{number}: {num_trees} random spanning trees" if num_trees else f"{number} cut where farthest from the root"
