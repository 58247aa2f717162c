"""The size of batches is found by measured steps, the batches of an epoch follow it, and a resumed fit keeps it."""

import copy
import logging
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.base import ConfigurationError
from kdgat.graphs import GraphColumns, GraphStore, write_store
from kdgat.stage import RunDirectory
from kdgat.training import BatchLimit, GraphSizes, TrainingConfig, seed_everything
from kdgat.training.batch_size.search import BatchDecision, decision_path, largest_that_fits
from kdgat.training.batch_size.trial import step_trials
from kdgat.training.checkpoints import CheckpointError, Checkpoints
from kdgat.training.device import make_fabric
from kdgat.training.fit import fit
from kdgat.training.random_state import capture_random_state
from kdgat.training.state import FitResult
from tests.training.column_training import (
    NODE_FEATURES,
    SCHEMA,
    RingClassifier,
    RingSource,
    Staircase,
    make_config,
    ring_columns,
)
from tests.training.graph_training import GraphSource, make_graphs

SEED = 5
MODES = ("static", "tuner", "trial")
NODE_COUNTS = np.random.default_rng(1).integers(3, 12, 400)


def train(
    path: Path, module: LightningModule, config: TrainingConfig, node_counts: NDArray[np.int64], peak: int = -1
) -> FitResult:
    """Fit the module to rings, and validate on some of them."""
    path.mkdir(exist_ok=True)
    columns = stored_rings(path, node_counts)
    sources = RingSource(columns, config, peak=peak), RingSource(ring_columns(node_counts[:40]), config, shuffle=False)
    return fit(module, *sources, config, RunDirectory(path), SEED)


def stored_rings(path: Path, node_counts: NDArray[np.int64]) -> GraphColumns:
    """Write rings to a store, unless it is there, and open it."""
    file = path / "graphs.h5"
    if not file.exists():
        write_store(file, SCHEMA, ring_columns(node_counts), node_features=NODE_FEATURES, build={})
    return GraphStore.open(file, SCHEMA).columns


def decision_of(path: Path) -> BatchDecision:
    return BatchDecision.model_validate_json(decision_path(path / "checkpoints").read_bytes())


