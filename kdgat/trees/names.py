"""What the stages of the family and the files that they hand on are called, beside the names that all families have."""

from typing import Final

FAMILY: Final = "trees"
PREPARE: Final = "prepare"
PRETRAIN: Final = "pretrain"
FINETUNE: Final = "finetune"  # from pretrained weights
SCRATCH: Final = "scratch"  # the same network without them
GIN: Final = "gin"  # a network that sees no geometry
TRAIN, VALIDATION, TEST = "train", "validation", "test"  # artifacts of the preparation
SPLITS: Final = (TRAIN, VALIDATION, TEST)
START: Final = "start"  # input: weights of a pretraining


def file_input(place: int) -> str:
    """Name the input of `prepare` that is a file, by its place in the configuration of the stage."""
    return f"file-{place:06d}"
