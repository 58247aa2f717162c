"""Everything that the next training step depends on, as one dictionary and back."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning import Fabric, LightningModule
from torch import nn

from kdgat.stage import EnvironmentFaultError
from kdgat.training.attributes import Attributes
from kdgat.training.averages import Averages
from kdgat.training.checkpoints import CheckpointError
from kdgat.training.config import TrainingConfig
from kdgat.training.deadline import Deadline
from kdgat.training.optimization import Optimization
from kdgat.training.random_state import capture_random_state
from kdgat.training.source import EpochSource
from kdgat.training.state import FitState

logger = logging.getLogger(__name__)

CHECKPOINT_VERSION = 1


def num_ranks_of(saved: Mapping[str, Any]) -> int:
    """Return how many ranks a checkpoint is of; one, if it was written before there were several."""
    return 1 + len(saved.get("averages_of_other_ranks", ()))


def averages_of(saved: Mapping[str, Any], rank: int, num_ranks: int) -> Mapping[str, Any]:
    """Return what a rank has counted: its own if there were as many, else rank 0 has all of it."""
    found = [saved["averages"], *saved.get("averages_of_other_ranks", ())]
    if len(found) == num_ranks:
        return found[rank]
    return Averages.merged(found if rank == 0 else ()).state_dict()


def weights_digest(module: nn.Module) -> str:
    """Hash weights and buffers."""
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def warn_of_other_ranks(saved: Mapping[str, Any], num_ranks: int, file_name: str) -> None:
    """Say that training goes on with another number of processes than before, if it does."""
    before = num_ranks_of(saved)
    if before != num_ranks:
        logger.warning(
            "%s was written by %s and %s now: gradients are the same but for their last bits, and numbers drawn within "
            "a step, as for dropout, are others",
            file_name,
            "one process" if before == 1 else f"{before} processes that trained together",
            "one goes on" if num_ranks == 1 else f"{num_ranks} go on",
        )


@dataclass
class Snapshot:
    """The objects whose states a checkpoint holds."""

    fabric: Fabric
    module: LightningModule
    optimization: Optimization
    attributes: Attributes
    averages: Averages
    train: EpochSource
    validation: EpochSource | None
    deadline: Deadline
    config: TrainingConfig
    seed: int
    machine: Mapping[str, str]  # `describe_machine`
    _held: dict[str, Any] | None = None

    def hold(self) -> None:
        """Save the module's attributes as they are now, until `release`, whatever becomes of them."""
        self._held = self.attributes.state_dict()

    def release(self) -> None:
        """Save them as they are when a checkpoint is taken, again."""
        self._held = None

    def take(self, state: FitState, averages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return all states, and what each rank has counted; tensors are shared, so write them before the next step."""
        first, *others = averages
        return {
            "version": CHECKPOINT_VERSION,
            "config": self.config.computation(),
            "seed": self.seed,
            "machine": dict(self.machine),
            "state": state.state_dict(),
            "module": self.module.state_dict(),
            "optimizer": self.optimization.optimizer.state_dict(),
            "schedulers": self.optimization.schedulers_state(),
            "attributes": self.attributes.state_dict() if self._held is None else self._held,
            "of_module": self._of_module(state),
            "precision": self.fabric.strategy.precision.state_dict(),
            "averages": first,
            "averages_of_other_ranks": others,
            "random": capture_random_state(),
            "train_source": self.train.state_dict(),
            "validation_source": {} if self.validation is None else self.validation.state_dict(),
            "checkpoint_s": self.deadline.typical_checkpoint_s(),
        }

    def apply(self, saved: Mapping[str, Any], file_name: str, rank: int, num_ranks: int) -> FitState:
        """Put all states back, except the random ones: those are restored right before the next step.

        Raises:
            CheckpointError: if the checkpoint was written under settings, or by a torch, that lead to other weights.
            EnvironmentFaultError: if it was written on another kind of machine, and the same bits are asked for.
        """
        self._check_fits(saved, file_name)
        self._check_machine(saved.get("machine", {}), file_name)
        try:
            self.module.load_state_dict(saved["module"])
            self.optimization.optimizer.load_state_dict(saved["optimizer"])
            self.optimization.load_schedulers(saved.get("schedulers", ()))
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{file_name} is of another model than this stage has ({' '.join(str(error).split())[:300]}): put the "
                "one of this stage in its place, or remove its folder to train from the start"
            ) from error
        self.attributes.load_state_dict(saved.get("attributes", {}), self.fabric.device)
        of_fit = {"state_dict": saved["module"], **{key: saved["state"][key] for key in ("epoch", "global_step")}}
        self.module.on_load_checkpoint({**of_fit, **saved.get("of_module", {})})
        self.fabric.strategy.precision.load_state_dict(saved["precision"])
        self.averages.load_state_dict(averages_of(saved, rank, num_ranks), self.fabric.device)
        self.train.load_state_dict(saved["train_source"])
        if self.validation is not None:
            self.validation.load_state_dict(saved["validation_source"])
        self.deadline.restore(saved["checkpoint_s"])
        return FitState.from_state_dict(saved["state"])

    def _of_module(self, state: FitState) -> dict[str, Any]:
        """Return what the module adds to a checkpoint by `on_save_checkpoint`."""
        of_fit = {"state_dict": self.module.state_dict(), "epoch": state.epoch, "global_step": state.global_step}
        content: dict[str, Any] = dict(of_fit)
        self.module.on_save_checkpoint(content)
        return {name: value for name, value in content.items() if name not in of_fit}

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

    def _check_machine(self, found: Mapping[str, str], file_name: str) -> None:
        different = [key for key in found if found[key] != self.machine.get(key)]
        if not different:
            return
        changes = "; ".join(f"{key} was {found[key]}, is {self.machine.get(key)}" for key in different)
        text = f"{file_name} was written on another kind of machine ({changes}): last bits of the weights may differ"
        if not self.config.deterministic:
            logger.warning("%s from those of a run that stayed on one", text)
        elif different == ["torch"]:
            raise CheckpointError(f"{text}, and training.deterministic is true: resume with that torch")
        else:
            raise EnvironmentFaultError(
                f"{text}, and training.deterministic is true: keep the jobs to one kind of node (--constraint among "
                "the site's directives), or set ATEN_CPU_CAPABILITY"
            )
