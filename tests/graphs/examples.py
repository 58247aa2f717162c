"""Random columns for tests: graphs of 0 to a few nodes, some without edges, with parallel edges and self-loops."""

import numpy as np
import torch
from torch_geometric.data import Data

from kdgat.graphs import CORE, EDGE_ATTR, Column, GraphColumns, Schema, pointers

NODE_FEATURES = ("count", "period", "entropy")
EDGE_FEATURES = ("transitions", "delay")
RECORDINGS = ("drive-1", "drive-2")
SCHEMA = Schema(
    (
        *CORE,
        EDGE_ATTR,
        Column("y", "graph", "int8", in_batch=True),
        Column("node_y", "node", "int8", in_batch=True),
        Column("node_id", "node", "int32", in_batch=True),
        Column("recording", "graph", "int32", indexes="recordings"),
        Column("first_message", "graph", "int64"),
        Column("start_time", "graph", "float64"),
    )
)


def random_columns(seed: int, num_graphs: int, max_nodes: int = 6, max_edges: int = 10) -> GraphColumns:
    generator = np.random.default_rng(seed)
    node_counts = generator.integers(0, max_nodes + 1, num_graphs)
    edge_counts = np.where(node_counts > 0, generator.integers(0, max_edges + 1, num_graphs), 0)
    limit = np.repeat(node_counts, edge_counts)  # [E]
    num_nodes, num_edges = int(node_counts.sum()), int(edge_counts.sum())
    return GraphColumns(
        SCHEMA,
        node_ptr=pointers(node_counts),
        edge_ptr=pointers(edge_counts),
        x=generator.standard_normal((num_nodes, len(NODE_FEATURES)), dtype=np.float32),
        edge_index=(generator.random((2, num_edges)) * limit).astype(np.int32),
        edge_attr=generator.standard_normal((num_edges, len(EDGE_FEATURES)), dtype=np.float32),
        y=generator.integers(0, 2, num_graphs).astype(np.int8),
        node_y=generator.integers(0, 2, num_nodes).astype(np.int8),
        node_id=generator.integers(0, 2**29, num_nodes).astype(np.int32),
        recording=generator.integers(0, len(RECORDINGS), num_graphs).astype(np.int32),
        first_message=np.arange(num_graphs, dtype=np.int64) * 50,
        start_time=generator.random(num_graphs),
    ).sorted_edges()


def empty_columns(num_node_features: int, num_edge_features: int) -> GraphColumns:
    return GraphColumns.empty(SCHEMA, num_node_features=num_node_features, num_edge_features=num_edge_features)


def data_of(columns: GraphColumns, graph: int) -> Data:
    """Cut one graph out by plain slicing: what gather() must agree with."""
    nodes = slice(int(columns.node_ptr[graph]), int(columns.node_ptr[graph + 1]))
    edges = slice(int(columns.edge_ptr[graph]), int(columns.edge_ptr[graph + 1]))
    return Data(
        x=torch.tensor(columns.x[nodes]),
        edge_index=torch.tensor(columns.edge_index[:, edges], dtype=torch.int64),
        edge_attr=torch.tensor(columns.edge_attr[edges]),
        y=torch.tensor([int(columns["y"][graph])]),
        node_y=torch.tensor(columns["node_y"][nodes], dtype=torch.int64),
        node_id=torch.tensor(columns["node_id"][nodes], dtype=torch.int64),
    )
