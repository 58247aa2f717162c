"""What the stages of the family and the files that they hand on are called, beside the names that all families have."""

from typing import Final

from kdgat.run import WEIGHTS

FAMILY: Final = "lap"
PREPARE: Final = "prepare"
TRAIN, VALIDATION, TEST = "train", "validation", "test"  # artifacts of a preparation
WEIGHTS_PREFIX: Final = f"{WEIGHTS}-"  # then the stage of the progression whose weights they are
TEST_PREFIX: Final = f"{TEST}-"  # then the size: input of the evaluation
START: Final = "start"  # input of a training stage: weights to start from
