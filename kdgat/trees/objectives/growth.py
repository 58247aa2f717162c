"""Growth: what the children of a node are like, predicted from its ancestors.

Of a node's children the target is the distribution of their edge lengths and of the angles between their edges and its own,
as cumulative shares F(t) = (children with a value <= t) / (children) at fixed thresholds ("Representation Learning of
Geometric Trees", KDD 2024, equations 8 to 11, says histograms). The loss is the earth mover's distance, in one dimension
the area between two cumulative distributions: the sum over thresholds of |G(t) - F(t)| times their distance. Lengths are
compared on a logarithmic scale. Leaves have no such target; the number of children, leaves included, is a class of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.message import two_layers
from kdgat.trees.sections import GrowthConfig

MOST_CHILDREN: Final = 3  # that are told apart: 0, 1, 2, and 3 or more


@dataclass(frozen=True)
class Thresholds:
    """Hold where cumulative shares are compared.

    Attributes:
        lengths: rising, in median edges, evenly spaced on a logarithmic scale.
        angles: rising, in radians.
    """

    lengths: tuple[float, ...]
    angles: tuple[float, ...]

    @classmethod
    def of(cls, length_range: tuple[float, float], config: GrowthConfig) -> Thresholds:
        """Place thresholds: lengths over a range, angles inside [0, pi]."""
        low, high = (math.log(value) for value in length_range)
        step = (high - low) / (config.num_lengths - 1)
        return cls(
            tuple(math.exp(low + step * place) for place in range(config.num_lengths)),
            tuple(math.pi * (place + 0.5) / config.num_angles for place in range(config.num_angles)),
        )

    @property
    def length_step(self) -> float:
        """Return the distance between two thresholds of lengths, in natural logarithms."""
        return math.log(self.lengths[1] / self.lengths[0])

    @property
    def angle_step(self) -> float:
        """Return the distance between two thresholds of angles, in radians."""
        return self.angles[1] - self.angles[0]


@dataclass(frozen=True, eq=False)
class Growth:
    """Hold targets of N nodes, or predictions.

    Attributes:
        lengths: [N, L] cumulative shares at the thresholds of lengths.
        angles: [N, A] the same of angles.
        count: [N] number of children up to MOST_CHILDREN as a target, [N, MOST_CHILDREN + 1] scores as a prediction.
    """

    lengths: Tensor
    angles: Tensor
    count: Tensor


def child_angles(tree: TreeBatch) -> tuple[Tensor, Tensor]:
    """Return the angle [N] between each node's edge and its parent's, and whether it is known; in radians."""
    parent = tree.parent.clamp(min=0)
    edge = tree.position - tree.position[parent]
    above = edge[parent]
    sine = torch.cross(above, edge, dim=1).norm(dim=1)
    angle = torch.atan2(sine, (above * edge).sum(1))
    has_both = (tree.parent >= 0) & (tree.parent[parent] >= 0)
    return angle, has_both & (torch.minimum(above.norm(dim=1), edge.norm(dim=1)) > 0)


def growth_targets(tree: TreeBatch, thresholds: Thresholds) -> Growth:
    """Return the targets of all nodes; shares of nodes without children are 0."""
    with torch.no_grad():
        angle, _ = child_angles(tree)
        lengths, angles = (tree.length.new_tensor(values) for values in (thresholds.lengths, thresholds.angles))
        child = torch.nonzero(tree.parent >= 0)[:, 0]
        parent = tree.parent[child]
        count = tree.num_children
        below = torch.cat(
            [tree.length[child, None] <= lengths, angle[child, None] <= angles], dim=1
        ).to(tree.length.dtype)  # fmt: skip
        shares = below.new_zeros(tree.num_nodes, below.shape[1]).index_add(0, parent, below)
        shares = shares / count.clamp(min=1)[:, None]
        of_lengths, of_angles = shares.split([len(lengths), len(angles)], dim=1)
        return Growth(of_lengths, of_angles, count.clamp(max=MOST_CHILDREN))


def grown(tree: TreeBatch) -> Tensor:
    """Return which nodes [N] have a distribution to predict: children, and an edge of their own."""
    return (tree.num_children > 0) & (tree.parent >= 0)


@dataclass(frozen=True, eq=False)
class GrowthLoss:
    """Hold the losses of N nodes; those of shares mean something where `grown` is true.

    Attributes:
        length: [N] area between cumulative distributions, in natural logarithms of length.
        angle: [N] the same, in radians.
        count: [N] cross entropy of the number of children, in nats.
    """

    length: Tensor
    angle: Tensor
    count: Tensor


def distance(prediction: Growth, target: Growth, thresholds: Thresholds) -> tuple[Tensor, Tensor]:
    """Return the earth mover's distances [N] of lengths and of angles."""
    return (
        (prediction.lengths - target.lengths).abs().sum(1) * thresholds.length_step,
        (prediction.angles - target.angles).abs().sum(1) * thresholds.angle_step,
    )


def growth_loss(prediction: Growth, target: Growth, thresholds: Thresholds) -> GrowthLoss:
    """Return the losses of a prediction whose `count` holds scores."""
    length, angle = distance(prediction, target, thresholds)
    return GrowthLoss(length, angle, functional.cross_entropy(prediction.count, target.count, reduction="none"))


class GrowthHead(nn.Module):
    """Predict growth from embeddings of ancestors."""

    def __init__(self, hidden: int, config: GrowthConfig) -> None:
        super().__init__()
        self.widths = (config.num_lengths + 1, config.num_angles + 1, MOST_CHILDREN + 1)
        self.network = two_layers(hidden, 2 * hidden, sum(self.widths))

    def forward(self, up: Tensor) -> Growth:
        """Return predictions for embeddings [N, H]: shares that rise from above 0 to below 1, and scores of counts."""
        lengths, angles, count = self.network(up).float().split(self.widths, dim=1)
        return Growth(_cumulative(lengths), _cumulative(angles), count)


def _cumulative(scores: Tensor) -> Tensor:
    """Return cumulative shares at the thresholds between bins of these scores; what lies behind the last has no place."""
    return torch.cumsum(scores.softmax(dim=1), dim=1)[:, :-1]
