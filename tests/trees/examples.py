"""Small random trees, batches of them, and what is done to them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch_geometric.data import Batch

from kdgat.graphs import GraphColumns, TensorColumns
from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.graphs.columns import tree_columns
from kdgat.trees.sections import EncoderConfig
from kdgat.trees.structure.tree import Tree

TINY = EncoderConfig(hidden=8, interactions=1, num_distances=6)


def random_tree(seed: int, num_nodes: int = 40, *, has_radius: bool = True) -> Tree:
    """Return a tree of mixed branching whose edges are about 1 long."""
    generator = np.random.default_rng(seed)
    parent = np.array([-1, *(max(0, node - 1 - int(generator.integers(0, 5))) for node in range(num_nodes - 1))])
    position = np.zeros((num_nodes, 3))
    radius = np.full(num_nodes, 2.0)
    for node in range(1, num_nodes):
        position[node] = position[parent[node]] + generator.normal(0.0, 0.7, 3)
        radius[node] = radius[parent[node]] * generator.uniform(0.7, 1.0)
    kind = generator.integers(1, 5, num_nodes)
    return Tree.from_parents(parent, position, radius if has_radius else None, kind, name=f"tree {seed}")


@st.composite
def small_trees(draw: st.DrawFn) -> Tree:
    """Draw trees of every shape."""
    count = draw(st.integers(1, 25))
    parent = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, count))]
    return Tree.from_parents(parent, np.random.default_rng(count).normal(size=(count, 3)))


def columns_of(trees: Sequence[Tree]) -> GraphColumns:
    """Return trees as the graph store holds them; lengths as they are."""
    return GraphColumns.concatenate([tree_columns(tree, 1.0, place) for place, tree in enumerate(trees)])


def graphs_of(*trees: Tree) -> Batch:
    """Return a batch of the graph store."""
    return TensorColumns.from_columns(columns_of(trees)).gather(np.arange(len(trees)))


def batch_of(*trees: Tree) -> TreeBatch:
    """Return a batch."""
    return TreeBatch.of(graphs_of(*trees))


def moved(tree: Tree, matrix: NDArray[np.float64], by: Sequence[float] = (0.0, 0.0, 0.0)) -> Tree:
    """Return the tree with each position multiplied by a matrix, and moved."""
    return replace(tree, position=tree.position @ matrix.T + np.asarray(by))


def rotation(seed: int) -> NDArray[np.float64]:
    """Draw a rotation."""
    found, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return found * np.sign(np.linalg.det(found))


def subtree(tree: Tree, node: int) -> slice:
    """Return the nodes of a subtree, its root included."""
    return slice(node, node + int(tree.size[node]))


def same(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    """Return whether no number differs by more."""
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance)
