"""Problems without a matrix: the optimum of scipy, proved, for points of any metric and for rows read in blocks."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment as scipy_assignment
from scipy.spatial.distance import cdist

from kdgat.assignment import CostError, InfeasibleError, certify, solve_blocks, solve_points
from kdgat.assignment.points import METRICS, PointCosts


def optimum(cost: np.ndarray) -> float:
    """Return scipy's optimum."""
    rows, columns = scipy_assignment(cost)
    return float(cost[rows, columns].sum())


@pytest.mark.parametrize("metric", METRICS)
def test_points_of_any_number_and_dimension_are_matched_as_by_scipy(metric: str) -> None:
    rng = np.random.default_rng(0)
    for n, m, dimension in ((1, 1, 2), (1, 9, 1), (60, 60, 1), (200, 200, 2), (90, 130, 3), (130, 90, 2), (70, 70, 6)):
        a, b = rng.normal(size=(n, dimension)), rng.normal(size=(m, dimension))
        cost = cdist(a, b, metric)
        found = solve_points(a, b, metric)
        assert found.cost == pytest.approx(optimum(cost), rel=1e-11)
        certify(cost, found)


def test_points_that_coincide_and_points_on_a_grid_are_matched() -> None:
    rng = np.random.default_rng(0)
    grid = rng.integers(0, 5, (150, 2)).astype(float)
    for a, b in ((grid, rng.permutation(grid)), (grid, rng.integers(0, 5, (150, 2))), (grid * 0.0, grid * 0.0)):
        found = solve_points(a, b, "cityblock")
        assert found.cost == optimum(cdist(a, b, "cityblock"))


def test_clusters_whose_surplus_has_to_travel_far_are_matched() -> None:
    rng = np.random.default_rng(0)
    a = np.vstack([rng.normal(size=(190, 2)), rng.normal(size=(110, 2)) + 50.0])
    b = np.vstack([rng.normal(size=(110, 2)), rng.normal(size=(190, 2)) + 50.0])
    found = solve_points(a, b)
    assert found.cost == pytest.approx(optimum(cdist(a, b)), rel=1e-11)


def test_the_tree_finds_the_columns_that_the_whole_row_has() -> None:
    rng = np.random.default_rng(0)
    for metric in range(len(METRICS)):
        costs = PointCosts(rng.random((40, 2)), rng.random((500, 2)), metric)
        v = rng.normal(size=500)
        costs.refresh(v + 0.1)  # duals of before: they have fallen since
        columns, listed, _, beyond = costs.nearest(np.arange(40), v, 8)
        row = np.empty(500)
        for i in range(40):
            costs.row(i, row)
            assert np.array_equal(np.sort(row - v)[:8], (row - v)[columns[i]])
            assert np.array_equal(row[columns[i]], listed[i])
            assert beyond[i] == np.sort(row - v)[7]


@pytest.mark.parametrize("kind", ["uniform", "whole", "tied", "forbidden"])
@pytest.mark.parametrize("shape", [(150, 150), (90, 160), (160, 90)])
def test_blocks_of_rows_are_matched_as_by_scipy(kind: str, shape: tuple[int, int], monkeypatch) -> None:
    monkeypatch.setattr("kdgat.assignment.large.BLOCK_ENTRIES", 1000)
    rng = np.random.default_rng(0)
    cost = rng.random(shape).astype(np.float32)
    if kind == "whole":
        cost = rng.integers(0, 1000, shape).astype(np.float32)
    if kind == "tied":
        cost = rng.integers(0, 3, shape).astype(np.float32)
    if kind == "forbidden":
        cost[rng.random(shape) < 0.7] = np.inf
        cost[np.arange(90), rng.permutation(90)] = 1.0
        if shape[0] == shape[1]:
            cost[np.arange(150), rng.permutation(150)] = 1.0
    wide = cost.astype(np.float64)
    found = solve_blocks(cost)
    assert found.cost == pytest.approx(optimum(wide), rel=1e-12)
    finite = np.isfinite(wide)
    certify(np.where(finite, wide, 0.0), found, mask=~finite)
    if shape[0] <= shape[1]:
        again = solve_blocks(lambda start, stop: cost[start:stop], shape)
        assert again.columns.tolist() == found.columns.tolist()


def test_rows_that_compete_for_too_few_columns_are_named() -> None:
    cost = np.random.default_rng(0).random((50, 50))
    cost[[3, 8, 20]] = np.inf
    cost[[3, 8, 20], [[5], [7]]] = 1.0
    with pytest.raises(InfeasibleError, match=r"3 rows, among them \d+, may only take 2 columns") as caught:
        solve_blocks(cost)
    assert (caught.value.rows, caught.value.columns) == ([3, 8, 20], [5, 7])
    cost[4] = np.inf
    with pytest.raises(InfeasibleError, match="row 4 has no allowed entry"):
        solve_blocks(cost)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: solve_points(np.ones((3, 2)), np.ones((3, 3))), "a has 2 coordinates a point, b has 3"),
        (lambda: solve_points(np.ones(3), np.ones((3, 3))), r"a has shape \(3,\)"),
        (lambda: solve_points([[1.0], [np.nan]], np.ones((3, 1))), r"a\[1, 0\] is nan"),
        (lambda: solve_points(np.ones((3, 1)), np.ones((3, 1)), "cosine"), "metric is 'cosine': euclidean"),
        (lambda: solve_blocks(lambda start, stop: np.ones((1, 2)), (3, 3)), r"rows\(0, 3\) has shape \(1, 2\)"),
        (lambda: solve_blocks(lambda start, stop: np.ones((3, 2)), (3, 2)), "no more rows than columns"),
        (lambda: solve_blocks(lambda start, stop: np.ones((3, 2))), "shape is None"),
        (lambda: solve_blocks(np.array([[1.0, 2.0], [3.0, np.nan]])), r"cost\[1, 1\] is nan"),
        (lambda: solve_blocks(np.array([[1.0, -np.inf]])), r"cost\[0, 1\] is -inf"),
    ],
)
def test_input_that_cannot_be_used_is_named(action, words: str) -> None:
    with pytest.raises(CostError, match=words):
        action()


@pytest.mark.nightly
def test_hundreds_of_random_problems_without_a_matrix_have_the_optimum_of_scipy() -> None:
    for number in range(600):
        rng = np.random.default_rng(number)
        n, m = rng.integers(1, 120, 2)
        m = n if rng.random() < 0.5 else m
        dimension = rng.integers(1, 4)
        a, b = rng.normal(size=(n, dimension)), rng.normal(size=(m, dimension)) + rng.choice([0.0, 30.0])
        if rng.random() < 0.4:
            a, b = np.rint(2.0 * a), np.rint(2.0 * b)
        metric = METRICS[rng.integers(4)]
        cost = cdist(a, b, metric)
        for found in (solve_points(a, b, metric), solve_blocks(cost), solve_blocks(-cost)):
            sign = -1.0 if found.cost < 0.0 else 1.0
            assert found.cost == pytest.approx(optimum(sign * cost), rel=1e-9, abs=1e-9), number
            certify(sign * cost, found)
