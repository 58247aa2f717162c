"""Largest matchings: as large as scipy's, with a proof, in time that is polynomial on every pattern."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import mmwrite
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from kdgat.assignment import InfeasibleError, Reoptimiser, linear_sum_assignment, read_cost, solve, solve_batch
from kdgat.assignment.bipartite import competing, edges_of, largest_matching


@pytest.mark.parametrize("seed", range(40))
def test_matchings_are_as_large_as_those_of_scipy_and_the_rows_that_compete_are_too_many(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = rng.integers(1, 30, 2)
    allowed = rng.random((n, m)) < rng.random() * 0.3
    start, columns = edges_of(allowed)
    column_of, row_of = largest_matching(start, columns, m)
    matched = np.flatnonzero(column_of >= 0)
    assert matched.size == (maximum_bipartite_matching(csr_array(allowed), perm_type="column") >= 0).sum()
    assert allowed[matched, column_of[matched]].all()
    assert (row_of[column_of[matched]] == matched).all()
    for row in np.flatnonzero(column_of < 0):
        rows, reached = competing(start, columns, row_of, int(row))
        assert rows.sum() == reached.sum() + 1
        assert not allowed[rows][:, ~reached].any()


def ladder(levels: int) -> NDArray[np.bool_]:
    """Return a pattern of layers in pairs, of which each doubles the paths, and one row too many at its end.

    A depth-first search that forgets where it has been looks at 2^levels paths (scipy's issue 26147).
    """
    size = 3 * levels + 2
    allowed = np.zeros((size, size), bool)
    for i in range(levels):
        allowed[i, [i, i - 1 if i else levels]] = True
    allowed[levels, levels + 1] = allowed[levels + 1, levels + 2] = True
    for k in range(levels - 1):
        first = levels + 1 + 2 * k
        allowed[first + 1, first : first + 3] = allowed[first + 2, [first, first + 1, first + 3]] = True
    allowed[size - 2, [size - 3, size - 2]] = True
    allowed[size - 1, levels - 1] = True
    return allowed


WAYS: list[Callable[[NDArray[np.float64], NDArray[np.bool_]], Any]] = [
    lambda cost, mask: solve(cost, mask=mask),
    lambda cost, mask: linear_sum_assignment(np.where(mask, np.inf, cost)),
    lambda cost, mask: linear_sum_assignment(np.where(mask, -np.inf, cost), maximize=True),
    lambda cost, mask: linear_sum_assignment(np.where(mask, np.inf, cost).T),
    lambda cost, mask: solve_batch([cost], mask=[mask]),
    lambda cost, mask: Reoptimiser(cost, mask=mask).solve(),
]


@pytest.mark.parametrize("way", WAYS)
def test_layered_patterns_without_a_matching_are_refused_at_once(
    way: Callable[[NDArray[np.float64], NDArray[np.bool_]], Any],
) -> None:
    allowed = ladder(60)
    with pytest.raises(InfeasibleError, match=r"cost matrix is infeasible: .*at most 181 can be matched") as caught:
        way(np.ones(allowed.shape), ~allowed)
    assert caught.value.matched == 181
    assert abs(len(caught.value.rows) - len(caught.value.columns)) == 1


def test_so_is_a_file_of_such_a_pattern(tmp_path: Path) -> None:
    mmwrite(tmp_path / "a.mtx", coo_array(ladder(60).astype(float)))
    cost, mask = read_cost(tmp_path / "a.mtx")
    with pytest.raises(InfeasibleError, match="at most 181 can be matched"):
        solve(cost, mask=mask)
