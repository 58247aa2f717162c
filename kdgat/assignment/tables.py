"""Read a table of numbers from text: what spreadsheets, pandas, R and `numpy.savetxt` write.

Commas, semicolons, tabs or blanks stand between the numbers; beside semicolons and tabs, a comma may be a decimal one.
Lines that begin with # are comments. Anything else that is no number is refused by its row and its column, counted from
1: a cell that is left out would make another matrix, whose optimum is as good as any other's.
"""

from __future__ import annotations

import csv
import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.base.files import read_utf8

DELIMITERS: Final = (";", "\t", ",")  # the first that a table has; blanks if it has none
# What spreadsheets write for a value that they cannot show: #N/A, #NV, #DIV/0!, #NAME?, #BEZUG!, ####
ERROR_VALUE: Final = re.compile(
    r"#(?:(?:N/?A|NV|GETTING_DATA|[^\W\d_][^\s,;]*[!?])(?=[\s,;\"]|$)|#+(?=[,;\t\"]|$))", re.I
)
DECIMAL_COMMA: Final = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
SEPARATOR_LINE: Final = re.compile(r"\"?sep=(.)\"?", re.IGNORECASE)  # what Excel writes above a table for itself
FORM: Final = "rows of numbers with commas, semicolons, tabs or blanks between, and no heading"


@dataclass(frozen=True)
class Line:
    """A line of a table, without its comment."""

    row: int  # counted from 1, without those that hold a comment alone or nothing
    number: int  # in the file, from 1
    text: str

    @property
    def name(self) -> str:
        """Name the line as a person finds it."""
        return f"row {self.row}" + (f" (line {self.number})" if self.number != self.row else "")


def read_table(path: Path) -> NDArray[np.float64]:
    """Read a matrix [n, m]; `inf` is a number, NaN and -inf are none.

    A UserWarning says so if the first row or column are 0, 1, 2, ..., as headings of a data frame without names are.

    Raises:
        UserError: naming the file, the row and the column, counted from 1, and the fix.
    """
    return parse_table(path, read_utf8(path))


def parse_table(path: Path, text: str) -> NDArray[np.float64]:
    """Read a matrix [n, m] from text; see `read_table`."""
    lines, delimiter = _lines(text)
    if not lines:
        raise UserError(f"{path}: empty; give {FORM}")
    if delimiter is None:
        delimiter = next((one for one in DELIMITERS if any(one in line.text for line in lines)), None)
    values = _read_plain(lines, delimiter)
    if values is None:
        values = _read_cells(path, lines, delimiter)
    _look_for_headings(path, values, lines, delimiter)
    return values


def _lines(text: str) -> tuple[list[Line], str | None]:
    """Return the lines that hold data, and the delimiter if the text names one."""
    found: list[Line] = []
    delimiter = None
    for number, line in enumerate(text.splitlines(), 1):
        named = SEPARATOR_LINE.fullmatch(line.strip()) if number == 1 else None
        if named is not None:
            delimiter = named.group(1)
            continue
        kept = _without_comment(line)
        if kept.strip():
            found.append(Line(len(found) + 1, number, kept))
    return found, delimiter


def _without_comment(line: str) -> str:
    place = line.find("#")
    is_rule = not line.strip(" #")  # a line of # alone
    while place >= 0 and not is_rule and (found := ERROR_VALUE.match(line, place)):
        place = line.find("#", found.end())
    return line if place < 0 else line[:place]


def _read_plain(lines: list[Line], delimiter: str | None) -> NDArray[np.float64] | None:
    """Read finite numbers that are written as in C, which is quick; None for all else."""
    try:
        found = np.loadtxt((line.text for line in lines), delimiter=delimiter, comments=None, ndmin=2, dtype=np.float64)
    except ValueError:
        return None
    return found if found.shape[0] == len(lines) and np.isfinite(found).all() else None


