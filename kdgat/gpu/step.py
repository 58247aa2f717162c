"""A training step as `fit` makes it, in pieces that can be timed."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn

from kdgat.gpu.networks import NETWORKS, Network
from kdgat.graphs import ColumnStore, GraphColumns
from kdgat.training import seed_everything
from kdgat.training.averages import Averages

CLIP: Final = 1.0
AUTOCAST: Final = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class Stepper:
    """A module, its optimizer and its batches on one device."""

    def __init__(self, module: LightningModule, columns: GraphColumns, size: int, device: str, precision: str) -> None:
        self.module, self.device = module.to(device), device
        self.precision = precision
        self.num_graphs, self.store = columns.num_graphs, ColumnStore(columns)
        self.store.place_on(torch.device(device))
        self.size = size
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=precision != "16-mixed")
        self.averages = Averages()

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the graphs of a step, drawn by its number alone; some may be drawn twice."""
        return np.random.default_rng(step).integers(0, self.num_graphs, self.size)

    def batch(self, step: int) -> Any:
        """Return the batch of a step on the device."""
        return self.store.gather(self.indices(step)).to(self.device)

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        half = AUTOCAST.get(self.precision)
        with self.averages.listen(self.module), torch.autocast(self.device, half, enabled=half is not None):
            loss = self.module.training_step(batch)
        assert isinstance(loss, Tensor)
        return loss

    def update(self) -> None:
        """Let the optimizer take its step."""
        nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def learn(self, batch: Any) -> None:
        """Take the step of a batch."""
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        self.update()

    def train(self, steps: int, first: int = 0) -> None:
        """Take steps, and wait for the last one."""
        for step in range(first, first + steps):
            self.learn(self.batch(step))
        self.wait()

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def flat(self) -> Tensor:
        """Return all weights as one vector in memory of the host."""
        return torch.cat([one.detach().reshape(-1).cpu() for one in self.module.parameters()])

    def gradient(self) -> Tensor:
        """Return all gradients as one vector in memory of the host."""
        return torch.cat([one.grad.reshape(-1).cpu() for one in self.module.parameters() if one.grad is not None])


def make_stepper(name: str, device: str, size: int = 0, dropout: float = 0.1, precision: str = "32-true") -> Stepper:
    """Return the stepper of one of `NETWORKS`, from one seed; `size` 0: its usual one."""
    network, columns = _network(name)
    seed_everything(0)
    return Stepper(network.make(dropout), columns, size or network.batches[0], device, precision)


@cache
def _network(name: str) -> tuple[Network, GraphColumns]:
    return NETWORKS[name], NETWORKS[name].columns()
