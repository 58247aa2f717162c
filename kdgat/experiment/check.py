"""Proof on somebody's own model and machine: a training that is killed between two steps ends with the same weights."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.network import freeze, make_module
from kdgat.experiment.plan import plan_experiment
from kdgat.experiment.samples import Samples, write_samples
from kdgat.experiment.source import read_source
from kdgat.experiment.stages import measure, read_splits
from kdgat.stage import RunDirectory
from kdgat.training import GraphSource, TrainingConfig, seed_everything
from kdgat.training.fit import fit

EPOCHS, STEPS = 2, 8  # at least
MOST_SAMPLES: Final = 512  # of each split: it is steps that are compared, not models
REASONS: Final = (
    "usual reasons: random numbers of a generator that is no attribute of the module, time, the order of a set, an "
    "attribute that no checkpoint keeps (docs/modules.md), an operator that is not deterministic on this device"
)


class _KilledError(Exception):
    """Stands for a kill: nothing is saved after it."""


@dataclass(frozen=True)
class Finding:
    """What a check has found of one stage."""

    stage: str
    what: str
    problem: str = ""  # empty where all is well


def check(config: ExperimentConfig, seed: int = 0) -> Iterator[Finding]:
    """Yield what was found of each stage; errors of the data function as they are."""
    plan_experiment(config)  # what cannot be planned is refused as a plan refuses it
    experiment = config.experiment
    with tempfile.TemporaryDirectory(prefix="kdgat-check-") as folder:
        for number, stage in enumerate(experiment.stages):
            place = Path(folder, str(number))
            place.mkdir()
            seed_everything(seed)
            splits = read_splits(experiment, config.arguments("data", stage.name), config.root)
            files = {}
            for name, samples in splits.items():
                files[name] = place / f"{name}.safetensors"
                some = [samples[index] for index in range(min(len(samples), MOST_SAMPLES))]
                write_samples(files[name], some, experiment.collate)
            opened = {name: Samples(path, experiment.collate) for name, path in files.items()}
            training = config.training_for(stage.name)
            per_epoch = len(opened["train"].source(training, seed, shuffle=True).plan(0))
            epochs = max(EPOCHS, -(-STEPS // per_epoch))
            training = training.model_copy(
                update={"max_epochs": epochs, "patience": None, "checkpoint_every_steps": 1, "loggers": ()}
            )
            arguments = config.arguments("model", stage.name)
            train = partial(opened["train"].source, training, seed, shuffle=True, curriculum=stage.curriculum)
            validation = opened["validation"].source(training, seed, shuffle=False)

            def make(arguments: dict[str, Any] = arguments, frozen: Sequence[str] = stage.frozen) -> LightningModule:
                module = make_module(experiment, arguments)
                freeze(module, frozen)
                return module

            what = "some steps"
            try:
                yield from _check_stage(stage.name, make, train, validation, training, place, seed)
                what = "an evaluation"
                measure(make(), opened.get("test", opened["validation"]), training, seed)
            except (UserError, FloatingPointError) as error:
                yield Finding(stage.name, what, str(error))
            except Exception as error:  # of somebody's own code, which is what is checked
                yield Finding(stage.name, what, f"{type(error).__name__}: {error}{_where(error, config)}")


def _where(error: Exception, config: ExperimentConfig) -> str:
    """Name the last line of the experiment's own files that an error came through."""
    own = read_source(config.source).texts
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    return f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def _check_stage(
    stage: str,
    make: Callable[[], LightningModule],
    source: Callable[[], GraphSource],
    validation: GraphSource,
    training: TrainingConfig,
    place: Path,
    seed: int,
) -> Iterator[Finding]:
    def trained(name: str, kills: set[int]) -> list[dict[str, str]]:
        """Train, killed at these steps, and return the digests of the weights before each step, and at the end."""
        directory = RunDirectory(place / name)
        directory.path.mkdir()
        seen: dict[int, dict[str, str]] = {}
        left = set(kills)
        while True:
            seed_everything(seed)
            module = make()
            try:
                fit(module, _watched(source(), module, seen, left), validation, training, directory, seed)
            except _KilledError:
                continue
            return [*(seen[step] for step in sorted(seen)), _digests(module)]

    whole = trained("whole", set())
    steps = len(whole) - 1
    kills = sorted({1, steps // 4, steps // 2, steps - 1} - {0, steps})
    again = trained("killed", set(kills))
    what = f"{steps} steps, killed before step {', '.join(map(str, kills))}"
    yield Finding(stage, what, _first_difference(whole, again))


def _watched(
    source: GraphSource, module: LightningModule, seen: dict[int, dict[str, str]], kills: set[int]
) -> GraphSource:
    """Let a source note the weights before each step, and be killed before some."""
    gather = source.gather

    def gather_watched(indices: NDArray[np.int64]) -> Any:
        step = module.global_step
        if step in kills:
            kills.remove(step)
            raise _KilledError
        seen[step] = _digests(module)
        return gather(indices)

    source.gather = gather_watched  # type: ignore[method-assign]
    return source


def _digests(module: LightningModule) -> dict[str, str]:
    """Return a digest of each tensor: copies of all steps would take as many times the memory of the model."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    return {name: sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest() for name, tensor in state.items()}


def _first_difference(whole: Sequence[Mapping[str, str]], again: Sequence[Mapping[str, str]]) -> str:
    """Name the first step before which a tensor differs, and that tensor; empty where none does."""
    for step, (one, other) in enumerate(zip(whole, again, strict=True)):
        different = [name for name in one if one[name] != other[name]]
        if different:
            where = f"before step {step}" if step < len(whole) - 1 else "in the best weights"
            more = f" (and {len(different) - 1} more tensors)" if len(different) > 1 else ""
            return f"{different[0]}{more} differs {where}; {REASONS}"
    return ""
