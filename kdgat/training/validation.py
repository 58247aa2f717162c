"""The validation split, gone through once: in parts if memory is short, with the same random numbers every epoch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning import Fabric, LightningModule

from kdgat.base import UserError
from kdgat.training.averages import Averages
from kdgat.training.batch_size import cut, double_parts
from kdgat.training.gradients import to_device
from kdgat.training.progress import Progress
from kdgat.training.random_state import separate_randomness
from kdgat.training.source import EpochSource
from kdgat.training.steps import Steps


class Validation:
    """Compute the metrics of a split."""

    def __init__(
        self,
        fabric: Fabric,
        module: LightningModule,
        source: EpochSource,
        steps: Steps,
        progress: Progress,
        seed: int,
    ) -> None:
        self._fabric, self._module, self._source, self._steps = fabric, module, source, steps
        self._progress, self._seed = progress, seed

    def metrics(self, epoch: int, num_parts: int, between: Callable[[], None]) -> tuple[dict[str, float], int]:
        """Return the metrics, and in how many parts batches went through; more than given, if memory is short.

        `between` is called between two batches, and may raise to leave.

        Raises:
            UserError: if there are no batches.
            torch.OutOfMemoryError: if there is no memory for a single graph.
        """
        plan = self._source.plan(epoch)
        if len(plan) == 0:
            raise UserError(f"epoch {epoch} has no validation batches: is the validation split empty?")
        self._module.eval()
        try:
            while True:
                try:
                    with separate_randomness(self._seed), torch.no_grad():
                        return self._once(plan, epoch, num_parts, between), num_parts
                except torch.OutOfMemoryError as error:
                    # From its start: the module may have counted a part of the epoch already.
                    num_parts = double_parts(num_parts, max(len(indices) for indices in plan), error)
        finally:
            self._module.train()

    def _once(self, plan: Sequence[Any], epoch: int, num_parts: int, between: Callable[[], None]) -> dict[str, float]:
        averages = Averages()
        with averages.listen(self._module):
            self._module.on_validation_epoch_start()
            for step, whole in enumerate(plan):
                for indices in cut(whole, num_parts):
                    batch = to_device(self._fabric, self._source.gather(indices))
                    averages.for_batch_of(len(indices))
                    with self._fabric.autocast():
                        self._steps.validate(batch, step)
                if self._progress.due():
                    self._progress.report(
                        epoch=epoch, step=step + 1, num_steps=len(plan), phase="validation", loss=None
                    )  # fmt: skip
                between()
            self._module.on_validation_epoch_end()
        return averages.means()
