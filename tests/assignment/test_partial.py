"""Matchings that leave rows out at a price: the best ones, with a proof, of dense and sparse problems, one or many."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array

from kdgat.assignment import CertificateError, CostError, InfeasibleError, certify, solve, solve_batch
from kdgat.assignment.entries import solve_entries

Case = tuple[NDArray[np.float64], NDArray[np.bool_] | None, float, bool]


def cases(count: int) -> list[Case]:
    """Return problems of all shapes, some without rows or columns, half of them with ties."""
    rng = np.random.default_rng(3)
    found: list[Case] = []
    for k in range(count):
        n, m = rng.integers(0, 8, 2)
        cost = rng.integers(-5, 15, (n, m)).astype(float) if k % 2 else rng.random((n, m))
        mask = rng.random((n, m)) < 0.3 if k % 3 else None
        found.append((cost, mask, float(rng.integers(-2, 9)) if k % 2 else float(rng.random()), k % 5 == 0))
    return found


def optimum(cost: NDArray[np.float64], mask: NDArray[np.bool_] | None, price: float, maximize: bool) -> float:
    """Return the best total by scipy, of the matrix with a dummy column for each row."""
    sign = -1.0 if maximize else 1.0
    extended = np.concatenate([sign * cost, np.full((len(cost), len(cost)), sign * price)], axis=1)
    if mask is not None:
        extended[:, : cost.shape[1]][mask] = np.inf
    rows, columns = linear_sum_assignment(extended)
    return sign * float(extended[rows, columns].sum())


def test_partial_matchings_have_the_optimum_of_the_extended_matrix_and_a_proof() -> None:
    for cost, mask, price, maximize in cases(300):
        found = solve(cost, mask=mask, maximize=maximize, unmatched_cost=price)
        assert found.cost == pytest.approx(optimum(cost, mask, price, maximize), abs=1e-9)
        paid = cost[found.rows, found.columns]
        assert found.cost == pytest.approx(paid.sum() + price * (len(cost) - len(paid)), abs=1e-9)
        assert (paid > price).all() if maximize else (paid < price).all()
        assert mask is None or not mask[found.rows, found.columns].any()
        assert found.gap < 1e-9
        certify(cost, found, mask=mask, maximize=maximize, unmatched_cost=price)


def test_so_have_those_of_sparse_matrices() -> None:
    for cost, mask, price, maximize in cases(100):
        if cost.size == 0:
            continue
        rows, columns = np.nonzero(np.ones(cost.shape, bool) if mask is None else ~mask)
        matrix = coo_array((cost[rows, columns], (rows, columns)), shape=cost.shape)
        found = solve_entries(matrix, maximize=maximize, unmatched_cost=price)
        assert found.cost == pytest.approx(optimum(cost, mask, price, maximize), abs=1e-9)
        certify(cost, found, mask=mask, maximize=maximize, unmatched_cost=price)
        assert solve(matrix, maximize=maximize, unmatched_cost=price).cost == pytest.approx(found.cost, abs=1e-9)


@pytest.mark.parametrize("maximize", [False, True])
def test_so_have_those_of_a_batch(maximize: bool) -> None:
    chosen = cases(200)
    masks = [mask for _, mask, _, _ in chosen]
    batch = solve_batch([cost for cost, *_ in chosen], mask=masks, maximize=maximize, unmatched_cost=0.4)
    for k, (cost, mask, _, _) in enumerate(chosen):
        assert batch.cost[k] == pytest.approx(optimum(cost, mask, 0.4, maximize), abs=1e-9)
        certify(cost, batch[k], mask=mask, maximize=maximize, unmatched_cost=0.4)


def test_a_track_without_partner_is_left() -> None:
    cost = np.array([[0.1, 0.9, 0.9], [0.9, 0.2, 0.9], [0.9, 0.9, 0.95]])
    with pytest.raises(InfeasibleError):
        solve(cost, mask=cost > 0.8)
    found = solve(cost, mask=cost > 0.8, unmatched_cost=0.8)
    assert (found.rows.tolist(), found.columns.tolist()) == ([0, 1], [0, 1])
    assert solve(np.where(cost > 0.8, np.inf, cost), unmatched_cost=0.8).rows.tolist() == [0, 1]


def test_two_cheap_pairs_are_given_up_for_none_that_is_dearer_than_to_leave_a_row() -> None:
    found = solve([[1.0, 2.0], [1.0, 100.0]], unmatched_cost=10.0)
    assert (found.cost, found.columns.tolist()) == (3.0, [1, 0])
    assert solve([[1.0, 12.0], [1.0, 100.0]], unmatched_cost=10.0).cost == 11.0


@pytest.mark.parametrize("price", [np.nan, np.inf, -np.inf, "much", [1.0, 2.0]])
def test_a_price_is_a_finite_number(price: object) -> None:
    for way in (solve, lambda cost, **words: solve_batch([cost], **words)):
        with pytest.raises(CostError, match=r"unmatched_cost is .* a finite number is needed"):
            way(np.eye(2), unmatched_cost=price)


def test_what_is_no_number_is_named_with_a_price_as_without() -> None:
    with pytest.raises(CostError, match=r"cost\[1, 0\] is nan"):
        solve([[1.0, 2.0], [np.nan, 3.0]], unmatched_cost=1.0)
    with pytest.raises(CostError, match=r"problem 0: cost\[1, 0\] is nan"):
        solve_batch([[[1.0, 2.0], [np.nan, 3.0]]], unmatched_cost=1.0)


def test_a_wrong_partial_matching_is_not_certified() -> None:
    cost = np.array([[0.1, 0.9], [0.9, 0.2], [0.3, 0.3]])
    found = solve(cost, unmatched_cost=0.5)
    for wrong in (
        {"rows": found.rows[:1], "columns": found.columns[:1]},
        {"columns": found.columns[::-1].copy()},
        {"cost": found.cost - 0.1},
        {"u": found.u - 0.1},
        {"v": found.v + 0.1},
    ):
        with pytest.raises(CertificateError):
            certify(cost, replace(found, **wrong), unmatched_cost=0.5)


@pytest.mark.parametrize("price", [1e2, 1e4, 1e6, 1e9, 1e15])
@pytest.mark.parametrize("maximize", [False, True])
def test_rows_that_outnumber_columns_are_proved_at_any_price(price: float, maximize: bool) -> None:
    rng = np.random.default_rng(0)
    price = -price if maximize else price
    costs = [rng.random((int(rng.integers(3, 20)), int(rng.integers(1, 4)))) for _ in range(20)]
    batch = solve_batch(costs, maximize=maximize, unmatched_cost=price)
    for cost, together in zip(costs, batch, strict=True):
        found = solve(cost, maximize=maximize, unmatched_cost=price)
        for one in (found, together):
            certify(cost, one, maximize=maximize, unmatched_cost=price)
            sign = -1 if maximize else 1
            assert (sign * (one.u[:, None] + one.v) <= sign * cost + 1e-12).all()
        assert set(zip(*linear_sum_assignment(cost, maximize), strict=True)) == set(
            zip(found.rows.tolist(), found.columns.tolist(), strict=True)
        )
