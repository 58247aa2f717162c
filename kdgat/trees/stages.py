"""The stages of the family: `run(spec, directory)` is what `kdgat stage run` calls.

`prepare` writes stores of trees. `pretrain` needs no labels. `finetune` starts from its weights; `scratch` is the same
without them, `gin` another network. `evaluation` measures all of them on the test trees.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kdgat.base import validate_config
from kdgat.base.files import list_folder
from kdgat.graphs import GraphColumns, GraphStore
from kdgat.stage import Finished, Outcome, RunDirectory, StageInputError, StageSpec, input_path
from kdgat.stage.directory import CHECKPOINT_GLOB
from kdgat.training import SeveralFits, load_weights, seed_everything, train_stage, use_expandable_segments
from kdgat.training.allocator import keep_freed_memory
from kdgat.training.batch_size import cut
from kdgat.training.device import release_memory
from kdgat.training.measure import measure_training_step
from kdgat.trees.graphs.columns import NODE_FEATURES, SCHEMA
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.models.classifier import TreePredictor
from kdgat.trees.names import FAMILY, GIN, PRETRAIN, START, TRAIN, VALIDATION
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.plan import scale_of
from kdgat.trees.sections import FEATURE_VERSION, KINDS, FinetuneStageConfig, PretrainStageConfig, read_encoder
from kdgat.trees.training.finetuning import FinetuneObjective, Task, load_encoder, start_head
from kdgat.trees.training.labels import choose_labelled, labelled
from kdgat.trees.training.memory import predict_peak
from kdgat.trees.training.pretraining import PretrainedTrees, PretrainObjective
from kdgat.trees.training.source import TreeBatchSource, counts_of
from kdgat.trees.training.start import check_encoder

logger = logging.getLogger(__name__)


def run(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Run one stage, or resume it."""
    keep_freed_memory()
    use_expandable_segments()
    torch.set_num_threads(1)  # training sets its own
    return KINDS[spec.stage].run(spec, directory)


