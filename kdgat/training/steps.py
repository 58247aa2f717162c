"""The step methods of a LightningModule, called with or without the batch's index, and a watch over their losses."""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Final

from lightning import Fabric, LightningModule
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils._pytree import tree_map_only

from kdgat.base import UserError
from kdgat.training.device import to_device

# Reading a loss waits for the GPU: there it is looked at now and then, and always before a checkpoint.
CHECK_STEPS_CPU = 1
CHECK_STEPS_DEVICE = 20
# Hooks that a fit calls, where and as Lightning's Trainer does. In a batch that goes through in parts those around
# `training_step` are called for each part. A resumed epoch is not begun again.
HOOKS_OF_STEPS: Final = (
    *("on_before_batch_transfer", "on_after_batch_transfer", "on_train_batch_start", "on_train_batch_end"),
    *("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"),
    "configure_gradient_clipping",
)
CALLED_HOOKS: Final = (
    *("configure_optimizers", "lr_scheduler_step", *HOOKS_OF_STEPS),
    *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end", "on_fit_end"),
    *("on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end"),
    *("on_validation_epoch_end", "on_validation_end", "on_save_checkpoint", "on_load_checkpoint"),
)
# What Lightning's Trainer calls beside these: whatever its classes of hooks hold, and these of the module.
_OF_THE_MODULE: Final = ("backward", "configure_callbacks", "optimizer_step", "optimizer_zero_grad")
_OF_NO_FIT: Final = ("_", "on_test", "on_predict", "test_", "predict_")  # tests and predictions of a Trainer


class Steps:
    """The training and validation step of one module."""

    def __init__(self, module: LightningModule) -> None:
        refuse_unsupported_hooks(module)
        refuse_other_states(module)
        if not module.automatic_optimization:
            raise UserError(
                f"{type(module).__name__}.automatic_optimization is False, but kdgat takes the steps of the "
                "optimizer: return the loss from training_step"
            )
        self._module = module
        self._training_takes_index = takes_index(module.training_step)
        self._validation_takes_index = takes_index(module.validation_step)
        self._keeps_batch = is_overridden("on_train_batch_end", module)

    def receive(self, fabric: Fabric, batch: Any) -> Any:
        """Move a batch to where the module is, with what the module does to batches before and after."""
        batch = to_device(fabric, self._module.on_before_batch_transfer(batch, 0))
        return self._module.on_after_batch_transfer(batch, 0)

    def train(self, batch: Any, index: int) -> Tensor:
        """Return the loss of a batch."""
        if self._module.on_train_batch_start(batch, index) == -1:
            raise UserError(
                f"{type(self._module).__name__}.on_train_batch_start returned -1, to end the epoch: let the source "
                "plan shorter epochs"
            )
        output: Any = self._module.training_step(*((batch, index) if self._training_takes_index else (batch,)))
        if self._keeps_batch:
            self._trained = (tree_map_only(Tensor, Tensor.detach, output), batch, index)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            raise UserError(
                f"{type(self._module).__name__}.training_step returned {type(loss).__name__} for a batch: return the "
                "loss as a tensor; of a batch that shall teach nothing it is 0 * prediction.sum()"
            )
        return loss

    def end_batch(self) -> None:
        """Tell the module that a step is done, on the batch, or its last part, that `train` had."""
        if self._keeps_batch:
            self._module.on_train_batch_end(*self._trained)

    def validate(self, batch: Any, index: int) -> None:
        """Let the module log its metrics of a batch."""
        self._module.on_validation_batch_start(batch, index)
        output = self._module.validation_step(*((batch, index) if self._validation_takes_index else (batch,)))
        self._module.on_validation_batch_end(output, batch, index)


def takes_index(step: Any) -> bool:
    """Return whether a step method wants the batch's index too, as Lightning's own signature has it."""
    return len(inspect.signature(step).parameters) > 1


def refuse_unsupported_hooks(module: LightningModule) -> None:
    """Raise UserError for a hook that the training loop would silently ignore."""
    of_classes = (name for hooks in (ModelHooks, DataHooks, CheckpointHooks) for name in vars(hooks))
    for hook in (*of_classes, *_OF_THE_MODULE):
        if hook in CALLED_HOOKS or hook.startswith(_OF_NO_FIT) or not is_overridden(hook, module):
            continue
        raise UserError(
            f"{type(module).__name__}.{hook} would never be called: batches come from the source, layers are made in "
            f"__init__, a step is forward, backward and the optimizer's; called are {', '.join(CALLED_HOOKS)}"
        )


def refuse_other_states(module: LightningModule) -> None:
    """Raise UserError for a state that is no tensor, which neither checkpoints nor files of weights hold."""
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{name} of {type(module).__name__}'s state is a {type(value).__name__}: keep it as a tensor "
                "(register_buffer), else no checkpoint holds it"
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
