"""Small random window graphs with a planted attack, for tests of models and stages."""

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features import ATTACK_KINDS, SCHEMA
from kdgat.canbus.features.suspicion import Reason
from kdgat.graphs import GraphColumns, pointers

NUM_NODE_FEATURES = 6
NUM_EDGE_FEATURES = 3


def planted_columns(
    num_graphs: int, seed: int = 0, attack_share: float = 0.4, strength: float = 3.0, num_recordings: int = 2
) -> GraphColumns:
    """Make windows of 3 to 9 nodes; in an attacked one, one or two nodes have two features shifted by `strength`."""
    generator = np.random.default_rng(seed)
    node_counts = generator.integers(3, 10, num_graphs)
    node_ptr = pointers(node_counts)
    x = generator.normal(size=(node_ptr[-1], NUM_NODE_FEATURES)).astype(np.float32)
    x[:, 2] = 0.8 * x[:, 0] + 0.1 * x[:, 2]  # something to reconstruct
    y = (generator.random(num_graphs) < attack_share).astype(np.int8)
    node_y = np.zeros(node_ptr[-1], np.int8)
    edges, edge_counts = [], []
    for graph in range(num_graphs):
        size = int(node_counts[graph])
        if y[graph]:
            node_y[node_ptr[graph] + generator.choice(size, generator.integers(1, 3), replace=False)] = 1
        keys = np.sort(generator.choice(size * size, min(2 * size, size * size), replace=False))
        edges.append(np.stack([keys % size, keys // size]))  # sorted by destination, then source
        edge_counts.append(len(keys))
    x[node_y == 1, 1] += strength
    x[node_y == 1, 2] -= strength
    edge_index = np.concatenate(edges, axis=1).astype(np.int32)
    columns = GraphColumns(
        SCHEMA,
        node_ptr=node_ptr,
        edge_ptr=pointers(np.array(edge_counts)),
        x=rounded(x),
        edge_index=edge_index,
        edge_attr=rounded(generator.normal(size=(edge_index.shape[1], NUM_EDGE_FEATURES))),
        y=y,
        node_y=node_y,
        node_id=generator.integers(0, 2048, node_ptr[-1]).astype(np.int32),
        recording=np.sort(generator.integers(0, num_recordings, num_graphs)).astype(np.int32),
        first_message=(np.arange(num_graphs) * 100).astype(np.int64),
        start_time=np.arange(num_graphs) * 0.025,
        end_time=np.arange(num_graphs) * 0.025 + 0.024,
        message_count=np.full(num_graphs, 100, np.int32),
        attack_count=(y * 5).astype(np.int32),
        kind=(y * ATTACK_KINDS.index("spoofing")).astype(np.int8),
        suspicion=np.where(y == 1, Reason.FAST, Reason.NOTHING).astype(np.int8),
        suspect=np.where(y == 1, 0x100, -1).astype(np.int32),
    )
    columns.validate()
    return columns


def rounded(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return features as a store keeps them."""
    return values.astype(np.float16).astype(np.float32)
