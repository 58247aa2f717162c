"""The family of tests/toy: where it lies, and a run of it that is long enough to be killed."""

from pathlib import Path

TOY = Path(__file__).parents[1] / "toy"
LONG = ("data.points=512", "training.max_epochs=12", "training.patience=null", "training.checkpoint_every_steps=20")
