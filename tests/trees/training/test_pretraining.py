from pathlib import Path
from typing import Any

import pytest
import torch

from kdgat.graphs import GraphStore
from kdgat.run import OutputDirectory
from kdgat.run.plan import create_stage
from kdgat.stage import Finished, Paused, RunDirectory
from kdgat.training import Deadline, seed_everything
from kdgat.training.checkpoints import Checkpoints
from kdgat.training.weights import read_description
from kdgat.trees.config import TreesConfig
from kdgat.trees.family import FAMILY
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.sections import GrowthConfig, OrderConfig, PretrainStageConfig, read_encoder
from kdgat.trees.stages import run_pretrain
from kdgat.trees.training.pretraining import PretrainedTrees, PretrainObjective
from tests.trees.examples import TINY, graphs_of, random_tree, same
from tests.trees.small_runs import run_up_to, small_config

NUM_BATCHES = 2  # of an epoch: 15 trees in batches of 8
EPOCHS = 4
TRAINING = (f"training.max_epochs={EPOCHS}", "order.warmup_epochs=3", "training.checkpoint_every_steps=1")
GROWTH = GrowthConfig(num_lengths=8, num_angles=6, num_radii=8, components=2)


class KilledError(BaseException):
    pass


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    return run_up_to(small_config(), tmp_path_factory.mktemp("prepared"), "prepare")


def begin(path: Path, prepared: dict[str, RunDirectory], *overrides: str) -> RunDirectory:
    config = small_config(*TRAINING, *overrides)
    run = FAMILY.plan(config)
    assert run.plan[1].stage == "pretrain"
    directory, _ = create_stage(run, run.plan[1], prepared, OutputDirectory(path))
    return directory


def pretrain(directory: RunDirectory) -> Any:
    return run_pretrain(directory.read_spec(), directory)


def result(directory: RunDirectory) -> tuple[bytes, bytes]:
    return directory.weights_path.read_bytes(), directory.metrics_path.read_bytes()


@pytest.fixture(scope="module")
def undisturbed(prepared: dict[str, RunDirectory], tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Weights and rows of a pretraining that nobody touched and that saved at its end alone."""
    directory = begin(tmp_path_factory.mktemp("undisturbed"), prepared, "training.checkpoint_every_steps=null")
    assert isinstance(pretrain(directory), Finished)
    assert len(directory.read_metrics()) == EPOCHS
    return result(directory)


@pytest.mark.parametrize("kill_at", [1, 2, 5, EPOCHS * NUM_BATCHES])
def test_a_pretraining_killed_at_a_step_ends_with_the_same_weights_and_rows(
    tmp_path: Path, prepared, undisturbed, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    steps = [0]
    step = PretrainObjective.training_step

    def dying(self: PretrainObjective, batch: Any) -> Any:
        steps[0] += 1
        if steps[0] == kill_at:
            raise KilledError
        return step(self, batch)

    directory = begin(tmp_path, prepared)
    with monkeypatch.context() as patch:
        patch.setattr(PretrainObjective, "training_step", dying)
        with pytest.raises(KilledError):
            pretrain(directory)
    assert bool(directory.newest_checkpoint()) == (kill_at > 1)
    seed_everything(999)  # what a new process has drawn before is its own business
    assert isinstance(pretrain(directory), Finished)
    assert result(directory) == undisturbed


@pytest.mark.parametrize("kill_at", [1, EPOCHS])
def test_a_pretraining_killed_in_a_validation_ends_with_the_same_weights_and_rows(
    tmp_path: Path, prepared, undisturbed, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    """Validation draws pairs, and its end counts the epochs of the warm-up."""
    ends = [0]

    def dying(self: PretrainObjective) -> None:
        ends[0] += 1
        if ends[0] == kill_at:
            raise KilledError
        self.epochs += 1

    directory = begin(tmp_path, prepared)
    with monkeypatch.context() as patch:
        patch.setattr(PretrainObjective, "on_validation_epoch_end", dying)
        with pytest.raises(KilledError):
            pretrain(directory)
    assert isinstance(pretrain(directory), Finished)
    assert result(directory) == undisturbed


def test_a_pretraining_whose_job_ends_pauses_and_goes_on_to_the_same_weights(
    tmp_path: Path, prepared, undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    step = PretrainObjective.training_step

    def slow(self: PretrainObjective, batch: Any) -> Any:
        clock[0] += 10.0
        return step(self, batch)

    def deadline(cls: type[Deadline], margin_floor_s: float = 20.0, *_: Any) -> Deadline:
        return Deadline(end_time=1055.0, margin_floor_s=margin_floor_s, clock=lambda: clock[0])

    directory = begin(tmp_path, prepared)
    with monkeypatch.context() as patch:
        patch.setattr(PretrainObjective, "training_step", slow)
        patch.setattr(Deadline, "from_environment", classmethod(deadline))
        outcome = pretrain(directory)
    assert isinstance(outcome, Paused)
    assert "remain before the job ends" in outcome.reason
    assert isinstance(pretrain(directory), Finished)
    assert result(directory) == undisturbed


def test_the_epochs_of_the_warm_up_are_part_of_the_checkpoint(tmp_path: Path, prepared) -> None:
    directory = begin(tmp_path, prepared)
    pretrain(directory)
    saved = Checkpoints(directory).load_newest()
    assert saved is not None
    counts = [float(value) for name, value in flat(saved[1]) if name == "epochs" and isinstance(value, torch.Tensor)]
    assert max(counts) == EPOCHS


def flat(state: Any, name: str = ""):
    """Yield all values of nested mappings with their last key."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from flat(value, str(key))
    else:
        yield name, state


def test_weights_say_what_they_were_trained_with(tmp_path: Path, prepared) -> None:
    directory = begin(tmp_path, prepared)
    pretrain(directory)
    found = read_description(directory.weights_path)["config"]
    build = GraphStore.open(prepared["prepare"].path / "train.h5").build
    config: TreesConfig = small_config()
    assert found["family"] == "trees"
    assert found["encoder"] == read_encoder(config.encoder)
    assert "recompute" not in found["encoder"]
    assert (found["scale"], found["length_range"]) == (build["scale"], build["length_range"])
    assert found["growth"] == config.growth.model_dump(mode="json")


def make_objective(**order: Any) -> PretrainObjective:
    """Make one that keeps in `seen` what it logs."""
    config = PretrainStageConfig(encoder=TINY, growth=GROWTH, order=OrderConfig(width=8, **order))
    torch.manual_seed(0)
    objective = PretrainObjective(PretrainedTrees(config, channels_of((0.2, 5.0), GROWTH)), config)
    seen: dict[str, float] = {}

    def log(name: str, value: Any, **_: Any) -> None:
        seen[name] = float(torch.as_tensor(value).detach())

    def log_dict(values: dict[str, Any], **_: Any) -> None:
        for name, value in values.items():
            log(name, value)

    objective.log, objective.log_dict, objective.seen = log, log_dict, seen
    return objective


def test_the_weight_of_the_order_rises_over_the_epochs_of_the_warm_up() -> None:
    objective, batch = make_objective(warmup_epochs=3, weight=0.5), graphs_of(random_tree(0), random_tree(1))
    shares = []
    for epoch in range(6):
        torch.manual_seed(7)
        objective.training_step(batch)
        seen = dict(objective.seen)
        shares.append((seen["train_loss"] - seen["train_growth"]) / seen["train_order"])
        assert float(objective.epochs) == epoch
        objective.on_validation_epoch_end()
    assert shares == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5], rel=1e-4)


