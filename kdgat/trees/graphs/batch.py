"""A batch of trees as tensors, with the parent of every node, and what is measured of the edge to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.graphs import OnHost, group_sizes
from kdgat.trees.graphs.columns import HAS_RADIUS, RADIUS


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """Hold B trees with N nodes, each tree in preorder.

    Attributes:
        x: [N, F] features of nodes.
        parent: [N] place of the parent in the batch, -1 at roots.
        edges: [2, E] each node but roots with its parent before it, in the order of the nodes.
        position: [N, 3] float32, relative to the root, in median edges.
        length: [N] along the edge to the parent.
        depth, subtree: [N] edges to the root; nodes of the subtree.
        graph: [N] which tree a node is of.
        start: [B + 1] first node of each tree.
        num_branches, num_general: paths of third order, as `count_paths` counts them, known to the host.
    """

    x: Tensor
    parent: Tensor
    edges: Tensor
    position: Tensor
    length: Tensor
    depth: Tensor
    subtree: Tensor
    graph: Tensor
    start: Tensor
    num_branches: int
    num_general: int

    @classmethod
    def of(cls, batch: Batch) -> TreeBatch:
        """Read a batch of the graph store."""
        parent = batch.batch.new_full((batch.x.shape[0],), -1)
        parent[batch.edge_index[1]] = batch.edge_index[0]
        known = OnHost.of(batch)
        return cls(
            batch.x, parent, batch.edge_index, batch.pos, batch.length, batch.depth, batch.subtree, batch.batch,
            batch.ptr, int(known["branches"].sum()), int(known["general"].sum()),
        )  # fmt: skip

    @property
    def num_nodes(self) -> int:
        """Return N."""
        return self.x.shape[0]

    @property
    def num_trees(self) -> int:
        """Return B."""
        return len(self.start) - 1

    @cached_property
    def num_children(self) -> Tensor:
        """Return the number of children of each node, [N]."""
        return group_sizes(self.edges[0], self.num_nodes)

    @cached_property
    def measured(self) -> Edges:
        """Return what is measured of the edges, once."""
        return measure_edges(self)

    def above(self, node: Tensor) -> Tensor:
        """Return the parents of nodes; -1 stays -1."""
        return torch.where(node >= 0, self.parent[node.clamp(min=0)], -1)

    def ancestor(self, node: Tensor, steps: Tensor) -> Tensor:
        """Return the ancestors [Q] so many steps above nodes: the last node of their depth that stands before.

        Steps are no more than the depth of each node; 0 steps lead to the node itself.
        """
        place = torch.arange(self.num_nodes, device=node.device)
        by_depth = (self.depth * self.num_nodes + place).sort().values
        wanted = (self.depth[node] - steps) * self.num_nodes + node
        return by_depth[torch.searchsorted(by_depth, wanted, right=True) - 1] % self.num_nodes

    def is_ancestor(self, above: Tensor, below: Tensor) -> Tensor:
        """Return for pairs of nodes whether the first is a proper ancestor of the second; O(1) per pair."""
        return (above < below) & (below < above + self.subtree[above])

    def mean_per_tree(self, values: Tensor, chosen: Tensor) -> Tensor:
        """Return the mean over trees of each tree's mean over its chosen nodes; trees without any do not count.

        Args:
            values: [N].
            chosen: [N] bool.
        """
        weight = chosen.to(values.dtype)
        count = weight.new_zeros(self.num_trees).index_add(0, self.graph, weight)
        total = values.new_zeros(self.num_trees).index_add(0, self.graph, torch.where(chosen, values, 0.0))
        return (total / count.clamp(min=1)).sum() / (count > 0).sum().clamp(min=1)


@dataclass(frozen=True, eq=False)
class Edges:
    """Hold what each channel measures of the edge from a node to its parent.

    Attributes:
        values: [N, C].
        known: [N, C] bool; false at roots, and for angles one edge below them, and without radii.
    """

    values: Tensor
    known: Tensor


def measure_edges(tree: TreeBatch) -> Edges:
    """Return logarithm of length, angle to the parent's edge, and logarithm of the radius by the parent's."""
    with torch.no_grad():
        parent = tree.parent.clamp(min=0)
        has_edge = (tree.parent >= 0) & (tree.length > 0)
        edge = tree.position - tree.position[parent]
        above = edge[parent]
        sine = torch.cross(above, edge, dim=1).norm(dim=1)
        angle = torch.atan2(sine, (above * edge).sum(1))
        has_angle = has_edge & (tree.parent[parent] >= 0) & (torch.minimum(above.norm(dim=1), edge.norm(dim=1)) > 0)
        has_radius = tree.x[:, HAS_RADIUS] > 0
        has_ratio = has_edge & has_radius & has_radius[parent]
        values = torch.stack(
            [
                torch.where(has_edge, tree.length, 1.0).log(),
                torch.where(has_angle, angle, 0.0),
                torch.where(has_ratio, tree.x[:, RADIUS] - tree.x[parent, RADIUS], 0.0),
            ],
            dim=1,
        )
        return Edges(values, torch.stack([has_edge, has_angle, has_ratio], dim=1))
