import numpy as np
import pytest

from kdgat.assignment import CostError, solve
from kdgat.lap.graphs.bipartite import COST, IS_COLUMN, PRESENT, TARGET, WITNESS, build_graph, find_neighbours
from kdgat.lap.sections import GraphConfig
from tests.lap.graph_examples import GRAPH, labelled_graph, problem


def test_neighbours_are_the_smallest_reduced_costs_of_every_row_and_column():
    cost, mask = problem(70, 70, 1, 0.5)
    found = find_neighbours(cost, mask, GRAPH)
    reduced = np.where(mask, np.inf, cost)
    reduced = reduced - reduced.min(axis=0)
    reduced -= reduced.min(axis=1, keepdims=True)
    np.testing.assert_allclose(found.row_costs, np.sort(reduced, axis=1)[:, :6], atol=1e-6)
    np.testing.assert_allclose(found.column_costs, np.sort(reduced.T, axis=1)[:, :5], atol=1e-6)
    np.testing.assert_allclose(
        np.take_along_axis(reduced, found.row_columns.astype(int), 1), found.row_costs, atol=1e-6
    )
    np.testing.assert_allclose(
        np.take_along_axis(reduced.T, found.column_rows.astype(int), 1), found.column_costs, atol=1e-6
    )


def test_wide_matrices_of_many_widths_have_their_smallest_entries_listed():
    for columns in (1, 7, 15, 16, 17, 31, 33, 100):
        cost, _ = problem(min(columns, 9), columns, 2)
        found = find_neighbours(cost, None, GraphConfig(row_neighbours=4, column_neighbours=3))
        base = cost.min(axis=0) if cost.shape[0] == columns else 0.0
        reduced = cost - base
        reduced = reduced - reduced.min(axis=1, keepdims=True)
        np.testing.assert_allclose(found.row_costs, np.sort(reduced, axis=1)[:, :4], atol=1e-6)
        np.testing.assert_allclose(found.column_costs, np.sort(reduced.T, axis=1)[:, :3], atol=1e-6)


def test_graph_is_valid_and_sums_its_targets_to_the_normalised_optimum():
    cost, _ = problem(40, 40, 3)
    solved = solve(cost)
    graph = build_graph(cost, None, solved.u, solved.v, GRAPH)
    graph.validate()
    scaling = find_neighbours(cost, None, GRAPH).scaling
    base = scaling.row_base.sum() + scaling.column_base.sum()
    assert graph.x[:, TARGET].sum() == pytest.approx((solved.cost - base) / scaling.unit, abs=1e-4)
    assert graph.x[:, IS_COLUMN].sum() == 40
    assert graph.num_edges == 40 * (6 + 5 + GRAPH.witnesses)


def test_no_target_violates_an_edge():
    graph = labelled_graph(50, 4, 0.4)
    source, destination = graph.edge_index
    slack = graph.edge_attr[:, COST] - graph.x[source, TARGET] - graph.x[destination, TARGET]
    assert slack[graph.edge_attr[:, PRESENT] != 0].min() > -1e-5


def test_witnesses_are_the_entries_of_least_slack_and_fill_up_where_few_are_allowed():
    cost, mask = problem(30, 30, 8, 0.8)
    solved = solve(cost, mask=mask)
    config = GraphConfig(witnesses=4)
    graph = build_graph(cost, mask, solved.u, solved.v, config)
    graph.validate()
    chosen = graph.edge_attr[:, PRESENT] == WITNESS
    source, destination = graph.edge_index[:, chosen]
    assert chosen.sum() == 30 * 4
    slack = np.where(mask, np.inf, cost - solved.u[:, None] - solved.v)
    for row in range(30):
        found = np.sort(slack[row, np.unique(source[destination == row]) - 30])
        np.testing.assert_allclose(found, np.sort(slack[row])[: len(found)], atol=1e-9)
        assert len(found) == min(4, np.isfinite(slack[row]).sum())


def test_lists_longer_than_the_matrix_are_filled_up_with_edges_that_do_not_count():
    graph = build_graph(np.array([[1.0, 2.0], [3.0, 5.0]]), None, config=GRAPH)
    graph.validate()
    assert graph.num_edges == 2 * 6 + 2 * 5
    assert graph.edge_attr[:, PRESENT].sum() == 2 * 2 + 2 * 2


def test_scale_and_shift_by_powers_of_two_give_the_same_graph_to_the_bit():
    cost, mask = problem(30, 30, 5, 0.3)
    cost = np.round(cost * 1024) / 1024  # so that the shift loses nothing
    graph, other = build_graph(cost, mask, config=GRAPH), build_graph(4.0 * cost + 8.0, mask, config=GRAPH)
    np.testing.assert_array_equal(graph.edge_attr, other.edge_attr)
    np.testing.assert_array_equal(graph.edge_index, other.edge_index)


def test_potentials_of_columns_change_nothing_in_a_square_matrix():
    cost, _ = problem(30, 30, 6)
    graph, other = build_graph(cost, config=GRAPH), build_graph(cost + np.arange(30.0), config=GRAPH)
    np.testing.assert_allclose(graph.edge_attr, other.edge_attr, atol=1e-5)


def test_a_high_level_of_costs_takes_no_precision_from_the_graph_of_any_shape():
    for num_rows, share in ((30, 0.3), (20, 0.0), (20, 0.3)):
        cost, mask = problem(num_rows, 30, 8, share)
        u, v = np.zeros(num_rows), np.zeros(30)
        low = build_graph(cost, mask, u, v, config=GRAPH)
        high = build_graph(cost + 2.0**30, mask, u + 2.0**30, v, config=GRAPH)
        np.testing.assert_array_equal(high.edge_index, low.edge_index)
        np.testing.assert_allclose(high.edge_attr, low.edge_attr, atol=1e-4)
        if num_rows < 30:  # the level goes into the rows: columns that may stay free have duals of at most 0
            np.testing.assert_allclose(high.x, low.x, atol=1e-4)


def test_a_constant_matrix_and_a_row_without_allowed_entries_give_a_graph():
    build_graph(np.full((8, 8), 3.0), config=GRAPH).validate()
    mask = np.zeros((8, 8), bool)
    mask[2] = mask[:, 5] = True
    build_graph(problem(8, 8, 7)[0], mask, config=GRAPH).validate()


def test_more_rows_than_columns_are_refused_with_the_fix():
    with pytest.raises(CostError, match="transpose"):
        build_graph(np.zeros((3, 2)))