def same(one: Any, other: Any) -> bool:
    """Compare nested plain values and tensors."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(np.all(one == other))


@pytest.mark.parametrize(
    ("num_graphs", "factor", "size", "num_batches"),
    [(9_364, 0.55, 563, 17), (151_089, 0.55, 563, 269), (203_496, 0.35, 358, 569)],
)
def test_an_epoch_has_as_many_batches_as_follow_from_what_the_tuner_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_graphs: int, factor: float, size: int, num_batches: int
) -> None:
    config = make_config(batch_size=32, safety_factor=factor)
    with caplog.at_level(logging.INFO):
        result = train(tmp_path, Staircase(), config, np.ones(num_graphs, np.int64))
    assert result.history[0]["step"] == num_batches == math.ceil(num_graphs / size)
    found = decision_of(tmp_path)
    assert (found.found, found.size, found.num_batches) == (1024, size, num_batches)
    text = f"tuner found 1,024 graphs, times {factor} (training.safety_factor): {size}; {num_batches} batches per epoch"
    assert text in caplog.text


@pytest.mark.parametrize(("num_graphs", "num_batches"), [(9_364, 293), (151_089, 4_722), (203_496, 6_360)])
def test_an_epoch_has_as_many_batches_as_follow_from_a_batch_size_of_32(
    tmp_path: Path, num_graphs: int, num_batches: int
) -> None:
    source = RingSource(stored_rings(tmp_path, np.ones(num_graphs, np.int64)), TrainingConfig(batch_size=32))
    plan = source.plan(0)
    assert len(plan) == num_batches
    assert sum(map(len, plan)) == num_graphs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", ["graphs", "nodes", "edges"])
def test_what_is_found_fits_the_budget_and_is_what_batches_are_filled_to(tmp_path: Path, mode: str, unit: str) -> None:
    config = make_config(
        batch_size_mode=mode, batch_by=unit, max_nodes=64, max_edges=64, memory_budget="1M", safety_factor=1.0
    )
    result = train(tmp_path, RingClassifier(), config, NODE_COUNTS)
    found = decision_of(tmp_path)
    assert found.unit == unit
    assert found.size == found.found > 8
    source = RingSource(ring_columns(NODE_COUNTS), config)
    source.limit.size = found.size
    assert result.history[0]["step"] == len(source.plan(0)) == found.num_batches > 1
    with step_trials(make_fabric(config), module := RingClassifier(), source, config, SEED) as trials:
        assert module.training
        taken = [trials.measure(indices) or math.inf for indices in source.plan(0)]
        source.limit.size = 4 * found.size
        beyond = [trials.measure(indices) or math.inf for indices in source.plan(0)]
    assert max(taken) <= 1.05 * (1 << 20)
    assert max(beyond) > 1 << 20, "batches are as large as the budget lets them be"


def test_what_is_measured_is_the_step_of_training_in_its_precision_and_its_parts(tmp_path: Path) -> None:
    class Noting(RingClassifier):
        def training_step(self, batch: Batch) -> Tensor:
            assert torch.is_autocast_enabled("cpu")
            assert batch.num_graphs <= 100
            return super().training_step(batch)

    config = make_config(precision="bf16-mixed", accumulate=4, memory_budget="900M")
    result = train(tmp_path, Noting(), config, NODE_COUNTS)
    assert decision_of(tmp_path).found == 400, "in four parts"
    assert result.history[0]["step"] == decision_of(tmp_path).num_batches == 2


@pytest.mark.parametrize("mode", MODES)
def test_half_the_budget_finds_batches_of_about_half_the_size(tmp_path: Path, mode: str) -> None:
    found = []
    for budget in ("1M", "2M"):
        config = make_config(batch_size_mode=mode, memory_budget=budget)
        train(tmp_path / budget, RingClassifier(), config, NODE_COUNTS)
        found.append(decision_of(tmp_path / budget).found)
    assert 1.7 < found[1] / found[0] < 2.5


def test_a_search_leaves_weights_buffers_gradients_and_random_states_as_they_were() -> None:
    seed_everything(SEED)
    config = make_config(accumulate=2)
    module, source = RingClassifier(), RingSource(ring_columns(NODE_COUNTS), config)
    module.head.weight.requires_grad_(False)
    module.norm.eval()
    weights = copy.deepcopy(module.state_dict())
    before = [weights, *copy.deepcopy([module.calls, capture_random_state()])]
    with step_trials(make_fabric(config), module, source, config, SEED) as trials:
        for indices in source.plan(0)[:3]:
            assert trials.measure(indices)
        assert not same(weights, module.state_dict()), "a step moves running statistics"
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter, weights[name]), "all steps are measured with the same weights"
    assert same(before, [module.state_dict(), module.calls, capture_random_state()])
    assert all(parameter.grad is None for parameter in module.parameters())
    assert module.training
    assert not module.norm.training
    assert "log" not in module.__dict__


def test_weights_survive_a_step_whose_gradient_is_not_finite() -> None:
    class Overflowing(RingClassifier):
        def training_step(self, batch: Batch) -> Tensor:
            return super().training_step(batch) * math.inf

    config = make_config()
    module, source = Overflowing(), RingSource(ring_columns(NODE_COUNTS), config)
    before = copy.deepcopy(module.state_dict())
    with step_trials(make_fabric(config), module, source, config, SEED) as trials:
        trials.measure(np.arange(10))
        assert not same(before, module.state_dict())
    assert same(before, module.state_dict())


def test_training_after_a_search_is_that_with_the_found_size_from_the_beginning(tmp_path: Path) -> None:
    searched, given = RingClassifier(), RingClassifier()
    given.load_state_dict(searched.state_dict())
    config = make_config(memory_budget="1M", max_epochs=2)
    result = train(tmp_path / "searched", searched, config, NODE_COUNTS)
    size = decision_of(tmp_path / "searched").size
    fixed = make_config(batch_size_mode="fixed", memory_budget=None, batch_size=size, max_epochs=2)
    expected = train(tmp_path / "given", given, fixed, NODE_COUNTS)
    assert result.history == expected.history
    assert same(searched.state_dict(), given.state_dict())
    assert not decision_path(tmp_path / "given" / "checkpoints").exists()


@pytest.mark.parametrize("hidden", [32, 256])
def test_two_steps_say_what_many_say_also_where_weights_outweigh_small_batches(tmp_path: Path, hidden: int) -> None:
    found = []
    for mode in ("static", "tuner"):
        config = make_config(batch_size_mode=mode, memory_budget="12M", batch_size=4)
        train(tmp_path / mode, RingClassifier(hidden), config, np.repeat(NODE_COUNTS, 5))
        found.append(decision_of(tmp_path / mode).found)
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_the_same_step_takes_the_same_bytes() -> None:
    config = make_config()
    module, source = RingClassifier(), RingSource(ring_columns(NODE_COUNTS), config)
    with step_trials(make_fabric(config), module, source, config, SEED) as trials:
        assert len({trials.measure(np.arange(50)) for _ in range(4)}) == 1


def test_a_curriculum_is_measured_at_its_largest_epoch(tmp_path: Path) -> None:
    config = make_config(max_epochs=5, batch_size=32, safety_factor=0.5)
    module = RingClassifier()
    train(tmp_path, module, config.model_copy(update={"memory_budget": "900M"}), NODE_COUNTS, peak=3)
    found = decision_of(tmp_path)
    assert found.epoch == 3
    assert (found.found, found.size, found.num_batches) == (400, 200, 2), "all graphs of the largest epoch fit at once"
    assert max(map(len, module.measured)) == 400


def test_trial_measures_the_largest_graphs_and_never_one_of_them_twice(tmp_path: Path) -> None:
    module = RingClassifier()
    config = make_config(batch_size_mode="trial", memory_budget="1M", batch_size=16)
    train(tmp_path, module, config, NODE_COUNTS)
    num_trials = len(module.measured) - decision_of(tmp_path).num_batches
    assert num_trials >= 2
    for graphs in module.measured[:num_trials]:
        assert len(np.unique(graphs)) == len(graphs)
        largest = np.sort(NODE_COUNTS)[::-1][: len(graphs)]
        assert NODE_COUNTS[graphs].sum() == largest.sum()


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_above_the_limit_is_measured_alone(tmp_path: Path, mode: str) -> None:
    node_counts = np.array([4] * 60 + [2000])
    config = make_config(batch_size_mode=mode, batch_by="nodes", max_nodes=64, memory_budget="2M", safety_factor=1.0)
    with pytest.raises(ConfigurationError, match=r"memory_budget=2M is too small for .* of 4,000 \(node and edge\)"):
        train(tmp_path / "small", RingClassifier(), config, node_counts)
    larger = config.model_copy(update={"memory_budget": "40M"})
    train(tmp_path / "large", RingClassifier(), larger, node_counts)
    assert decision_of(tmp_path / "large").found == 2240, "all graphs at once"


@pytest.mark.parametrize("mode", MODES)
def test_a_budget_that_is_too_small_for_one_graph_is_named_with_what_would_do(tmp_path: Path, mode: str) -> None:
    config = make_config(batch_size_mode=mode, memory_budget="1M")
    with pytest.raises(ConfigurationError, match=r"set training\.memory_budget to at least 2M, or choose a smaller"):
        train(tmp_path, RingClassifier(hidden=300), config, np.full(20, 5))
    assert not (tmp_path / "checkpoints").exists()


class ShortMemory(RingClassifier):
    """A network on a device with room for so many graphs, which complains the way CUDA does."""

    def training_step(self, batch: Batch) -> Tensor:
        if batch.num_graphs > 50:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return super().training_step(batch)


@pytest.mark.parametrize(("mode", "found"), [("tuner", 50), ("trial", 32)])
def test_what_does_not_fit_the_device_does_not_fit_whatever_the_budget_says(
    tmp_path: Path, mode: str, found: int
) -> None:
    config = make_config(batch_size_mode=mode, memory_budget="900M", safety_factor=1.0)
    train(tmp_path, ShortMemory(), config, NODE_COUNTS)
    assert decision_of(tmp_path).found == found
    found_here = Checkpoints(RunDirectory(tmp_path)).load_newest()
    assert found_here is not None
    assert found_here[1]["state"]["num_parts"] == 1, "no batch had to be cut"


@pytest.mark.parametrize("mode", MODES)
def test_one_graph_that_is_too_large_for_the_device_is_an_error_of_the_device(tmp_path: Path, mode: str) -> None:
    class NoMemory(RingClassifier):
        def training_step(self, batch: Batch) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        train(tmp_path, NoMemory(), make_config(batch_size_mode=mode), NODE_COUNTS)


def test_a_fit_keeps_the_size_that_it_began_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where no checkpoint was written yet it is in a file, afterwards in the checkpoint too."""
    config = make_config(memory_budget="1M", max_epochs=2, checkpoint_every_epoch=True)

    class Killed(RingClassifier):
        def validation_step(self, batch: Batch) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Killed(), config, NODE_COUNTS)
    assert Checkpoints(RunDirectory(tmp_path)).load_newest() is None
    decided = decision_of(tmp_path)

    class Grown(RingClassifier):  # would find another size
        def training_step(self, batch: Batch) -> Tensor:
            torch.empty(int(batch.num_graphs) << 14)
            return super().training_step(batch)

    module = Grown()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        result = train(tmp_path, module, config.model_copy(update={"patience": None}), NODE_COUNTS)
    assert f"as decided before: {decided.describe()}" in caplog.text
    assert max(map(len, module.measured)) == decided.size
    assert [row["step"] for row in result.history] == [decided.num_batches, 2 * decided.num_batches]

    decision_path(tmp_path / "checkpoints").unlink()
    found = Checkpoints(RunDirectory(tmp_path)).load_newest()
    assert found is not None
    assert BatchDecision.model_validate(found[1]["state"]["batches"]) == decided
    again = Grown()
    assert train(tmp_path, again, config, NODE_COUNTS).history == result.history
    assert not again.measured, "nothing is measured again"


