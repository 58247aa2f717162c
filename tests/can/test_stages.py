"""Every training stage on planted windows, through the runner, as a cluster would run it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kdgat.can.data.pool import PooledStores
from kdgat.can.models.scoring import load_attention, load_autoencoder, score_network
from kdgat.graphs import GraphStore
from kdgat.stage import Failed, FailureKind, Finished, RunDirectory, StageInput
from kdgat.stage.runner import run_stage
from kdgat.training.weights import read_weights
from tests.can.stage_inputs import (
    FAST,
    SMALL_AUTOENCODER,
    SMALL_GAT,
    kill_after_a_checkpoint,
    make_stage,
    make_stores,
    write_planted_store,
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageInput]:
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def autoencoder(stores: dict[str, StageInput], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    path = tmp_path_factory.mktemp("runs") / "autoencoder"
    directory = make_stage(path, "autoencoder", {"autoencoder": SMALL_AUTOENCODER, "training": FAST}, stores)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    return directory


@pytest.fixture(scope="module")
def detector(stores: dict[str, StageInput], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    path = tmp_path_factory.mktemp("runs") / "normal"
    training = FAST | {"max_epochs": 12}
    directory = make_stage(path, "normal", {"gat": SMALL_GAT, "training": training}, stores)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    return directory


def test_the_plain_detector_finds_planted_attacks(detector: RunDirectory, stores: dict[str, StageInput]) -> None:
    outcome = detector.read_outcome()
    assert isinstance(outcome, Finished)
    assert outcome.metrics["validation_f1"] > 0.85
    assert outcome.artifacts["weights"] == "weights.safetensors"
    model, _ = load_attention(detector.weights_path)
    assert outcome.metrics["num_parameters"] == sum(p.numel() for p in model.parameters())
    store = GraphStore.open(stores["test-test_01_known"].path)
    scores = score_network(model, PooledStores([store.columns], features=(store.node_features, store.edge_features)))
    labels = np.asarray(store.columns["y"])
    assert scores["logit"][labels == 1].mean() > scores["logit"][labels == 0].mean() + 2


def test_the_weights_handed_on_are_the_best_ones(detector: RunDirectory) -> None:
    _, description = read_weights(detector.path)
    losses = {row["epoch"]: row["validation_loss"] for row in detector.read_metrics()}
    assert description["best_epoch"] == min(losses, key=lambda epoch: losses[epoch])
    assert description["best_metric"] == pytest.approx(min(losses.values()))


def test_the_autoencoder_is_trained_on_benign_windows_alone(
    autoencoder: RunDirectory, stores: dict[str, StageInput], tmp_path: Path
) -> None:
    """Other attack windows in the training stores change nothing."""
    changed = dict(stores)
    for name in ("train", "injected"):
        columns = GraphStore.open(stores[name].path).columns
        x = np.array(columns.x)
        x[np.repeat(np.asarray(columns["y"]) == 1, columns.node_counts)] *= 16.0  # still float16
        write_planted_store(tmp_path / f"{name}.h5", columns.replace(x=x))
        changed[name] = StageInput.of_file(tmp_path / f"{name}.h5")
    config = {"autoencoder": SMALL_AUTOENCODER, "training": FAST}
    directory = make_stage(tmp_path / "run", "autoencoder", config, changed)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    ours, theirs = read_weights(directory.path)[0], read_weights(autoencoder.path)[0]
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_student_autoencoder_keeps_its_teachers_scale(
    autoencoder: RunDirectory, stores: dict[str, StageInput], tmp_path: Path
) -> None:
    config = {"autoencoder": {"hidden_dims": [8, 4, 2], "heads": 1}, "training": FAST}
    directory = make_stage(tmp_path, "distill_autoencoder", config, stores, teacher=autoencoder.weights_path)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    student, _ = load_autoencoder(directory.weights_path)
    teacher, _ = load_autoencoder(autoencoder.weights_path)
    assert torch.equal(student.standardise_nodes.mean, teacher.standardise_nodes.mean)
    assert student.latent_mean.out_features == 2
    assert {"train_distillation_loss", "validation_loss"} <= set(directory.read_metrics()[0])


def test_a_student_agrees_with_its_teacher(
    detector: RunDirectory, stores: dict[str, StageInput], tmp_path: Path
) -> None:
    config = {
        "gat": {"hidden": 6, "heads": 2, "layers": 1, "stem": 8},
        "training": FAST | {"max_epochs": 12},
        "distillation": {"weight": 1.0},
    }
    directory = make_stage(tmp_path, "distill_gat", config, stores, teacher=detector.weights_path)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    store = GraphStore.open(stores["validation"].path)
    pool = PooledStores([store.columns])
    scores = [score_network(load_attention(run.weights_path)[0], pool)["logit"] for run in (directory, detector)]
    assert np.corrcoef(*scores)[0, 1] > 0.8


def test_missing_weights_are_an_error_that_names_the_file(
    stores: dict[str, StageInput], autoencoder: RunDirectory, tmp_path: Path
) -> None:
    directory = make_stage(tmp_path, "curriculum", {"training": FAST}, stores, autoencoder=autoencoder.weights_path)
    spec = directory.read_spec()
    gone = StageInput(path=str(tmp_path / "gone.safetensors"), sha256=spec.inputs["autoencoder"].sha256)
    moved = RunDirectory(tmp_path / "moved").create(
        spec.model_copy(update={"inputs": spec.inputs | {"autoencoder": gone}})
    )
    outcome = run_stage(moved, quiet=True)
    assert isinstance(outcome, Failed)
    assert outcome.kind == FailureKind.BAD_INPUT
    assert "gone.safetensors" in outcome.evidence


def test_a_spec_without_the_teacher_is_an_error_that_names_the_input(
    stores: dict[str, StageInput], tmp_path: Path
) -> None:
    outcome = run_stage(make_stage(tmp_path, "distill_gat", {"training": FAST}, stores), quiet=True)
    assert isinstance(outcome, Failed)
    assert outcome.kind == FailureKind.BAD_INPUT
    assert "'teacher'" in outcome.evidence


def test_weights_of_another_kind_are_refused(
    stores: dict[str, StageInput], detector: RunDirectory, tmp_path: Path
) -> None:
    directory = make_stage(tmp_path, "curriculum", {"training": FAST}, stores, autoencoder=detector.weights_path)
    outcome = run_stage(directory, quiet=True)
    assert isinstance(outcome, Failed)
    assert "expected 'autoencoder'" in outcome.evidence


def test_training_without_injected_stores_works(stores: dict[str, StageInput], tmp_path: Path) -> None:
    recorded = {name: stores[name] for name in ("train", "validation")}
    directory = make_stage(tmp_path, "normal", {"gat": SMALL_GAT, "training": FAST}, recorded)
    assert isinstance(run_stage(directory, quiet=True), Finished)


def test_an_unknown_key_names_the_nearest_one(stores: dict[str, StageInput], tmp_path: Path) -> None:
    outcome = run_stage(make_stage(tmp_path, "normal", {"gat": {"hiden": 3}}, stores), quiet=True)
    assert isinstance(outcome, Failed)
    assert "did you mean 'hidden'" in outcome.evidence


@pytest.mark.processes
@pytest.mark.nightly  # beside training/test_killed_curriculum.py
def test_a_curriculum_killed_in_mid_epoch_ends_with_the_same_weights(
    stores: dict[str, StageInput], autoencoder: RunDirectory, tmp_path: Path
) -> None:
    config = {
        "gat": SMALL_GAT,
        "training": FAST
        | {"max_epochs": 4, "batch_size": 4, "checkpoint_every_steps": 3, "checkpoint_interval_s": 600.0},
        "curriculum": {"start_ratio": 1.0, "end_ratio": 2.0},
    }
    weights = {"autoencoder": autoencoder.weights_path}
    undisturbed = make_stage(tmp_path / "undisturbed", "curriculum", config, stores, **weights)
    assert isinstance(run_stage(undisturbed, quiet=True), Finished)
    ratios = [row["curriculum_ratio"] for row in undisturbed.read_metrics()]
    assert ratios == sorted(set(ratios))  # logged, and rising
    killed = make_stage(tmp_path / "killed", "curriculum", config, stores, **weights)
    kill_after_a_checkpoint(killed, {"OMP_NUM_THREADS": "1", **os.environ})
    assert not killed.is_finished()
    assert isinstance(run_stage(killed, quiet=True), Finished)
    assert killed.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()
    assert killed.read_metrics() == undisturbed.read_metrics()


@pytest.mark.parametrize(
    ("stage", "section"), [("normal", {"gat": SMALL_GAT}), ("autoencoder", {"autoencoder": SMALL_AUTOENCODER})]
)
def test_mixed_precision_trains_to_a_similar_loss(
    stage: str, section: dict[str, object], stores: dict[str, StageInput], tmp_path: Path
) -> None:
    losses = []
    for precision in ("32-true", "bf16-mixed"):
        training = FAST | {"precision": precision}
        directory = make_stage(tmp_path / precision, stage, section | {"training": training}, stores)
        outcome = run_stage(directory, quiet=True)
        assert isinstance(outcome, Finished)
        losses.append(outcome.metrics["validation_loss"])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


@pytest.mark.processes
@pytest.mark.nightly  # a contract of import-linter says so, too
def test_training_and_evaluation_import_without_what_only_preparation_needs() -> None:
    # Not rich and jinja2, which Lightning and PyG import by themselves.
    missing = ["polars", "numba", "prefect", "plotly", "sklearn", "typer"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "import kdgat.can.stages, kdgat.can.training.networks, kdgat.can.training.fusion, kdgat.can.evaluation.stage"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
