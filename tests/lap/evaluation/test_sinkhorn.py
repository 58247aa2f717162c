"""Sinkhorn's duals are feasible, nearer to the optimum than minima, and defined where all costs are the same."""

import numpy as np
import pytest

from kdgat.assignment import solve
from kdgat.assignment.warm_start import dual_bound, row_minima
from kdgat.lap.evaluation.sinkhorn import sinkhorn


@pytest.mark.parametrize("shape", [(40, 40), (30, 50), (50, 30)])
def test_duals_are_feasible(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    cost, mask = rng.normal(size=shape), rng.random(shape) < 0.5
    mask[np.arange(30), rng.permutation(30)] = False
    for forbidden in (None, mask):
        u, v = sinkhorn(cost, mask=forbidden)
        slack = cost - u[:, None] - v
        assert (slack if forbidden is None else slack[~forbidden]).min() >= -1e-12
        assert u.sum() + v.sum() <= solve(cost, mask=forbidden).cost + 1e-9
        assert dual_bound(cost, u, v, forbidden) == pytest.approx(u.sum() + v.sum())


def test_sinkhorn_comes_nearer_than_minima() -> None:
    cost = np.random.default_rng(0).random((300, 300))
    optimum = solve(cost).cost
    gaps = {seed.__name__: optimum - sum(part.sum() for part in seed(cost)) for seed in (row_minima, sinkhorn)}
    assert gaps["sinkhorn"] < 0.2 * gaps["row_minima"]


def test_constant_matrix_has_no_scale_and_is_solved() -> None:
    assert sum(part.sum() for part in sinkhorn(np.full((4, 4), 3.0))) == 12.0
