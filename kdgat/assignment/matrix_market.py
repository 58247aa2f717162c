"""Read sparse and dense matrices of the Matrix Market (R. F. Boisvert et al., NISTIR 5935, 1996).

SciPy reads the heading. The numbers are read here, because its reader takes places outside of the matrix for what they
are and writes there: a damaged file ended the process.
"""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.tables import checked_number
from kdgat.base import UserError
from kdgat.base.memory import available_memory, require_memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_ENTRIES: Final = 1 << 31  # of a matrix that is dense in its file: 16 GiB as costs
MAX_LINES: Final = 1 << 24  # rows or columns of a sparse one
BYTES_PER_CHARACTER: Final = 6  # of the text: itself, and a number of eight bytes for two of them at least
_FIELDS: Final = {"real": 1, "double": 1, "integer": 1, "unsigned-integer": 1, "pattern": 0}  # numbers behind a place
_SYMMETRIES: Final = {"general": 0, "symmetric": 1, "hermitian": 1, "skew-symmetric": -1}  # sign of the mirror image


def read_matrix_market(path: Path) -> NDArray[np.float64] | csr_array:
    """Read a matrix [n, m], dense or sparse as it is in the file: what has no entry is forbidden, a stored 0 is a cost.

    Raises:
        UserError: if the file is none, is damaged, or holds complex numbers.
    """
    from scipy.io import mminfo  # SciPy is not needed to train

    try:
        num_rows, num_columns, num_entries, layout, field, symmetry = mminfo(path)
    except (ValueError, OSError, EOFError, TypeError, OverflowError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a Matrix Market file, or damaged ({error})") from error
    if field not in _FIELDS or symmetry not in _SYMMETRIES:
        raise UserError(f"{path}: holds {field} {symmetry} numbers, expected real ones")
    if layout == "array" and num_rows * num_columns > MAX_ENTRIES:
        raise UserError(
            f"{path}: {num_rows} x {num_columns}: costs of that size take {num_rows * num_columns * 8 / 2**30:.0f} "
            "GiB, and all are kept in memory; give a smaller matrix, or a sparse one"
        )
    if max(num_rows, num_columns) > MAX_LINES:
        raise UserError(f"{path}: {num_rows} x {num_columns}: up to {MAX_LINES} rows and columns can be read")
    try:
        numbers = _read_numbers(path)
    except UserError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path}: not a Matrix Market file, or damaged ({error})") from error
    sign = _SYMMETRIES[symmetry]
    if sign and num_rows != num_columns:
        raise UserError(
            f"{path}: is {symmetry} with {num_rows} x {num_columns} entries: rows and columns must be as many"
        )
    if layout == "array":
        return _dense(path, numbers, num_rows, num_columns, sign)
    return _sparse(path, numbers, (num_rows, num_columns), num_entries, 2 + _FIELDS[field], sign)


def _read_numbers(path: Path) -> NDArray[np.float64]:
    """Return all numbers behind the line with the size; ValueError for what is no number."""
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path.name.lower().endswith(".gz")
        else path.open(encoding="utf-8") as text
    ):
        for line in text:
            if line.strip() and not line.startswith("%"):
                break  # the size
        most = available_memory() // BYTES_PER_CHARACTER
        rest = text.read(most + 1)
        if len(rest) > most:  # of a compressed one, its size does not say
            require_memory(path, BYTES_PER_CHARACTER * len(rest))
    if not rest.strip():
        return np.zeros(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # something is left that is no number
        try:
            numbers = np.fromstring(rest, dtype=np.float64, sep=" ")
        except DeprecationWarning:
            raise ValueError("an entry is no number") from None
    if np.isinf(numbers).any():
        for word, value in zip(rest.split(), numbers.tolist(), strict=False):
            checked_number(f"{path}: an entry", word, value)
    return numbers


def _dense(path: Path, numbers: NDArray[np.float64], num_rows: int, num_columns: int, sign: int) -> NDArray[np.float64]:
    """Return a matrix whose columns follow each other; of a symmetric one its lower triangle does."""
    rows, columns = np.tril_indices(num_rows, -1 if sign < 0 else 0) if sign else (None, None)
    expected = num_rows * num_columns if rows is None else len(rows)
    if len(numbers) != expected:
        raise UserError(f"{path}: holds {len(numbers)} numbers, its heading says {expected}: the file may be cut off")
    if rows is None:
        return numbers.reshape(num_columns, num_rows).T.copy()
    assert columns is not None
    order = np.lexsort((rows, columns))
    cost = np.zeros((num_rows, num_columns))
    cost[rows[order], columns[order]] = numbers
    cost[columns[order], rows[order]] = np.where(rows[order] == columns[order], 1, sign) * numbers
    return cost


def _sparse(
    path: Path, numbers: NDArray[np.float64], shape: tuple[int, int], num_entries: int, width: int, sign: int
) -> csr_array:
    """Return the entries, 1 where a pattern has one; those of +inf are forbidden, and left out."""
    from scipy.sparse import csr_array

    if len(numbers) != num_entries * width:
        raise UserError(
            f"{path}: holds {len(numbers)} numbers for {num_entries} entries of {width}: the file may be cut off"
        )
    table = numbers.reshape(num_entries, width)
    places = table[:, :2]
    if not ((places >= 1) & (places <= shape) & (places == np.floor(places))).all():
        raise UserError(f"{path}: an entry has a place outside of rows 1 to {shape[0]} and columns 1 to {shape[1]}")
    rows, columns = (places.astype(np.int64) - 1).T
    values = table[:, 2] if width > 2 else np.ones(num_entries)
    if sign:
        is_mirrored = rows != columns
        rows, columns = np.append(rows, columns[is_mirrored]), np.append(columns, rows[is_mirrored])
        values = np.append(values, sign * values[is_mirrored])
    order = np.lexsort((columns, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    twice = np.flatnonzero((rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1]))
    if twice.size:
        row, column = rows[twice[0]] + 1, columns[twice[0]] + 1
        raise UserError(f"{path}: the entry of row {row} and column {column} is given twice; keep one")
    wrong = np.flatnonzero(np.isnan(values) | np.isneginf(values))
    if wrong.size:
        row, column, value = rows[wrong[0]] + 1, columns[wrong[0]] + 1, values[wrong[0]]
        raise UserError(f"{path}: the entry of row {row} and column {column} is {value}: leave out what is forbidden")
    allowed = values < np.inf
    return csr_array((values[allowed], (rows[allowed], columns[allowed])), shape=shape)
