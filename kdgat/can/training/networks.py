"""The stages that train a network: `autoencoder`, `normal`, `curriculum` and the two that distill."""

import io
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.base import validate_config, write_bytes_atomically
from kdgat.can.data.pool import PooledStores, open_pool
from kdgat.can.kinds import (
    AutoencoderStageConfig,
    CurriculumStageConfig,
    DistillAttentionStageConfig,
    DistillAutoencoderStageConfig,
    NormalStageConfig,
)
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.models.names import ATTENTION, AUTOENCODER
from kdgat.can.models.scoring import (
    check_features,
    describe_model,
    fit_standardisation,
    load_attention,
    load_autoencoder,
    score_network,
    stage_device,
)
from kdgat.can.sections import AttentionConfig, AutoencoderConfig
from kdgat.can.training.curriculum import CurriculumSource
from kdgat.can.training.distillation import TeacherOutputs
from kdgat.can.training.objective import RANKED_METRICS, AutoencoderObjective, DetectionObjective
from kdgat.can.training.sampling import PoolSource, SampledSource
from kdgat.can.training.start import read_start
from kdgat.canbus.features import INJECTED, INJECTED_VALIDATION, TRAIN, VALIDATION
from kdgat.stage import Outcome, RunDirectory, StageSpec, input_path
from kdgat.stage.directory import phase_progress
from kdgat.training import EpochSource, TrainingConfig, seed_everything, train_stage

logger = logging.getLogger(__name__)

TEACHER_FOLDER = "teacher"
DIFFICULTY_FILE = "difficulty.npy"


class _Data:
    """Training and validation windows of a stage."""

    def __init__(self, spec: StageSpec, directory: RunDirectory) -> None:
        self.train = open_pool(spec, directory, TRAIN, INJECTED)
        self.validation = open_pool(spec, directory, VALIDATION, INJECTED_VALIDATION)

    def validation_source(self, training: TrainingConfig, seed: int, benign_only: bool = False) -> PoolSource:
        pool = self.validation
        indices = np.flatnonzero(pool.labels == 0) if benign_only else np.arange(pool.num_graphs)
        return PoolSource(pool, indices, training, seed, shuffle=False)


def _monitored(training: TrainingConfig, pool: PooledStores) -> TrainingConfig:
    """Return settings that select by the loss, where validation lacks a class and an order of windows says nothing."""
    if training.monitor not in RANKED_METRICS or 0 < pool.labels.sum() < pool.num_graphs:
        return training
    logger.warning("validation has windows of one class only: epochs are chosen by validation_loss instead")
    return training.model_copy(update={"monitor": "validation_loss", "mode": "min"})


