"""The gradient of a batch: gone through in parts, by one process or several; always that of the whole batch."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Any

import torch
from lightning import Fabric, LightningModule
from torch import Tensor, nn

from kdgat.training.averages import Averages
from kdgat.training.batch_size import StepStart, free_memory, reason_of
from kdgat.training.profile import Profile
from kdgat.training.ranks import Ranks
from kdgat.training.source import EpochSource
from kdgat.training.steps import Steps

logger = logging.getLogger(__name__)


class Shortage(IntEnum):
    """How short of memory a rank is; what the worst of them says holds for all."""

    NONE = 0
    PARTS = 1  # smaller parts may do
    HOPELESS = 2  # a part is a single graph already


class Gradients:
    """Leave the gradient of a batch in the parameters of a module."""

    def __init__(
        self,
        fabric: Fabric,
        module: LightningModule,
        optimizer: torch.optim.Optimizer,
        source: EpochSource,
        averages: Averages,
        profile: Profile,
        steps: Steps,
        ranks: Ranks,
    ) -> None:
        self._fabric, self._module, self._optimizer, self._source = fabric, module, optimizer, source
        self._averages, self._profile, self._steps, self._ranks = averages, profile, steps, ranks
        self._step_start = StepStart(module, fabric.device)
        self._parameters: list[nn.Parameter] = [one for group in optimizer.param_groups for one in group["params"]]

    def compute(self, indices: Any, step: int, num_parts: int, random: tuple[int, int]) -> tuple[Tensor, int]:
        """Return the loss of a batch, and in how many parts it went through; more than given, if memory is short.

        Args:
            indices: of the whole batch.
            step: of the epoch.
            num_parts: that the batch is cut into.
            random: seed of the fit, and epoch.

        Raises:
            torch.OutOfMemoryError: if a rank has no memory for a single graph.
        """
        sums, weights = self._averages.copy()
        self._step_start.note()
        while True:
            loss, reason, shortage = None, "", Shortage.NONE
            self._ranks.seed_step(*random, step)
            parts = self._ranks.parts(indices, num_parts)
            try:
                losses = [self._backward(part, step, len(part) / len(indices)) for part in parts]
                loss = _sum(losses, self._fabric.device)
            except torch.OutOfMemoryError as error:
                if max(map(len, parts)) == 1:
                    self._ranks.meet(Shortage.HOPELESS, self._parameters)
                    raise
                shortage, reason = Shortage.PARTS, reason_of(error)
            found = self._ranks.meet(shortage, self._parameters)
            if found == Shortage.NONE and loss is not None:
                loss = self._ranks.sum_gradients(self._parameters, loss)
                self._ranks.copy_buffers(self._module)
                return loss, num_parts
            if found == Shortage.HOPELESS:
                raise torch.OutOfMemoryError("the memory of another rank is too small for a single graph")
            num_parts = 2 * self._ranks.count * self._ranks.own_parts(num_parts)
            free_memory(max(self._ranks.gather(reason)), num_parts)
            self._optimizer.zero_grad(set_to_none=True)
            self._step_start.put_back()
            self._averages.sums, self._averages.weights = dict(sums), dict(weights)

    def _backward(self, indices: Any, step: int, share: float) -> Tensor:
        """Add the gradient of a part of a batch, `share` of the whole; return its part of the loss."""
        with self._profile.phase("loading"):
            gathered = self._source.gather(indices)
        with self._profile.phase("transfer"):
            batch = self._steps.receive(self._fabric, gathered)
        self._averages.for_batch_of(len(indices))
        weight_before = self._averages.weights.get("train_loss", 0)
        with self._profile.phase("forward"), self._fabric.autocast():
            loss = self._steps.train(batch, step)
        if self._averages.weights.get("train_loss", 0) == weight_before:
            self._averages.log("train_loss", loss)
        if share < 1.0:
            loss = loss * share
        with self._profile.phase("backward"):
            self._module.on_before_backward(loss)
            self._fabric.backward(loss)
            self._module.on_after_backward()
        return loss.detach()


def _sum(losses: list[Tensor], device: torch.device) -> Tensor:
    if not losses:  # fewer graphs than ranks
        return torch.zeros((), device=device)
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()
