"""Reading cost matrices: every format gives the same costs, and what is wrong with a file is said."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import mmread, mmwrite, savemat
from scipy.sparse import coo_array, csc_array, save_npz

from kdgat.assignment import read_cost, solve
from kdgat.assignment.files import read_matrix
from kdgat.assignment.orlibrary import read_orlibrary
from kdgat.base import UserError
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.schema1 import read_record
from kdgat.lap.instances.store import write_store

MTX = b"%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n1 2 7\n2 1 2\n"
OR_LIBRARY = Path(__file__).parents[3] / "shared" / "data" / "lap"


@pytest.mark.parametrize(("name", "optimum"), [("assign500.txt", 991.0), ("assign600.txt", 1176.0)])
def test_or_library_problems_have_their_published_optimum(name: str, optimum: float) -> None:
    path = OR_LIBRARY / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    cost, mask = read_cost(path)
    assert mask is None
    assert solve(cost).cost == optimum


@given(
    costs=st.integers(1, 5).flatmap(lambda n: st.lists(st.integers(-99, 99), min_size=n * n, max_size=n * n)),
    width=st.integers(1, 7),
)
@settings(max_examples=60, deadline=None)
def test_or_library_costs_may_be_broken_into_lines_anywhere(
    costs: list[int], width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    n = int(np.sqrt(len(costs)))
    lines = [" ".join(map(str, costs[start : start + width])) for start in range(0, len(costs), width)]
    path = tmp_path_factory.mktemp("or") / "problem.txt"
    path.write_text(f" {n} \n " + "\n ".join(lines) + "\n")
    cost, mask = read_orlibrary(path)
    assert mask is None
    assert np.array_equal(cost, np.array(costs, dtype=float).reshape(n, n))


def test_or_library_arcs_forbid_the_pairs_that_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("3\n1 1 5\n1 2 7\n2 3 1\n3 1 2\n")
    cost, mask = read_cost(tmp_path / "a.txt")
    assert mask is not None
    assert np.argwhere(~mask).tolist() == [[0, 0], [0, 1], [1, 2], [2, 0]]
    assert solve(cost, mask=mask).cost == 10.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("3\n1 2 3 4 5 6 7 8\n", "8 numbers follow n = 3: expected 9 costs.*cut off"),
        ("2\n1 2 x 4\n", "word 4 is 'x', expected a number"),
        ("0\n1 2\n", "begins with 0"),
        ("4\n1 1 5\n1 1 6\n", "the arc from row 1 to column 1 is given twice"),
        ("4\n1 5 5\n", "3 numbers follow n = 4"),
    ],
)
def test_wrong_or_library_files_are_explained(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=rf"a\.txt: .*{words}"):
        read_cost(tmp_path / "a.txt")


def test_all_formats_give_the_same_costs(tmp_path: Path) -> None:
    cost = np.random.default_rng(0).integers(-50, 50, (4, 6)) / 8
    np.save(tmp_path / "a.npy", cost)
    np.savez(tmp_path / "a.npz", cost)
    np.savetxt(tmp_path / "a.csv", cost, delimiter=",", fmt="%.17g")
    mmwrite(tmp_path / "a.mtx", cost, precision=17)
    for suffix in ("npy", "npz", "csv", "mtx"):
        found, mask = read_cost(tmp_path / f"a.{suffix}")
        assert mask is None
        assert found.dtype == np.float64
        assert np.array_equal(found, cost)


def test_an_absent_entry_of_a_sparse_matrix_and_infinity_forbid_a_pair(tmp_path: Path) -> None:
    mmwrite(tmp_path / "a.mtx", coo_array(([3.0, 0.0, 2.0], ([0, 1, 1], [1, 0, 1])), shape=(2, 2)))
    cost, mask = read_cost(tmp_path / "a.mtx")
    assert mask is not None
    assert mask.tolist() == [[True, False], [False, False]]
    assert cost.tolist() == [[0.0, 3.0], [0.0, 2.0]]
    np.save(tmp_path / "a.npy", np.array([[np.inf, 3.0], [0.0, 2.0]]))
    cost, other = read_cost(tmp_path / "a.npy")
    assert np.array_equal(mask, other)
    assert cost.tolist() == [[0.0, 3.0], [0.0, 2.0]]


def test_an_array_of_an_npz_file_is_chosen_by_key_or_by_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", first=np.zeros((2, 2)), second=np.ones((2, 2)))
    assert read_cost(tmp_path / "a.npz", key="second")[0].all()
    with pytest.raises(UserError, match=r"--key and one of first, second"):
        read_cost(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"no array 'third'.*first, second"):
        read_cost(tmp_path / "a.npz", key="third")
    np.savez(tmp_path / "b.npz", cost=np.ones((2, 2)), mask=np.eye(2, dtype=bool))
    cost, mask = read_cost(tmp_path / "b.npz")
    assert mask is not None
    assert (mask.tolist(), cost.tolist()) == ([[True, False], [False, True]], [[0.0, 1.0], [1.0, 0.0]])


def test_a_record_of_a_store_is_chosen_by_index(tmp_path: Path) -> None:
    write_store(tmp_path / "one.h5", [generate("sparse", 6, 1)])
    write_store(tmp_path / "two.h5", [generate("metric", 6, 1), generate("sparse", 6, 1)])
    with pytest.raises(UserError, match=r"two\.h5: holds 2 problems: choose one by --index, from 0 to 1"):
        read_cost(tmp_path / "two.h5", read_record=read_record)
    first, second = (
        read_cost(tmp_path / f"{name}.h5", index, read_record=read_record)
        for name, index in (("one", None), ("two", 1))
    )
    assert np.array_equal(first[0], second[0])
    assert first[1] is not None
    assert second[1] is not None
    assert np.array_equal(first[1], second[1])


def write_hdf5(path: Path, **arrays: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
    return path


COSTS = np.random.default_rng(0).integers(1, 30, (4, 4)) / 4


@pytest.mark.parametrize("name", ["C", "D", "cost", "K"])
def test_a_plain_matrix_in_an_hdf5_file_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    path = write_hdf5(tmp_path / "a.h5", **{name: COSTS, "labels": np.arange(4)})
    cost, mask = read_cost(path, read_record=read_record)
    assert mask is None
    assert np.array_equal(cost, COSTS)
    with pytest.raises(UserError, match=r"index 0 names a record of kdgat lap generate, and there is none"):
        read_cost(path, 0, read_record=read_record)


def test_of_several_matrices_in_an_hdf5_file_one_is_chosen_by_key(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", first=COSTS, **{"group/second": COSTS[:2]})
    with pytest.raises(UserError, match=r"choose one by --key, of first \(4, 4\), group/second \(2, 4\)"):
        read_cost(path)
    assert np.array_equal(read_cost(path, key="group/second")[0], COSTS[:2])
    with pytest.raises(UserError, match=r"no matrix 'third': choose one"):
        read_cost(path, key="third")
    write_hdf5(tmp_path / "b.h5", cost=COSTS, mask=COSTS > 5, other=COSTS)
    mask = read_cost(tmp_path / "b.h5")[1]
    assert mask is not None
    assert np.array_equal(mask, COSTS > 5)


def test_an_hdf5_file_without_a_matrix_says_what_it_holds(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5", line=np.arange(3), cube=np.zeros((2, 3, 3)))
    with pytest.raises(
        UserError, match=r"no matrix of numbers .*'cube' \(2, 3, 3\), 'line' \(3,\); a file of problems is"
    ):
        read_cost(tmp_path / "a.h5", read_record=read_record)


def write_matlab73(path: Path) -> Path:
    """Write a matrix and a sparse one as MATLAB does, column by column and as a group."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("K", data=COSTS[:3].T).attrs["MATLAB_class"] = np.bytes_("double")
        group, matrix = file.create_group("S"), csc_array(np.where(COSTS > 4, COSTS, 0))
        group.attrs["MATLAB_class"], group.attrs["MATLAB_sparse"] = np.bytes_("double"), np.uint64(4)
        group["data"], group["ir"], group["jc"] = matrix.data, matrix.indices, matrix.indptr
        file["#refs#/a"] = COSTS
    return path


