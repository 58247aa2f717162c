"""What a warm-start network minimises: how far its dual bound lies below the optimum."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.lap.graphs.bipartite import TARGET
from kdgat.lap.graphs.lists import Duals, NeighbourLists, bound, neighbour_lists, tightened
from kdgat.lap.sections import WarmStartLossConfig


class WarmStartObjective(LightningModule):
    """Dual suboptimality per row and unit, and the distance to one optimal dual.

    The suboptimality is (optimum - D) / (n unit), where D is the sum of the duals that the edges of the graph allow: an
    upper bound of the dual bound over all entries, equal to it where no dropped entry is violated. It is piecewise
    linear in the duals, and its gradient says which rows a column's price keeps out. Optimal duals are not unique and
    free by a constant, so the distance has a small weight and leaves the constant out.
    """

    def __init__(self, model: nn.Module, config: WarmStartLossConfig | None = None) -> None:
        super().__init__()
        self.model = model
        self.config = config or WarmStartLossConfig()

    def training_step(self, batch: Batch) -> Tensor:
        """Return the loss of a batch: the weighted mean over rounds."""
        lists, target = targets(batch)
        rounds: list[Duals] = self.model(lists)
        optimum = bound(target.v, target.u, lists) / lists.row_counts
        loss, weight = optimum.new_zeros(()), 0.0
        for age, duals in enumerate(reversed(rounds)):
            share = self.config.round_discount**age
            if share == 0.0:
                break
            best = tightened(lists, duals.v)
            gap = (optimum - bound(best.v, best.u, lists) / lists.row_counts).mean()
            if age == 0:
                self.log("train_suboptimality", gap.detach())
            if self.config.huber_weight > 0:
                error = _centred(duals.v - target.v, lists.column_graph, lists.column_counts)
                gap = gap + self.config.huber_weight * functional.huber_loss(error, torch.zeros_like(error))
            loss, weight = loss + share * gap, weight + share
        loss = loss / weight
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: Batch) -> None:
        """Log means over instances; `relative_gap` is the part of the way from base potentials to optimum not gone."""
        lists, target = targets(batch)
        duals = self.model(lists)[-1]
        sizes = lists.row_counts
        optimum = bound(target.v, target.u, lists) / sizes
        best = tightened(lists, duals.v)
        gap = optimum - bound(best.v, best.u, lists) / sizes
        error = _centred(duals.u - target.u, lists.row_graph, lists.row_counts)
        spread = _centred(target.u, lists.row_graph, lists.row_counts)
        unexplained = _mean_of(error**2, lists.row_graph, lists.row_counts)
        variance = _mean_of(spread**2, lists.row_graph, lists.row_counts)
        tiny = torch.finfo(torch.float32).tiny
        self.log("validation_loss", gap.mean())
        self.log("validation_relative_gap", (gap / optimum.clamp(min=1e-6)).mean())
        self.log("validation_r2", torch.where(variance > tiny, 1 - unexplained / variance.clamp(min=tiny), 0.0).mean())
        self.log("validation_mae", error.abs().mean())


def targets(batch: Batch) -> tuple[NeighbourLists, Duals]:
    """Return the lists of a batch and its labels: normalised optimal duals."""
    lists, target = neighbour_lists(batch), batch.x[:, TARGET]
    return lists, Duals(target[lists.rows], target[lists.columns])


def _mean_of(values: Tensor, graph: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of each instance, [B]."""
    return values.new_zeros(len(counts)).index_add(0, graph, values) / counts


def _centred(values: Tensor, graph: Tensor, counts: Tensor) -> Tensor:
    return values - _mean_of(values, graph, counts)[graph]
