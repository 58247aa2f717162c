"""Stages that start from the weights of an earlier run instead of from scratch."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kdgat.can.config import CanConfig
from kdgat.can.inputs import external_inputs, starting_weights
from kdgat.can.plan import FAMILY, START, plan_can
from kdgat.canbus.features import FEATURE_VERSION, RECORDINGS, SCHEMA
from kdgat.graphs import write_store
from kdgat.run import OutputDirectory, PlannedStage, RunError, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.run.plan import make_spec
from kdgat.stage import Failed, FailureKind, Finished, RunDirectory, StageInput, StageInputError, StageSpec
from kdgat.stage.runner import run_stage
from kdgat.training import load_weights
from tests.can.small_runs import make_config
from tests.can.stage_inputs import (
    EDGE_FEATURES,
    FAST,
    NODE_FEATURES,
    SMALL_AUTOENCODER,
    SMALL_GAT,
    kill_after_a_checkpoint,
    make_stage,
    make_stores,
    write_planted_store,
)
from tests.canbus.features.planted_graphs import planted_columns, rounded

STILL = FAST | {"max_epochs": 1, "learning_rate": 1e-9, "warmup_fraction": 0.0}  # what starts there stays there
AUTOENCODER = {"autoencoder": SMALL_AUTOENCODER, "training": FAST}
NORMAL = {"gat": SMALL_GAT, "training": FAST}
STUDENT = {"autoencoder": {"hidden_dims": [8, 4, 2], "heads": 1}, "training": FAST}
FUSION = {"fusion": {"dqn_hidden": [16], "block": 8}, "training": FAST}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageInput]:
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def later(stores: dict[str, StageInput], tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageInput]:
    """Return the stores of another night: other windows, on another scale."""
    folder = tmp_path_factory.mktemp("later")
    changed = dict(stores)
    for seed, name in enumerate(("train", "injected", "validation", "injected_validation"), 20):
        columns = planted_columns(90, seed=seed, attack_share=0.4)
        write_planted_store(folder / f"{name}.h5", columns.replace(x=rounded(columns.x * 2.0 + 1.0)))
        changed[name] = StageInput.of_file(folder / f"{name}.h5")
    return changed


@pytest.fixture(scope="module")
def earlier(stores: dict[str, StageInput], tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """Return one run of each kind of stage."""
    path = tmp_path_factory.mktemp("earlier")

    def run(name: str, config: dict[str, Any], **weights: Path) -> RunDirectory:
        directory = make_stage(path / name, name, config, stores, **weights)
        assert isinstance(run_stage(directory, quiet=True), Finished)
        return directory

    runs = {"autoencoder": run("autoencoder", AUTOENCODER), "normal": run("normal", NORMAL)}
    members = {"autoencoder": runs["autoencoder"].weights_path, "gat": runs["normal"].weights_path}
    runs["fusion"] = run("fusion", FUSION, **members)
    runs["distill_autoencoder"] = run("distill_autoencoder", STUDENT, teacher=members["autoencoder"])
    return runs


def weights_of(directory: RunDirectory) -> dict[str, torch.Tensor]:
    return load_weights(directory)[0]


@pytest.mark.parametrize(
    ("stage", "config"),
    [("autoencoder", AUTOENCODER), ("normal", NORMAL), ("distill_autoencoder", STUDENT)],
)
def test_a_stage_begins_as_exactly_the_model_it_starts_from(
    stage: str,
    config: dict[str, Any],
    earlier: dict[str, RunDirectory],
    later: dict[str, StageInput],
    tmp_path: Path,
) -> None:
    weights = {START: earlier[stage].weights_path}
    if stage == "distill_autoencoder":
        weights["teacher"] = earlier["autoencoder"].weights_path
    directory = make_stage(tmp_path / "still", stage, config | {"training": STILL}, later, **weights)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    before, after = weights_of(earlier[stage]), weights_of(directory)
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)
        if "standardise" in name:
            assert torch.equal(after[name], value), name

    moving = make_stage(tmp_path / "moving", stage, config, later, **weights)
    assert isinstance(run_stage(moving, quiet=True), Finished)
    assert any(not torch.allclose(weights_of(moving)[name], value, atol=1e-4) for name, value in before.items())


def test_a_fusion_starts_from_what_it_learned_and_fits_what_belongs_to_its_members_anew(
    earlier: dict[str, RunDirectory], later: dict[str, StageInput], tmp_path: Path
) -> None:
    members = {"autoencoder": earlier["autoencoder"].weights_path, "gat": earlier["normal"].weights_path}
    weights = {START: earlier["fusion"].weights_path, **members}
    directory = make_stage(tmp_path, "fusion", FUSION | {"training": STILL}, later, **weights)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    before, after = weights_of(earlier["fusion"]), weights_of(directory)
    for name, value in before.items():
        if name.startswith(("mlp.", "dqn.")):
            torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)
    assert not torch.equal(after["standardise.mean"], before["standardise.mean"])


@pytest.mark.processes
@pytest.mark.nightly
def test_a_warm_started_stage_that_is_killed_ends_with_the_same_bytes(
    earlier: dict[str, RunDirectory], later: dict[str, StageInput], tmp_path: Path
) -> None:
    training = FAST | {"max_epochs": 4, "batch_size": 4, "checkpoint_every_steps": 3, "checkpoint_interval_s": 600.0}
    config = NORMAL | {"training": training}
    weights = {START: earlier["normal"].weights_path}
    undisturbed = make_stage(tmp_path / "undisturbed", "normal", config, later, **weights)
    assert isinstance(run_stage(undisturbed, quiet=True), Finished)
    killed = make_stage(tmp_path / "killed", "normal", config, later, **weights)
    kill_after_a_checkpoint(killed, {"OMP_NUM_THREADS": "1", **os.environ})
    assert not killed.is_finished()
    assert killed.newest_checkpoint()
    assert isinstance(run_stage(killed, quiet=True), Finished)
    assert killed.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()
    assert killed.read_metrics() == undisturbed.read_metrics()
    scratch = make_stage(tmp_path / "scratch", "normal", config, later)
    assert isinstance(run_stage(scratch, quiet=True), Finished)
    assert scratch.weights_path.read_bytes() != undisturbed.weights_path.read_bytes()


def failure(directory: RunDirectory) -> str:
    outcome = run_stage(directory, quiet=True)
    assert isinstance(outcome, Failed)
    assert outcome.kind == FailureKind.BAD_INPUT
    assert not directory.weights_path.exists()
    return outcome.evidence


def test_weights_that_do_not_fit_are_refused_and_nothing_starts_from_scratch(
    earlier: dict[str, RunDirectory], later: dict[str, StageInput], tmp_path: Path
) -> None:
    start = {START: earlier["normal"].weights_path}
    wider = make_stage(
        tmp_path / "wider", "normal", {"gat": SMALL_GAT | {"hidden": 16}, "training": FAST}, later, **start
    )
    assert "model.hidden is 16 and was 8" in failure(wider)

    other_kind = make_stage(tmp_path / "kind", "autoencoder", AUTOENCODER, later, **start)
    assert "kind 'attention'" in failure(other_kind)

    fusion = {"fusion": {"dqn_hidden": [24], "block": 8}, "training": FAST}
    members = {"autoencoder": earlier["autoencoder"].weights_path, "gat": earlier["normal"].weights_path}
    weights = {START: earlier["fusion"].weights_path, **members}
    assert "dqn_hidden is [24] and was [16]" in failure(
        make_stage(tmp_path / "fusion", "fusion", fusion, later, **weights)
    )

    columns = planted_columns(90, seed=3, attack_share=0.4)
    narrow = columns.replace(x=columns.x[:, :-1].copy())
    changed = {}
    for name in ("train", "validation"):
        path = tmp_path / f"{name}.h5"
        names = {"node_features": NODE_FEATURES[:-1], "edge_features": EDGE_FEATURES}
        write_store(path, SCHEMA, narrow, **names, attributes={RECORDINGS: ["first", "second"]}, build={})
        changed[name] = StageInput.of_file(path)
    assert "node and edge features" in failure(make_stage(tmp_path / "narrow", "normal", NORMAL, changed, **start))

    gone = tmp_path / "gone.safetensors"
    shutil.copy(earlier["normal"].weights_path, gone)
    directory = make_stage(tmp_path / "gone", "normal", NORMAL, later, **{START: gone})
    gone.unlink()
    assert "gone.safetensors" in failure(directory)


@pytest.fixture
def run(tmp_path: Path) -> OutputDirectory:
    """Return a run whose stages finished; of their directories only what is looked at is there."""
    output = OutputDirectory(tmp_path / "run")
    records = []
    for planned in plan_can(configured()):
        name = planned.name
        config = {"feature_version": FEATURE_VERSION} if planned.stage == "prepare" else {}
        version = planned.code_version
        spec = StageSpec(
            family="can",
            stage=planned.stage,
            scale=planned.scale,
            seed=planned.seed,
            config=config,
            code_version=version,
        )
        directory = RunDirectory(output.stages_path / name).create(spec)
        directory.weights_path.write_bytes(name.encode())
        with directory.lock():
            directory.write_outcome(Finished(artifacts={"weights": directory.weights_path.name}))
        records.append(
            StageRecord(
                name=name,
                stage=planned.stage,
                scale=planned.scale,
                seed=planned.seed,
                directory=f"stages/{name}",
                state=StageState.FINISHED,
            )
        )
    output.write_index(RunIndex(family="can", config={}, stages=records))
    return output


def configured(*overrides: str, **changes: Any) -> CanConfig:
    config = make_config("quick", overrides, data={"dataset": "synthetic", "data_root": "data"})
    return config.model_copy(update=changes)


def test_each_trained_stage_starts_from_its_own_weights_which_are_part_of_its_identity(run: OutputDirectory) -> None:
    config = configured(start_from=str(run.path))
    plan = plan_can(config)
    starts = starting_weights(config, plan)
    trained = {planned.name: planned for planned in plan if planned.stage not in ("prepare", "evaluation")}
    assert starts.keys() == trained.keys()
    for name, start in starts.items():
        assert Path(start.path).read_text() == name

    def identity(planned: PlannedStage, starts: dict[str, StageInput]) -> str:
        planned = PlannedStage(**{**vars(planned), "inputs": {}})
        return make_spec(FAMILY, planned, {}, external_inputs(planned, {}, starts)).identity()

    normal = trained["normal-large-seed0"]
    other = {normal.name: starts["autoencoder-large-seed0"]}
    assert len({identity(normal, starts) for starts in ({}, starts, other)}) == 3
    assert starting_weights(configured(), plan) == {}


def test_a_run_without_the_weights_of_a_stage_cannot_be_started_from(run: OutputDirectory, tmp_path: Path) -> None:
    two_seeds = configured("seeds=[0, 1]", start_from=str(run.path))
    with pytest.raises(StageInputError, match="no finished autoencoder-large-seed1"):
        starting_weights(two_seeds, plan_can(two_seeds))
    nowhere = configured(start_from=str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match="is not the output of a training run"):
        starting_weights(nowhere, plan_can(nowhere))


def test_a_run_on_other_features_cannot_be_started_from(run: OutputDirectory) -> None:
    config = configured(start_from=str(run.path))
    directory = run.stage_directory(run.read_index().record("prepare"))
    spec = directory.read_spec()
    directory.spec_path.unlink()
    directory.create(spec.model_copy(update={"config": {"feature_version": FEATURE_VERSION + 1}}))
    with pytest.raises(StageInputError, match=f"features of version {FEATURE_VERSION + 1}"):
        starting_weights(config, plan_can(config))


def test_a_stage_does_not_start_from_weights_of_a_network_without_edge_features(tmp_path: Path) -> None:
    stores = make_stores(tmp_path)
    edge_free = {"gat": SMALL_GAT | {"edge_features": False}, "training": FAST}
    first = make_stage(tmp_path / "first", "normal", edge_free, stores)
    assert isinstance(run_stage(first, quiet=True), Finished)
    weights = {START: first.weights_path}
    second = make_stage(tmp_path / "second", "normal", edge_free, stores, **weights)
    assert isinstance(run_stage(second, quiet=True), Finished)
    other = make_stage(tmp_path / "other", "normal", NORMAL, stores, **weights)
    outcome = run_stage(other, quiet=True)
    assert isinstance(outcome, Failed)
    assert "edge_features is True and was False" in outcome.evidence