def test_variables_of_matlab_are_read_as_matlab_shows_them(tmp_path: Path) -> None:
    path = write_matlab73(tmp_path / "a.mat")
    assert np.array_equal(read_cost(path, key="K")[0], COSTS[:3])
    cost, mask = read_cost(path, key="S")
    assert mask is not None
    assert np.array_equal(mask, COSTS <= 4)
    assert np.array_equal(cost[~mask], COSTS[~mask])
    with pytest.raises(UserError, match=r"--key, of K \(3, 4\), S"):
        read_cost(path)
    savemat(tmp_path / "b.mat", {"K": COSTS})
    with pytest.raises(UserError, match=r"no MATLAB file of version 7\.3.*save\(\.\.\., '-v7\.3'\)"):
        read_cost(tmp_path / "b.mat")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_a_sparse_matrix_of_scipy_forbids_where_nothing_is_stored(tmp_path: Path, kind: str) -> None:
    save_npz(tmp_path / "a.npz", csc_array(np.where(COSTS > 4, COSTS, 0)).asformat(kind))
    cost, mask = read_cost(tmp_path / "a.npz")
    assert mask is not None
    assert np.array_equal(mask, COSTS <= 4)
    assert np.array_equal(cost[~mask], COSTS[~mask])
    assert read_matrix(tmp_path / "a.npz").nnz == (COSTS > 4).sum()