def run_autoencoder(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train the autoencoder on benign windows, recorded and of virtual vehicles."""
    config = validate_config(AutoencoderStageConfig, spec.config)
    data = _Data(spec, directory)
    pool = data.train
    model = _new_autoencoder(config.autoencoder, pool, spec, directory)
    train = SampledSource(pool, config.sampling, config.training, spec.seed, chosen=pool.labels == 0)
    validation = data.validation_source(config.training, spec.seed, benign_only=True)
    return _train(AutoencoderObjective(model), model, pool, train, validation, config.training, spec, directory)


def run_normal(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train the attention network without a curriculum."""
    config = validate_config(NormalStageConfig, spec.config)
    data = _Data(spec, directory)
    training = _monitored(config.training, data.validation)
    model = _new_attention(config.gat, data.train, spec, directory)
    train = SampledSource(data.train, config.sampling, training, spec.seed)
    validation = data.validation_source(training, spec.seed)
    module = DetectionObjective(model, config.loss)
    return _train(module, model, data.train, train, validation, training, spec, directory)


def run_curriculum(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train the attention network from easy to hard, where the autoencoder says what is hard."""
    config = validate_config(CurriculumStageConfig, spec.config)
    data = _Data(spec, directory)
    training = _monitored(config.training, data.validation)
    scores = _difficulty(input_path(spec, directory, "autoencoder"), data.train, directory)
    model = _new_attention(config.gat, data.train, spec, directory)
    train = CurriculumSource(data.train, scores, config.curriculum, config.sampling, training, spec.seed)
    validation = data.validation_source(training, spec.seed)
    module = DetectionObjective(model, config.loss)
    return _train(module, model, data.train, train, validation, training, spec, directory)


def run_distill_gat(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train a small attention network to agree with a large one."""
    config = validate_config(DistillAttentionStageConfig, spec.config)
    data = _Data(spec, directory)
    training = _monitored(config.training, data.validation)
    teacher_path = input_path(spec, directory, "teacher")
    teacher, description = load_attention(teacher_path)
    check_features(description, data.train, str(teacher_path))
    teacher.to(stage_device())

    def forward(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        output = teacher(batch)
        return {"window_logit": output.window_logit}, {"node_logit": output.node_logit}

    outputs = _teacher_outputs(spec, directory, data.train, forward, None)
    model = _new_attention(config.gat, data.train, spec, directory)
    train = SampledSource(data.train, config.sampling, training, spec.seed, store=outputs)
    validation = data.validation_source(training, spec.seed)
    module = DetectionObjective(model, config.loss, config.distillation)
    return _train(module, model, data.train, train, validation, training, spec, directory)


def run_distill_autoencoder(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train a small autoencoder to agree with a large one on benign windows."""
    config = validate_config(DistillAutoencoderStageConfig, spec.config)
    data = _Data(spec, directory)
    pool, benign = data.train, data.train.labels == 0
    teacher_path = input_path(spec, directory, "teacher")
    teacher, description = load_autoencoder(teacher_path)
    check_features(description, pool, str(teacher_path))
    teacher.to(stage_device())

    def forward(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        output = teacher(batch)
        return {}, {"latent": output.latent_mean, "reconstruction": output.reconstruction}

    outputs = _teacher_outputs(spec, directory, pool, forward, np.flatnonzero(benign))
    # The student's reconstruction is compared with the teacher's, so both must live on one scale.
    student = config.autoencoder.model_copy(update={"clamp": teacher.config.clamp})
    model = _new_autoencoder(student, pool, spec, directory, scale_later=True)
    model.standardise_nodes.load_state_dict(teacher.standardise_nodes.state_dict())
    model.standardise_edges.load_state_dict(teacher.standardise_edges.state_dict())
    train = SampledSource(pool, config.sampling, config.training, spec.seed, benign, outputs)
    validation = data.validation_source(config.training, spec.seed, benign_only=True)
    module = AutoencoderObjective(model, config.distillation, teacher.latent_mean.out_features)
    return _train(module, model, pool, train, validation, config.training, spec, directory)


# A stage that starts from weights also keeps what was fitted to the data they were trained on: the input scaling, and
# the identifiers that have an embedding. Weights of a first layer mean nothing on another scale, an autoencoder's error
# is measured on it, and the model shall begin as exactly the one it came from. A night adds little to the data; where
# traffic has moved so far that its scale is wrong, or new identifiers must be told apart, training from scratch fits
# both anew.


def _new_autoencoder(
    config: AutoencoderConfig, pool: PooledStores, spec: StageSpec, directory: RunDirectory, scale_later: bool = False
) -> GraphAutoencoder:
    """Make an autoencoder with the input scaling of benign training windows, or that which it starts from."""
    start = read_start(spec, directory, AUTOENCODER, {"model": config}, pool)
    seed_everything(spec.seed)
    model = GraphAutoencoder(config, pool.num_node_features, pool.num_edge_features)
    if start is not None:
        model.load_state_dict(start[0])
    elif not scale_later:
        fit_standardisation(model, pool, pool.labels == 0)
    return model


def _new_attention(
    config: AttentionConfig, pool: PooledStores, spec: StageSpec, directory: RunDirectory
) -> GraphAttentionNetwork:
    """Make an attention network with the input scaling of all training windows, or that which it starts from."""
    start = read_start(spec, directory, ATTENTION, {"model": config}, pool)
    seed_everything(spec.seed)
    known_ids: Sequence[int] = ()
    if config.id_embedding:
        known_ids = _benign_ids(pool) if start is None else start[1]["known_ids"]
    model = GraphAttentionNetwork(config, pool.num_node_features, pool.num_edge_features, known_ids)
    if start is not None:
        model.load_state_dict(start[0])
    else:
        fit_standardisation(model, pool, np.ones(pool.num_graphs, bool))
    return model


def _benign_ids(pool: PooledStores) -> list[int]:
    """Return the identifiers of recorded benign windows: those of attacks would make every attack id a known one."""
    ids = [np.zeros(0, np.int32)]
    for name, part in zip(pool.names, pool.parts, strict=True):
        if name == TRAIN:
            benign = np.repeat(np.asarray(part["y"]) == 0, part.node_counts)
            ids.append(np.unique(np.asarray(part["node_id"])[benign]))
    return np.unique(np.concatenate(ids)).tolist()


def _difficulty(autoencoder_path: Path, pool: PooledStores, directory: RunDirectory) -> NDArray[np.float64]:
    """Return the autoencoder's score of every benign window, [G]; computed once, so that a resumed run has the same."""
    path = directory.path / DIFFICULTY_FILE
    if path.is_file():
        return np.load(path)
    model, description = load_autoencoder(autoencoder_path)
    check_features(description, pool, str(autoencoder_path))
    benign = np.flatnonzero(pool.labels == 0)
    scores = np.zeros(pool.num_graphs)
    scores[benign] = score_network(model, pool, benign, phase_progress(directory, "difficulty"))["score"]
    buffer = io.BytesIO()
    np.save(buffer, scores)
    write_bytes_atomically(path, buffer.getvalue())
    return scores


def _teacher_outputs(
    spec: StageSpec,
    directory: RunDirectory,
    pool: PooledStores,
    forward: Callable[[Batch], tuple[dict[str, Tensor], dict[str, Tensor]]],
    indices: NDArray[np.int64] | None,
) -> TeacherOutputs:
    identity = {name: source.sha256 for name, source in sorted(spec.inputs.items())}
    progress = phase_progress(directory, "teacher")
    folder = directory.path / TEACHER_FOLDER
    return TeacherOutputs.compute(folder, pool, forward, identity, indices, progress, stage_device())


def _train(
    module: LightningModule,
    model: GraphAttentionNetwork | GraphAutoencoder,
    pool: PooledStores,
    train: EpochSource,
    validation: EpochSource,
    training: TrainingConfig,
    spec: StageSpec,
    directory: RunDirectory,
) -> Outcome:
    """Fit, and hand on the best weights with what scores other windows by them."""
    return train_stage(
        module, model, train, validation, training, spec, directory, description=describe_model(model, pool)
    )
