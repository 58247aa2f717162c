"""The table of labels: which class, or which numbers, belong to which file.

A CSV file, UTF-8 with a heading. Columns: `file` (path below the folder, with or without suffix, or its last part if
that is unique), `label` (a class) or numbers (`target`, or several columns `target_...`); if wanted `split` (train,
validation or test) and `group` (as the animal: a group is never divided between splits).
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kdgat.base import UserError, unknown_key_text
from kdgat.trees.names import SPLITS

FILE, LABEL, TARGET, SPLIT, GROUP = "file", "label", "target", "split", "group"


@dataclass(frozen=True)
class LabelRow:
    """One row: line as an editor counts, file as written, and a label or numbers."""

    line: int
    file: str
    label: str | None
    targets: tuple[float, ...]
    split: str | None
    group: str | None


@dataclass(frozen=True)
class LabelTable:
    """Rows, and the names of the columns with numbers; () where there are labels."""

    path: Path
    rows: tuple[LabelRow, ...]
    targets: tuple[str, ...]

    def error(self, line: int, column: str, value: str, problem: str) -> UserError:
        """Return an error that names row, column and value."""
        return UserError(f"{self.path}:{line}: {column} {value!r} {problem}")

    def unknown_file(self, row: LabelRow, root: Path, known: Sequence[str]) -> UserError:
        """Return an error that names the nearest file there is."""
        near = difflib.get_close_matches(row.file, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "take the row out, or add the file"
        return self.error(row.line, FILE, row.file, f"is no file of trees below {root}: {hint}")


def read_labels(path: Path) -> LabelTable:
    """Read and check a table, without looking for its files.

    Raises:
        UserError: naming row, column, value and fix.
    """
    heading, cells = _read_cells(path)
    targets = _check_heading(path, heading)
    if not cells:
        raise UserError(f"{path}: a heading and no row: add one row for each labelled file")
    table = LabelTable(path, (), targets)
    rows = []
    for line, row in cells:
        if len(row) != len(heading):
            raise UserError(f"{path}:{line}: {len(row)} cells under {len(heading)} columns ({', '.join(heading)})")
        rows.append(_parse(table, line, {name: cell.strip() for name, cell in zip(heading, row, strict=True)}))
    table = LabelTable(path, tuple(rows), targets)
    _check_groups(table)
    return table


def _read_cells(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be opened: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: byte {error.object[error.start]:#x} is no UTF-8: save it as UTF-8") from None
    reader = csv.reader(text.splitlines(keepends=True))
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: is no CSV: {error}") from None
    if not rows:
        raise UserError(f"{path}: is empty, expected a heading with {FILE}, and {LABEL} or {TARGET}")
    return [cell.strip() for cell in rows[0][1]], rows[1:]


def _check_heading(path: Path, heading: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns with numbers."""
    if len(heading) == 1 and any(mark in heading[0] for mark in ";\t|"):
        raise UserError(f"{path}: heading {heading[0]!r} has no comma: save it with commas between columns")
    known = (FILE, LABEL, TARGET, SPLIT, GROUP)
    for name in heading:
        if name not in known and not name.startswith(f"{TARGET}_"):
            raise UserError(f"{path}: {unknown_key_text(name, known)} (columns of numbers begin with {TARGET}_)")
        if heading.count(name) > 1:
            raise UserError(f"{path}: column {name!r} stands twice: keep one")
    targets = tuple(name for name in heading if name.startswith(TARGET))
    if FILE not in heading:
        raise UserError(f"{path}: no column {FILE!r} among {', '.join(heading)}: add one with the files' names")
    if bool(targets) == (LABEL in heading):
        found = f"{LABEL} and {', '.join(targets)}" if targets else "neither"
        raise UserError(f"{path}: expected either {LABEL} (classes) or {TARGET} (numbers), has {found}: keep one")
    return targets


def _parse(table: LabelTable, line: int, row: dict[str, str]) -> LabelRow:
    for name, cell in row.items():
        if not cell and name != GROUP:
            raise table.error(line, name, cell, "is empty: fill it, or take the row out")
    if row.get(SPLIT, SPLITS[0]) not in SPLITS:
        raise table.error(line, SPLIT, row[SPLIT], f"is none of {', '.join(SPLITS)}")
    numbers = []
    for name in table.targets:
        try:
            number = float(row[name])
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise table.error(line, name, row[name], "is no finite number: fill it, or take the row out")
        numbers.append(number)
    return LabelRow(line, row[FILE], row.get(LABEL), tuple(numbers), row.get(SPLIT), row.get(GROUP) or None)


def _check_groups(table: LabelTable) -> None:
    first: dict[str, LabelRow] = {}
    for row in table.rows:
        if row.group is not None and row.split is not None:
            other = first.setdefault(row.group, row)
            if other.split != row.split:
                problem = f"has split {row.split} here and {other.split} on line {other.line}: give a group one split"
                raise table.error(row.line, GROUP, row.group, problem)
