"""The step methods of a LightningModule, called with or without the batch's index, and a watch over their losses."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

from lightning import LightningModule
from torch import Tensor

from kdgat.base import UserError

# Reading a loss waits for the GPU: there it is looked at now and then, and always before a checkpoint.
CHECK_STEPS_CPU = 1
CHECK_STEPS_DEVICE = 20
UNSUPPORTED_HOOKS = (
    "configure_optimizers",
    "on_fit_start",
    "on_fit_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_optimizer_step",
    "on_validation_batch_start",
    "on_validation_batch_end",
)


class Steps:
    """The training and validation step of one module."""

    def __init__(self, module: LightningModule) -> None:
        refuse_unsupported_hooks(module)
        if not module.automatic_optimization:
            raise UserError(
                f"{type(module).__name__}.automatic_optimization is False, but kdgat makes the optimizer and its "
                "steps: return the loss from training_step, and set TrainingConfig"
            )
        self._module = module
        self._training_takes_index = takes_index(module.training_step)
        self._validation_takes_index = takes_index(module.validation_step)

    def train(self, batch: Any, index: int) -> Tensor:
        """Return the loss of a batch."""
        output: Any = self._module.training_step(*((batch, index) if self._training_takes_index else (batch,)))
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise UserError(
                f"{type(self._module).__name__}.training_step returned {type(loss).__name__} for a batch: return the "
                "loss as a tensor; of a batch that shall teach nothing it is 0 * prediction.sum()"
            )
        return loss

    def validate(self, batch: Any, index: int) -> None:
        """Let the module log its metrics of a batch."""
        self._module.validation_step(*((batch, index) if self._validation_takes_index else (batch,)))


def takes_index(step: Any) -> bool:
    """Return whether a step method wants the batch's index too, as Lightning's own signature has it."""
    return len(inspect.signature(step).parameters) > 1


def refuse_unsupported_hooks(module: LightningModule) -> None:
    """Raise TypeError for a hook that the training loop would silently ignore."""
    for hook in UNSUPPORTED_HOOKS:
        if getattr(type(module), hook) is not getattr(LightningModule, hook):
            raise TypeError(
                f"{type(module).__name__}.{hook} would never be called: what an epoch changes belongs into the source "
                "(on_epoch_end), the optimizer into TrainingConfig"
            )


class LossWatch:
    """Losses of an epoch that nobody has looked at yet."""

    def __init__(self, device_type: str) -> None:
        self._check_steps = CHECK_STEPS_CPU if device_type == "cpu" else CHECK_STEPS_DEVICE
        self._unchecked: list[tuple[int, int, float, Tensor]] = []  # epoch, step, learning rate, loss

    def note(self, epoch: int, step: int, rate: float, loss: Tensor) -> None:
        """Add the loss of a step; it is checked at once on the CPU, within some steps elsewhere."""
        self._unchecked.append((epoch, step, rate, loss))
        if len(self._unchecked) >= self._check_steps:
            self.check()

    def check(self) -> None:
        """Raise FloatingPointError at the first loss since the last check that is not finite."""
        unchecked, self._unchecked = self._unchecked, []
        for epoch, step, rate, loss in unchecked:
            value = float(loss)
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the loss is {value} in epoch {epoch} at step {step} (learning rate {rate:.3g}): "
                    "lower training.learning_rate, or look for values in the data that are not finite"
                )