def test_a_fit_that_pauses_within_an_epoch_goes_on_with_the_rest_of_its_batches(tmp_path: Path) -> None:
    class Leaving(RingClassifier):
        leaves_after = 0  # steps of training; the steps that measure come before

        def training_step(self, batch: Batch) -> Tensor:
            if self.leaves_after and len(self.measured) == self.leaves_after:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().training_step(batch)

    config = make_config(memory_budget="1M", max_epochs=2)
    seed_everything(SEED)
    undisturbed = Leaving()
    expected = train(tmp_path / "undisturbed", undisturbed, config, NODE_COUNTS)
    num_batches = decision_of(tmp_path / "undisturbed").num_batches
    num_trials = len(undisturbed.measured) - 2 * num_batches

    seed_everything(SEED)
    left = Leaving()
    left.leaves_after = num_trials + num_batches + 2
    assert train(tmp_path / "left", left, config, NODE_COUNTS).paused
    decision_path(tmp_path / "left" / "checkpoints").unlink()  # the checkpoint has it, too
    again = Leaving()
    result = train(tmp_path / "left", again, config, NODE_COUNTS)
    assert result.history == expected.history
    assert same(again.state_dict(), undisturbed.state_dict())
    assert len(again.measured) == num_batches - 3


def test_a_damaged_decision_is_no_reason_to_search_again_in_silence(tmp_path: Path) -> None:
    decision_path(tmp_path / "checkpoints").parent.mkdir()
    decision_path(tmp_path / "checkpoints").write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        train(tmp_path, RingClassifier(), make_config(), NODE_COUNTS)


