"""Dual network: alternates over rows and columns like Sinkhorn's and the auction algorithm, with learned steps.

First come sweeps of Sinkhorn's iteration over the nearest neighbours, with falling temperature and overrelaxed
(Thibault, Chizat, Dossal and Papadakis 2017): what is wrong over long distances falls with the number of sweeps, not
with its root. Then come rounds in which a small network of each node's state, of what its neighbours say and of the
soft minima of their reduced costs sets the new dual. Everything starts at values that are of use before training:
the rounds as bids of half the gap between the two least reduced costs, as in Bertsekas's auction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from kdgat.lap.graphs.lists import Duals, NeighbourLists, row_minima, take
from kdgat.lap.sections import DualNetworkConfig

SHARPNESS = 16.0  # brings differences of reduced costs, in units of a row's spread, to the order of one
WIDEST = 4.0  # a node with a single edge bids no more
STEEPEST = 1.93  # relaxations near 2 swing up
LOWEST = -30.0  # of an exponent: below, numbers are slow before they are zero
FORBIDDEN = 1e4  # added to the normalised cost of an edge that only fills a list


class Sweep(nn.Module):
    """Update the duals of one side as Sinkhorn's iteration does, overrelaxed."""

    def __init__(self, config: DualNetworkConfig, number: int) -> None:
        super().__init__()
        fall = math.log(config.last_temperature / config.first_temperature)
        log_beta = -math.log(config.first_temperature) - fall * number / max(config.sweeps - 1, 1)
        self.log_beta = nn.Parameter(torch.tensor(log_beta))
        self.relaxation = nn.Parameter(torch.tensor(config.relaxation if number > 0 else 1.0))

    def forward(self, costs: Tensor, neighbours: Tensor, dual: Tensor, other: Tensor) -> Tensor:
        """Return new duals [n] from costs and neighbours [R, n] and duals."""
        beta = self.log_beta.exp()
        reduced = costs - take(other, neighbours)
        least = reduced.detach().amin(dim=0)
        total = torch.exp((beta * (least - reduced)).clamp(min=LOWEST)).sum(dim=0)
        return dual + self.relaxation.clamp(max=STEEPEST) * (least - total.log() / beta - dual)


class Phase(nn.Module):
    """Update the duals and states of one side from those of the other.

    With r the reduced costs of a node's edges less the least of them, head k has temperature 1 / beta_k and scores
    -beta_k r + s_k(h_other); their log-sum-exp is a soft minimum, their softmax mixes r and what the other side says.
    Everything that enters the state is a difference to the least reduced cost, so that a constant moved from one
    side's duals to the other's changes nothing.
    """

    def __init__(self, config: DualNetworkConfig) -> None:
        super().__init__()
        hidden, heads = config.hidden, config.heads
        self.heads = heads
        num_inputs = hidden + 3 * heads + 2
        self.log_beta = nn.Parameter(torch.linspace(math.log(4.0), math.log(32.0), heads))
        self.say = nn.Linear(hidden, 2 * heads)  # a score and a value for each head
        self.inner = nn.Linear(num_inputs, config.width)
        self.outer = nn.Linear(config.width, hidden)
        self.step = nn.Linear(config.width + num_inputs - hidden, heads)
        self.bid = nn.Parameter(torch.tensor(0.5))
        with torch.no_grad():
            self.say.weight[:heads].zero_()
            self.say.bias.zero_()
            self.step.weight.zero_()
            self.step.bias.zero_()

    def forward(
        self, costs: Tensor, neighbours: Tensor, dual: Tensor, other: Tensor, state: Tensor, other_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return new duals [n] and states [H, n] from costs and neighbours [R, n], duals and states."""
        messages = _apply(self.say, other_state)  # [2 heads, m]
        table = take(torch.cat([other.unsqueeze(0), messages]), neighbours)  # [1 + 2 heads, R, n]
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
        return least + self.bid * gap + step.sum(dim=0), state + _apply(self.outer, inner)


def _bounded(v: Tensor, lists: NeighbourLists) -> Tensor:
    return v if lists.is_bounded is None else torch.where(lists.is_bounded, v.clamp(max=0.0), v)


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
        self.row_sweeps = nn.ModuleList(Sweep(config, number) for number in range(config.sweeps))
        self.column_sweeps = nn.ModuleList(Sweep(config, number) for number in range(config.sweeps))
        self.row_phases = nn.ModuleList(Phase(config) for _ in range(config.rounds))
        self.column_phases = nn.ModuleList(Phase(config) for _ in range(config.rounds))

    def forward(self, lists: NeighbourLists) -> list[Duals]:
        """Return the duals after each round of the network, the last of them the prediction."""
        row_costs = lists.row_costs + FORBIDDEN * ~lists.row_present
        column_costs = lists.column_costs + FORBIDDEN * ~lists.column_present
        u, v = row_costs.new_zeros(row_costs.shape[1]), row_costs.new_zeros(column_costs.shape[1])
        rows, columns = u.new_zeros(self.config.hidden, len(u)), v.new_zeros(self.config.hidden, len(v))
        for row_sweep, column_sweep in zip(self.row_sweeps, self.column_sweeps, strict=True):
            u = row_sweep(row_costs, lists.row_columns, u, v)
            v = _bounded(column_sweep(column_costs, lists.column_rows, v, u), lists)
        rounds: list[Duals] = []
        for of_rows, of_columns in zip(self.row_phases, self.column_phases, strict=True):
            u, rows = of_rows(row_costs, lists.row_columns, u, v, rows, columns)
            v, columns = of_columns(column_costs, lists.column_rows, v, u, columns, rows)
            v = _bounded(v, lists)
            rounds.append(Duals(row_minima(lists, v), v))
        return rounds
