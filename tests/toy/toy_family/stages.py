"""Compute: `run(spec, directory)` is what `kdgat stage run` calls."""

import logging

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn

from kdgat.base import validate_config
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec, input_path
from kdgat.training import TrainingConfig, load_weights, seed_everything, train_stage
from kdgat.training.source import StatelessSource
from toy_family.family import KINDS, DataConfig

logger = logging.getLogger(__name__)


def run(spec: StageSpec, directory: RunDirectory) -> Outcome:
    return KINDS[spec.stage].run(spec, directory)


class PointsError(ValueError): ...


def prepare(spec: StageSpec, directory: RunDirectory) -> Outcome:
    config = validate_config(DataConfig, spec.config["data"])
    logger.info("drawing %d points", config.points)
    if config.noise > 10:
        raise PointsError(f"data.noise={config.noise}: no line can be seen in this, give at most 10")
    generator = np.random.default_rng(spec.seed)
    x = generator.uniform(-1, 1, config.points)
    y = 2 * x + 1 + config.noise * generator.standard_normal(config.points)
    np.save(directory.path / "points.npy", np.stack([x, y], axis=1).astype(np.float32))
    return Finished(artifacts={"points": "points.npy"})


class Points(StatelessSource):
    def __init__(self, points: Tensor, batch_size: int, seed: int | None) -> None:
        self.points, self.batch_size, self.seed = points, batch_size, seed

    def plan(self, epoch: int) -> list[np.ndarray]:
        order = np.arange(len(self.points))
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch]).permutation(order)
        return np.array_split(order, -(-len(order) // self.batch_size))

    def gather(self, indices: np.ndarray) -> Tensor:
        return self.points[torch.as_tensor(indices)]


class Line(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def error(self, batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layer(batch[:, :1]), batch[:, 1:])

    def training_step(self, batch: Tensor) -> Tensor:
        loss = self.error(batch)
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: Tensor) -> None:
        self.log("validation_loss", self.error(batch))


def train_line(spec: StageSpec, directory: RunDirectory) -> Outcome:
    training = validate_config(TrainingConfig, spec.config["training"])
    points = torch.from_numpy(np.load(input_path(spec, directory, "points")))
    split = len(points) // 4
    seed_everything(spec.seed)
    model = Line()
    train, validation = Points(points[split:], training.batch_size, spec.seed), Points(points[:split], 64, None)
    return train_stage(model, model.layer, train, validation, training, spec, directory, description={"kind": "line"})


def evaluate(spec: StageSpec, directory: RunDirectory) -> Outcome:
    model = Line()
    model.layer.load_state_dict(load_weights(input_path(spec, directory, "weights"))[0])
    points = torch.from_numpy(np.load(input_path(spec, directory, "points")))
    with torch.no_grad():
        return Finished(metrics={"error": float(model.error(points))})
