"""A cost that has to be paid hides no other: as good as scipy where one stands for forbidden pairs, however large."""

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment as scipy_assignment

from kdgat.assignment import Reoptimiser, certify, linear_sum_assignment, solve, solve_batch, solve_blocks

LARGE = (1e9, 1e15, 1e16, float(sys.maxsize), 1e20, 1e40, 1e200)
MODERATE = 1e5  # as prohibitive among costs below 100, and no reason to round


def draw(rng: np.random.Generator, kind: str) -> np.ndarray:
    """Return costs below 100 with NaN at the pairs that are to be avoided, of which at least one is needed."""
    n, m = rng.integers(2, 9, 2)
    m = max(n, m) + 1 if kind == "wide" else n
    cost = rng.integers(1, 100, (n, m)).astype(float)
    if rng.random() < 0.5:
        cost += rng.random((n, m))
    cost[rng.random((n, m)) < 0.3] = np.nan
    if kind == "several rows":
        cost[: n // 2 + 1] = np.nan
    elif kind == "two rows, one column":
        cost[:2, 1:] = np.nan
    else:
        cost[rng.integers(n)] = np.nan
    return cost


def problems(kind: str, count: int) -> Iterator[tuple[np.ndarray, np.ndarray, bool, float]]:
    """Yield costs, the same with a moderate price, whether they are maximised, and the price."""
    rng = np.random.default_rng(0)
    for number in range(count):
        cost, price = draw(rng, kind), LARGE[number % len(LARGE)]
        is_avoided, maximize = np.isnan(cost), bool(rng.random() < 0.3)
        sign = -1.0 if maximize else 1.0
        if rng.random() < 0.3:
            cost = cost - 50.0
        cost *= sign
        yield np.where(is_avoided, sign * price, cost), np.where(is_avoided, sign * MODERATE, cost), maximize, price


def drop_in(cost: np.ndarray, maximize: bool) -> tuple[np.ndarray, np.ndarray]:
    return linear_sum_assignment(cost, maximize)


def by_lists(cost: np.ndarray, maximize: bool) -> tuple[np.ndarray, np.ndarray]:
    found = solve(cost, method="core", maximize=maximize)
    certify(cost, found, maximize=maximize)
    return found.rows, found.columns


def transposed(cost: np.ndarray, maximize: bool) -> tuple[np.ndarray, np.ndarray]:
    found = solve(cost.T, maximize=maximize)
    return found.columns, found.rows


def in_a_batch(cost: np.ndarray, maximize: bool) -> tuple[np.ndarray, np.ndarray]:
    found = solve_batch([cost, np.ones((1, 1))], maximize=maximize)[0]
    return found.rows, found.columns


def in_blocks(cost: np.ndarray, maximize: bool) -> tuple[np.ndarray, np.ndarray]:
    found = solve_blocks(-cost if maximize else cost)
    return found.rows, found.columns


def after_a_change(cost: np.ndarray, maximize: bool) -> tuple[np.ndarray, np.ndarray]:
    problem = Reoptimiser(np.vstack([np.ones(cost.shape[1]), cost[1:]]), maximize=maximize)
    problem.solve()
    problem.replace_rows([0], cost[:1])
    found = problem.solve()
    return found.rows, found.columns


@pytest.mark.parametrize("kind", ["one row", "several rows", "two rows, one column", "wide"])
@pytest.mark.parametrize("solver", [drop_in, by_lists, transposed, in_a_batch, in_blocks, after_a_change])
def test_other_costs_are_as_low_as_beside_a_moderate_price(
    kind: str, solver: Callable[[np.ndarray, bool], tuple[np.ndarray, np.ndarray]]
) -> None:
    needed = 0
    for cost, moderate, maximize, _ in problems(kind, 140):
        rows, columns = solver(cost, maximize)
        paid, best = moderate[rows, columns], moderate[scipy_assignment(moderate, maximize)]
        needed += np.abs(best).max() == MODERATE
        assert paid.sum() == pytest.approx(best.sum(), rel=0, abs=1e-9)
    assert needed > 40


def test_prices_on_three_levels() -> None:
    cost = np.array([[1e200, 1e200, 1e200], [1e20, 1e20, 1e20], [1.0, 7.0, 9.0]])
    assert solve(cost).columns[2] == 0
    assert solve(-cost, maximize=True).columns[2] == 0


def test_cases_of_others() -> None:
    assert solve([[1e20, 1e20], [1.0, 7.0]]).columns.tolist() == [1, 0]
    big = np.where(np.random.default_rng(0).random((300, 300)) < 0.02, 0.5, 1.0)  # mostly one constant
    big[7] = 1e20
    big[8] = np.random.default_rng(1).random(300)
    rows, columns = linear_sum_assignment(big)
    best = np.where(big == 1e20, 1e3, big)
    assert best[rows, columns].sum() == pytest.approx(best[scipy_assignment(best)].sum())
