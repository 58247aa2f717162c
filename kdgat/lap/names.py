"""What the stages of the family and the files that they hand on are called."""

from typing import Final

FAMILY: Final = "lap"
PREPARE: Final = "prepare"
EVALUATION: Final = "evaluation"
TRAIN, VALIDATION, TEST = "train", "validation", "test"  # artifacts of a preparation
WEIGHTS: Final = "weights"  # artifact of a training stage: those of its last fit
WEIGHTS_PREFIX: Final = f"{WEIGHTS}-"  # then the stage of the progression whose weights they are
TEST_PREFIX: Final = f"{TEST}-"  # then the size: input of the evaluation
START: Final = "start"  # input of a training stage: weights to start from
