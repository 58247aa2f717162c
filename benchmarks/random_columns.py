"""Random graphs of the size of CAN windows, for benchmarks that measure storage and batching, not learning."""

import numpy as np
import torch
from torch_geometric.data import Data

from kdgat.can.windows.schema import SCHEMA
from kdgat.graphs.columns import GraphColumns, pointers

NODE_FEATURES = tuple(f"node_{number}" for number in range(12))
EDGE_FEATURES = tuple(f"edge_{number}" for number in range(8))


def random_columns(num_graphs: int, seed: int = 0) -> GraphColumns:
    """Return graphs of 10 to 40 nodes with 1 to 4 edges per node."""
    generator = np.random.default_rng(seed)
    node_counts = generator.integers(10, 41, num_graphs)
    edge_counts = (node_counts * generator.uniform(1, 4, num_graphs)).astype(np.int64)
    num_nodes, num_edges = int(node_counts.sum()), int(edge_counts.sum())
    return GraphColumns(
        SCHEMA,
        node_ptr=pointers(node_counts),
        edge_ptr=pointers(edge_counts),
        x=generator.standard_normal((num_nodes, len(NODE_FEATURES)), dtype=np.float32),
        edge_index=(generator.random((2, num_edges)) * np.repeat(node_counts, edge_counts)).astype(np.int32),
        edge_attr=generator.standard_normal((num_edges, len(EDGE_FEATURES)), dtype=np.float32),
        y=generator.integers(0, 2, num_graphs).astype(np.int8),
        node_y=generator.integers(0, 2, num_nodes).astype(np.int8),
        node_id=generator.integers(0, 2048, num_nodes).astype(np.int32),
        recording=np.zeros(num_graphs, np.int32),
        first_message=np.arange(num_graphs, dtype=np.int64),
        start_time=np.arange(num_graphs, dtype=np.float64),
        message_count=np.full(num_graphs, 100, np.int32),
        attack_count=np.zeros(num_graphs, np.int32),
    ).sorted_edges()


def data_list(columns: GraphColumns) -> list[Data]:
    """Return the same graphs as one PyG object each, the layout that the store replaces."""
    edge_index = torch.from_numpy(columns.edge_index.astype(np.int64))
    x, edge_attr = torch.from_numpy(columns.x), torch.from_numpy(columns.edge_attr)
    y, node_y, node_id = (
        torch.from_numpy(part).long() for part in (columns["y"], columns["node_y"], columns["node_id"])
    )
    nodes, edges = columns.node_ptr.tolist(), columns.edge_ptr.tolist()
    graphs = []
    for graph in range(columns.num_graphs):
        node, edge = slice(nodes[graph], nodes[graph + 1]), slice(edges[graph], edges[graph + 1])
        graphs.append(
            Data(
                x=x[node].clone(),
                edge_index=edge_index[:, edge].clone(),
                edge_attr=edge_attr[edge].clone(),
                y=y[graph : graph + 1].clone(),
                node_y=node_y[node].clone(),
                node_id=node_id[node].clone(),
            )
        )
    return graphs
