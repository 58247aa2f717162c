"""Small problems, and those of which most is one constant: what the compiled way answers, and what it leaves."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment as scipy_assignment

from kdgat.assignment import CostError, linear_sum_assignment, quick, solve
from kdgat.lap.instances.distributions import generate


def answered(cost: np.ndarray, mask: np.ndarray | None = None, maximize: bool = False) -> bool:
    return quick.attempt(cost, mask, maximize, True) is not None


def test_usual_types_and_layouts_are_answered_in_one_call() -> None:
    cost = np.random.default_rng(0).random((12, 9))
    fixed = cost.copy()
    fixed.setflags(write=False)
    for matrix in (cost, cost.T, cost[::2], cost.astype(np.float32), (100 * cost).astype(np.int16), cost > 0.5, fixed):
        assert answered(matrix)
        assert answered(matrix, np.zeros(matrix.shape, bool), True)


@pytest.mark.parametrize(
    "cost", [np.zeros((0, 3)), np.array([[np.nan]]), np.array([[1e300, 0.0]]), np.full((2, 2), np.inf), np.zeros(3)]
)
def test_what_is_unusual_is_left_to_the_general_solver(cost: np.ndarray) -> None:
    assert not answered(cost)


def test_costs_beside_which_duals_are_huge_are_left() -> None:
    cost = np.array([[1e-20, 1.0], [1.0, 1e12]])
    assert solve(cost).cost == pytest.approx(2.0, rel=1e-12)
    assert linear_sum_assignment(cost)[1].tolist() == [1, 0]


def test_infinities_forbid_as_in_scipy() -> None:
    cost = np.array([[np.inf, 2.0, 1.0], [3.0, np.inf, 4.0]])
    assert answered(cost)
    for matrix, maximize in ((cost, False), (-cost, True), (cost.T.copy(), False)):
        columns = linear_sum_assignment(matrix, maximize)[1]
        assert columns.tolist() == scipy_assignment(matrix, maximize)[1].tolist()
    with pytest.raises(ValueError, match="-inf"):
        linear_sum_assignment(-cost)


@pytest.mark.parametrize("n", [200, 600])
def test_tracking_looks_at_boxes_that_meet_and_at_nothing_else(n: int) -> None:
    cost = generate("tracking", n, 3).cost
    meetings = int((cost < 1.0).sum())
    found = solve(cost)
    assert found.cost == pytest.approx(cost[scipy_assignment(cost)].sum(), rel=1e-12)
    assert found.counters.scanned_columns < 4 * meetings


def test_births_and_deaths_in_either_direction_and_sign() -> None:
    rng = np.random.default_rng(1)
    cost = generate("tracking", 300, 4).cost[:, :260]
    forbidden = (rng.random(cost.shape) < 0.02) & (cost == 1.0)
    for matrix, mask, sign in ((cost, forbidden, 1.0), (cost.T.copy(), forbidden.T, 1.0), (-cost, forbidden, -1.0)):
        found = solve(matrix, mask=mask, maximize=sign < 0)
        expected = scipy_assignment(np.where(mask, sign * np.inf, matrix), maximize=sign < 0)
        assert found.cost == pytest.approx(matrix[expected].sum(), rel=1e-12)
        assert not mask[found.rows, found.columns].any()
        slack = sign * (matrix - found.u[:, None] - found.v)
        assert slack[~mask].min() >= -1e-12
        assert found.counters.scanned_columns < 20 * 300


def test_gate_as_a_price_takes_no_precision() -> None:
    rng = np.random.default_rng(2)
    points = 100.0 * rng.random((400, 2))
    distance = np.linalg.norm(points[:, None] - points[None] - rng.normal(size=(400, 2)) * 0.5, axis=2)
    gated = np.where(distance < 3.0, distance, 1e6)
    found = solve(gated)
    assert found.cost == pytest.approx(gated[scipy_assignment(gated)].sum(), rel=1e-12)
    assert found.gap <= 1e-9 * found.cost


@pytest.mark.parametrize("place", [(0, 0), (7, 63), (100, 130), (199, 199)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_no_cost_may_be_is_seen_beside_a_background_unless_it_is_forbidden(
    place: tuple[int, int], bad: float
) -> None:
    cost = generate("tracking", 200, 3).cost
    cost[place] = bad
    with pytest.raises(CostError, match=rf"cost\[{place[0]}, {place[1]}\] is {bad}"):
        solve(cost)
    mask = np.zeros(cost.shape, bool)
    mask[place] = True
    found = solve(cost, mask=mask)
    assert found.cost == pytest.approx(solve(np.where(mask, 0.0, cost), mask=mask, method="dense").cost, rel=1e-12)
    assert found.counters.scanned_columns < 20 * 200


@pytest.mark.parametrize("share", [0.05, 0.14, 0.2])
def test_costs_with_few_or_many_entries_beside_a_background_agree_with_scipy(share: float) -> None:
    rng = np.random.default_rng(0)
    for shape in ((200, 200), (150, 201), (230, 190)):
        cost = np.where(rng.random(shape) < share, rng.random(shape) - 0.2, 0.5)
        cost[:, 3] = rng.random(shape[0])  # dearer than the background, too
        assert solve(cost).cost == pytest.approx(cost[scipy_assignment(cost)].sum(), rel=1e-12)


def test_wrong_seed_of_a_problem_with_a_background_is_refused() -> None:
    cost = generate("tracking", 200, 3).cost
    for seed, words in (({"u": np.zeros(3)}, r"u has shape \(3,\)"), ({"v": np.full(200, np.inf)}, r"v\[0\] is inf")):
        with pytest.raises(CostError, match=words):
            solve(cost, **seed)


@pytest.mark.parametrize("size", [19, 20, 21, 25, 159, 160, 161, 399, 401])
def test_sizes_at_which_the_way_changes_agree_with_scipy(size: int) -> None:
    rng = np.random.default_rng(size)
    for shape in ((size, size), (size - 3, size), (size, size - 3)):
        for cost in (
            rng.random(shape),
            rng.integers(0, 9, shape).astype(float),
            np.outer(*map(np.arange, shape)) + 1.0,
        ):
            for maximize in (False, True):
                found = solve(cost, maximize=maximize)
                rows, columns = scipy_assignment(cost, maximize)
                assert found.cost == pytest.approx(cost[rows, columns].sum(), rel=1e-12)
                assert answered(cost, None, maximize)
