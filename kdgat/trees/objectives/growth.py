"""Growth: what the children of a node are like, predicted from its ancestors.

Of a node's children the target is the distribution of the lengths of their edges, of the angles between their edges
and its own, and of their radii by its own, as cumulative shares F(t) = (children with a value <= t) / (children) at
fixed thresholds ("Representation Learning of Geometric Trees", KDD 2024, equations 8 to 11, says histograms). The
loss is the earth mover's distance, in one dimension the area between two cumulative distributions: the sum over
thresholds of |G(t) - F(t)| times their step. Leaves have no such target; the number of children, leaves included, is
a class of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.message import two_layers
from kdgat.trees.sections import GrowthConfig

MOST_CHILDREN: Final = 3  # that are told apart: 0, 1, 2, and 3 or more
LENGTH, ANGLE, RADIUS_RATIO = "length", "angle", "radius"
RADIUS_RANGE: Final = (-1.5, 0.5)  # of the logarithm of a child's radius by its parent's


@dataclass(frozen=True)
class Channel:
    """State where the cumulative shares of one quantity are compared.

    Attributes:
        name: length (natural logarithm of median edges), angle (radians), or radius (logarithm of a ratio).
        first, step, count: evenly spaced thresholds.
    """

    name: str
    first: float
    step: float
    count: int

    @property
    def thresholds(self) -> list[float]:
        """Return the thresholds, rising."""
        return [self.first + place * self.step for place in range(self.count)]


def channels_of(length_range: Sequence[float], config: GrowthConfig) -> tuple[Channel, ...]:
    """Return the channels of trees whose edges lie in a range, in median edges."""
    low, high = (math.log(value) for value in length_range)
    step = (high - low) / (config.num_lengths - 1)
    angle = math.pi / config.num_angles
    lowest, highest = RADIUS_RANGE
    ratio = (highest - lowest) / (config.num_radii - 1)
    return (
        Channel(LENGTH, low, step, config.num_lengths),
        Channel(ANGLE, angle / 2, angle, config.num_angles),
        Channel(RADIUS_RATIO, lowest, ratio, config.num_radii),
    )


@dataclass(frozen=True, eq=False)
class Growth:
    """Hold the targets of N nodes.

    Attributes:
        shares: per channel, [N, T] cumulative shares of the children; 0 where nothing is known. known: [N, C] bool:
        whether a channel says something of the node: it has an edge of its own, and every child a value. count: [N]
        number of children, up to MOST_CHILDREN.
    """

    shares: tuple[Tensor, ...]
    known: Tensor
    count: Tensor


def growth_targets(
    tree: TreeBatch, channels: Sequence[Channel], thresholds: Sequence[Tensor] | None = None
) -> Growth:  # fmt: skip
    """Return the targets of all nodes; `thresholds` are those of the channels, where the device has them already."""
    with torch.no_grad():
        edges = tree.measured
        thresholds = thresholds or [edges.values.new_tensor(channel.thresholds) for channel in channels]
        parent, child = tree.edges
        count = tree.num_children
        num_known = torch.zeros_like(edges.values).index_add(0, parent, edges.known[child].to(edges.values.dtype))
        shares = []
        for place, channel in enumerate(channels):
            below = edges.values[child, place, None] <= thresholds[place]
            total = edges.values.new_zeros(tree.num_nodes, channel.count).index_add(0, parent, below.float())
            shares.append(total / count.clamp(min=1)[:, None])
        is_grown = (count > 0) & (tree.parent >= 0)
        known = is_grown[:, None] & (num_known == count[:, None])
        return Growth(tuple(shares), known, count.clamp(max=MOST_CHILDREN))


def distances(shares: Sequence[Tensor], target: Growth, channels: Sequence[Channel]) -> Tensor:
    """Return the earth mover's distances [N, C] of cumulative shares, which may broadcast; 0 where nothing is known."""
    found = [
        (one - true).abs().sum(1) * channel.step
        for one, true, channel in zip(shares, target.shares, channels, strict=True)
    ]
    return torch.where(target.known, torch.stack(found, dim=1), 0.0)


@dataclass(frozen=True, eq=False)
class Prediction:
    """Hold predictions for N nodes.

    Attributes:
        shares: per channel, [N, T] cumulative shares.
        count: [N, MOST_CHILDREN + 1] scores.
    """

    shares: tuple[Tensor, ...]
    count: Tensor


class GrowthHead(nn.Module):
    """Predict growth from embeddings of ancestors: cumulative shares as mixtures of logistic distributions.

    A histogram of free bins cannot learn this loss: the best prediction of a single child is all in one bin, and a
    softmax that is nearly there has no gradient left to move it. The centre of a logistic distribution moves as far
    as it is wrong. Centres are relative to what the node's own edge has, where that is known.
    """

    def __init__(self, hidden: int, config: GrowthConfig, channels: Sequence[Channel]) -> None:
        super().__init__()
        self.channels, self.components = tuple(channels), config.components
        width = 3 * self.components * len(self.channels) + MOST_CHILDREN + 1
        self.network = two_layers(hidden, 2 * hidden, width)
        self.start = nn.Parameter(torch.linspace(-4.0, 4.0, self.components))  # in steps of thresholds
        for channel in self.channels:
            self.register_buffer(f"{channel.name}_thresholds", torch.tensor(channel.thresholds), persistent=False)

    @property
    def thresholds(self) -> list[Tensor]:
        """Return the thresholds of each channel."""
        return [getattr(self, f"{channel.name}_thresholds") for channel in self.channels]

    def forward(self, up: Tensor, tree: TreeBatch) -> Prediction:
        """Return predictions for embeddings [N, H] of the nodes of a batch."""
        out = self.network(up).float()
        mixtures, count = out.split([out.shape[1] - MOST_CHILDREN - 1, MOST_CHILDREN + 1], dim=1)
        own = tree.measured.values
        shares = []
        for place, (channel, thresholds, one) in enumerate(
            zip(self.channels, self.thresholds, mixtures.chunk(len(self.channels), dim=1), strict=True)
        ):
            weight, shift, width = one.chunk(3, dim=1)
            # Not much narrower than a step: a steeper distribution would have no slope at any threshold.
            width = channel.step * (0.3 + functional.softplus(width))
            steps = thresholds - (own[:, place, None] + channel.step * (self.start + shift))[:, :, None]
            shares.append((weight.softmax(dim=1)[:, :, None] * (steps / width[:, :, None]).sigmoid()).sum(1))
        return Prediction(tuple(shares), count)
