"""Paths of third order of a batch: four nodes that follow each other, shorter where the tree ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
    first = torch.nonzero(tree.parent >= 0)[:, 0]
    second = tree.above(first)
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
    full, middle, last = three >= 0, is_leaf & (two >= 0), is_leaf & (one >= 0)
    none = torch.full_like(node, -1)
    return Paths(
        torch.cat(
            [
                torch.stack([three, two, one, node])[:, full],
                torch.stack([two, one, node, none])[:, middle],
                torch.stack([one, node, none, none])[:, last],
            ],
            dim=1,
        )
    )


def general_paths(edge_index: Tensor, num_nodes: int) -> Paths:
    """Return all paths of three edges with four different nodes, in a graph whose edges stand in both directions.

    Args:
        edge_index: [2, E] each undirected edge twice, no self loops, none repeated.
        num_nodes: N.
    """
    order = torch.argsort(edge_index[0], stable=True)
    source, target = edge_index[0][order], edge_index[1][order]
    degree = torch.bincount(source, minlength=num_nodes)
    start = torch.cumsum(degree, 0) - degree
    # Each directed edge j -> k in the middle, with every neighbour i of j before it and every neighbour p of k behind.
    before = degree[source]
    middle = torch.repeat_interleave(torch.arange(len(source), device=source.device), before * degree[target])
    within = torch.arange(len(middle), device=source.device)
    sizes = before * degree[target]
    within = within - torch.repeat_interleave(torch.cumsum(sizes, 0) - sizes, sizes)
    j, k = source[middle], target[middle]
    i = target[start[j] + within // degree[k]]
    p = target[start[k] + within % degree[k]]
    distinct = (i != k) & (p != j) & (i != p)
    return Paths(torch.stack([i, j, k, p])[:, distinct])


def tree_edges(tree: TreeBatch) -> Tensor:
    """Return the edges of the trees in both directions, [2, 2E]."""
    child = torch.nonzero(tree.parent >= 0)[:, 0]
    parent = tree.parent[child]
    return torch.stack([torch.cat([parent, child]), torch.cat([child, parent])])