def test_a_checkpoint_from_before_there_was_a_search_is_resumed(tmp_path: Path) -> None:
    config = make_config(batch_size_mode="fixed", memory_budget=None, batch_size=50, max_epochs=1)
    result = train(tmp_path, RingClassifier(), config, NODE_COUNTS)
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    found = checkpoints.load_newest()
    assert found is not None
    saved = found[1]
    assert not {"batch_size_mode", "memory_budget", "safety_factor"} & saved["config"].keys()
    del saved["state"]["batches"]
    checkpoints.write(saved)
    assert train(tmp_path, RingClassifier(), config, NODE_COUNTS).history == result.history


def test_a_search_needs_a_source_with_a_limit_and_a_budget(tmp_path: Path) -> None:
    config = make_config()
    source = GraphSource(make_graphs(6, seed=1), 2, 0, shuffle=False)
    with pytest.raises(ConfigurationError, match=r"GraphSource has none: set training\.batch_size_mode=fixed"):
        fit(RingClassifier(), source, None, config, RunDirectory(tmp_path), SEED)
    free = config.model_copy(update={"memory_budget": None})
    with pytest.raises(ConfigurationError, match=r"set training\.memory_budget to the memory"):
        train(tmp_path, RingClassifier(), free, NODE_COUNTS)


def test_a_search_ends_when_the_stage_is_asked_to_leave(tmp_path: Path) -> None:
    class Leaving(RingClassifier):
        def training_step(self, batch: Batch) -> Tensor:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().training_step(batch)

    module = Leaving()
    result = train(tmp_path, module, make_config(), NODE_COUNTS)
    assert result.paused
    assert "SIGTERM" in result.reason
    assert len(module.measured) == 1
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("start", [1, 8, 700, 5000])
@pytest.mark.parametrize("limit", [0, 1, 37, 512, 5000, 9000])
def test_the_largest_size_is_found_wherever_the_search_starts(start: int, limit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    assert largest_that_fits(fits, start, 5000) == min(limit, 5000)
    assert max(tried) <= 5000
    assert len(tried) <= 2 * math.log2(5000) + 3
    rough = largest_that_fits(fits, start, 5000, is_exact=False)
    assert min(limit, 5000) / 2 <= rough <= limit


def test_a_limit_of_paths_is_planned_by_paths() -> None:
    sizes = GraphSizes(np.full(10, 2), np.full(10, 1), np.arange(1, 11))
    plan = BatchLimit("paths", 11).plan(np.arange(10), sizes, 0, 0, True)
    assert max(sizes.of("paths")[batch].sum() for batch in plan) <= 11
    assert sizes.elements.tolist() == [2 + paths for paths in range(1, 11)]
    assert len(BatchLimit("paths", 1000, max_graphs=3).plan(np.arange(10), sizes, 0, 0, True)) == 4
