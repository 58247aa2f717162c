"""Read assignment problems of the OR-Library (J. E. Beasley, J. Oper. Res. Soc. 41(11), 1990)."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.errors import UserError
from kdgat.base.files import EncodingError, read_utf8

MAX_ROWS: Final = 1 << 15  # the costs of such a matrix take 8 GiB
_ARC: Final = 3  # numbers of an arc: row, column, cost


def read_orlibrary(path: Path) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Read one problem: the number of rows n, then all n·n costs, or arcs (row, column, cost), counted from 1.

    Numbers may be broken into lines anywhere. Returns cost [n, n] and, for arcs, mask [n, n], True where there is none.
    UserError names what is wrong with the file.
    """
    try:
        tokens = read_utf8(path).split()
    except EncodingError as error:
        raise UserError(str(error)) from error
    if not tokens:
        raise UserError(f"{path}: empty; an OR-Library problem begins with the number of rows")
    numbers = _numbers(path, tokens)
    n = int(numbers[0]) if numbers[0].is_integer() else 0
    if not 1 <= n <= MAX_ROWS:
        raise UserError(
            f"{path}: begins with {tokens[0]}, where an OR-Library problem has the number of rows (1 to {MAX_ROWS})"
        )
    values = numbers[1:]
    if len(values) == n * n:
        return values.reshape(n, n), None
    arcs = values.reshape(-1, _ARC) if len(values) % _ARC == 0 else values[:0].reshape(0, _ARC)
    ends = arcs[:, :2]
    if len(arcs) == 0 or len(arcs) > n * n or not ((ends >= 1) & (ends <= n) & (ends == np.floor(ends))).all():
        raise UserError(
            f"{path}: {len(values)} numbers follow n = {n}: expected {n * n} costs, or arcs of row, column and cost "
            f"with rows and columns from 1 to {n}; the file may be cut off"
        )
    rows, columns = (ends.astype(np.int64) - 1).T
    places, counts = np.unique(rows * n + columns, return_counts=True)
    if (counts > 1).any():
        row, column = divmod(int(places[counts > 1][0]), n)
        raise UserError(f"{path}: the arc from row {row + 1} to column {column + 1} is given twice; keep one")
    cost, mask = np.zeros((n, n)), np.ones((n, n), dtype=bool)
    cost[rows, columns] = arcs[:, 2]
    mask[rows, columns] = False
    return cost, mask


def _numbers(path: Path, tokens: list[str]) -> NDArray[np.float64]:
    try:
        return np.array(tokens, dtype=np.float64)
    except ValueError:
        for place, word in enumerate(tokens):
            try:
                float(word)
            except ValueError:
                raise UserError(f"{path}: word {place + 1} is {word[:40]!r}, expected a number") from None
        raise
