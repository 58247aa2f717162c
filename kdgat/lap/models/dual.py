"""Dual network: alternates over rows and columns like Sinkhorn's and the auction algorithm, with learned steps.

Each phase gives every row (then every column) new duals from the reduced costs of its neighbours. What it does before
training is already of use, and training starts from there: the first two thirds of the rounds are Sinkhorn's iteration
with falling temperature, overrelaxed (Thibault, Chizat, Dossal and Papadakis 2017: what is wrong over long distances
falls with the number of rounds, not with its root); the last third bids half the gap between the two least reduced
costs, as in Bertsekas's auction. A small network of each node's state adds what neither knows.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from kdgat.lap.lists import Duals, NeighbourLists, row_minima, take
from kdgat.stage.configuration import Config

SHARPNESS = 16.0  # brings differences of reduced costs, in units of a row's spread, to the order of one
WIDEST = 4.0  # a node with a single edge bids no more
LOWEST = -30.0  # of an exponent: below, numbers are slow before they are zero
FORBIDDEN = 1e4  # added to the normalised cost of an edge that only fills a list


class DualNetworkConfig(Config):
    """Choose the width and the number of rounds."""

    hidden: int = Field(8, ge=1)  # state of a row or column
    heads: int = Field(2, ge=1)  # soft minima
    width: int = Field(16, ge=1)  # of the hidden layer that updates a state
    rounds: int = Field(12, ge=1)
    # Where the parameters start.
    soft_fraction: float = Field(0.67, ge=0.0, le=1.0)  # of the rounds, first ones: Sinkhorn's, the others bid
    first_temperature: float = Field(1.0, gt=0.0)  # in units of a row's spread
    last_temperature: float = Field(0.2, gt=0.0)
    relaxation: float = Field(1.85, gt=0.0, lt=2.0)  # of the soft rounds but the first


class Phase(nn.Module):
    """Update the duals and states of one side from those of the other.

    With r the reduced costs of a node's edges less the least of them, head k has temperature 1 / beta_k and scores
    -beta_k r + s_k(h_other); their log-sum-exp is a soft minimum, their softmax mixes r and what the other side says.
    Everything that enters the state is a difference to the least reduced cost, so that a constant moved from one
    side's duals to the other's changes nothing.
    """

    def __init__(self, config: DualNetworkConfig, number: int) -> None:
        super().__init__()
        hidden, heads = config.hidden, config.heads
        self.heads = heads
        num_inputs = hidden + 3 * heads + 2
        num_soft = round(config.soft_fraction * config.rounds)
        is_soft = number < num_soft
        fall = math.log(config.last_temperature / config.first_temperature)
        log_beta = -math.log(config.first_temperature) - fall * min(number / max(num_soft - 1, 1), 1.0)
        self.log_beta = nn.Parameter(
            torch.cat([torch.tensor([log_beta]), torch.linspace(2.0, 3.5, heads)[: heads - 1]])
        )
        self.say = nn.Linear(hidden, 2 * heads)  # a score and a value for each head
        self.inner = nn.Linear(num_inputs, config.width)
        self.outer = nn.Linear(config.width, hidden)
        self.step = nn.Linear(config.width + num_inputs - hidden, heads)
        self.bid = nn.Parameter(torch.tensor(0.0 if is_soft else 0.5))
        self.relaxation = nn.Parameter(torch.tensor(config.relaxation if is_soft and number > 0 else 1.0))
        with torch.no_grad():
            self.say.weight[:heads].zero_()
            self.say.bias.zero_()
            self.step.weight.zero_()
            self.step.bias.zero_()
            self.step.weight[0, config.width] = -1.0 if is_soft else 0.0  # the soft minimum of the first head

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
        weights = torch.exp((logits - peak).clamp(min=LOWEST))
        total = weights.sum(dim=1)
        log_sum = total.log() + peak.squeeze(1)  # [heads, n]
        mean = (weights * above).sum(dim=1) / total * beta[:, None]
        message = (weights * values).sum(dim=1) / total
        gap, own = (second - least).clamp(max=WIDEST), dual - least
        scaled = torch.stack([(SHARPNESS * gap).clamp(max=8.0), (SHARPNESS * own).clamp(-8.0, 8.0)])
        plain = torch.cat([log_sum, mean, message, scaled])
        inner = torch.relu(_apply(self.inner, torch.cat([state, plain])))
        step = _apply(self.step, torch.cat([inner, plain])) / beta[:, None]
        target = least + self.bid * gap + step.sum(dim=0)
        return dual + self.relaxation * (target - dual), state + _apply(self.outer, inner)


def _apply(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """Apply a linear layer to features [F, n] that lie along the first axis; float32 out, whatever it computes in."""
    return torch.addmm(layer.bias.unsqueeze(1), layer.weight, inputs).float()


def _two_least(reduced: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the second least entry of each list, [n] each."""
    least = reduced.amin(dim=0)
    is_least = reduced.detach() == least.detach()
    others = reduced.masked_fill(is_least, torch.inf).amin(dim=0)
    return least, torch.where(is_least.sum(dim=0) > 1, least, others)


class DualNetwork(nn.Module):
    """Predict column duals in a few rounds over the nearest neighbours of rows and columns, O(n (R + K)) memory."""

    def __init__(self, config: DualNetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.row_phases = nn.ModuleList(Phase(config, number) for number in range(config.rounds))
        self.column_phases = nn.ModuleList(Phase(config, number) for number in range(config.rounds))

    def forward(self, lists: NeighbourLists) -> list[Duals]:
        """Return the duals after each round, the last of them the prediction."""
        row_costs = lists.row_costs + FORBIDDEN * ~lists.row_present
        column_costs = lists.column_costs + FORBIDDEN * ~lists.column_present
        u, v = row_costs.new_zeros(row_costs.shape[1]), row_costs.new_zeros(column_costs.shape[1])
        rows, columns = u.new_zeros(self.config.hidden, len(u)), v.new_zeros(self.config.hidden, len(v))
        rounds: list[Duals] = []
        for of_rows, of_columns in zip(self.row_phases, self.column_phases, strict=True):
            u, rows = of_rows(row_costs, lists.row_columns, u, v, rows, columns)
            v, columns = of_columns(column_costs, lists.column_rows, v, u, columns, rows)
            if lists.is_bounded is not None:
                v = torch.where(lists.is_bounded, v.clamp(max=0.0), v)
            rounds.append(Duals(row_minima(lists, v), v))
        return rounds
