"""The stages of the family: `run(spec, directory)` is what `kdgat stage run` calls.

`prepare` reads instances, or generates them. `evaluation` reads test stores and weights. Every other stage trains: the
stages of the progression that its configuration lists, one after the other in this process, each from the best weights
of the one before, the first from the input `start` where there is one. Each has its own inputs `train-<name>` and
`validation-<name>` and its own checkpoints, so that a killed process resumes the one that was cut.
"""

import logging

import torch
from torch import Tensor

from kdgat.base import validate_config
from kdgat.graphs import GraphStore
from kdgat.lap.graphs.bipartite import EDGE_FEATURES, NODE_FEATURES, SCHEMA
from kdgat.lap.models import make_model
from kdgat.lap.names import FAMILY, START, TRAIN, VALIDATION
from kdgat.lap.plan import kind_of
from kdgat.lap.sections import FEATURE_VERSION, TrainingStageConfig
from kdgat.lap.training.objective import WarmStartObjective
from kdgat.lap.training.start import check_lap_start, describe_model
from kdgat.stage import Finished, Outcome, RunDirectory, StageInputError, StageSpec, input_path
from kdgat.training import GraphSource, SeveralFits, load_weights, seed_everything, train_stage, use_expandable_segments
from kdgat.training.weights import first_difference

logger = logging.getLogger(__name__)


def run(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Run one stage, or resume it."""
    use_expandable_segments()
    torch.set_num_threads(1)  # training sets its own
    return kind_of(spec.stage).run(spec, directory)


def run_training(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train the stages of the progression that the configuration lists, each from the weights of the one before.

    Raises:
        StageInputError: if the weights to start from are of another model.
        StageInputError: if a store holds graphs of another configuration.
    """
    config = validate_config(TrainingStageConfig, spec.config)
    weights = read_start(spec, directory, config)
    fits = SeveralFits(directory)
    for one in config.fits:
        training = one.training
        torch.set_num_threads(training.num_threads)
        train, validation = (
            _open_store(spec, directory, f"{split}-{one.name}", one.size, config) for split in (TRAIN, VALIDATION)
        )
        seed_everything(spec.seed)
        model = make_model(config.model)
        if weights is not None:
            model.load_state_dict(weights)
        logger.info(
            "%s: size %d, %d training instances, from %s", one.name, one.size, train.num_graphs,
            "scratch" if weights is None else "the weights before it",
        )  # fmt: skip
        is_last = one is config.fits[-1]
        outcome = train_stage(
            WarmStartObjective(model, config.loss),
            model,
            GraphSource.of(train.columns, training, spec.seed, shuffle=True),
            GraphSource.of(validation.columns, training, spec.seed, shuffle=False),
            training,
            spec,
            directory,
            description=describe_model(config),
            metadata={"size": one.size},
            fit_name=one.name,
            weights_directory=directory if is_last else fits.directory_of(one.name),
        )
        if not isinstance(outcome, Finished):
            return outcome
        own = {name: value for name, value in outcome.metrics.items() if name != "num_parameters"}
        fits.add(one.name, outcome, own if len(config.fits) > 1 else {})
        if is_last:
            fits.metrics |= outcome.metrics
            fits.artifacts |= outcome.artifacts
        weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    return Finished(metrics=fits.metrics, artifacts=fits.artifacts)


def read_start(spec: StageSpec, directory: RunDirectory, config: TrainingStageConfig) -> dict[str, Tensor] | None:
    """Read the weights that the first stage starts from; None if the spec names none; errors of `check_lap_start`."""
    if START not in spec.inputs:
        return None
    path = input_path(spec, directory, START)
    check_lap_start(path, config)
    return load_weights(path)[0]


def _open_store(
    spec: StageSpec, directory: RunDirectory, name: str, size: int, config: TrainingStageConfig
) -> GraphStore:
    path = input_path(spec, directory, name)
    store = GraphStore.open(path, SCHEMA)
    expected = {"family": FAMILY, "feature_version": FEATURE_VERSION, "size": size}
    expected["graph"] = config.graph.model_dump(mode="json")
    different = first_difference(store.build, expected)
    if not different and (store.node_features, store.edge_features) != (NODE_FEATURES, EDGE_FEATURES):
        different = f"its features are {store.node_features}, {store.edge_features}"
    if different:
        raise StageInputError(f"{path} does not fit {spec.stage}, {different}: prepare the instances again")
    return store
