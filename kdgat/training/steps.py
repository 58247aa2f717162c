"""The step methods of a LightningModule, called with or without the batch's index, and a watch over their losses."""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Final

from lightning import LightningModule
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from kdgat.base import UserError

# Reading a loss waits for the GPU: there it is looked at now and then, and always before a checkpoint.
CHECK_STEPS_CPU = 1
CHECK_STEPS_DEVICE = 20
CALLED_HOOKS: Final = ("on_validation_epoch_start", "on_validation_epoch_end")
# What Lightning's Trainer calls beside the steps: whatever its classes of hooks hold, and these of the module.
_OF_THE_MODULE: Final = (
    *("backward", "configure_callbacks", "configure_gradient_clipping", "configure_optimizers", "lr_scheduler_step"),
    *("optimizer_step", "optimizer_zero_grad"),
)
_OF_NO_FIT: Final = ("_", "on_test", "on_predict", "test_", "predict_")  # tests and predictions of a Trainer


class Steps:
    """The training and validation step of one module."""

    def __init__(self, module: LightningModule) -> None:
        refuse_unsupported_hooks(module)
        refuse_other_states(module)
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
    """Raise UserError for a hook that the training loop would silently ignore."""
    of_classes = (name for hooks in (ModelHooks, DataHooks, CheckpointHooks) for name in vars(hooks))
    for hook in (*of_classes, *_OF_THE_MODULE):
        if hook in CALLED_HOOKS or hook.startswith(_OF_NO_FIT) or not is_overridden(hook, module):
            continue
        raise UserError(
            f"{type(module).__name__}.{hook} would never be called: batches, and what an epoch changes, belong into "
            "the source (gather, on_epoch_end), the optimizer and its steps into TrainingConfig, what is kept beside "
            "weights into buffers (register_buffer), and the rest into training_step, which may read current_epoch "
            "and global_step"
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
