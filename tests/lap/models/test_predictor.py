import numpy as np
import pytest
import torch

from kdgat.assignment import solve
from kdgat.base import UserError
from kdgat.graphs import GraphColumns, TensorColumns
from kdgat.lap.graphs.bipartite import build_graph
from kdgat.lap.graphs.lists import neighbour_lists
from kdgat.lap.models import make_model
from kdgat.lap.models.predictor import Predictor
from kdgat.lap.sections import FEATURE_VERSION, ModelConfig
from kdgat.stage import RunDirectory
from kdgat.training.weights import save_weights
from tests.lap.graph_examples import GRAPH, problem

SHAPES = [(40, 40, 0.0), (40, 40, 0.5), (25, 40, 0.0), (25, 40, 0.4), (1, 1, 0.0), (2, 5, 0.0)]


def make_predictor(seed=0):
    """Return a network whose every parameter is random, also those that start at zero."""
    torch.manual_seed(seed)
    model = make_model(ModelConfig())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return Predictor(model, GRAPH)


@pytest.mark.parametrize("shape", SHAPES)
def test_permuted_rows_and_columns_give_permuted_duals(shape):
    predictor = make_predictor()
    cost, mask = problem(*shape[:2], 1, shape[2])
    generator = np.random.default_rng(0)
    rows, columns = generator.permutation(shape[0]), generator.permutation(shape[1])
    plain = predictor.predict(cost, mask)
    turned = predictor.predict(cost[rows][:, columns], None if mask is None else mask[rows][:, columns])
    np.testing.assert_allclose(turned.u, plain.u[rows], atol=1e-4)
    np.testing.assert_allclose(turned.v, plain.v[columns], atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_scaled_costs_give_scaled_duals_and_a_shift_goes_into_the_duals(shape):
    predictor = make_predictor()
    cost, mask = problem(*shape[:2], 2, shape[2])
    plain = predictor.predict(cost, mask)
    doubled = predictor.predict(4.0 * cost, mask)
    np.testing.assert_array_equal(doubled.u, 4.0 * plain.u)  # a power of two: to the bit
    np.testing.assert_array_equal(doubled.v, 4.0 * plain.v)
    moved = predictor.predict(3.7 * cost + 11.0, mask)
    sums, moved_sums = plain.u[:, None] + plain.v, moved.u[:, None] + moved.v
    np.testing.assert_allclose(moved_sums, 3.7 * sums + 11.0, atol=1e-4)


def test_more_rows_than_columns_are_the_transposed_problem():
    predictor = make_predictor()
    cost, mask = problem(20, 30, 3, 0.3)
    wide, tall = predictor.predict(cost, mask), predictor.predict(cost.T, mask.T)
    np.testing.assert_array_equal(wide.u, tall.v)
    np.testing.assert_array_equal(wide.v, tall.u)


def test_duals_of_columns_that_may_stay_free_are_not_positive():
    cost, _ = problem(20, 30, 4)
    assert make_predictor().predict(cost).v.max() <= 0.0


def test_a_constant_matrix_gets_finite_duals():
    prediction = make_predictor().predict(np.full((12, 12), 5.0))
    assert np.isfinite(prediction.u).all()
    assert np.isfinite(prediction.v).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-300, 1e-39, 0.0])
def test_costs_too_small_for_the_network_get_finite_duals(scale):
    cost, mask = problem(12, 12, 9, 0.6)
    prediction = make_predictor().predict(scale * cost, mask)
    assert np.isfinite(prediction.u).all()
    assert np.isfinite(prediction.v).all()
    solve(scale * cost, prediction.u, prediction.v, mask=mask)


@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_network_agrees_with_the_one_that_is_trained(shape):
    predictor = make_predictor()
    cost, mask = problem(*shape[:2], 8, shape[2])
    fast = predictor.predict(cost, mask)
    predictor.compiled = None
    slow = predictor.predict(cost, mask)
    np.testing.assert_allclose(fast.u, slow.u, atol=1e-4)
    np.testing.assert_allclose(fast.v, slow.v, atol=1e-4)


def test_an_instance_gets_the_same_duals_alone_and_in_a_batch_of_other_sizes():
    model = make_predictor().model
    graphs = [build_graph(*problem(*shape[:2], 5, shape[2]), config=GRAPH) for shape in SHAPES]
    tensors = TensorColumns.from_columns(GraphColumns.concatenate(graphs))
    with torch.no_grad():
        together = model(neighbour_lists(tensors.gather(np.arange(len(graphs)))))[-1]
        alone = [model(neighbour_lists(tensors.gather(np.array([place]))))[-1] for place in range(len(graphs))]
    torch.testing.assert_close(together.u, torch.cat([duals.u for duals in alone]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(together.v, torch.cat([duals.v for duals in alone]), atol=1e-4, rtol=1e-4)


def test_the_solver_takes_the_prediction_to_the_optimum():
    predictor = make_predictor()
    for shape in SHAPES:
        cost, mask = problem(*shape[:2], 6, shape[2])
        prediction = predictor.predict(cost, mask)
        assert solve(cost, prediction.u, prediction.v, mask=mask).cost == pytest.approx(solve(cost, mask=mask).cost)


def save(directory, model, **changes):
    config = {"family": "lap", "feature_version": FEATURE_VERSION, "graph": GRAPH.model_dump(mode="json")}
    config |= {"kind": "dual", "model": ModelConfig().model_dump(mode="json"), **changes}
    return save_weights(RunDirectory(directory), model, config)


def test_loaded_weights_predict_what_the_saved_model_does(tmp_path):
    predictor = make_predictor()
    loaded = Predictor.load(save(tmp_path, predictor.model))
    cost, _ = problem(30, 30, 7)
    np.testing.assert_array_equal(loaded.predict(cost).u, predictor.predict(cost).u)


@pytest.mark.parametrize(("key", "value"), [("family", "can"), ("feature_version", 0)])
def test_weights_of_another_family_or_of_other_graphs_are_refused_by_name(tmp_path, key, value):
    path = save(tmp_path, make_predictor().model, **{key: value})
    with pytest.raises(UserError, match=key):
        Predictor.load(path)
