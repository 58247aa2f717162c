import numpy as np
import pytest
import torch
from torch import nn

from kdgat.graphs import GraphColumns, GraphStore, TensorColumns
from kdgat.lap.graphs.bipartite import SCHEMA
from kdgat.lap.graphs.lists import Duals, bound, column_minima, row_minima
from kdgat.lap.models import make_model
from kdgat.lap.sections import GraphConfig, ModelConfig, WarmStartLossConfig
from kdgat.lap.training.objective import WarmStartObjective, targets
from kdgat.stage import RunDirectory
from kdgat.training import GraphSource, TrainingConfig, seed_everything
from kdgat.training.fit import fit
from tests.lap.graph_examples import labelled_graph, write_graphs


@pytest.fixture
def batch():
    graphs = [labelled_graph(size, size, forbidden) for size, forbidden in ((20, 0.0), (31, 0.4), (12, 0.0))]
    return TensorColumns.from_columns(GraphColumns.concatenate(graphs)).gather(np.arange(3))


class Fixed(nn.Module):
    """A model that says what it is told."""

    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds

    def forward(self, lists):
        return self.rounds


def logged(objective, batch):
    seen = {}
    objective.log = lambda name, value, **_: seen.__setitem__(name, float(value.detach()))
    objective.validation_step(batch)
    return seen


def test_optimal_duals_have_no_loss_and_explain_everything(batch):
    _, target = targets(batch)
    objective = WarmStartObjective(Fixed([target]))
    objective.log = lambda *_, **__: None
    assert objective.training_step(batch).abs() < 1e-5
    metrics = logged(objective, batch)
    assert metrics["validation_loss"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["validation_r2"] == pytest.approx(1.0)


def test_a_constant_moved_from_rows_to_columns_changes_no_loss(batch):
    _, target = targets(batch)
    objective = WarmStartObjective(Fixed([Duals(target.u + 0.5, target.v - 0.5)]))
    assert logged(objective, batch)["validation_loss"] == pytest.approx(0.0, abs=1e-5)
    assert logged(objective, batch)["validation_mae"] == pytest.approx(0.0, abs=1e-5)


def test_base_potentials_are_a_relative_gap_of_one(batch):
    lists, target = targets(batch)
    zero = Duals(torch.zeros_like(target.u), torch.zeros_like(target.v))
    metrics = logged(WarmStartObjective(Fixed([zero])), batch)
    assert metrics["validation_relative_gap"] == pytest.approx(1.0)
    assert row_minima(lists, zero.v).min() >= -1e-6


def test_with_all_edges_no_duals_have_a_bound_above_the_optimum():
    config = GraphConfig(row_neighbours=31, column_neighbours=31)
    graphs = [labelled_graph(size, size, forbidden, config) for size, forbidden in ((20, 0.0), (31, 0.4))]
    lists, target = targets(TensorColumns.from_columns(GraphColumns.concatenate(graphs)).gather(np.arange(2)))
    torch.manual_seed(0)
    optimum = bound(target.v, target.u, lists)
    for scale in (0.0, 0.1, 1.0):
        v = target.v + scale * torch.randn_like(target.v)
        u = row_minima(lists, v)
        assert (bound(v, u, lists) <= optimum + 1e-4).all()
        assert (bound(column_minima(lists, u), u, lists) >= bound(v, u, lists) - 1e-4).all()  # the min-trick only gains


def test_before_training_the_rounds_already_go_most_of_the_way_to_the_optimum():
    graphs = [labelled_graph(120, seed, config=GraphConfig()) for seed in range(3)]
    batch = TensorColumns.from_columns(GraphColumns.concatenate(graphs)).gather(np.arange(3))
    seed_everything(0)
    assert logged(WarmStartObjective(make_model(ModelConfig())), batch)["validation_relative_gap"] < 0.2


def test_the_network_learns_and_repeats_bit_for_bit(tmp_path):
    stores = [write_graphs(tmp_path / f"{name}.h5", [16, 24, 20, 28], seed) for name, seed in (("a", 0), ("b", 50))]
    columns = [GraphStore.open(path, SCHEMA).columns for path in stores]
    config = TrainingConfig(
        max_epochs=12, batch_by="edges", max_edges=600, learning_rate=5e-3, patience=None, accelerator="cpu"
    )
    finals, results = [], []
    for attempt in range(2):
        directory = tmp_path / f"run{attempt}"
        directory.mkdir()
        seed_everything(3)
        module = WarmStartObjective(make_model(ModelConfig()), WarmStartLossConfig())
        with torch.no_grad():  # as an auction the untrained network is good at so small problems: start from worse
            for parameter in module.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        train = GraphSource.of(columns[0], config, 3, shuffle=True)
        validation = GraphSource.of(GraphColumns.concatenate(columns), config, 3, shuffle=False)
        results.append(fit(module, train, validation, config, RunDirectory(directory), seed=3))
        finals.append([tensor.clone() for tensor in module.state_dict().values()])
    assert all(torch.equal(one, other) for one, other in zip(*finals, strict=True))
    history = [row["train_loss"] for row in results[0].history]
    assert history[-1] < 0.9 * history[0]


def test_duals_and_loss_stay_float32_under_autocast(batch):
    seed_everything(0)
    objective = WarmStartObjective(make_model(ModelConfig()))
    objective.log = lambda *_, **__: None
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective.training_step(batch)
        rounds = objective.model(targets(batch)[0])
    assert loss.dtype == torch.float32
    assert all(duals.v.dtype == torch.float32 for duals in rounds)
    loss.backward()
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in objective.parameters())
