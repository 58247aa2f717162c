"""Graphs of simulated traffic, for benchmarks that measure storage and batching, not learning."""

import numpy as np
import torch
from torch_geometric.data import Data

from kdgat.canbus import WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.graphs import GraphColumns


def simulated_windows(num_graphs: int, seed: int = 0) -> GraphColumns:
    """Return so many windows of 100 messages of a vehicle that is attacked now and then."""
    vehicle, config = make_vehicle(seed), WindowConfig()
    rate = float((1 / vehicle.period_s).sum())
    drive = simulate(vehicle, 1.05 * (num_graphs + 1) * config.stride / rate, "fuzzing", seed=seed)
    graphs = windows_to_graphs(drive.select(slice(num_graphs * config.stride)), config)
    assert graphs.num_graphs == num_graphs, "too short a drive was simulated"
    return graphs


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
