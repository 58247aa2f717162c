"""Watch over losses: the first one that is not finite ends training with step, epoch and learning rate."""

import math

from torch import Tensor

# Reading a loss waits for the GPU: there it is looked at now and then, and always before a checkpoint.
CHECK_STEPS_CPU = 1
CHECK_STEPS_DEVICE = 20


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