def _cells(line: Line, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return [cell.strip('"') for cell in line.text.split()]
    try:
        (cells,) = csv.reader([line.text], delimiter=delimiter, skipinitialspace=True)
    except (csv.Error, TypeError, ValueError):  # a cell of 128 kB, a delimiter that none can be
        cells = [line.text]
    return [cell.strip() for cell in cells]


def _read_cells(path: Path, lines: list[Line], delimiter: str | None) -> NDArray[np.float64]:
    """Read cell by cell, and name the first that is no number."""
    table = [_cells(line, delimiter) for line in lines]
    commas = [cell for cells in table for cell in cells if DECIMAL_COMMA.fullmatch(cell)] if delimiter != "," else []
    if commas and delimiter == "\t" and all(map(THOUSANDS.fullmatch, commas)):
        raise UserError(f"{path}: {commas[0]!r} may be a decimal number, or thousands: write points, or no commas")
    width = len(table[0])
    values = np.empty((len(lines), width))
    for row, (line, cells) in enumerate(zip(lines, table, strict=True)):
        for column, cell in enumerate(cells[:width], 1):
            values[row, column - 1] = _number(f"{path}: {line.name}, column {column}", cell, bool(commas))
        if len(cells) != width:
            raise UserError(
                f"{path}: {line.name} has {len(cells)} columns, {lines[0].name} has {width}: give rows of one length"
            )
    return values


def _number(where: str, cell: str, has_commas: bool) -> float:
    """Return the number in a cell; UserError if it is none that a cost can be."""
    word = cell
    if has_commas:
        if "." in cell and "," in cell:
            raise UserError(f"{where} is {cell!r}: write decimal commas or decimal points, and nothing at thousands")
        if "." in cell:
            raise UserError(f"{where} is {cell!r}, other numbers have decimal commas: write all in one way")
        word = cell.replace(",", ".")
    if not cell:
        raise UserError(f"{where} is empty: write a number there, or inf if the pair is forbidden; give {FORM}")
    try:
        value = float(word) if "_" not in word else None
    except ValueError:
        value = None
    if value is None:
        raise UserError(f"{where} is {cell[:40]!r}, expected a number, or inf if the pair is forbidden; give {FORM}")
    return checked_number(where, word, value)


def checked_number(where: str, word: str, value: float) -> float:
    """Return a number that was read from a word; UserError for NaN, -inf, and what is beyond float64."""
    if math.isnan(value) or (value == -math.inf and "inf" in word.lower()):
        raise UserError(f"{where} is {word!r}: write a number there, or inf if the pair is forbidden")
    if math.isinf(value) and "inf" not in word.lower():
        raise UserError(f"{where} is {word[:40]!r}, beyond the largest number of 64 bits (1.8e308): scale the costs")
    return value


def _look_for_headings(path: Path, values: NDArray[np.float64], lines: list[Line], delimiter: str | None) -> None:
    """Refuse or note a first row or column of 0, 1, 2, ... that may be the names of a data frame's lines.

    Of both, only corners of distances on a line are made; such a matrix is what it says.
    """
    if 1 in values.shape:
        return
    is_row, is_column = ((line == np.arange(line.size)).all() for line in (values[0], values[:, 0]))
    if is_row == is_column:
        return
    name, what_for, way = ("row", "column names", "header=False") if is_row else ("column", "an index", "index=False")
    first, others = _written(lines, delimiter, is_row)
    numbers = [str(number) for number in range(values.shape[1 if is_row else 0])]
    what = f"{path}: {name} 1 is {', '.join(numbers if len(numbers) < 6 else [*numbers[:3], '...', numbers[-1]])}"
    if all(cell.isdigit() for cell in first) and all("." in cell or "e" in cell.lower() for cell in others):
        raise UserError(
            f"{what}, and all else has decimals: {what_for} of a data frame; leave them out ({way} in pandas), or "
            "write 0.0, 1.0, ... if they are costs"
        )
    warnings.warn(
        f"{what}, and is taken for costs: if it is {what_for} of a data frame, leave it out ({way} in pandas)",
        stacklevel=5,
    )


def _written(lines: list[Line], delimiter: str | None, is_row: bool) -> tuple[list[str], list[str]]:
    """Return the words of the first row or column, and those of all others."""
    table = [_cells(line, delimiter) for line in lines]
    if is_row:
        return table[0], [cell for cells in table[1:] for cell in cells]
    return [cells[0] for cells in table], [cell for cells in table for cell in cells[1:]]