def run_pretrain(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Pretrain an encoder by growth and order; errors of `open_store`."""
    config = validate_config(PretrainStageConfig, spec.config)
    torch.set_num_threads(config.training.num_threads)
    train, validation = (open_store(spec, directory, split) for split in (TRAIN, VALIDATION))
    seed_everything(spec.seed)
    model = PretrainedTrees(config, channels_of(train.build["length_range"], config.growth))
    source = partial(
        TreeBatchSource, encoder=config.encoder, batches=config.batches, training=config.training, seed=spec.seed
    )
    training = source(train.columns, shuffle=True)
    objective = PretrainObjective(model, config)
    outcome = train_stage(
        objective,
        model,
        training,
        source(validation.columns, shuffle=False),
        config.training,
        spec,
        directory,
        description=describe_pretrained(config, train),
        metadata={"num_trees": len(Networks.of(train.columns))},
    )
    if not isinstance(outcome, Finished):
        return outcome
    memory = measure_peak(config, objective, train.columns, training, int(outcome.metrics["epochs"]))
    return Finished(metrics={**outcome.metrics, **memory}, artifacts=outcome.artifacts)


def measure_peak(
    config: PretrainStageConfig,
    objective: PretrainObjective,
    columns: GraphColumns,
    source: TreeBatchSource,
    epochs: int,
) -> dict[str, float]:
    """Return predicted and measured bytes of the largest part of a batch among these epochs, once training is over.

    CUDA's allocator has counted while this process trained, which is less than all where a stage was resumed. On the
    CPU the memory of a process says little about a batch of some megabytes: a step more is counted by torch's profiler,
    after which the weights of `objective` are spent.
    """
    batches = (indices for epoch in range(epochs) for indices in source.plan(epoch))
    parts = [part for indices in batches for part in cut(indices, config.training.accumulate)]
    predicted = [predict_peak(PRETRAIN, config, counts_of(columns, part)) for part in parts]
    largest = int(np.argmax(predicted))
    on_gpu = next(objective.parameters()).device.type == "cuda"
    if on_gpu:
        measured = torch.cuda.max_memory_allocated()
    else:
        objective.cpu().train()
        _, measured = measure_training_step(objective, lambda: source.gather(parts[largest]), config.training.precision)
    return {
        "peak_bytes": float(measured),
        "predicted_peak_bytes": float(predicted[largest]),
        "peak_on_gpu": float(on_gpu),
    }


def run_finetune(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train networks that name a tree's class, or predict its number: one for each share of the labels.

    Raises:
        StageInputError: if no training tree has a label.
        StageInputError: if the weights to start from are of another encoder.
    """
    config = validate_config(FinetuneStageConfig, spec.config)
    torch.set_num_threads(config.training.num_threads)
    train, validation = (open_store(spec, directory, split) for split in (TRAIN, VALIDATION))
    start = None
    if START in spec.inputs:
        path = input_path(spec, directory, START)
        check_encoder(path, config.encoder)
        start = load_weights(path)[0]
    fits = SeveralFits(directory)
    for fraction in config.label_fractions:
        name = scale_of(fraction)
        chosen = choose_labelled(train.columns, fraction, spec.seed)
        task = task_of(train, chosen)
        seed_everything(spec.seed)
        model = TreePredictor(config.encoder, config.head, task.num_outputs, is_gin=spec.stage == GIN)
        if start is not None:
            load_encoder(model, start)
        logger.info("%s: %d of %d training trees give their labels", name, len(chosen), len(Networks.of(train.columns)))
        source = partial(
            TreeBatchSource, encoder=config.encoder, batches=config.batches, training=config.training, seed=spec.seed
        )
        training = source(train.columns, shuffle=True, chosen=chosen, least_batches=config.head.least_batches)
        selection = source(validation.columns, shuffle=False, chosen=labelled(validation.columns))
        # A fit that has begun goes on with the weights of its checkpoint.
        if start is not None and not list_folder(directory.checkpoints_path / name, CHECKPOINT_GLOB):
            start_head(model, source(train.columns, shuffle=False, chosen=chosen).batches(), selection.batches(), task)
        outcome = train_stage(
            FinetuneObjective(model, task),
            model,
            training,
            selection,
            config.training,
            spec,
            directory,
            description={
                **describe_data(train),
                "encoder": read_encoder(config.encoder),
                "head": config.head.model_dump(mode="json", exclude={"least_batches"}),
                "kind": spec.stage,
                "label_fraction": fraction,
                "task": {"classes": list(task.classes), "mean": task.mean, "deviation": task.deviation},
            },
            metadata={"num_labels": len(chosen)},
            fit_name=name,
            weights_directory=fits.directory_of(name),
        )
        if not isinstance(outcome, Finished):
            return outcome
        fits.add(name, outcome, {**outcome.metrics, "labels": float(len(chosen))})
        del model  # the next one is made in the memory of this one
        release_memory()
    return Finished(metrics=fits.metrics, artifacts=fits.artifacts)


def open_store(spec: StageSpec, directory: RunDirectory, split: str) -> GraphStore:
    """Open the store of a split.

    Raises:
        StageInputError: if its trees have other features, or it has none.
    """
    path = input_path(spec, directory, split)
    store = GraphStore.open(path, SCHEMA)
    if store.build.get("feature_version") != FEATURE_VERSION or store.node_features != NODE_FEATURES:
        raise StageInputError(f"{path} has features of another version: prepare the trees again")
    if store.num_graphs == 0:
        raise StageInputError(f"{path} has no tree: the split {split} is empty, give more trees")
    return store


def task_of(store: GraphStore, chosen: NDArray[np.int64] | None = None) -> Task:
    """Return what labels are, numbers standardised by those of `chosen` networks; StageInputError if there are none."""
    columns = store.columns
    known = labelled(columns)
    if not len(known):
        raise StageInputError(f"{store.path}: no tree has a label: give data.labels, or set label_fractions=[]")
    classes = tuple(store.attributes["classes"])
    if classes:
        return Task(classes)
    first = Networks.of(columns).first
    target = np.asarray(columns["target"], np.float64)[first[known if chosen is None else chosen]]
    return Task((), float(target.mean()), float(target.std()) or 1.0)


def describe_data(store: GraphStore) -> dict[str, Any]:
    """Return what a weights file says of the trees: which family, which features, what length 1 was."""
    return {"family": FAMILY, "feature_version": FEATURE_VERSION, "scale": store.build["scale"]}


def describe_pretrained(config: PretrainStageConfig, store: GraphStore) -> Mapping[str, Any]:
    """Return what the weights of a pretraining say of the model and its data, as plain data."""
    return {
        **describe_data(store),
        "length_range": store.build["length_range"],
        "encoder": read_encoder(config.encoder),
        "growth": config.growth.model_dump(mode="json"),
        "order": config.order.model_dump(mode="json"),
    }
