"""What saves memory changes nothing else: parts of a batch, recomputation, mixed precision, one model after another."""

import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdgat.run import run_locally
from kdgat.training.averages import Averages
from kdgat.training.batch_size import cut
from kdgat.trees import stages
from kdgat.trees.config import TreesConfig
from kdgat.trees.inputs import trees_run
from kdgat.trees.models.classifier import TreePredictor
from kdgat.trees.models.geometry import GeometryBasis
from kdgat.trees.models.paths import branch_paths
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.sections import EncoderConfig, OrderConfig, PathBudgetConfig, PretrainStageConfig
from kdgat.trees.structure import tours
from kdgat.trees.training.pretraining import PretrainedTrees, PretrainObjective
from kdgat.trees.training.source import TreeBatchSource
from tests.trees.examples import batch_of, columns_of, random_tree

COLUMNS = columns_of([random_tree(seed, 30 + 5 * seed) for seed in range(8)])


def make_objective(*, recompute: bool = False, order_weight: float = 0.0) -> PretrainObjective:
    torch.manual_seed(0)
    config = PretrainStageConfig(
        encoder=EncoderConfig(hidden=16, interactions=2, num_distances=8, recompute=recompute),
        order=OrderConfig(weight=order_weight, width=8),
    )
    return PretrainObjective(PretrainedTrees(config, channels_of((0.1, 5.0), config.growth)), config)


def source_of(max_paths: int | None, batch_size: int = 8) -> TreeBatchSource:
    config = PretrainStageConfig(training={"batch_size": batch_size})
    return TreeBatchSource(
        COLUMNS, config.encoder, PathBudgetConfig(max_paths=max_paths), config.training, 0, shuffle=True
    )


def gradients(objective: PretrainObjective, num_parts: int = 1) -> tuple[float, dict[str, Tensor]]:
    source = source_of(None)
    (indices,) = source.plan(0)
    total = 0.0
    for part in cut(indices, num_parts):
        torch.manual_seed(1)
        with Averages().listen(objective):
            loss = objective.training_step(source.gather(part)) * (len(part) / len(indices))
        loss.backward()
        total += loss.item()
    return total, {name: one.grad for name, one in objective.named_parameters() if one.grad is not None}


def test_the_gradient_of_growth_in_four_parts_is_that_of_the_whole_batch() -> None:
    (loss, whole), (sum_of_losses, parts) = gradients(make_objective()), gradients(make_objective(), 4)
    assert whole.keys() == parts.keys()
    assert sum_of_losses == pytest.approx(loss, abs=1e-5)
    assert max(float((whole[name] - parts[name]).abs().max()) for name in whole) < 1e-5


def test_losses_and_gradients_are_the_same_when_states_are_computed_again() -> None:
    (loss, kept), (again, computed) = (
        gradients(make_objective(recompute=recompute, order_weight=1.0)) for recompute in (False, True)
    )
    assert again == pytest.approx(loss, abs=1e-6)
    assert kept.keys() == computed.keys()
    assert max(float((kept[name] - computed[name]).abs().max()) for name in kept) < 1e-6


def test_geometry_stays_in_full_precision() -> None:
    tree = batch_of(random_tree(0))
    basis, paths = GeometryBasis(8, (0.05, 20.0)), branch_paths(tree)
    full = basis(tree.position, paths)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = basis(tree.position, paths)
        assert torch.nn.Linear(3, 2)(tree.position).dtype == torch.bfloat16
    for name in ("first", "second", "third"):
        assert getattr(mixed, name).dtype == torch.float32
        assert torch.equal(getattr(mixed, name), getattr(full, name))


@pytest.mark.parametrize("max_paths", [150, 400])
def test_batches_stay_within_their_paths_unless_one_tree_is_larger(max_paths: int) -> None:
    source = source_of(max_paths)
    plan = source.plan(0)
    assert sorted(tree for batch in plan for tree in batch) == list(range(8))
    assert all(source.graph_sizes.paths[batch].sum() <= max_paths or len(batch) == 1 for batch in plan)
    assert len(plan) > 1


def test_the_structure_of_trees_is_found_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(None)

    def refuse(*_: object) -> None:
        raise AssertionError("a tour of a batch")

    monkeypatch.setattr(tours, "tour", refuse)
    monkeypatch.setattr("kdgat.trees.structure.tree.tour", refuse)
    objective = make_objective(order_weight=1.0)
    with Averages().listen(objective):
        objective.training_step(source.gather(source.plan(0)[0])).backward()


def test_a_model_is_gone_before_the_next_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[TreePredictor]] = []
    alive: list[int] = []

    class Watched(TreePredictor):
        def __init__(self, *arguments: object, **settings: object) -> None:
            alive.append(sum(one() is not None for one in made))
            super().__init__(*arguments, **settings)  # type: ignore[arg-type]
            made.append(weakref.ref(self))

    monkeypatch.setattr(stages, "TreePredictor", Watched)
    overrides = (
        "data={train: 10, validation: 5, test: 5}", "encoder={hidden: 4, interactions: 1, num_distances: 4}",
        "training.max_epochs=1", "training_of={}", "label_fractions=[0.5, 1.0]", "seeds=[0]",
        "head.least_batches=1",
    )  # fmt: skip
    run_locally(trees_run(TreesConfig.from_preset("quick", {}, overrides)), tmp_path, only=["scratch-seed0"])
    assert alive == [0, 0]
