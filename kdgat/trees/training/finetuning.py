"""The supervised objective: classes by cross entropy, numbers by the squared error of their standard score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.graphs.columns import GraphColumns
from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.classifier import TreePredictor


@dataclass(frozen=True)
class Task:
    """State what is predicted of a tree.

    Attributes:
        classes: their names; none where a number is predicted.
        mean, deviation: of the number over the training trees.
    """

    classes: tuple[str, ...]
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def num_outputs(self) -> int:
        """Return how many scores a prediction has."""
        return len(self.classes) or 1


class FinetuneObjective(LightningModule):
    """Loss of a prediction for whole trees."""

    def __init__(self, model: TreePredictor, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss and, for classes, the accuracy; for numbers, the root of the loss."""
        scores = self.model(TreeBatch.of(batch)).float()
        if self.task.classes:
            return functional.cross_entropy(scores, batch.label), (scores.argmax(1) == batch.label).float().mean()
        target = (batch.target - self.task.mean) / self.task.deviation
        error = functional.mse_loss(scores[:, 0], target)
        return error, error.detach().sqrt()

    def training_step(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        loss, _ = self.loss(batch)
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: Batch) -> None:
        """Log loss and accuracy."""
        loss, quality = self.loss(batch)
        self.log("validation_loss", loss)
        self.log("validation_accuracy" if self.task.classes else "validation_error", quality)


def labelled(columns: GraphColumns) -> NDArray[np.int64]:
    """Return the trees whose class or number is known."""
    return np.flatnonzero(np.asarray(columns["labelled"]))


def choose_labelled(columns: GraphColumns, fraction: float, seed: int) -> NDArray[np.int64]:
    """Return the trees whose labels are used: a share of each class, at least one tree; drawn by the seed alone."""
    known = labelled(columns)
    labels = np.asarray(columns["label"])[known]
    generator = np.random.default_rng([seed, 1])
    groups = [known[labels == one] for one in np.unique(labels)]
    chosen = [generator.permutation(group)[: max(1, round(fraction * len(group)))] for group in groups]
    return np.sort(np.concatenate(chosen)) if chosen else known


def load_encoder(model: TreePredictor, weights: dict[str, Tensor]) -> None:
    """Put the encoder of pretrained weights into a predictor."""
    prefix = "encoder."
    found = {name.removeprefix(prefix): one for name, one in weights.items() if name.startswith(prefix)}
    model.encoder.load_state_dict(found)


def predictions(model: TreePredictor, batches: list[Batch], task: Task) -> NDArray[np.float64]:
    """Return probabilities of classes [G, C], or numbers [G, 1], for the trees of batches, in their order."""
    model.eval()
    rows = []
    with torch.no_grad():
        for batch in batches:
            scores = model(TreeBatch.of(batch)).double()
            rows.append(scores.softmax(1) if task.classes else scores * task.deviation + task.mean)
    return torch.cat(rows).cpu().numpy()
