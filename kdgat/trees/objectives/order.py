"""Order: an ancestor's place contains those of its descendants, and no other pair's does.

Places are non-negative vectors z. The energy of a pair (a, d) is E = ||relu(z_d - z_a)||^2: 0 where the place of d
lies inside that of a in every dimension (order embeddings, Vendrov et al., ICLR 2016; KDD 2024, equation 6). The loss
lets pairs of ancestor and descendant have none, and all others at least a margin: the same pairs turned round, and
nodes of one tree of which neither is above the other in that direction. True negatives keep places from being all the
same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.message import two_layers


@dataclass(frozen=True, eq=False)
class Pairs:
    """Hold pairs of nodes of one tree each.

    Attributes:
        above, below: [Q] the pair; whether the first is an ancestor of the second is what the order says.
        is_ancestor: [Q] bool.
        is_turned: [Q] bool: a pair of ancestor and descendant the wrong way round.
        is_self: [Q] bool: a node with itself, which no loss counts; None where there are no such pairs.
    """

    above: Tensor
    below: Tensor
    is_ancestor: Tensor
    is_turned: Tensor
    is_self: Tensor | None = None


class OrderHead(nn.Module):
    """Give each node its place."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.network = two_layers(hidden, hidden, width)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return places [N, W] >= 0 of embeddings [N, H]."""
        return functional.softplus(self.network(embeddings).float())


def energy(places: Tensor, pairs: Pairs) -> Tensor:
    """Return how far each pair is from the order, [Q]."""
    return (places[pairs.below] - places[pairs.above]).relu().square().sum(1)


def order_loss(energies: Tensor, pairs: Pairs, margin: float) -> Tensor:
    """Return the mean energy of ancestors and descendants, and the mean of what others lack to the margin."""
    yes = pairs.is_ancestor
    no = ~yes if pairs.is_self is None else ~(yes | pairs.is_self)
    held = torch.where(yes, energies, 0.0).sum() / yes.sum().clamp(min=1)
    lacking = torch.where(no, (margin - energies).relu(), 0.0).sum() / no.sum().clamp(min=1)
    return held + lacking


def random_ancestor(tree: TreeBatch, node: Tensor) -> Tensor:
    """Draw a proper ancestor of each node, evenly; nodes must not be roots."""
    steps = (torch.rand(len(node), device=node.device) * tree.depth[node]).long() + 1
    return tree.ancestor(node, torch.minimum(steps, tree.depth[node]))


def draw_pairs(tree: TreeBatch, *, with_selves: bool = False) -> Pairs:
    """Draw pairs of each node but roots: with its parent and an ancestor, both turned round, and with two others.

    Of these a node itself may be drawn. Such pairs are left out, which waits for a GPU, or marked `with_selves`.
    """
    parent, node = tree.edges
    ancestor = random_ancestor(tree, node)
    graph = tree.graph[node]
    first, size = tree.start[graph], (tree.start[graph + 1] - tree.start[graph])
    other = [
        first + torch.minimum((torch.rand(len(node), device=node.device) * size).long(), size - 1) for _ in range(2)
    ]
    above = torch.cat([parent, ancestor, node, node, *other])
    below = torch.cat([node, node, parent, ancestor, node, node])
    is_self = above == below
    if not with_selves:
        above, below = above[~is_self], below[~is_self]
    is_ancestor, is_turned = tree.is_ancestor(above, below), tree.is_ancestor(below, above)
    return Pairs(above, below, is_ancestor, is_turned, is_self if with_selves else None)


def pair_auc(energies: Tensor, is_ancestor: Tensor) -> float:
    """Return the area under the ROC curve of -E: how often an ancestor's pair has less energy than another; ties half.

    Raises:
        ValueError: if all pairs are of one kind.
    """
    yes, no = energies[is_ancestor].double(), energies[~is_ancestor].double()
    if len(yes) == 0 or len(no) == 0:
        raise ValueError(f"{len(yes)} pairs of ancestors and {len(no)} others: both kinds are needed")
    ordered = no.sort().values
    below = torch.searchsorted(ordered, yes, right=False)
    up_to = torch.searchsorted(ordered, yes, right=True)
    twice = 2 * (len(no) - up_to) + (up_to - below)  # in whole numbers: pairs are many
    return int(twice.sum()) / (2 * len(yes) * len(no))
