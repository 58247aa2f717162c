"""The pretraining objective: growth from ancestors, and order of the hierarchy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.base import validate_config
from kdgat.training import load_weights
from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.encoder import Embeddings, TreeEncoder
from kdgat.trees.objectives.growth import (
    ANGLE,
    LENGTH,
    RADIUS_RATIO,
    Channel,
    GrowthHead,
    channels_of,
    distances,
    growth_targets,
)
from kdgat.trees.objectives.order import OrderHead, draw_pairs, energy, order_loss, pair_auc
from kdgat.trees.sections import EncoderConfig, GrowthConfig, OrderConfig, PretrainStageConfig


class PretrainedTrees(nn.Module):
    """An encoder with the two heads that pretraining needs."""

    def __init__(self, config: PretrainStageConfig, channels: Sequence[Channel]) -> None:
        super().__init__()
        hidden = config.encoder.hidden
        self.encoder = TreeEncoder(config.encoder)
        self.growth = GrowthHead(hidden, config.growth, channels)
        self.order = OrderHead(2 * hidden, config.order.width)

    def forward(self, tree: TreeBatch) -> Embeddings:
        """Return the embeddings of all nodes."""
        embeddings: Embeddings = self.encoder(tree)
        return embeddings


def load_pretrained(path: Path) -> tuple[PretrainedTrees, PretrainStageConfig]:
    """Read a pretrained model, and what it was made of; errors as of `load_weights`."""
    weights, description = load_weights(path)
    config = PretrainStageConfig(
        encoder=validate_config(EncoderConfig, description["encoder"]),
        growth=validate_config(GrowthConfig, description["growth"]),
        order=validate_config(OrderConfig, description["order"]),
    )
    # Thresholds are those of the trees that it was trained on, whatever trees it is used on now.
    model = PretrainedTrees(config, channels_of(description["length_range"], config.growth))
    model.load_state_dict(weights)
    return model.eval(), config


class PretrainObjective(LightningModule):
    """The loss of growth, a mean over trees of means over nodes, plus the weighted loss of order, a mean over pairs."""

    epochs: Tensor

    def __init__(self, model: PretrainedTrees, config: PretrainStageConfig) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.register_buffer("epochs", torch.zeros(()))  # counted by the validation that ends each; for the warm-up

    def growth_terms(self, embeddings: Embeddings, tree: TreeBatch) -> dict[str, Tensor]:
        """Return the loss of each channel, and that of the number of children."""
        head = self.model.growth
        channels = head.channels
        target = growth_targets(tree, channels, head.thresholds)
        prediction = head(embeddings.up, tree)
        distance = distances(prediction.shares, target, channels)
        terms = {
            channel.name: tree.mean_per_tree(distance[:, place], target.known[:, place])
            for place, channel in enumerate(channels)
        }
        entropy = functional.cross_entropy(prediction.count, target.count, reduction="none")
        return {**terms, "count": tree.mean_per_tree(entropy, torch.ones_like(target.count, dtype=torch.bool))}

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Weigh the parts of growth."""
        growth = self.config.growth
        return (
            terms[LENGTH]
            + growth.angle_weight * terms[ANGLE]
            + growth.radius_weight * terms[RADIUS_RATIO]
            + growth.count_weight * terms["count"]
        )

    def training_step(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        tree = TreeBatch.of(batch)
        embeddings = self.model(tree)
        loss = self.total(self.growth_terms(embeddings, tree))
        self.log("train_growth", loss.detach())
        if self.config.order.weight > 0:
            # On the CPU fewer pairs are less to do, and their sums those of ever.
            pairs = draw_pairs(tree, with_selves=tree.parent.is_cuda)
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
        terms = self.growth_terms(embeddings, tree)
        loss = self.total(terms)
        pairs = draw_pairs(tree)
        energies = energy(self.model.order(embeddings.both), pairs)
        order = order_loss(energies, pairs, self.config.order.margin)
        self.log_dict({f"validation_{name}": value for name, value in terms.items()})
        self.log("validation_order", order)
        if pairs.is_ancestor.any() and not pairs.is_ancestor.all():
            self.log("validation_order_auc", pair_auc(energies, pairs.is_ancestor))
        self.log("validation_loss", loss + self.config.order.weight * order)

    def on_validation_epoch_end(self) -> None:
        """Count the epoch."""
        self.epochs += 1
