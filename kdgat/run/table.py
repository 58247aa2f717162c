"""A table of results as plain cells: the terminal, the Prefect UI and the report each draw the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def counted(count: int, noun: str, plural: str = "") -> str:
    """Write a number and what it counts, as people say it.

    >>> counted(1, "window"), counted(1200, "window"), counted(2, "copy", "copies")
    ('1 window', '1,200 windows', '2 copies')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


@dataclass(frozen=True)
class Cell:
    """One cell: text, an optional second line in small type, and whether it is the best of its column."""

    text: str
    note: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Table:
    """Header and rows; the first column is the row's name, the others hold numbers unless named in `text_columns`.

    >>> Table.of(["run", "F1"], [["a", "0.9"]], "Scores.").rows[0][1].text
    '0.9'
    """

    header: list[Cell]
    rows: list[list[Cell]]
    caption: str
    text_columns: tuple[int, ...] = (0,)
    key: str = ""  # of the artifact in the Prefect UI: small letters and dashes
    is_detail: bool = False  # of a result: printed where somebody asks for all
    is_whole: bool = False  # people copy what stands here (ids, paths): a narrow place splits the table, never a cell

    @staticmethod
    def of(header: Sequence[str], rows: Sequence[Sequence[str | Cell]], caption: str, **settings: Any) -> Table:
        """Make a table of texts, and of cells where there is more to say; `settings` are what a table has besides."""
        cells = [[one if isinstance(one, Cell) else Cell(one) for one in row] for row in rows]
        return Table([Cell(text) for text in header], cells, caption, **settings)

    @property
    def texts(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows as plain texts."""
        return [cell.text for cell in self.header], [[cell.text for cell in row] for row in self.rows]
