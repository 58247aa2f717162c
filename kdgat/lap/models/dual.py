"""Dual network: alternates over rows and columns like Sinkhorn's and the auction algorithm, with learned steps.

Each phase gives every row (then every column) new duals from the reduced costs of its neighbours. A few soft minima of
different temperature, shifted by what the neighbours' states say, are what Sinkhorn's iteration would take; the gap
between the two least is the auction's bid; a small network of the node's state adds what neither knows.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from kdgat.lap.lists import Duals, NeighbourLists, row_minima, take
from kdgat.stage.configuration import Config

SHARPNESS = 16.0  # brings differences of reduced costs, in units of a row's spread, to the order of one
FORBIDDEN = 1e4  # added to the normalised cost of an edge that only fills a list


class DualNetworkConfig(Config):
    """Choose the width and the number of rounds."""

    hidden: int = Field(16, ge=1)  # state of a row or column
    heads: int = Field(4, ge=1)  # soft minima
    width: int = Field(32, ge=1)  # of the hidden layer that updates a state
    rounds: int = Field(4, ge=1)
    shared: bool = False  # the same weights in each round


class Phase(nn.Module):
    """Update the duals and states of one side from those of the other.

    With r the reduced costs of a node's edges less the least of them, head k has temperature 1 / beta_k and scores
    -beta_k r + s_k(h_other); their log-sum-exp is a soft minimum, their softmax mixes r and what the other side says.
    Everything that enters the state is a difference to the least reduced cost, so that a constant moved from one
    side's duals to the other's changes nothing. Before training, the new dual is the least reduced cost and half the
    gap to the second: an auction whose bidders stop half way.
    """

    def __init__(self, config: DualNetworkConfig) -> None:
        super().__init__()
        hidden, heads = config.hidden, config.heads
        self.heads = heads
        num_inputs = hidden + 3 * heads + 2
        self.log_beta = nn.Parameter(torch.linspace(math.log(2.0), math.log(64.0), heads))
        self.say = nn.Linear(hidden, 2 * heads)  # a score and a value for each head
        self.inner = nn.Linear(num_inputs, config.width)
        self.outer = nn.Linear(config.width, hidden)
        self.step = nn.Linear(config.width + num_inputs - hidden, heads)
        self.bid = nn.Parameter(torch.tensor(0.5))
        nn.init.zeros_(self.say.bias)
        nn.init.zeros_(self.step.weight)
        nn.init.zeros_(self.step.bias)

    def forward(
        self, costs: Tensor, neighbours: Tensor, dual: Tensor, other: Tensor, state: Tensor, other_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return new duals [n] and states [H, n] from costs and neighbours [R, n], duals and states."""
        said = _apply(self.say, other_state)  # [2 heads, m]
        table = take(torch.cat([other.unsqueeze(0), said]), neighbours)  # [1 + 2 heads, R, n]
        scores, values = table[1 : 1 + self.heads], table[1 + self.heads :]
        reduced = costs - table[0]  # without the own dual, which the minimum holds
        least, second = _two_least(reduced)
        above = reduced - least
        beta = self.log_beta.exp()
        logits = scores - beta[:, None, None] * above  # [heads, R, n]
        peak = logits.detach().amax(dim=1, keepdim=True)
        weights = torch.exp(logits - peak)
        total = weights.sum(dim=1)
        log_sum = total.log() + peak.squeeze(1)  # [heads, n]
        mean = (weights * above).sum(dim=1) / total * beta[:, None]
        message = (weights * values).sum(dim=1) / total
        gap, own = second - least, dual - least
        scaled = torch.stack([(SHARPNESS * gap).clamp(max=8.0), (SHARPNESS * own).clamp(-8.0, 8.0)])
        plain = torch.cat([log_sum, mean, message, scaled])
        inner = torch.relu(_apply(self.inner, torch.cat([state, plain])))
        step = _apply(self.step, torch.cat([inner, plain])) / beta[:, None]
        return least + self.bid * gap + step.sum(dim=0), state + _apply(self.outer, inner)


def _apply(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """Apply a linear layer to features [F, n] that lie along the first axis; float32 out, whatever it computes in."""
    return torch.addmm(layer.bias.unsqueeze(1), layer.weight, inputs).float()


def _two_least(reduced: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the second least entry of each list, [n] each."""
    with torch.no_grad():
        first = reduced.argmin(dim=0, keepdim=True)
        second = reduced.scatter(0, first, torch.inf).argmin(dim=0, keepdim=True)
    return reduced.gather(0, first).squeeze(0), reduced.gather(0, second).squeeze(0)


class DualNetwork(nn.Module):
    """Predict column duals in a few rounds over the nearest neighbours of rows and columns, O(n (R + K)) memory."""

    def __init__(self, config: DualNetworkConfig) -> None:
        super().__init__()
        self.config = config
        count = 1 if config.shared else config.rounds
        self.row_phases = nn.ModuleList(Phase(config) for _ in range(count))
        self.column_phases = nn.ModuleList(Phase(config) for _ in range(count))

    def forward(self, lists: NeighbourLists) -> list[Duals]:
        """Return the duals after each round, the last of them the prediction."""
        row_costs = lists.row_costs + FORBIDDEN * ~lists.row_present
        column_costs = lists.column_costs + FORBIDDEN * ~lists.column_present
        u, v = row_costs.new_zeros(row_costs.shape[1]), row_costs.new_zeros(column_costs.shape[1])
        rows, columns = u.new_zeros(self.config.hidden, len(u)), v.new_zeros(self.config.hidden, len(v))
        rounds: list[Duals] = []
        for number in range(self.config.rounds):
            place = 0 if self.config.shared else number
            u, rows = self.row_phases[place](row_costs, lists.row_columns, u, v, rows, columns)
            v, columns = self.column_phases[place](column_costs, lists.column_rows, v, u, columns, rows)
            if lists.is_bounded is not None:
                v = torch.where(lists.is_bounded, v.clamp(max=0.0), v)
            rounds.append(Duals(row_minima(lists, v), v))
        return rounds
