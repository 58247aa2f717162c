"""Everything that the next training step depends on, as one dictionary and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning import Fabric
from torch import nn

from kdgat.training.averages import Averages
from kdgat.training.checkpoints import CheckpointError
from kdgat.training.config import TrainingConfig
from kdgat.training.deadline import Deadline
from kdgat.training.random_state import capture_random_state
from kdgat.training.source import EpochSource
from kdgat.training.state import FitState

CHECKPOINT_VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """The objects whose states a checkpoint holds."""

    fabric: Fabric
    module: nn.Module
    optimizer: torch.optim.Optimizer
    averages: Averages
    train: EpochSource
    validation: EpochSource | None
    deadline: Deadline
    config: TrainingConfig
    seed: int

    def take(self, state: FitState) -> dict[str, Any]:
        """Return all states; tensors are shared, so write them before the next step."""
        return {
            "version": CHECKPOINT_VERSION,
            "config": self.config.computation(),
            "seed": self.seed,
            "state": state.state_dict(),
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "averages": self.averages.state_dict(),
            "random": capture_random_state(),
            "train_source": self.train.state_dict(),
            "validation_source": {} if self.validation is None else self.validation.state_dict(),
            "checkpoint_s": self.deadline.typical_checkpoint_s(),
        }

    def apply(self, saved: Mapping[str, Any], file_name: str) -> FitState:
        """Put all states back, except the random ones: those are restored right before the next step.

        Raises:
            CheckpointError: if the checkpoint was written under settings that lead to other weights.
        """
        self._check_fits(saved, file_name)
        self.module.load_state_dict(saved["module"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.fabric.strategy.precision.load_state_dict(saved["precision"])
        self.averages.load_state_dict(saved["averages"], self.fabric.device)
        self.train.load_state_dict(saved["train_source"])
        if self.validation is not None:
            self.validation.load_state_dict(saved["validation_source"])
        self.deadline.restore(saved["checkpoint_s"])
        return FitState.from_state_dict(saved["state"])

    def _check_fits(self, saved: Mapping[str, Any], file_name: str) -> None:
        expected = {"version": CHECKPOINT_VERSION, "seed": self.seed, **self.config.computation()}
        found = {"version": saved["version"], "seed": saved["seed"], **saved["config"]}
        different = [
            f"{key}: {found.get(key)!r} there, {expected.get(key)!r} now"
            for key in sorted(expected.keys() | found.keys())
            if expected.get(key) != found.get(key)
        ]
        if different:
            raise CheckpointError(
                f"{file_name} was written under other settings ({'; '.join(different)}): use a new run directory"
            )
