"""Small untrained networks as they are exported, and windows for them."""

import numpy as np
import torch

from kdgat.can.data.pool import PooledStores
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.onnx_graph import attention_graph
from kdgat.can.models.scoring import describe_model
from kdgat.can.sections import AttentionConfig
from kdgat.canbus import WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES
from kdgat.graphs import GraphColumns


def recorded_graphs() -> GraphColumns:
    return windows_to_graphs(simulate(make_vehicle(1), 30.0), WindowConfig(size=50, stride=50))


def exported(graphs: GraphColumns, seed: int, bias: float = 0.0) -> bytes:
    torch.manual_seed(seed)
    pool = PooledStores([graphs], features=(NODE_FEATURES, EDGE_FEATURES))
    config = AttentionConfig(hidden=4, heads=2, layers=2)
    model = GraphAttentionNetwork(config, pool.num_node_features, pool.num_edge_features).eval()
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    weights["window_head.0.bias"] = weights["window_head.0.bias"] + np.float32(bias)
    return attention_graph(weights, describe_model(model, pool), {}).SerializeToString()
