"""Learning rate as a pure function of progress, so that a checkpoint has no schedule state to lose."""

import math

from kdgat.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, progress: float) -> float:
    """Return the learning rate at `progress`, the fraction of all epochs done, in [0, 1).

    Epochs may differ in length (a curriculum's do): progress counts within each epoch's own length.
    """
    if progress < config.warmup_fraction:
        # The first step has progress 0 and must not be lost: the ramp starts at a hundredth.
        return config.learning_rate * max(progress / config.warmup_fraction, 0.01)
    if config.schedule == "constant":
        return config.learning_rate
    part = (progress - config.warmup_fraction) / (1.0 - config.warmup_fraction)
    floor = config.final_learning_rate_fraction
    return config.learning_rate * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(part, 1.0))))
