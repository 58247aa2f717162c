"""Read a cost matrix from the files in which people keep them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.hdf5 import read_hdf5
from kdgat.assignment.matrix_market import read_matrix_market
from kdgat.assignment.orlibrary import read_text
from kdgat.assignment.tables import read_table
from kdgat.base import UserError
from kdgat.base.memory import require_memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Matrix = tuple[NDArray[np.float64], NDArray[np.bool_] | None]
ReadRecord = Callable[[Path, int | None], Matrix | None]  # one of several problems; None: the file is of another kind

HDF5_SUFFIXES: Final = (".h5", ".hdf5")
NPY_MAGIC, ZIP_MAGIC, HDF5_MAGIC = b"\x93NUMPY", b"PK", b"\x89HDF"
MATLAB_HDF5_AT: Final = 512  # where the HDF5 part of a MATLAB file begins
SPARSE_NAMES: Final = {"format", "shape", "data"}  # arrays of `scipy.sparse.save_npz`, among others
MAX_DENSE: Final = 1 << 31  # entries of a sparse matrix that is made dense: 16 GiB


def read_cost(
    path: Path | str, index: int | None = None, key: str | None = None, *, read_record: ReadRecord | None = None
) -> Matrix:
    """Read a cost matrix, float64 [n, m], and its mask, bool [n, m], True where a pair is forbidden, or None.

    Formats: NumPy (.npy, .npz), tables of numbers (.csv, .tsv, .txt of `numpy.savetxt`), OR-Library (.txt), Matrix
    Market (.mtx, .mtx.gz), `scipy.sparse.save_npz` (.npz), HDF5 (.h5), MATLAB 7.3 (.mat). +inf forbids a pair in all of
    them, and so does no entry in a sparse matrix, where a stored 0 is a cost.

    Args:
        path: a file.
        index: which problem of a file with several, from 0; only with `read_record`.
        key: which array of an .npz, .h5 or .mat file; without it the one that is alone, or named `cost`.
        read_record: reads HDF5 files with several problems, and returns None for others.

    Raises:
        UserError: naming the file, what is wrong (rows and columns of text are counted from 1), and the fix.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "costs.csv"
    ...     _ = path.write_text("4;1,5\\ninf;0\\n")
    ...     cost, mask = read_cost(path)
    >>> cost.tolist(), mask.tolist()
    ([[4.0, 1.5], [0.0, 0.0]], [[False, False], [True, False]])
    """
    path = Path(path)
    found = read_matrix(path, index, key, read_record=read_record)
    if isinstance(found, tuple):
        return found
    num_entries = found.shape[0] * found.shape[1]
    if num_entries > MAX_DENSE:
        raise UserError(
            f"{path}: {found.shape[0]} x {found.shape[1]}: as a dense matrix, costs take {num_entries * 8 / 2**30:.0f} "
            "GiB; give a smaller matrix"
        )
    return dense(found)


def read_matrix(
    path: Path | str, index: int | None = None, key: str | None = None, *, read_record: ReadRecord | None = None
) -> Matrix | csr_array:
    """Read what `read_cost` does, but leave a sparse matrix [n, m] sparse, without its entries of +inf."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; give {known_formats()}")
    name = path.name.lower()
    if index is not None and not name.endswith(HDF5_SUFFIXES):
        raise UserError(f"{path}: index {index} names a record of an HDF5 file, this one holds a single matrix")
    if key is not None and not name.endswith((".npz", ".mat", *HDF5_SUFFIXES)):
        raise UserError(f"{path}: key {key!r} names an array of a file with several, this one holds a single matrix")
    if name.endswith(HDF5_SUFFIXES):
        record = None if key is not None or read_record is None else read_record(path, index)
        if record is not None:
            return record
        if index is not None:
            raise UserError(f"{path}: index {index} names a record of kdgat lap generate, and there is none")
        return _checked(path, *read_hdf5(path, key))
    if name.endswith(".npz"):
        return _checked(path, *_read_npz(path, key))
    if name.endswith(".mat"):
        return _checked(path, *_read_mat(path, key))
    for suffixes, read in _READERS.items():
        if name.endswith(suffixes):
            return _checked(path, *read(path))
    raise UserError(f"{path}: unknown format; give {known_formats()}")


def known_formats() -> str:
    """List the formats in words."""
    return ".npy, .npz, .mtx, .csv, .tsv, .txt (a table, or OR-Library), .mat or .h5"


def dense(matrix: csr_array) -> Matrix:
    """Return costs and mask of a sparse matrix: where it has no entry, a pair is forbidden."""
    from kdgat.assignment.entries import make_dense  # with the solver's kernels, which readers do without

    cost, mask = make_dense(matrix)
    return cost, mask if mask.any() else None


def _begins_with(path: Path, magic: bytes, at: int = 0) -> bool:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(len(magic)) == magic


def _read_npy(path: Path) -> tuple[Any, None]:
    if _begins_with(path, ZIP_MAGIC):
        raise UserError(f"{path}: holds several arrays, as numpy.savez writes them: rename it to .npz")
    if not _begins_with(path, NPY_MAGIC):
        raise UserError(f"{path}: not a NumPy array file; write it with numpy.save, or name it after what it is")
    try:
        return np.load(path, allow_pickle=False), None
    except Exception as error:  # numpy parses the header as Python: SyntaxError, tokenize.TokenError, MemoryError
        raise UserError(
            f"{path}: not a NumPy array file, or damaged ({_reason(error)}); write it with numpy.save"
        ) from error


