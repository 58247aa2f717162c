"""The stages of an experiment: `run(spec, directory)` is what `kdgat stage run` calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from kdgat.base import validate_config
from kdgat.experiment.code import code_digest
from kdgat.experiment.config import ROOT, takes_root, typed_arguments
from kdgat.experiment.declaration import Experiment, ExperimentError
from kdgat.experiment.network import freeze, load_start, make_module, trained_module
from kdgat.experiment.plan import (
    SPLITS,
    START,
    EvaluationStageConfig,
    PrepareConfig,
    TrainingStageConfig,
    files_digest,
    kind_of,
    network_digest,
)
from kdgat.experiment.samples import Samples, write_samples
from kdgat.experiment.source import Source, load_experiment
from kdgat.stage import Finished, Outcome, RunDirectory, StageInputError, StageSpec, input_path
from kdgat.training import TrainingConfig, seed_everything, train_stage, use_expandable_segments
from kdgat.training.averages import Averages
from kdgat.training.device import make_fabric
from kdgat.training.steps import Steps, takes_index

logger = logging.getLogger(__name__)


def run(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Run one stage, or resume it."""
    use_expandable_segments()
    return kind_of(spec.stage).run(spec, directory)


def prepare(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Call the data function and keep what it returns; StageInputError if code or files are not as they were."""
    config = validate_config(PrepareConfig, spec.config)
    experiment = _loaded(spec, config.code, lambda found, source: code_digest(found.data, source))
    torch.set_num_threads(1)
    seed_everything(spec.seed)
    root = spec.execution["root"]
    splits = read_splits(experiment, config.arguments, root)
    if takes_root(experiment.data) and files_digest(Path(root)) != config.files:
        raise StageInputError(
            f"root {root} has other files than when the run was planned, or the data function has written some (a "
            "download, for instance): give the command again"
        )
    metrics, artifacts = {}, {}
    for name, samples in splits.items():
        path = directory.path / f"{name}.safetensors"
        try:
            metrics[name] = float(write_samples(path, samples, experiment.collate))
        except ExperimentError as error:
            raise ExperimentError(f"data, {name}: {error}") from error
        artifacts[name] = path.name
        logger.info("%s: %d samples", name, int(metrics[name]))
    return Finished(metrics=metrics, artifacts=artifacts)


def read_splits(experiment: Experiment, arguments: Mapping[str, Any], root: str | None) -> dict[str, Any]:
    """Call the data function; ExperimentError if it returns anything but two or three sequences."""
    paths = {ROOT: Path(root)} if takes_root(experiment.data) and root is not None else {}
    found = experiment.data(**paths, **typed_arguments(experiment.data, arguments))
    if isinstance(found, Mapping) and set(SPLITS[:2]) <= set(found) <= set(SPLITS):
        return dict(found)
    if not isinstance(found, tuple | list) or len(found) not in (2, 3):
        raise ExperimentError(
            f"the data function returned {type(found).__name__}: return train, validation and, if there is one, test"
        )
    splits = dict(zip(SPLITS, found, strict=False))
    for name, samples in splits.items():
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
            raise ExperimentError(
                f"data: {name} is a {type(samples).__name__}, no list and no dataset: return what it is made of, whose "
                "samples are counted and asked for by number; kdgat makes the batches (training.batch_size)"
            )
    return splits


def train(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train one stage from the weights of the one before it."""
    config = validate_config(TrainingStageConfig, spec.config)
    experiment = _loaded(
        spec, config.code, lambda found, source: network_digest(found, source, found.stage(spec.stage).curriculum)
    )
    torch.set_num_threads(config.training.num_threads)
    train_split, validation = (Samples(input_path(spec, directory, name), experiment.collate) for name in SPLITS[:2])
    seed_everything(spec.seed)
    module = make_module(experiment, config.arguments)
    if START in spec.inputs:
        load_start(module, input_path(spec, directory, START))
    freeze(module, config.frozen)
    return train_stage(
        module,
        module,
        train_split.source(
            config.training, spec.seed, shuffle=True, curriculum=experiment.stage(spec.stage).curriculum
        ),
        validation.source(config.training, spec.seed, shuffle=False),
        config.training,
        spec,
        directory,
        description={"source": spec.execution["source"], "arguments": config.arguments},
    )


def evaluate(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Let the module log its metrics of the test split, by `test_step` where it has one; else of validation."""
    config = validate_config(EvaluationStageConfig, spec.config)
    experiment = _loaded(spec, config.code, network_digest)
    torch.set_num_threads(config.training.num_threads)
    split = "test" if "test" in spec.inputs else "validation"
    samples = Samples(input_path(spec, directory, split), experiment.collate)
    module = trained_module(experiment, input_path(spec, directory, "weights"))
    metrics = measure(module, samples, config.training, spec.seed)
    return Finished(metrics={f"{split}.{name.removeprefix('test_')}": value for name, value in metrics.items()})


def measure(module: LightningModule, samples: Samples, config: TrainingConfig, seed: int) -> dict[str, float]:
    """Return what a module logs of samples, as means over all of them."""
    fabric = make_fabric(config)
    steps = Steps(module)
    fabric.to_device(module)
    module.trainer = fabric  # type: ignore[assignment] # as in a fit
    module.eval()
    source = samples.source(config, seed, shuffle=False)
    kind = "test" if is_overridden("test_step", module) else "validation"
    step: Callable[..., Any] = getattr(module, f"{kind}_step")

    def hook(name: str, *given: Any) -> None:
        getattr(module, f"on_{kind}_{name}")(*given)

    seed_everything(seed)
    with torch.no_grad(), Averages().listen(module) as averages, fabric.autocast():
        hook("start")
        hook("epoch_start")
        for number, indices in enumerate(source.plan(0)):
            averages.for_batch_of(len(indices))
            batch = steps.receive(fabric, source.gather(indices))
            hook("batch_start", batch, number)
            output = step(*((batch, number) if takes_index(step) else (batch,)))
            hook("batch_end", output, batch, number)
        hook("epoch_end")
        hook("end")
        return averages.end_epoch()


def _loaded(spec: StageSpec, planned: str, digest: Callable[[Experiment, Source], str]) -> Experiment:
    """Return the experiment of a spec; StageInputError if it is installed, and not as it was when it was planned."""
    experiment = load_experiment(source := Source.of(spec.execution))
    if not source.files and digest(experiment, source) != planned:  # all else is carried, as it was planned
        raise StageInputError(
            f"{source.name} was changed since {spec.stage} was planned: give the command again, which plans it anew, "
            "or take the change back"
        )
    return experiment
