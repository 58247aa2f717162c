"""Paths of third order of a batch: four nodes that follow each other, shorter where the tree ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kdgat.graphs import group_sizes, places_of
from kdgat.trees.graphs.batch import TreeBatch


@dataclass(frozen=True, eq=False)
class Paths:
    """Hold P paths i, j, k, p.

    Attributes:
        nodes: [4, P] places of the nodes in the batch; -1 where a short path has no k or no p. Messages go to i.
    """

    nodes: Tensor


def ancestor_paths(tree: TreeBatch) -> Paths:
    """Return the path from each node but roots towards its root; node, parent, its parent, and the one above."""
    second, first = tree.edges
    third = tree.above(second)
    return Paths(torch.stack([first, second, third, tree.above(third)]))


def branch_paths(tree: TreeBatch) -> Paths:
    """Return the tree branches of GTMP: from a node to each descendant three edges below it, shorter ones to leaves.

    Without those that end early, nodes within two edges of the leaves below them would see no geometry at all.
    """
    node = torch.arange(tree.num_nodes, device=tree.parent.device)
    one = tree.parent
    two = tree.above(one)
    three = tree.above(two)
    is_leaf = tree.num_children == 0
    none = torch.full_like(node, -1)
    # Three paths that may end at each node, of which there are some: 3 N in all.
    is_path = torch.cat([three >= 0, is_leaf & (two >= 0), is_leaf & (one >= 0)])
    paths = (three, two, one), (two, one, node), (one, node, none), (node, none, none)
    every = torch.stack([torch.cat(places) for places in paths])  # [4, 3 N]
    return Paths(every.index_select(1, places_of(is_path, tree.num_branches)))


def general_paths(tree: TreeBatch) -> Paths:
    """Return all paths of three edges with four different nodes: of SGMP, in every direction."""
    edges = tree_edges(tree)
    num_edges = edges.shape[1]
    order = torch.argsort(edges[0], stable=True)
    source, target = edges.index_select(1, order)
    degree = group_sizes(source, tree.num_nodes)
    start = torch.cumsum(degree, 0) - degree
    # Each directed edge j -> k in the middle, with every other neighbour i of j before it and p of k behind.
    place = torch.arange(num_edges, device=order.device)
    back = torch.empty_like(order).index_copy_(0, order, place)[(order + num_edges // 2) % num_edges]  # where k -> j is
    after = degree[target] - 1
    sizes = (degree[source] - 1) * after
    middle = torch.repeat_interleave(place, sizes, output_size=tree.num_general)
    within = torch.arange(tree.num_general, device=order.device) - (torch.cumsum(sizes, 0) - sizes)[middle]
    j, k = source[middle], target[middle]
    i, p = start[j] + within // after[middle], start[k] + within % after[middle]
    i, p = i + (i >= middle), p + (p >= back[middle])  # j is left out among the neighbours of k, and k among those of j
    return Paths(torch.stack([target[i], j, k, target[p]]))


def tree_edges(tree: TreeBatch) -> Tensor:
    """Return the edges of the trees in both directions, [2, 2E]."""
    return torch.cat([tree.edges, tree.edges.flip(0)], dim=1)