def _read_npz(path: Path, key: str | None) -> tuple[Any, Any]:
    if _begins_with(path, NPY_MAGIC):
        raise UserError(f"{path}: not an .npz file, but a single array, as numpy.save writes it: rename it to .npy")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            require_memory(path, sum(entry.file_size for entry in arrays.zip.infolist()))
            names = list(arrays)
            if key is None and set(names) >= SPARSE_NAMES:
                return _read_sparse(path), None
            chosen = key if key is not None else "cost" if "cost" in names else names[0] if len(names) == 1 else None
            if chosen is None or chosen not in names:
                wanted = "no array is chosen" if key is None else f"there is no array {key!r}"
                raise UserError(f"{path}: {wanted}: give --key and one of {', '.join(names) or 'none'}")
            return arrays[chosen], arrays["mask"] if chosen == "cost" and "mask" in names else None
    except UserError:
        raise
    except Exception as error:  # the same for its arrays, and zipfile and zlib have errors of their own
        raise UserError(
            f"{path}: not an .npz file, or damaged ({_reason(error)}); write it with numpy.savez"
        ) from error


def _read_sparse(path: Path) -> Any:
    from scipy.sparse import load_npz  # SciPy is not needed to train

    found = load_npz(path)
    if hasattr(found, "check_format"):
        found.check_format(full_check=True)  # places outside of the matrix would be written to
    if found.format == "bsr":  # its blocks hold zeros that nobody has stored
        found.eliminate_zeros()
    return found.tocsr()


def _read_mat(path: Path, key: str | None) -> tuple[Any, Any]:
    if _begins_with(path, HDF5_MAGIC, MATLAB_HDF5_AT) or _begins_with(path, HDF5_MAGIC):
        return read_hdf5(path, key)
    # Of older versions, SciPy's reader can end the process where a file is damaged.
    raise UserError(f"{path}: no MATLAB file of version 7.3, or damaged; save it with save(..., '-v7.3'), or as .csv")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return "it holds Python objects" if "allow_pickle" in text else text


def _checked(path: Path, values: Any, mask: Any = None) -> Matrix | csr_array:
    """Return costs whose +inf is moved to the mask; UserError for what is no cost."""
    if hasattr(values, "tocsr"):
        return _checked_sparse(path, values)
    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise UserError(f"{path}: holds {array.dtype}, expected real numbers")
    if array.ndim != 2:
        raise UserError(f"{path}: holds {array.ndim} dimensions {array.shape}, expected rows and columns")
    with np.errstate(over="ignore"):
        cost = array.astype(np.float64)
    forbidden = np.isposinf(cost)
    if array.dtype.itemsize > cost.dtype.itemsize and (np.isinf(cost) & np.isfinite(array)).any():
        i, j = np.argwhere(np.isinf(cost) & np.isfinite(array))[0]
        raise UserError(f"{path}: cost[{i}, {j}] is {array[i, j]!s}, beyond numbers of 64 bits: scale the costs")
    if mask is not None:
        if np.shape(mask) != cost.shape or np.asarray(mask).dtype != bool:
            raise UserError(f"{path}: mask is {np.asarray(mask).dtype} {np.shape(mask)}, expected bool {cost.shape}")
        forbidden |= mask
    if not forbidden.any():
        _check_allowed(path, cost)
        return cost, None
    cost[forbidden] = 0.0
    _check_allowed(path, cost)
    return cost, forbidden


def _check_allowed(path: Path, cost: NDArray[np.float64]) -> None:
    if not np.isfinite(cost.sum()):
        for i, j in np.argwhere(~np.isfinite(cost))[:1]:
            raise UserError(
                f"{path}: cost[{i}, {j}] is {cost[i, j]}, counted from 0: write a number there, or inf if the pair is "
                "forbidden"
            )


def _checked_sparse(path: Path, values: Any) -> csr_array:
    from scipy.sparse import csr_array

    if values.dtype.kind not in "buif":
        raise UserError(f"{path}: holds {values.dtype}, expected real numbers")
    matrix = csr_array(values).astype(np.float64)
    matrix.sum_duplicates()
    is_wrong = np.isnan(matrix.data) | np.isneginf(matrix.data)
    if is_wrong.any():
        entries, place = matrix.tocoo(), int(np.flatnonzero(is_wrong)[0])
        i, j = entries.row[place], entries.col[place]
        raise UserError(f"{path}: cost[{i}, {j}] is {matrix.data[place]}, counted from 0: leave out what is forbidden")
    if np.isposinf(matrix.data).any():
        entries = matrix.tocoo()
        kept = entries.data < np.inf
        matrix = csr_array((entries.data[kept], (entries.row[kept], entries.col[kept])), shape=matrix.shape)
    return matrix


_READERS: Final[dict[tuple[str, ...], Callable[[Path], tuple[Any, ...]]]] = {
    (".npy",): _read_npy,
    (".mtx", ".mtx.gz"): lambda path: (read_matrix_market(path),),
    (".csv", ".tsv"): lambda path: (read_table(path),),
    (".txt",): read_text,
}
