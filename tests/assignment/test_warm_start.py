"""Untrained dual seeds: feasible, bounds below the optimum, the better the more work."""

from collections.abc import Iterator

import numpy as np
import pytest

from kdgat.assignment import Assignment, CostError, certify, solve
from kdgat.assignment.warm_start import column_minima, dual_bound, project, row_minima
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate

EXAMPLE = np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])


def test_min_trick_of_the_worked_example() -> None:
    assert project(EXAMPLE, [1.0, 0.0, 1.0]).tolist() == [2.0, 0.0, 1.0]
    assert dual_bound(EXAMPLE, [1.0, 0.0, 1.0]) == 5.0


@pytest.mark.parametrize("shape", [(40, 40), (30, 50), (50, 30)])
@pytest.mark.parametrize("seed", [column_minima, row_minima])
def test_seeds_are_feasible_and_bound_the_optimum(seed, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    cost, mask = rng.normal(size=shape), rng.random(shape) < 0.5
    mask[np.arange(30), rng.permutation(30)] = False
    for forbidden in (None, mask):
        u, v = seed(cost, mask=forbidden)
        slack = cost - u[:, None] - v
        assert (slack if forbidden is None else slack[~forbidden]).min() >= -1e-12
        optimum = solve(cost, mask=forbidden).cost
        assert u.sum() + v.sum() <= optimum + 1e-9
        assert dual_bound(cost, u, v, forbidden) == pytest.approx(u.sum() + v.sum())
        assert (u if shape[0] > shape[1] else v).max() <= 0 or shape[0] == shape[1]


def test_bound_of_infeasible_duals_is_still_a_bound() -> None:
    cost = np.random.default_rng(0).random((30, 20))
    optimum = solve(cost).cost
    assert dual_bound(cost, np.full(30, 100.0), np.full(20, 100.0)) <= optimum
    with pytest.raises(CostError, match=r"u\[0\] is 100"):
        project(cost, np.full(30, 100.0))


def bad_and_good_seeds(
    rng: np.random.Generator, cost: np.ndarray, found: Assignment
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield duals of rows and of columns that are right, stale, noisy, exchanged, unknown in part, or far off."""
    n, m = cost.shape
    u, v = found.u, found.v
    for noise in (0.0, 0.03, 0.3, 3.0):
        yield f"noise {noise}", u + noise * u.std() * rng.normal(size=n), v + noise * v.std() * rng.normal(size=m)
    yield "in another order", rng.permutation(u), rng.permutation(v)
    for sign in (1.0, -1.0):
        for share in (1, 4):
            rows, columns = np.eye(n)[: share * n // 32 + 1].sum(0), np.eye(m)[: share * m // 32 + 1].sum(0)
            yield "spikes", u + sign * 30.0 * u.std() * rows, v + sign * 30.0 * v.std() * columns
    yield "unknown in part", np.where(rng.random(n) < 0.1, np.nan, u), np.where(rng.random(m) < 0.1, np.nan, v)
    yield "known in part", np.where(rng.random(n) < 0.9, np.nan, u), np.where(rng.random(m) < 0.9, np.nan, v)
    yield "unknown", np.full(n, np.nan), np.full(m, np.nan)
    yield "another problem's", *(duals * np.abs(cost).mean() for duals in (rng.random(n), rng.random(m)))


@pytest.mark.parametrize("family", [name for name in DISTRIBUTIONS if name != "machol_wien"])
def test_no_seed_costs_more_than_two_passes_over_the_matrix(family: str) -> None:
    instance, other = generate(family, 160, 1), generate(family, 160, 2)
    rng = np.random.default_rng(0)
    for changed in (0, 1, 8):
        cost, mask = instance.cost.copy(), None if instance.mask is None else instance.mask.copy()
        lines = rng.permutation(160)[:changed]
        stale = solve(cost, mask=mask)
        for rows, columns in ((lines, slice(None)), (slice(None), lines)):
            cost[rows, columns] = other.cost[rows, columns]
            if mask is not None:
                mask[rows, columns] = (
                    other.mask[rows, columns] & (np.arange(160)[:, None] != np.arange(160))[rows, columns]
                )
            cold = solve(cost, mask=mask)
            for name, u, v in bad_and_good_seeds(rng, cost, stale):
                for duals in ({"u": u, "v": v}, {"u": u}, {"v": v}):
                    found = solve(cost, mask=mask, **duals)
                    assert found.cost == pytest.approx(cold.cost, rel=1e-9), name
                    extra = found.counters.scanned_columns - cold.counters.scanned_columns
                    assert extra <= 2 * cost.size, (name, *duals)


def test_one_row_replaced_costs_one_search_whatever_duals_of_yesterday_are_given() -> None:
    for seed in range(4):
        cost = generate("metric", 256, seed).cost
        before = solve(cost)
        cost[7] = generate("metric", 256, 99).cost[7]
        cold = solve(cost).counters.scanned_columns
        unknown = before.u.copy()
        unknown[7] = np.nan
        for u, v in ((before.u, before.v), (None, before.v), (unknown, before.v), (unknown, None)):
            found = solve(cost, u, v)
            assert found.counters.seed == "prediction"
            assert found.counters.scanned_columns < 0.5 * cold


def test_duals_of_new_lines_may_be_unknown_on_both_sides_of_a_rectangle() -> None:
    rng = np.random.default_rng(0)
    for shape in ((60, 60), (50, 80), (80, 50)):
        cost = rng.random(shape)
        before = solve(cost)
        u, v = before.u.copy(), before.v.copy()
        u[3] = v[5] = np.nan
        assert solve(cost, u, v).seed_bound > solve(cost).seed_bound
        cost[3], cost[:, 5] = rng.random(shape[1]), rng.random(shape[0])
        found = solve(cost, u, v)
        assert found.cost == pytest.approx(solve(cost).cost, rel=1e-12)
        certify(cost, found)