def test_the_validation_weighs_the_order_fully_from_the_first_epoch() -> None:
    objective, batch = make_objective(warmup_epochs=3, weight=0.5), graphs_of(random_tree(0), random_tree(1))
    objective.validation_step(batch)
    seen = objective.seen
    growth = GROWTH
    expected = (
        seen["validation_length"]
        + growth.angle_weight * seen["validation_angle"]
        + growth.radius_weight * seen["validation_radius"]
        + growth.count_weight * seen["validation_count"]
        + 0.5 * seen["validation_order"]
    )
    assert seen["validation_loss"] == pytest.approx(expected, rel=1e-5)
    assert 0.0 <= seen["validation_order_auc"] <= 1.0


def test_two_halves_of_a_batch_have_together_its_gradient_of_growth() -> None:
    """What `training.accumulate` relies on: means over trees, whatever their sizes."""
    trees = [random_tree(seed, size) for seed, size in enumerate((40, 9, 25, 31))]

    def gradient(*batches: tuple[int, ...]) -> torch.Tensor:
        objective = make_objective(weight=0.0)
        for batch in batches:
            loss = objective.training_step(graphs_of(*(trees[place] for place in batch)))
            (loss / len(batches)).backward()
        return torch.cat([one.grad.flatten() for one in objective.model.parameters() if one.grad is not None])

    whole = gradient((0, 1, 2, 3))
    assert float(whole.abs().max()) > 1e-3
    assert same(gradient((0, 3), (2, 1)), whole, 1e-5)


def test_a_batch_in_two_parts_trains_as_in_one(tmp_path: Path, prepared) -> None:
    rows = []
    for parts in (1, 2):
        overrides = ("order.weight=0", "training.max_epochs=2", f"training.accumulate={parts}")
        directory = begin(tmp_path / str(parts), prepared, *overrides)
        assert isinstance(pretrain(directory), Finished)
        rows.append(directory.read_metrics()[-1])
    for key in ("validation_length", "validation_angle", "validation_count"):
        assert rows[0][key] == pytest.approx(rows[1][key], rel=1e-4)
