"""One round of messages along paths of third order, with the first layer taken apart so that nothing wide is kept.

Published (Zhang and Zhao 2021, equations 5 to 7; the code has the widths): MLP(7H -> 4H -> 2H -> H) of the states of
the four nodes and of three embedded geometries, concatenated per path. A linear layer of a concatenation is a sum of
linear layers: those of the states are computed per node and gathered. Same parameters, same function; of 7H + 4H
numbers per path, 4H are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kdgat.graphs import group_sizes
from kdgat.trees.models.geometry import GeometryBasis, PathGeometry
from kdgat.trees.models.paths import Paths


def two_layers(width: int, hidden: int, out: int) -> nn.Sequential:
    """Return a network of two linear layers with a ReLU between."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


class PathMessage(nn.Module):
    """Add to each node what the paths that begin at it say: the sum over paths, divided by the root of their number."""

    def __init__(self, hidden: int, num_distances: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(
            two_layers(width, hidden, hidden) for width in GeometryBasis.widths(num_distances)
        )
        self.first = nn.Linear(7 * hidden, 4 * hidden)  # states of i, j, k, p, then the three geometries
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Linear(4 * hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden)
        )  # fmt: skip

    def forward(self, state: Tensor, paths: Paths, geometry: PathGeometry, norm: Tensor) -> Tensor:
        """Return the states [N, H] after one round.

        Args:
            state: [N, H].
            paths, geometry: of the batch.
            norm: [N, 1] what the sum of messages is multiplied by.
        """
        hidden = state.shape[1]
        weight = self.first.weight
        of_nodes, of_geometry = weight[:, : 4 * hidden], weight[:, 4 * hidden :]
        parts = [
            embed(part)
            for embed, part in zip(self.embeddings, (geometry.first, geometry.second, geometry.third), strict=True)
        ]
        wide = functional.linear(torch.cat(parts, 1), of_geometry, self.first.bias)
        for place, one in enumerate(of_nodes.chunk(4, dim=1)):
            projected = functional.linear(state, one)
            if place < 2:  # i and j are always there
                wide = wide + projected[paths.nodes[place]]
            else:  # the row of zeros behind the nodes stands for one that is not
                wide = wide + functional.pad(projected, (0, 0, 0, 1))[paths.nodes[place]]
        message = self.rest(wide)
        total = torch.zeros_like(state, dtype=message.dtype).index_add(0, paths.nodes[0], message)
        return state + functional.layer_norm(total.float() * norm, (hidden,)).to(state.dtype)


class PathRounds(nn.Module):
    """Several rounds of messages along the same paths."""

    def __init__(self, hidden: int, interactions: int, num_distances: int, *, recompute: bool) -> None:
        """Make the rounds; `recompute` keeps the states between them alone and computes the rest again backwards."""
        super().__init__()
        self.rounds = nn.ModuleList(PathMessage(hidden, num_distances) for _ in range(interactions))
        self.recompute = recompute

    def forward(self, state: Tensor, paths: Paths, geometry: PathGeometry) -> Tensor:
        """Return states [N, H] after all rounds."""
        count = group_sizes(paths.nodes[0], len(state))
        norm = count.clamp(min=1).float().rsqrt()[:, None]
        for one in self.rounds:
            if self.recompute and torch.is_grad_enabled():
                state = checkpoint(one, state, paths, geometry, norm, use_reentrant=False, preserve_rng_state=False)
            else:
                state = one(state, paths, geometry, norm)
        return state