def test_files_that_hold_no_matrix_are_explained(tmp_path: Path) -> None:
    for name, content, words in (
        ("a.npy", b"nothing", "not a NumPy array file"),
        ("a.npz", b"nothing", "not an .npz file"),
        ("a.mtx", b"nothing", "not a Matrix Market file"),
        ("a.csv", b"1,2\n3,x\n", "row 2, column 2 is 'x', expected a number.*no heading"),
        ("a.csv", b"1,2\n3\n", "row 2 has 1 columns, row 1 has 2: give rows of one length"),
        ("a.csv", b"\n", "empty; give rows of numbers"),
        ("a.csv", b"\xff1,2", "is no text in UTF-8 .*: save it as UTF-8"),
        ("a.txt", b"\xff\xfe1", "is text in UTF-16: save it as UTF-8"),
        ("a.pdf", b"1", "unknown format; give .npy"),
        ("a.mat", b"nothing", "no MATLAB file"),
        ("a.npy", b"PK\x03\x04", "several arrays.*rename it to .npz"),
        ("a.npz", b"\x93NUMPY", "a single array.*rename it to .npy"),
        ("a.mtx", MTX.replace(b"7", b"1e400"), "an entry is '1e400', beyond the largest number"),
        ("a.mtx", MTX.replace(b"7", b"-inf"), "an entry is '-inf'"),
        ("a.mtx", MTX.replace(b"7", b"nan"), "the entry of row 1 and column 2 is nan"),
        ("a.txt", b"2\n1e400 1 2 3\n", "word 2 is '1e400', beyond"),
        ("a.txt", b"2 1 2 3 4\n", "a matrix of 1 x 5, or an OR-Library problem of 2 rows: write the number"),
        ("a.h5", b"1", "not an HDF5 file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=words) as error:
            read_cost(tmp_path / name, read_record=read_record)
        assert str(error.value).startswith(str(tmp_path / name))
        assert "\n" not in str(error.value)
    np.save(tmp_path / "a.npy", np.zeros((2, 2), dtype=complex))
    with pytest.raises(UserError, match="complex128, expected real numbers"):
        read_cost(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros(4))
    with pytest.raises(UserError, match="1 dimensions"):
        read_cost(tmp_path / "a.npy")
    for wrong in (np.nan, -np.inf):
        np.save(tmp_path / "a.npy", np.array([[1, 2], [3, wrong]]))
        with pytest.raises(UserError, match=rf"cost\[1, 1\] is {wrong}, counted from 0: write a number"):
            read_cost(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([["1", "1e400"]]).astype(np.longdouble))
    with pytest.raises(UserError, match=r"cost\[0, 1\] is 1e\+400, beyond"):
        read_cost(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UserError, match="it holds Python objects"):
        read_cost(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"none\.npy: no such file"):
        read_cost(tmp_path / "none.npy")
    with pytest.raises(UserError, match="index 1 names a record of an HDF5 file"):
        read_cost(tmp_path / "a.npy", index=1)
    twice = "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 3\n2 1 4\n2 1 5\n"
    (tmp_path / "a.mtx").write_text(twice)
    with pytest.raises(UserError, match="the entry of row 2 and column 1 is given twice"):
        read_cost(tmp_path / "a.mtx")
    huge = "%%MatrixMarket matrix coordinate real general\n1000000 1000000 1\n1 1 1.0\n"
    (tmp_path / "a.mtx").write_text(huge)
    with pytest.raises(UserError, match="1000000 x 1000000: as a dense matrix, costs take 7451 GiB"):
        read_cost(tmp_path / "a.mtx")


@pytest.mark.parametrize(
    ("heading", "body", "words"),
    [
        ("coordinate pattern general", "3 3 2\n1 1\n3 9\n", "place outside of rows 1 to 3"),
        ("coordinate pattern general", "3 3 2\n1 1\n-5 1\n", "place outside of rows 1 to 3"),
        ("coordinate real general", "2 2 2\n1 1 3\n2 2\n", "holds 5 numbers for 2 entries of 3"),
        ("coordinate real general", "2 2 1\n1 1 x\n", "not a Matrix Market file, or damaged"),
        ("coordinate complex general", "2 2 1\n1 1 3 4\n", "expected real ones"),
        ("coordinate real symmetric", "2 3 1\n1 1 3\n", "rows and columns must be as many"),
        ("array real general", "2 2\n1\n2\n3\n", "holds 3 numbers, its heading says 4"),
    ],
)
def test_a_damaged_matrix_market_file_is_refused_and_does_not_end_the_process(tmp_path, heading, body, words):
    (tmp_path / "a.mtx").write_text(f"%%MatrixMarket matrix {heading}\n% a comment\n{body}")
    with pytest.raises(UserError, match=words):
        read_cost(tmp_path / "a.mtx")


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_matrix_market_is_read_as_scipy_reads_it(tmp_path, symmetry, is_sparse):
    lower = np.tril(np.random.default_rng(1).integers(1, 9, (4, 4)).astype(float), -1)
    diagonal = np.diag([1.0, 2.0, 3.0, 4.0])
    values = {"general": lower + 2 * lower.T + diagonal, "symmetric": lower + lower.T + diagonal}
    dense = values.get(symmetry, lower - lower.T)
    mmwrite(tmp_path / "a.mtx", coo_array(dense) if is_sparse else dense, symmetry=symmetry, precision=17)
    cost, mask = read_cost(tmp_path / "a.mtx")
    known = mmread(tmp_path / "a.mtx")
    np.testing.assert_array_equal(cost, known if isinstance(known, np.ndarray) else known.toarray())
    np.testing.assert_array_equal(cost, dense)
    assert mask is None if not is_sparse or dense.all() else (mask == (dense == 0)).all()


@pytest.mark.parametrize(
    "data", [b"\x93NUMPY\x01\x00v\x00{", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f8', 'fortran_order': False"]
)
def test_a_damaged_heading_of_an_array_is_refused(tmp_path, data):
    (tmp_path / "a.npy").write_bytes(data + b" " * (128 - len(data)))
    with pytest.raises(UserError, match="not a NumPy array file, or damaged"):
        read_cost(tmp_path / "a.npy")
