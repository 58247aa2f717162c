"""Encoders: every node as its ancestors see it, and as its descendants do.

GTMP ("Representation Learning of Geometric Trees", KDD 2024) reads the branches below a node; SGMP (NeurIPS 2021) all
paths of three edges. Beside either, a pass upwards reads ancestors and nothing else: growth is predicted from it
alone, so that what is predicted is never an input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.graphs.columns import NODE_FEATURES
from kdgat.trees.models.geometry import GeometryBasis
from kdgat.trees.models.message import PathRounds, two_layers
from kdgat.trees.models.paths import Paths, ancestor_paths, branch_paths, general_paths
from kdgat.trees.sections import EncoderConfig

NUM_EDGE_FEATURES: Final = 3


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Hold the embeddings of N nodes.

    Attributes:
        up: [N, H] from the node and its ancestors alone.
        down: [N, H] from the node and its descendants (GTMP), or from paths in every direction (SGMP).
    """

    up: Tensor
    down: Tensor

    @property
    def both(self) -> Tensor:
        """Return both side by side, [N, 2 H]."""
        return torch.cat([self.up, self.down], dim=1)


class PathEncoder(nn.Module):
    """Embed features of nodes, then let messages go along one kind of paths."""

    def __init__(self, config: EncoderConfig, num_features: int = len(NODE_FEATURES)) -> None:
        super().__init__()
        self.embed = two_layers(num_features, config.hidden, config.hidden)
        self.basis = GeometryBasis(config.num_distances, config.distance_range)
        self.rounds = PathRounds(
            config.hidden, config.interactions, config.num_distances, recompute=config.recompute
        )  # fmt: skip

    def forward(self, x: Tensor, position: Tensor, paths: Paths) -> Tensor:
        """Return embeddings [N, H] of nodes with features [N, F] at positions [N, 3]."""
        return self.rounds(self.embed(x), paths, self.basis(position, paths))


class TreeEncoder(nn.Module):
    """Embed the nodes of trees upwards and downwards."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.up = PathEncoder(config, len(NODE_FEATURES) + NUM_EDGE_FEATURES)
        self.down = PathEncoder(config, len(NODE_FEATURES) + NUM_EDGE_FEATURES)

    def forward(self, tree: TreeBatch) -> Embeddings:
        """Return the embeddings of all nodes of a batch."""
        below = branch_paths(tree) if self.config.kind == "gtmp" else general_paths(tree)
        features = torch.cat([tree.x, edge_features(tree)], dim=1)
        return Embeddings(
            self.up(features, tree.position, ancestor_paths(tree)), self.down(features, tree.position, below)
        )  # fmt: skip


def edge_features(tree: TreeBatch) -> Tensor:
    """Return of each node's own edge the logarithms of length and tortuosity, and its angle, [N, 3]; 0 if not known."""
    edges = tree.measured
    straight = (tree.position - tree.position[tree.parent.clamp(min=0)]).norm(dim=1)
    is_bent = edges.known[:, 0] & (straight > 0)
    tortuosity = torch.where(is_bent, edges.values[:, 0] - torch.where(is_bent, straight, 1.0).log(), 0.0)
    return torch.stack([edges.values[:, 0], tortuosity, edges.values[:, 1]], dim=1)


def pool(embeddings: Tensor, tree: TreeBatch) -> Tensor:
    """Return mean and standard deviation over the nodes of each tree, [B, 2 H], in float32."""
    values = embeddings.float()
    count = tree.start.diff().clamp(min=1)[:, None]
    mean = values.new_zeros(tree.num_trees, values.shape[1]).index_add(0, tree.graph, values) / count
    centred = values - mean[tree.graph]
    variance = values.new_zeros(mean.shape).index_add(0, tree.graph, centred**2) / count
    return torch.cat([mean, (variance + 1e-8).sqrt()], dim=1)
