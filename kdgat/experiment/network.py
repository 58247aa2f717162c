"""The module of an experiment: how it is made, what it starts from, and what of it keeps its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from kdgat.experiment.config import typed_arguments
from kdgat.experiment.declaration import Experiment, ExperimentError
from kdgat.stage import StageInputError
from kdgat.training import TrainingConfig, load_weights
from kdgat.training.random_state import separate_randomness
from kdgat.training.steps import Steps
from kdgat.training.weights import read_weights

# Keys of `training` that say how AdamW learns, where a module brings no optimizer of its own.
OF_ADAMW: Final = ("learning_rate", "weight_decay", "schedule", "warmup_fraction", "final_learning_rate_fraction")


def make_module(experiment: Experiment, arguments: Mapping[str, Any]) -> LightningModule:
    """Return the module with these arguments, its lazy layers refused."""
    module = experiment.module(**typed_arguments(experiment.module, arguments))
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ExperimentError(f"{name} of {type(module).__name__} has no size yet: write it out (in_channels=...)")
    return module


def trained_module(experiment: Experiment, path: Path) -> LightningModule:
    """Return the module of a weights file, made as it was for training, with what training has changed besides."""
    tensors, description = read_weights(path)
    with separate_randomness(description["seed"]):  # of what is drawn in the constructor and is no weight
        module = make_module(experiment, description["config"]["arguments"])
    module.load_state_dict(tensors)
    for name, value in description.get("attributes", {}).items():
        part, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(part), attribute, value)
    return module


def check_module(
    experiment: Experiment, stage: str, arguments: Mapping[str, Any], frozen: Sequence[str], training: TrainingConfig
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights, and refuse before anything is prepared what the first step would refuse.

    No memory is needed, where that is possible.

    Raises:
        ExperimentError: if the module cannot be made with these arguments, or keys of `training` count for nothing.
        UserError: if it wants what no training here does (manual optimization, its own loaders, unknown hooks).
    """
    try:
        try:
            with torch.device("meta"):
                module = make_module(experiment, arguments)
        except Exception:  # it looks at values of tensors, which need memory; or cannot be made at all
            module = make_module(experiment, arguments)
    except ExperimentError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        name = experiment.module.__name__
        raise ExperimentError(
            f"stage {stage}: {name}({given}) cannot be made: {type(error).__name__}: {error}"
        ) from error
    Steps(module)
    freeze(module, frozen)
    if is_overridden("configure_optimizers", module):
        for key in OF_ADAMW:
            if (value := getattr(training, key)) != TrainingConfig.model_fields[key].default:
                raise ExperimentError(
                    f"stage {stage}: training.{key}={value} would count for nothing: {type(module).__name__} has its "
                    "own configure_optimizers; make it an argument of the module, -O model.KEY=VALUE"
                )
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def load_start(module: LightningModule, path: Path) -> None:
    """Load the weights of the stage before; StageInputError if they are not of this module."""
    tensors = load_weights(path)[0]
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise StageInputError(f"{path} cannot be started from: {' '.join(str(error).split())}") from error


def freeze(module: LightningModule, patterns: Sequence[str]) -> None:
    """Let the parameters whose names fit a pattern keep their values; ExperimentError if none fits."""
    for pattern in patterns:
        found = [one for name, one in module.named_parameters() if fnmatchcase(name, pattern)]
        if not found:
            names = ", ".join(name for name, _ in module.named_parameters())
            raise ExperimentError(f"frozen: no parameter is called {pattern!r} (there are {names})")
        for parameter in found:
            parameter.requires_grad_(False)
