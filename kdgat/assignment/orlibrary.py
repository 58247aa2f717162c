"""Read assignment problems of the OR-Library (J. E. Beasley, J. Oper. Res. Soc. 41(11), 1990)."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.tables import checked_number, parse_table
from kdgat.base import UserError
from kdgat.base.files import read_utf8

MAX_ROWS: Final = 1 << 15  # the costs of such a matrix take 8 GiB
_ARC: Final = 3  # numbers of an arc: row, column, cost


def read_text(path: Path) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Read a .txt file: a problem of the OR-Library if its first line is one number, else a table (`tables.py`).

    UserError names what is wrong, and a file that may be either.
    """
    text = read_utf8(path)
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    has_count = bool(lines) and all(word.isdigit() for word in lines[0])
    if not lines or (has_count and (len(lines[0]) == 1 or len({len(line) for line in lines}) > 1)):
        return read_orlibrary(path)
    table = parse_table(path, text)
    if has_count and text.lstrip()[0] != "#" and _fits(table.ravel()):
        raise UserError(
            f"{path}: may be a matrix of {table.shape[0]} x {table.shape[1]}, or an OR-Library problem of "
            f"{table[0, 0]:.0f} rows: write the number of rows on a line of its own, or call a matrix .csv"
        )
    return table, None


def _fits(numbers: NDArray[np.float64]) -> bool:
    """Return whether numbers can be read as an OR-Library problem."""
    n = numbers[0]
    is_count = n.is_integer() and 1 <= n <= MAX_ROWS
    return bool(is_count and (numbers.size - 1 == n * n or ((numbers.size - 1) % _ARC == 0 and _arcs(numbers[1:], n))))


def _arcs(values: NDArray[np.float64], n: float) -> bool:
    ends = values.reshape(-1, _ARC)[:, :2]
    return bool(len(ends) > 0 and ((ends >= 1) & (ends <= n) & (ends == np.floor(ends))).all())


def read_orlibrary(path: Path) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Read one problem: the number of rows n, then all n·n costs, or arcs (row, column, cost), counted from 1.

    Numbers may be broken into lines anywhere. Returns cost [n, n] and, for arcs, mask [n, n], True where there is none.
    UserError names what is wrong with the file.
    """
    tokens = read_utf8(path).split()
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
        numbers = np.array(tokens, dtype=np.float64)
    except ValueError:
        for place, word in enumerate(tokens, 1):
            try:
                float(word)
            except ValueError:
                raise UserError(f"{path}: word {place} is {word[:40]!r}, expected a number") from None
        raise
    for place in np.flatnonzero(~np.isfinite(numbers)).tolist():
        checked_number(f"{path}: word {place + 1}", tokens[place], float(numbers[place]))
    return numbers
