"""Compare a training step of `fit` with a bare loop and with Lightning's Trainer, and time checkpoints.

Times are CPU times of this process (waiting for the disk is not in them), the best of some alternating
repeats; what a run costs once (set-up, validation, last checkpoint) is measured by a run of one step and subtracted.

Run: python benchmarks/training_overhead.py [--num-steps 400] [--hidden 8] [--repeats 5]
"""

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, global_mean_pool

from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig
from kdgat.training.fit import fit

NUM_GRAPHS, NUM_NODES, NUM_FEATURES = 8, 10, 16


class Classifier(LightningModule):
    """Two GAT layers; the batch is made once, so that only the loops differ."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = GATConv(NUM_FEATURES, hidden, heads=4)
        self.second = GATConv(4 * hidden, hidden)
        self.head = nn.Linear(hidden, 2)

    def loss(self, batch: Batch) -> Tensor:
        x = self.first(batch.x, batch.edge_index).relu()
        x = self.second(x, batch.edge_index).relu()
        return nn.functional.cross_entropy(self.head(global_mean_pool(x, batch.batch, NUM_GRAPHS)), batch.y)

    def training_step(self, batch: Batch) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss.detach(), batch_size=NUM_GRAPHS)
        return loss

    def validation_step(self, batch: Batch) -> None:
        self.log("validation_loss", self.loss(batch), batch_size=NUM_GRAPHS)


class TrainerClassifier(Classifier):
    """The same for Lightning's Trainer, which asks the module for its optimizer."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), fused=True)


class OneBatch:
    """The same batch in every step."""

    def __init__(self, batch: Batch, num_steps: int) -> None:
        self.batch, self.num_steps = batch, num_steps

    def plan(self, epoch: int) -> list[Any]:
        return [np.arange(NUM_GRAPHS)] * self.num_steps

    def gather(self, indices: Any) -> Batch:
        return self.batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def describe(self, epoch: int) -> dict[str, float]:
        return {}

    def on_epoch_end(self, epoch: int, metrics: dict[str, float]) -> None:
        pass


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch.from_data_list(
        [
            Data(
                x=torch.randn(NUM_NODES, NUM_FEATURES, generator=generator),
                edge_index=torch.randint(0, NUM_NODES, (2, 3 * NUM_NODES), generator=generator),
                y=torch.tensor([index % 2]),
            )
            for index in range(NUM_GRAPHS)
        ]
    )


def time_bare(batch: Batch, hidden: int, num_steps: int) -> float:
    """Return seconds for the steps of a loop that logs and saves nothing."""
    module = Classifier(hidden)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    started = time.process_time()
    for _ in range(num_steps):
        module.loss(batch).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - started


def time_fit(batch: Batch, hidden: int, num_steps: int, checkpoint_every_steps: int | None) -> float:
    config = TrainingConfig(
        max_epochs=1, accelerator="cpu", checkpoint_interval_s=1e9, checkpoint_every_steps=checkpoint_every_steps
    )
    with tempfile.TemporaryDirectory() as folder:
        module = Classifier(hidden)
        started = time.process_time()
        fit(module, OneBatch(batch, num_steps), OneBatch(batch, 1), config, RunDirectory(Path(folder)), seed=0)
        return time.process_time() - started


def time_trainer(batch: Batch, hidden: int, num_steps: int) -> float:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[LightningEnvironment()],
    )
    module = TrainerClassifier(hidden)
    started = time.process_time()
    trainer.fit(module, DataLoader([batch] * num_steps, batch_size=None), DataLoader([batch], batch_size=None))
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-steps", type=int, default=400)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    batch, hidden, steps = make_batch(), arguments.hidden, arguments.num_steps
    time_bare(batch, hidden, 20)

    actions: dict[str, Callable[[int], float]] = {
        "bare loop": lambda num_steps: time_bare(batch, hidden, num_steps),
        "kdgat fit": lambda num_steps: time_fit(batch, hidden, num_steps, None),
        "kdgat fit, checkpoint every 10 steps": lambda num_steps: time_fit(batch, hidden, num_steps, 10),
        "Lightning Trainer": lambda num_steps: time_trainer(batch, hidden, num_steps),
    }
    once, whole = dict.fromkeys(actions, np.inf), dict.fromkeys(actions, np.inf)
    for _ in range(arguments.repeats):
        for name, action in actions.items():
            once[name] = min(once[name], action(1))
            whole[name] = min(whole[name], action(steps + 1))
    times = {name: (whole[name] - once[name]) / steps * 1e3 for name in actions}
    bare, plain, saving = (times[name] for name in list(actions)[:3])
    checkpoint = (saving - plain) * 10
    num_parameters = sum(parameter.numel() for parameter in Classifier(hidden).parameters())
    print(f"{NUM_GRAPHS} graphs of {NUM_NODES} nodes, {num_parameters} parameters, {steps} steps, one thread")
    print(f"{'':38}{'ms/step':>9}{'ratio':>8}{'overhead ms':>13}")
    for name, value in times.items():
        print(f"{name:38}{value:9.3f}{value / bare:8.2f}{value - bare:13.3f}")
    print(f"one checkpoint: {checkpoint:.1f} ms, {checkpoint / plain:.1f} steps")


if __name__ == "__main__":
    main()
