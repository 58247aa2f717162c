"""The networks that a check tries: one or two of each family, on graphs that it makes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from lightning import LightningModule

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.sections import AttentionConfig, AutoencoderConfig
from kdgat.can.training.objective import AutoencoderObjective, DetectionObjective
from kdgat.canbus.features import SCHEMA
from kdgat.graphs import GraphColumns, pointers
from kdgat.lap.graphs.bipartite import build_graph
from kdgat.lap.instances.distributions import generate
from kdgat.lap.models import make_model
from kdgat.lap.sections import GraphConfig, ModelConfig
from kdgat.lap.training.objective import WarmStartObjective
from kdgat.training import TrainingConfig
from kdgat.trees.graphs.columns import tree_columns
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.sections import PretrainStageConfig
from kdgat.trees.synthetic.dataset import draw
from kdgat.trees.training.pretraining import PretrainedTrees, PretrainObjective

NUM_NODE_FEATURES, NUM_EDGE_FEATURES = 79, 7  # of a window
NUM_NODES, NUM_EDGES = (20, 35), (40, 71)  # of a window: from, up to
NUM_WINDOWS, NUM_TREES = 4096, 24
LENGTH_RANGE = (0.2, 5.0)


@dataclass(frozen=True)
class Network:
    """What is trained, on what, and in batches of how many graphs."""

    make: Callable[[float], LightningModule]  # at a rate of dropout
    columns: Callable[[], GraphColumns]
    batches: tuple[int, ...]  # the first is the usual one


def random_windows(
    num_graphs: int = NUM_WINDOWS,
    nodes: tuple[int, int] = NUM_NODES,
    edges: tuple[int, int] = NUM_EDGES,
    num_node_features: int = NUM_NODE_FEATURES,
) -> GraphColumns:
    """Return windows of random features and edges, as large as those of passenger cars; counts from, up to."""
    generator = np.random.default_rng(0)
    node_counts = generator.integers(*nodes, num_graphs)
    edge_counts = generator.integers(*edges, num_graphs)
    keys = [
        np.sort(generator.choice(count**2, wanted, replace=False))
        for count, wanted in zip(node_counts, edge_counts, strict=True)
    ]
    ends = [np.stack([key % count, key // count]) for key, count in zip(keys, node_counts, strict=True)]
    num_nodes, num_edges = int(node_counts.sum()), int(edge_counts.sum())
    return GraphColumns(
        SCHEMA,
        node_ptr=pointers(node_counts),
        edge_ptr=pointers(edge_counts),
        x=generator.normal(size=(num_nodes, num_node_features)).astype(np.float32),
        edge_index=np.concatenate(ends, axis=1).astype(np.int32),
        edge_attr=generator.normal(size=(num_edges, NUM_EDGE_FEATURES)).astype(np.float32),
        y=(generator.random(num_graphs) < 0.4).astype(np.int8),
        node_y=(generator.random(num_nodes) < 0.1).astype(np.int8),
        node_id=generator.integers(0, 2048, num_nodes).astype(np.int32),
        recording=np.zeros(num_graphs, np.int32),
        first_message=np.arange(num_graphs, dtype=np.int64) * 100,
        start_time=np.arange(num_graphs) * 0.025,
        end_time=np.arange(num_graphs) * 0.025 + 0.02,
        message_count=np.full(num_graphs, 100, np.int32),
        attack_count=np.zeros(num_graphs, np.int32),
        kind=np.zeros(num_graphs, np.int8),
        suspicion=np.zeros(num_graphs, np.int8),
        suspect=np.full(num_graphs, -1, np.int32),
    )


def drawn_trees() -> GraphColumns:
    """Return grown neurons."""
    grown = draw("neurons", None, NUM_TREES, 0)
    return GraphColumns.concatenate([tree_columns(one.tree, 1.0, place) for place, one in enumerate(grown)])


def solved_instance(size: int) -> GraphColumns:
    """Return an instance with its duals; needs numba.

    A real one: over edges that are drawn at random, the sweeps of the network magnify the last digit to the first.
    """
    from kdgat.assignment import solve

    instance = generate("metric", size, 0)
    solved = solve(instance.cost)
    return build_graph(instance.cost, instance.mask, solved.u, solved.v, GraphConfig())


def detector(dropout: float, kind: str = "gat") -> LightningModule:
    """Return the large attention network of the CAN family."""
    config = AttentionConfig.model_validate({"conv_type": kind, "dropout": dropout})
    return DetectionObjective(GraphAttentionNetwork(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES))


def autoencoder(dropout: float) -> LightningModule:
    """Return the large autoencoder of the CAN family."""
    config = AutoencoderConfig.model_validate({"dropout": dropout})
    return AutoencoderObjective(GraphAutoencoder(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES))


def warm_start(dropout: float) -> LightningModule:
    """Return the network of the assignment family, which has no dropout."""
    return WarmStartObjective(make_model(ModelConfig()))


def pretrained_trees(dropout: float) -> LightningModule:
    """Return the pretraining of the tree family, which has no dropout."""
    config = PretrainStageConfig(training=TrainingConfig())
    return PretrainObjective(PretrainedTrees(config, channels_of(LENGTH_RANGE, config.growth)), config)


NETWORKS: Final[dict[str, Network]] = {
    "GAT large": Network(detector, random_windows, (128, 512, 2048)),
    "GATv2 large": Network(lambda dropout: detector(dropout, "gatv2"), random_windows, (128,)),
    "VGAE large": Network(autoencoder, random_windows, (128, 512, 2048)),
    "trees": Network(pretrained_trees, drawn_trees, (8, 24)),
    "LAP 512": Network(warm_start, lambda: solved_instance(512), (1,)),
    "LAP 2048": Network(warm_start, lambda: solved_instance(2048), (1,)),
}
