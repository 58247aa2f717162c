"""The pretraining objective: growth from ancestors, and order of the hierarchy."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Batch

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.encoder import Embeddings, TreeEncoder
from kdgat.trees.objectives.growth import GrowthHead, Thresholds, grown, growth_loss, growth_targets
from kdgat.trees.objectives.order import OrderHead, draw_pairs, energy, order_loss, pair_auc
from kdgat.trees.sections import PretrainStageConfig


class PretrainedTrees(nn.Module):
    """An encoder with the two heads that pretraining needs."""

    def __init__(self, config: PretrainStageConfig) -> None:
        super().__init__()
        hidden = config.encoder.hidden
        self.encoder = TreeEncoder(config.encoder)
        self.growth = GrowthHead(hidden, config.growth)
        self.order = OrderHead(2 * hidden, config.order.width)

    def forward(self, tree: TreeBatch) -> Embeddings:
        """Return the embeddings of all nodes."""
        embeddings: Embeddings = self.encoder(tree)
        return embeddings


class PretrainObjective(LightningModule):
    """The loss of growth plus the weighted loss of order; means over trees of means over nodes."""

    def __init__(self, model: PretrainedTrees, config: PretrainStageConfig, thresholds: Thresholds) -> None:
        super().__init__()
        self.model, self.config, self.thresholds = model, config, thresholds
        self.register_buffer("epochs", torch.zeros(()))  # counted by the validation that ends each; for the warm-up

    def growth_terms(self, embeddings: Embeddings, tree: TreeBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses of lengths, angles and numbers of children."""
        target = growth_targets(tree, self.thresholds)
        loss = growth_loss(self.model.growth(embeddings.up), target, self.thresholds)
        chosen = grown(tree)
        everywhere = torch.ones_like(chosen)
        return (
            tree.mean_per_tree(loss.length, chosen),
            tree.mean_per_tree(loss.angle, chosen),
            tree.mean_per_tree(loss.count, everywhere),
        )

    def total(self, length: Tensor, angle: Tensor, count: Tensor) -> Tensor:
        """Weigh the parts of growth."""
        growth = self.config.growth
        return length + growth.angle_weight * angle + growth.count_weight * count

    def training_step(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        tree = TreeBatch.of(batch)
        embeddings = self.model(tree)
        loss = self.total(*self.growth_terms(embeddings, tree))
        self.log("train_growth", loss.detach())
        if self.config.order.weight > 0:
            pairs = draw_pairs(tree)
            energies = energy(self.model.order(embeddings.both), pairs)
            order = order_loss(energies, pairs, self.config.order.margin)
            warm = ((self.epochs + 1) / (self.config.order.warmup_epochs + 1)).clamp(max=1)
            loss = loss + self.config.order.weight * warm * order
            self.log("train_order", order.detach())
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: Batch) -> None:
        """Log the parts of the loss; the order at its full weight, so that epochs compare."""
        tree = TreeBatch.of(batch)
        embeddings = self.model(tree)
        length, angle, count = self.growth_terms(embeddings, tree)
        loss = self.total(length, angle, count)
        pairs = draw_pairs(tree)
        energies = energy(self.model.order(embeddings.both), pairs)
        order = order_loss(energies, pairs, self.config.order.margin)
        self.log("validation_length", length)
        self.log("validation_angle", angle)
        self.log("validation_count", count)
        self.log("validation_order", order)
        if pairs.is_ancestor.any() and not pairs.is_ancestor.all():
            self.log("validation_order_auc", pair_auc(energies, pairs.is_ancestor))
        self.log("validation_loss", loss + self.config.order.weight * order)

    def on_validation_epoch_end(self) -> None:
        """Count the epoch."""
        self.epochs += 1
