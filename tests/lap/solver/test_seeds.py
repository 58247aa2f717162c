"""Untrained dual seeds: feasible, bounds below the optimum, the better the more work."""

import numpy as np
import pytest

from kdgat.lap.errors import CostError
from kdgat.lap.solver.exact import solve
from kdgat.lap.solver.seeds import column_minima, dual_bound, project, row_minima, sinkhorn

EXAMPLE = np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])


def test_min_trick_of_the_worked_example() -> None:
    assert project(EXAMPLE, [1.0, 0.0, 1.0]).tolist() == [2.0, 0.0, 1.0]
    assert dual_bound(EXAMPLE, [1.0, 0.0, 1.0]) == 5.0


@pytest.mark.parametrize("shape", [(40, 40), (30, 50), (50, 30)])
@pytest.mark.parametrize("seed", [column_minima, row_minima, sinkhorn])
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


def test_sinkhorn_comes_nearer_than_minima() -> None:
    cost = np.random.default_rng(0).random((300, 300))
    optimum = solve(cost).cost
    gaps = {seed.__name__: optimum - sum(part.sum() for part in seed(cost)) for seed in (row_minima, sinkhorn)}
    assert gaps["sinkhorn"] < 0.2 * gaps["row_minima"]


def test_bound_of_infeasible_duals_is_still_a_bound() -> None:
    cost = np.random.default_rng(0).random((30, 20))
    optimum = solve(cost).cost
    assert dual_bound(cost, np.full(30, 100.0), np.full(20, 100.0)) <= optimum
    with pytest.raises(CostError, match=r"u\[0\] is 100"):
        project(cost, np.full(30, 100.0))


def test_constant_matrix_has_no_scale_and_is_solved() -> None:
    assert sum(part.sum() for part in sinkhorn(np.full((4, 4), 3.0))) == 12.0
