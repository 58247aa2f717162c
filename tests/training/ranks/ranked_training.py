"""A small training that several processes do together, with something happening to one of them."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn

from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig, seed_everything
from kdgat.training.fit import fit
from kdgat.training.ranks.group import FitOver, Seat, take_seat
from kdgat.training.source import StatelessSource

SEED = 3
NUM_TRAINING = 33  # batches of 8, 8, 8, 8 and 1
STEPS_PER_EPOCH = 5
CONFIG = TrainingConfig(max_epochs=3, batch_size=8, learning_rate=0.02, patience=None, checkpoint_interval_s=3600)


@dataclass(frozen=True)
class Scene:
    """What is trained, and what happens meanwhile on which rank."""

    dropout: float = 0.0
    rank: int = 1
    term_at: int | None = None  # training step of this process at which it gets a SIGTERM
    room: int | None = None  # graphs that fit its memory
    fails_at: int | None = None  # training step of this process at which its data are damaged
    config: Mapping[str, Any] = field(default_factory=dict)

    def training(self) -> TrainingConfig:
        return TrainingConfig(**{**CONFIG.model_dump(), **self.config})


class Rows(StatelessSource):
    """Rows of numbers whose target is known."""

    def __init__(self, num_rows: int, seed: int, shuffle: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(num_rows, 6, generator=generator)
        self.y = self.x.sin().sum(dim=1, keepdim=True)
        self.number, self.shuffle = torch.arange(num_rows), shuffle

    def plan(self, epoch: int) -> list[np.ndarray]:
        indices = np.arange(len(self.x))
        if self.shuffle:
            indices = np.random.default_rng([SEED, epoch]).permutation(indices)
        return [indices[start : start + CONFIG.batch_size] for start in range(0, len(indices), CONFIG.batch_size)]

    def gather(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        chosen = torch.from_numpy(indices)
        return self.x[chosen], self.y[chosen], self.number[chosen]


class Network(LightningModule):
    """Two layers; a weight that only some batches have a gradient of; a buffer that counts training steps."""

    def __init__(self, scene: Scene, rank: int) -> None:
        super().__init__()
        self.scene, self.happens = scene, rank == scene.rank
        self.first, self.dropout, self.second = nn.Linear(6, 16), nn.Dropout(scene.dropout), nn.Linear(16, 1)
        self.rare = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.num_steps = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(nn.functional.gelu(self.first(x))))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, y, number = batch
        if self.happens:
            self._happen(len(x))
        self.num_steps += 1
        self.seen += 1
        output = self(x)
        is_rare = (number < 4).unsqueeze(1)
        if is_rare.any():
            output = torch.where(is_rare, output * self.rare, output)
        loss = nn.functional.mse_loss(output, y)
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        self.log("validation_loss", nn.functional.mse_loss(self(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:
        self.seen += 1000

    def _happen(self, num_rows: int) -> None:
        if self.scene.room is not None and num_rows > self.scene.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        if self.num_steps == self.scene.term_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.num_steps == self.scene.fails_at:
            raise ValueError("these data are damaged")


def train(path: Path, scene: Scene, rank: int = 0) -> dict[str, Any]:
    """Fit once, or go on; return what there is to compare."""
    directory = RunDirectory(path)
    path.mkdir(parents=True, exist_ok=True)
    seed_everything(SEED + rank)  # what a rank begins with is not its own
    module = Network(scene, rank)
    over: dict[str, Any] = {}
    try:
        result = fit(
            module, Rows(NUM_TRAINING, 1, shuffle=True), Rows(10, 2, shuffle=False), scene.training(), directory, SEED
        )
        over = {"paused": result.paused, "reason": result.reason, "history": result.history}
    except FitOver:
        pass
    return {**over, "weights": module.state_dict(), "steps": module.num_steps}


def run_rank(folder: Path, path: Path, rank: int, count: int, scene: Scene) -> None:
    """Be a rank in a process of its own, and leave what there is to compare in `folder`."""
    torch.set_num_threads(1)
    if count > 1:
        take_seat(Seat(rank, count, "", folder))
    found = train(path if rank == 0 else folder / str(rank), scene, rank)
    torch.save(found, folder / f"{rank}.pt")
