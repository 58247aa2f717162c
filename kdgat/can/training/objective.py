"""What each model of the family minimises, as LightningModules for `kdgat.training.fit.fit`."""

from typing import Final

import torch
from lightning import LightningModule
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder, reconstruction_error
from kdgat.can.models.masks import mask_of, masked_loss
from kdgat.can.models.ranking import area_under_roc, partial_area, rank
from kdgat.can.sections import DetectionLossConfig, DistillationConfig
from kdgat.can.training.distillation import LatentProjection, distil_bernoulli
from kdgat.graphs import group_sizes

PARTIAL_RATE: Final = 0.01  # false alarms up to which the order of windows is judged
RANKED_METRICS: Final = ("validation_auc", "validation_partial_auc")  # need windows of both classes


def smoothed_cross_entropy(
    logit: Tensor, label: Tensor, positive_weight: float, smoothing: float, mask: Tensor | None = None
) -> Tensor:
    """Return the mean binary cross entropy of logits against labels 0 and 1, moved towards 1/2 by `smoothing`.

    Of the rows that `mask` keeps, where there is one.
    """
    target = label.to(logit.dtype)
    weight = None if positive_weight == 1.0 else torch.where(label > 0, positive_weight, 1.0).to(logit.dtype)
    if smoothing > 0:
        target = target * (1 - 2 * smoothing) + smoothing
    return masked_loss(functional.binary_cross_entropy_with_logits, logit, target, mask, weight=weight)


