"""Importing matrices of one's own: costs as they are, sparse matrices as logarithms."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import mmwrite
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array, random_array

from kdgat.base import UserError
from kdgat.lap.instances.importing import import_matrices, mc64_costs
from kdgat.lap.instances.inspection import check_record
from kdgat.lap.instances.store import LapStore


def test_matrices_keep_their_costs_and_get_labels_that_are_proved(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    costs = [generator.random((n, n)) for n in (3, 8)]
    for place, cost in enumerate(costs):
        np.save(tmp_path / f"{place}.npy", cost)
    assert import_matrices(tmp_path / "a.h5", [tmp_path / "0.npy", tmp_path / "1.npy"], family="mine") == 2
    store = LapStore.open(tmp_path / "a.h5")
    for index, cost in enumerate(costs):
        record = store.record(index)
        check_record(record, "record")
        assert np.array_equal(record.cost, cost)
        assert (record.family, record.instance.tag, record.instance.parameters) == ("mine", f"{index}.npy", None)
        assert record.optimum == pytest.approx(cost[linear_sum_assignment(cost)].sum())


def test_mc64_finds_the_transversal_with_the_largest_product(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    sparse = random_array((30, 30), density=0.2, rng=generator, data_sampler=generator.normal)
    dense = sparse.toarray() + np.diag(np.full(30, 1e-3))
    mmwrite(tmp_path / "a.mtx", coo_array(dense), precision=17)
    import_matrices(tmp_path / "a.h5", [tmp_path / "a.mtx"], is_mc64=True)
    record = LapStore.open(tmp_path / "a.h5").record(0)
    product = np.log(np.abs(dense[record.rows, record.columns])).sum()
    weights = np.where(dense == 0.0, -1e3, np.log(np.abs(np.where(dense == 0.0, 1.0, dense))))
    best = weights[linear_sum_assignment(weights, maximize=True)].sum()
    assert product == pytest.approx(best)
    assert record.cost.min() == 0.0
    assert record.mask is not None
    assert np.array_equal(record.mask, dense == 0.0)


def test_zeros_and_forbidden_pairs_have_no_logarithm() -> None:
    values, mask = np.array([[2.0, 0.0], [1.0, 4.0]]), np.array([[False, False], [True, False]])
    cost, forbidden = mc64_costs(values, mask)
    assert forbidden is not None
    assert forbidden.tolist() == [[False, True], [True, False]]
    assert cost.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_files_that_cannot_be_imported_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    path, out = tmp_path / "a.npy", tmp_path / "out.h5"
    for matrix, words in (
        (np.ones((2, 3)), "2 x 3: a store holds square matrices"),
        (np.array([[1.0, np.nan], [1.0, 1.0]]), "nan"),
        (np.array([[1.0, np.inf], [1.0, np.inf]]), "1"),
    ):
        np.save(path, matrix)
        with pytest.raises(UserError, match=words) as error:
            import_matrices(out, [path])
        assert str(error.value).startswith(f"{path}: ")
    with pytest.raises(UserError, match="no files"):
        import_matrices(out, [])
    assert not out.exists()
