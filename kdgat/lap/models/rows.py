"""Row network, for comparison: every row predicts its dual from its own costs, and never sees who else wants them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kdgat.lap.graphs.lists import Duals, NeighbourLists, column_minima
from kdgat.lap.models.statistics import NUM_STATISTICS, list_statistics
from kdgat.lap.sections import RowNetworkConfig


class RowNetwork(nn.Module):
    """Predict row duals by a residual network on row statistics, then once more with a message of the row's edges.

    The first head's guess sets the temperature-one softmax over the row's edges and the reduced costs that the edge
    network reads. Training and use take the same path, costs included.
    """

    def __init__(self, config: RowNetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.enter = nn.Linear(NUM_STATISTICS, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(hidden),
                nn.Linear(hidden, hidden),
                nn.GELU(),
                nn.Dropout(config.dropout),
                nn.Linear(hidden, hidden),
            )
            for _ in range(config.layers)
        )
        self.guess = nn.Linear(hidden, 1)
        self.edge = nn.Sequential(nn.Linear(2, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def forward(self, lists: NeighbourLists) -> list[Duals]:
        """Return the duals of the first guess and of the final prediction; column duals by the min-trick."""
        costs, present = lists.row_costs.t(), lists.row_present.t()
        state = self.enter(list_statistics(costs, present))
        for block in self.blocks:
            state = state + block(state)
        guess = self.guess(state).squeeze(1).float()
        reduced = costs - guess.unsqueeze(1)
        scores = (-reduced).masked_fill(~present, -torch.inf)
        weights = torch.softmax(torch.where(present.any(1, keepdim=True), scores, 0.0), dim=1)
        edges = self.edge(torch.stack([reduced, costs], dim=2))  # [n, R, H]
        message = (weights.unsqueeze(2) * edges).sum(dim=1)
        u = guess + self.head(torch.cat([state, message], dim=1)).squeeze(1).float()
        return [self._duals(lists, guess), self._duals(lists, u)]

    @staticmethod
    def _duals(lists: NeighbourLists, u: Tensor) -> Duals:
        return Duals(u, column_minima(lists, u))