class ConfusionCounts:
    """Count decisions at logit 0 over an epoch, on the device of the logits."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None  # [4]: label * 2 + decision

    def add(self, logit: Tensor, label: Tensor) -> None:
        """Count a batch of logits [G] against labels [G]."""
        counts = group_sizes(label.long() * 2 + (logit > 0).long(), 4)
        self._counts = counts if self._counts is None else self._counts + counts

    def rates(self) -> dict[str, float]:
        """Return precision, recall, F1 and false alarm rate; a ratio without cases is 0."""
        if self._counts is None:
            return {}
        true_negative, false_positive, false_negative, true_positive = self._counts.tolist()
        precision = true_positive / max(true_positive + false_positive, 1)
        recall = true_positive / max(true_positive + false_negative, 1)
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / max(precision + recall, 1e-12),
            "false_alarm_rate": false_positive / max(false_positive + true_negative, 1),
        }


class RankedScores:
    """Keep the logits of an epoch, for what depends on their order alone and not on how many windows are attacked."""

    def __init__(self) -> None:
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def add(self, logit: Tensor, label: Tensor) -> None:
        """Keep a batch of logits [G] and labels [G]."""
        self._logits.append(logit.detach())
        self._labels.append(label)

    def areas(self) -> dict[str, float]:
        """Return the area under the ROC curve, and its part up to PARTIAL_RATE; nothing if a class is missing."""
        if not self._logits:
            return {}
        counts = rank(torch.cat(self._logits).cpu().numpy(), torch.cat(self._labels).cpu().numpy())
        areas = {"auc": area_under_roc(counts), "partial_auc": partial_area(counts, PARTIAL_RATE)}
        return {name: area for name, area in areas.items() if area is not None}


class DetectionObjective(LightningModule):
    """Window and node cross entropy of a graph attention network, with a teacher where the batch carries one."""

    takes_padding: Final = True  # losses heed the masks of padded batches

    def __init__(
        self,
        model: GraphAttentionNetwork,
        config: DetectionLossConfig | None = None,
        distillation: DistillationConfig | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config or DetectionLossConfig()
        self.distillation = distillation
        self._validation = ConfusionCounts()
        self._ranked = RankedScores()

    def training_step(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        config = self.config
        output = self.model(batch)
        smoothing, windows, nodes = config.label_smoothing, mask_of(batch, "graph"), mask_of(batch, "node")
        window = smoothed_cross_entropy(output.window_logit, batch.y, config.positive_weight, smoothing, windows)
        loss = window
        if config.node_weight > 0:
            node = smoothed_cross_entropy(
                output.node_logit, batch.node_y, config.node_positive_weight, smoothing, nodes
            )
            loss = loss + config.node_weight * node
            self.log("train_node_loss", node.detach())
        if self.distillation is not None:
            temperature, weight = self.distillation.temperature, self.distillation.weight
            imitation = distil_bernoulli(output.window_logit, batch.teacher_window_logit, temperature, windows)
            if config.node_weight > 0:
                of_nodes = distil_bernoulli(output.node_logit, batch.teacher_node_logit, temperature, nodes)
                imitation = imitation + config.node_weight * of_nodes
            self.log("train_distillation_loss", imitation.detach())
            loss = weight * imitation + (1 - weight) * loss
        self.log("train_window_loss", window.detach())
        self.log("train_loss", loss.detach())
        return loss

    def on_validation_epoch_start(self) -> None:
        """Forget the counts of the epoch before."""
        self._validation, self._ranked = ConfusionCounts(), RankedScores()

    def validation_step(self, batch: Batch) -> None:
        """Log the plain task loss: comparable between teacher, student and every setting of smoothing and weights."""
        output = self.model(batch)
        window = functional.binary_cross_entropy_with_logits(output.window_logit, batch.y.float())
        loss = window
        if self.config.node_weight > 0:
            node = functional.binary_cross_entropy_with_logits(output.node_logit, batch.node_y.float())
            loss = loss + self.config.node_weight * node
            self.log("validation_node_loss", node)
        self._validation.add(output.window_logit, batch.y)
        self._ranked.add(output.window_logit, batch.y)
        self.log("validation_window_loss", window)
        self.log("validation_loss", loss)

    def on_validation_epoch_end(self) -> None:
        """Log rates over the whole split, which are no means of batches."""
        for name, value in {**self._validation.rates(), **self._ranked.areas()}.items():
            self.log(f"validation_{name}", value, batch_size=1)


class AutoencoderObjective(LightningModule):
    """Evidence lower bound of a graph autoencoder on benign windows, with a teacher where the batch carries one."""

    takes_padding: Final = True  # losses heed the masks of padded batches

    def __init__(
        self,
        model: GraphAutoencoder,
        distillation: DistillationConfig | None = None,
        num_teacher_latent: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.distillation = distillation
        self.projection: LatentProjection | None = None
        if distillation is not None:
            if num_teacher_latent is None:
                raise TypeError("num_teacher_latent is needed to distil an autoencoder")
            self.projection = LatentProjection(model.latent_mean.out_features, num_teacher_latent)

    def training_step(self, batch: Batch) -> Tensor:
        """Return the loss of a batch of benign windows."""
        output = self.model(batch)
        terms = self.model.loss(batch, output)
        loss = terms.total
        if self.distillation is not None and self.projection is not None:
            loss_of, mask = functional.mse_loss, mask_of(batch, "node")
            latent = masked_loss(loss_of, self.projection(output.latent_mean), batch.teacher_latent, mask)
            rebuilt = masked_loss(loss_of, output.reconstruction, batch.teacher_reconstruction, mask)
            imitation = 0.5 * latent + 0.5 * rebuilt
            self.log("train_distillation_loss", imitation.detach())
            loss = self.distillation.weight * imitation + (1 - self.distillation.weight) * loss
        self.log("train_feature_loss", terms.features.detach())
        self.log("train_divergence", terms.divergence.detach())
        self.log("train_neighbourhood_loss", terms.neighbourhood.detach())
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: Batch) -> None:
        """Log the loss on benign windows, from the latent mean."""
        output = self.model(batch)
        terms = self.model.loss(batch, output)
        error = reconstruction_error(batch, output)
        self.log("validation_feature_loss", terms.features)
        self.log("validation_neighbourhood_loss", terms.neighbourhood)
        self.log("validation_maximum_error", error.maximum.mean())
        self.log("validation_loss", terms.total)
