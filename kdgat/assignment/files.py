"""Read a cost matrix from the files in which people keep them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.matrix_market import read_matrix_market
from kdgat.assignment.orlibrary import read_orlibrary
from kdgat.base.errors import UserError
from kdgat.base.files import EncodingError, read_utf8

Matrix = tuple[NDArray[np.float64], NDArray[np.bool_] | None]

ReadRecord = Callable[[Path, int | None], Matrix]  # a file with several problems, the number of one

_HDF5_SUFFIXES: Final = (".h5", ".hdf5")


def read_cost(
    path: Path | str, index: int | None = None, key: str | None = None, *, read_record: ReadRecord | None = None
) -> Matrix:
    """Read a cost matrix, float64 [n, m], and its mask, bool [n, m], True where a pair is forbidden, or None.

    NumPy (.npy, .npz: `key` names the array), Matrix Market (.mtx, .mtx.gz: pairs without an entry are forbidden),
    comma-separated (.csv), OR-Library (.txt), and HDF5 files with many problems (.h5: `index` names one, `read_record`
    reads it). +inf forbids a pair in all of them.

    Raises:
        UserError: naming the file, what is wrong, and the fix.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; give {known_formats()}")
    name = path.name.lower()
    if index is not None and not name.endswith(_HDF5_SUFFIXES):
        raise UserError(f"{path}: index {index} names a record of an HDF5 file, this one holds a single matrix")
    if key is not None and not name.endswith(".npz"):
        raise UserError(f"{path}: key {key!r} names an array of an .npz file, this one holds a single matrix")
    if name.endswith(_HDF5_SUFFIXES):
        if read_record is None:
            raise UserError(f"{path}: HDF5, which `kdgat lap solve` reads; give a matrix by numpy.save")
        return read_record(path, index)
    if name.endswith(".npz"):
        return _checked(path, *_read_npz(path, key))
    for suffixes, read in _READERS.items():
        if name.endswith(suffixes):
            return _checked(path, *read(path))
    raise UserError(f"{path}: unknown format; give {known_formats()}")


def known_formats() -> str:
    """List the formats in words."""
    return ".npy, .npz, .mtx, .csv, .txt (OR-Library) or .h5 (kdgat lap generate)"


def _read_npy(path: Path) -> tuple[Any, None]:
    try:
        return np.load(path, allow_pickle=False), None
    except Exception as error:  # numpy parses the header as Python: SyntaxError, tokenize.TokenError, MemoryError
        raise UserError(
            f"{path}: not a NumPy array file, or damaged ({_reason(error)}); write it with numpy.save"
        ) from error


def _read_npz(path: Path, key: str | None) -> tuple[Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays)
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


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _read_csv(path: Path) -> tuple[Any, None]:
    try:
        text = read_utf8(path)
        if not text.strip():
            raise UserError(f"{path}: empty; give rows of numbers with commas between")
        return np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2, dtype=np.float64), None
    except UserError:
        raise
    except EncodingError as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        text = str(error).split("\n")[0].split(";")[0].rstrip(".")
        raise UserError(f"{path}: {text}; give rows of numbers with commas between, and no heading") from error


def _checked(path: Path, values: Any, mask: Any) -> Matrix:
    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise UserError(f"{path}: holds {array.dtype}, expected real numbers")
    if array.ndim != 2:
        raise UserError(f"{path}: holds {array.ndim} dimensions {array.shape}, expected rows and columns")
    cost = array.astype(np.float64)
    forbidden = np.isposinf(cost)
    if mask is not None:
        if np.shape(mask) != cost.shape or np.asarray(mask).dtype != bool:
            raise UserError(f"{path}: mask is {np.asarray(mask).dtype} {np.shape(mask)}, expected bool {cost.shape}")
        forbidden |= mask
    if not forbidden.any():
        return cost, None
    cost[forbidden] = 0.0
    return cost, forbidden


_READERS: Final[dict[tuple[str, ...], Callable[[Path], tuple[Any, Any]]]] = {
    (".npy",): _read_npy,
    (".mtx", ".mtx.gz"): read_matrix_market,
    (".csv",): _read_csv,
    (".txt",): read_orlibrary,
}
