"""Bipartite attention network, for comparison: additive attention both ways over all edges that the graph has.

With as many neighbours as rows it sees the complete bipartite graph; that is for up to about a thousand rows, since
memory then grows with n^2. The score of an edge is a sum of a row's, a column's and the edge's part, so that only one
number per head is kept for an edge.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kdgat.lap.graphs.lists import Duals, NeighbourLists, column_minima
from kdgat.lap.models.statistics import NUM_STATISTICS, list_statistics
from kdgat.lap.sections import DenseAttentionConfig


class _Attention(nn.Module):
    """Let every node of one side attend to its neighbours on the other."""

    def __init__(self, config: DenseAttentionConfig) -> None:
        super().__init__()
        hidden, heads = config.hidden, config.heads
        self.heads = heads
        self.own, self.other = nn.Linear(hidden, heads), nn.Linear(hidden, heads)
        self.edge = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, heads))
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(heads * hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, state: Tensor, other: Tensor, neighbours: Tensor, costs: Tensor, present: Tensor) -> Tensor:
        """Return new states [n, H]."""
        places = neighbours.reshape(-1)
        edges = self.edge(torch.stack([costs, torch.exp(-4.0 * costs), torch.exp(-16.0 * costs)], dim=2))
        scores = edges + self.own(state).unsqueeze(1) + self.other(other).index_select(0, places).view_as(edges)
        scores = nn.functional.leaky_relu(scores, 0.2).float()
        scores = torch.where(present.unsqueeze(2), scores, -1e9)
        weights = torch.softmax(scores, dim=1)  # [n, R, heads]
        values = self.value(other).index_select(0, places).view(*costs.shape, -1)  # [n, R, H]
        mixed = torch.einsum("nrk,nrh->nkh", weights.to(values.dtype), values).flatten(1)
        return self.norm(state + self.dropout(self.out(mixed))).float()


class DenseAttentionNetwork(nn.Module):
    """Predict row duals after L layers of attention from rows to columns and back; column duals by the min-trick."""

    def __init__(self, config: DenseAttentionConfig) -> None:
        super().__init__()
        self.enter_rows = nn.Linear(NUM_STATISTICS, config.hidden)
        self.enter_columns = nn.Linear(NUM_STATISTICS, config.hidden)
        self.to_rows = nn.ModuleList(_Attention(config) for _ in range(config.layers))
        self.to_columns = nn.ModuleList(_Attention(config) for _ in range(config.layers))
        self.head = nn.Sequential(nn.Linear(config.hidden, config.hidden), nn.GELU(), nn.Linear(config.hidden, 1))

    def forward(self, lists: NeighbourLists) -> list[Duals]:
        """Return one prediction."""
        of_rows = lists.row_columns.t(), lists.row_costs.t(), lists.row_present.t()
        of_columns = lists.column_rows.t(), lists.column_costs.t(), lists.column_present.t()
        rows = self.enter_rows(list_statistics(*of_rows[1:]))
        columns = self.enter_columns(list_statistics(*of_columns[1:]))
        for to_columns, to_rows in zip(self.to_columns, self.to_rows, strict=True):
            columns = to_columns(columns, rows, *of_columns)
            rows = to_rows(rows, columns, *of_rows)
        u = self.head(rows).squeeze(1).float()
        return [Duals(u, column_minima(lists, u))]
