"""A tree as columns of the graph store: nodes in preorder, edges from parents to children, lengths without a unit."""

from __future__ import annotations

from typing import Final

import numpy as np

from kdgat.graphs import CORE, Column, GraphColumns, Schema
from kdgat.trees.structure.tree import Tree, count_paths

# Of a node alone, and nothing of its children: growth is predicted from these and from ancestors.
NODE_FEATURES: Final = ("radius", "has_radius", "soma", "axon", "basal", "apical")
RADIUS, HAS_RADIUS = 0, 1
NO_LABEL: Final = -1
SCHEMA: Final = Schema(
    (
        *CORE,
        Column("pos", "node", "float32", 3, in_batch=True),  # relative to the root
        Column("length", "node", "float32", in_batch=True),  # along the edge to the parent
        Column("depth", "node", "int32", in_batch=True),
        Column("subtree", "node", "int32", in_batch=True),  # nodes in it; those of node i are i to i + subtree - 1
        Column("label", "graph", "int32", in_batch=True),  # place among the attribute `classes`, or NO_LABEL
        Column("target", "graph", "float32", in_batch=True),  # for regression; 0 without
        Column("labelled", "graph", "int8"),  # whether one of the two is known
        Column("tree", "graph", "int64", indexes="trees"),  # spanning trees of one network share it
        # Paths of third order: what memory goes by. See PathCounts.
        Column("branches", "graph", "int64"),
        Column("ancestors", "graph", "int64"),
        Column("general", "graph", "int64"),
    )
)


def tree_columns(
    tree: Tree, scale: float, place: int, label: int | None = None, target: float | None = None
) -> GraphColumns:
    """Return the graph of one tree.

    Args:
        tree: at least one node.
        scale: what counts as length 1: the median edge of the dataset.
        place: of the tree, or of the network that it spans, in the store's list `trees`.
        label, target: class, or number to predict.
    """
    x = np.zeros((tree.num_nodes, len(NODE_FEATURES)), np.float32)
    has_radius = tree.radius > 0
    x[:, RADIUS] = np.log(np.where(has_radius, tree.radius / scale, 1.0))
    x[:, HAS_RADIUS] = has_radius
    for column, kind in enumerate((1, 2, 3, 4), start=2):
        x[:, column] = tree.kind == kind
    counts = count_paths(tree)
    children = np.arange(1, tree.num_nodes, dtype=np.int32)
    return GraphColumns(
        SCHEMA,
        node_ptr=np.array([0, tree.num_nodes], np.int64),
        edge_ptr=np.array([0, len(children)], np.int64),
        x=x,
        edge_index=np.stack([tree.parent[1:].astype(np.int32), children]),
        pos=((tree.position - tree.position[0]) / scale).astype(np.float32),
        length=(tree.length / scale).astype(np.float32),
        depth=tree.depth.astype(np.int32),
        subtree=tree.size.astype(np.int32),
        label=np.array([NO_LABEL if label is None else label], np.int32),
        target=np.array([0.0 if target is None else target], np.float32),
        labelled=np.array([label is not None or target is not None], np.int8),
        tree=np.array([place], np.int64),
        branches=np.array([counts.branches], np.int64),
        ancestors=np.array([counts.ancestors], np.int64),
        general=np.array([counts.general], np.int64),
    )


def scaled(columns: GraphColumns, scale: float) -> GraphColumns:
    """Return trees whose lengths were written with scale 1, in units of `scale`."""
    x = np.array(columns.x)
    x[:, RADIUS] -= np.where(x[:, HAS_RADIUS] > 0, np.float32(np.log(scale)), np.float32(0))
    return columns.replace(
        x=x,
        pos=(np.asarray(columns["pos"], np.float64) / scale).astype(np.float32),
        length=(np.asarray(columns["length"], np.float64) / scale).astype(np.float32),
    )


def tree_of(columns: GraphColumns, place: int, name: str = "") -> Tree:
    """Return one tree of a store again, lengths in units of its scale."""
    nodes = slice(int(columns.node_ptr[place]), int(columns.node_ptr[place + 1]))
    edges = slice(int(columns.edge_ptr[place]), int(columns.edge_ptr[place + 1]))
    x = np.asarray(columns.x[nodes], np.float64)
    kinds = x[:, 2:6]
    return Tree(
        np.append(-1, columns.edge_index[0, edges]).astype(np.int64),
        np.asarray(columns["pos"][nodes], np.float64),
        np.where(x[:, HAS_RADIUS] > 0, np.exp(x[:, RADIUS]), 0.0),
        np.where(kinds.any(axis=1), kinds.argmax(axis=1) + 1, 0),
        np.asarray(columns["length"][nodes], np.float64),
        np.asarray(columns["depth"][nodes], np.int64),
        np.asarray(columns["subtree"][nodes], np.int64),
        name,
    )
