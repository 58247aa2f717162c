"""The supervised objective: classes by cross entropy, numbers by the squared error of their standard score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.base import validate_config
from kdgat.training import load_weights
from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.classifier import TreePredictor
from kdgat.trees.sections import EncoderConfig, HeadConfig

PENALTIES: Final = (1.0, 0.1, 0.01, 0.001)  # of a probe's squared weights
SMALLEST: Final = 1e-6  # deviation: an embedding below is the same for all trees


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

    def target_of(self, batch: Batch) -> Tensor:
        """Return the classes [B] of a batch, or standard scores of its numbers."""
        if self.classes:
            return batch.label
        return (batch.target.double() - self.mean) / self.deviation

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
        target = self.task.target_of(batch)
        if self.task.classes:
            return functional.cross_entropy(scores, target), (scores.argmax(1) == target).float().mean()
        error = functional.mse_loss(scores[:, 0], target.float())
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


def start_head(
    model: TreePredictor, train: Iterable[Batch], validation: Iterable[Batch], task: Task
) -> None:  # fmt: skip
    """Let the last layer begin as a linear probe of the encoder as it is, its penalty chosen on the validation trees.

    From a random last layer the first steps bend a pretrained encoder towards noise (Kumar et al., "Fine-Tuning can
    Distort Pretrained Features and Underperform Out-of-Distribution", ICLR 2022). A function of weights and trees
    alone.
    """
    model.eval()
    features, truth = _embedded(model, train, task)
    others, other_truth = _embedded(model, validation, task)
    mean, deviation = features.mean(0), features.std(0, correction=0)
    deviation = torch.where(deviation > SMALLEST, deviation, 1.0)
    features, others = (features - mean) / deviation, (others - mean) / deviation
    best: tuple[float, Tensor, Tensor] | None = None
    for penalty in PENALTIES:
        weight, bias = _fit_probe(features, truth, penalty, task)
        loss = float(_probe_loss(others @ weight.T + bias, other_truth, task))
        if best is None or loss < best[0]:
            best = (loss, weight, bias)
    assert best is not None
    with torch.no_grad():
        model.mean.copy_(mean)
        model.deviation.copy_(deviation)
        model.head.weight.copy_(best[1])
        model.head.bias.copy_(best[2])


def _embedded(model: TreePredictor, batches: Iterable[Batch], task: Task) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        found = [(model.embed(TreeBatch.of(batch)).double(), task.target_of(batch)) for batch in batches]
    return torch.cat([one for one, _ in found]), torch.cat([one for _, one in found])


def _fit_probe(features: Tensor, truth: Tensor, penalty: float, task: Task) -> tuple[Tensor, Tensor]:
    """Return weight [C, W] and bias [C] that minimise the mean loss plus a penalty on the squared weights."""
    weight = features.new_zeros(task.num_outputs, features.shape[1]).requires_grad_()
    bias = features.new_zeros(task.num_outputs).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _probe_loss(features @ weight.T + bias, truth, task) + penalty * weight.square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def _probe_loss(scores: Tensor, truth: Tensor, task: Task) -> Tensor:
    return functional.cross_entropy(scores, truth) if task.classes else functional.mse_loss(scores[:, 0], truth)


def load_encoder(model: TreePredictor, weights: dict[str, Tensor]) -> None:
    """Put the encoder of pretrained weights into a predictor."""
    prefix = "encoder."
    found = {name.removeprefix(prefix): one for name, one in weights.items() if name.startswith(prefix)}
    model.encoder.load_state_dict(found)


def load_predictor(path: Path) -> tuple[TreePredictor, Task, dict[str, Any]]:
    """Read a trained network, its task, and what else the file says; errors as of `load_weights`."""
    weights, description = load_weights(path)
    task = Task(**{**description["task"], "classes": tuple(description["task"]["classes"])})
    model = TreePredictor(
        validate_config(EncoderConfig, description["encoder"]),
        validate_config(HeadConfig, description["head"]),
        task.num_outputs,
        is_gin=description["kind"] == "gin",
    )
    model.load_state_dict(weights)
    return model.eval(), task, description


def predictions(model: TreePredictor, batches: Iterable[Batch], task: Task) -> NDArray[np.float64]:
    """Return probabilities of classes [G, C], or numbers [G, 1], for the trees of batches, in their order."""
    model.eval()
    rows = []
    with torch.no_grad():
        for batch in batches:
            scores = model(TreeBatch.of(batch)).double()
            rows.append(scores.softmax(1) if task.classes else scores * task.deviation + task.mean)
    return torch.cat(rows).cpu().numpy()
