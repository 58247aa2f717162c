"""Sparse matrices: solved from their entries, as scipy's sparse solver solves them, and never made dense."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array, csc_array, csr_array, csr_matrix, dia_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from kdgat.assignment import CostError, InfeasibleError, certify, linear_sum_assignment, solve
from kdgat.assignment.entries import MAX_DENSE, make_dense, solve_entries
from kdgat.assignment.errors import CostTypeError


def random_entries(n: int, m: int, per_row: int, seed: int = 0, *, ties: bool = False) -> csr_array:
    """Return a sparse matrix [n, m] that has a matching of all rows, n <= m."""
    rng = np.random.default_rng(seed)
    rows = np.append(np.repeat(np.arange(n), per_row), np.arange(n))
    columns = np.append(rng.integers(0, m, n * per_row), rng.permutation(m)[:n])
    values = rng.integers(1, 6, rows.size) if ties else rng.random(rows.size) + 0.01
    order = np.unique(rows * m + columns, return_index=True)[1]
    return csr_array((values[order].astype(float), (rows[order], columns[order])), shape=(n, m))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (30, 30), (25, 60), (200, 200), (60, 25)])
@pytest.mark.parametrize("per_row", [1, 4, 40])
def test_entries_have_the_total_of_scipy_and_a_proof(shape: tuple[int, int], per_row: int, ties: bool) -> None:
    n, m = sorted(shape)
    matrix = random_entries(n, m, per_row, ties=ties)
    if shape[0] > shape[1]:
        matrix = matrix.T.tocsr()
    for maximize in (False, True):
        rows, columns = min_weight_full_bipartite_matching(matrix, maximize=maximize)
        found = solve_entries(matrix, maximize=maximize)
        assert found.cost == pytest.approx(matrix[rows, columns].sum())
        assert matrix[found.rows, found.columns].sum() == pytest.approx(found.cost)
        cost, mask = make_dense(matrix)
        certify(cost, found, mask=mask, maximize=maximize)


@pytest.mark.parametrize("kind", [csr_array, csc_array, coo_array, csr_matrix, dia_array])
def test_solve_takes_every_kind_and_a_stored_zero_is_a_cost(kind: Any) -> None:
    cost = np.array([[4.0, 1.0, 0.0], [2.0, 9.0, 0.0], [0.0, 5.0, 3.0]])
    assert solve(kind(cost)).columns.tolist() == [1, 0, 2]
    stored = csr_array(([4.0, 0.0, 2.0, 3.0], ([0, 0, 1, 1], [0, 1, 0, 1])), shape=(2, 2))
    assert solve(stored).cost == 2.0
    assert solve(coo_array(([1.0, 2.0, 4.0, 8.0], ([0, 0, 0, 1], [0, 0, 1, 0])), shape=(2, 2))).cost == 12.0


def test_a_large_sparse_matrix_is_never_made_dense() -> None:
    matrix = random_entries(6000, 6000, 4)
    solve_entries(matrix)  # compiled
    tracemalloc.start()
    found = solve(matrix)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6  # as a matrix, 288 MB
    rows, columns = min_weight_full_bipartite_matching(matrix)
    assert found.cost == pytest.approx(matrix[rows, columns].sum())


def test_rows_that_compete_are_named_in_sparse_matrices_large_and_small() -> None:
    for n in (4, 2000):
        matrix = random_entries(n, n, 3).tolil()
        matrix[[0, 1, 2]] = 0
        matrix[0, 1] = matrix[1, 1] = matrix[2, 1] = 1.0
        for given in (matrix.tocsr(), matrix.T.tocsr()):
            with pytest.raises(InfeasibleError, match=rf"cost matrix is infeasible.*at most {n - 2}") as caught:
                solve(given)
            assert (caught.value.matched, len(caught.value.rows)) == (n - 2, len(caught.value.columns) + 1)


def test_wrong_sparse_matrices_are_explained() -> None:
    large = random_entries(2000, 2000, 3)
    assert large.shape[0] * large.shape[1] > MAX_DENSE
    for value, words in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf"), (1e308, r"1e\+308")):
        wrong = large.copy()
        wrong.data[7] = value
        with pytest.raises(CostError, match=rf"cost\[\d+, \d+\] is {words}: matrix contains invalid numeric entries"):
            solve(wrong)
    with pytest.raises(CostTypeError, match="Cannot cast array data"):
        solve(large.astype(complex))
    with pytest.raises(CostError, match="mask is given beside a sparse matrix"):
        solve(large, mask=np.zeros(large.shape, bool))
    with pytest.raises(CostError, match="method is 'dense'"):
        solve(large, method="dense")
    with pytest.raises(CostError, match=r"u has shape \(3,\)"):
        solve(large, u=np.zeros(3))
    with pytest.raises(CostError, match=r"sparse, expected a matrix \(2-D array\): `solve` takes it"):
        linear_sum_assignment(large)
