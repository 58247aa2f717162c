from __future__ import annotations

import numpy as np
import pytest

from kdgat.assignment import solve
from kdgat.assignment.warm_start import column_minima, dual_bound
from kdgat.lap.evaluation.baselines import neighbour_sweeps
from kdgat.lap.instances.distributions import generate


@pytest.mark.parametrize("family", ["uniform", "sparse", "clustered", "mc64"])
def test_sweeps_close_most_of_the_gap_that_column_minima_leave(family: str) -> None:
    instance = generate(family, 150, 4)
    optimum = solve(instance.cost, mask=instance.mask).cost
    gaps = [
        optimum - dual_bound(instance.cost, u, mask=instance.mask)
        for u, _ in (neighbour_sweeps(instance.cost, instance.mask), column_minima(instance.cost, instance.mask))
    ]
    assert 0 <= gaps[0] < 0.3 * gaps[1]


def test_duals_follow_scale_and_shift_of_the_costs() -> None:
    cost = generate("uniform", 60, 1).cost
    u, v = neighbour_sweeps(cost)
    scaled_u, scaled_v = neighbour_sweeps(4.0 * cost + 1.0)
    assert scaled_u[:, None] + scaled_v[None, :] == pytest.approx(4.0 * (u[:, None] + v[None, :]) + 1.0)


def test_rectangles_and_rows_with_few_allowed_entries_give_finite_duals() -> None:
    generator = np.random.default_rng(2)
    cost, mask = generator.random((20, 50)), generator.random((20, 50)) < 0.9
    mask[np.arange(20), np.arange(20)] = False
    u, v = neighbour_sweeps(cost, mask)
    assert np.isfinite(u).all()
    assert np.isfinite(v).all()
    assert (v <= 0).all()
    assert dual_bound(cost, u, mask=mask) <= solve(cost, mask=mask).cost + 1e-9
