"""Scores and attempts as tables for a terminal or a file."""

import io
import re
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kdgat.run import Table as TableOfTexts

PLAIN_WIDTH: Final = 400  # of what goes into a file or a pipe: nothing is cut or wrapped
BREAKS: Final = ((16, PLAIN_WIDTH), (16, 24), (8, 24), (6, 16))  # widths of headings and names, in ever narrower places
# Of what is known of attempts, what a terminal has room for; whether it may be wrapped.
ATTEMPT_COLUMNS: Final = {
    "stage": True,
    "attempt": False,
    "job": False,
    "node": True,
    "waited": False,
    "ran": False,
    "end": True,
    "what followed": True,
}


class _Pipe(io.TextIOBase):
    """A stream that is no terminal: what pads cells at the end of a line is left out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write lines without the blanks at their end."""
        return self._stream.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        """Pass on what the stream holds back."""
        self._stream.flush()


def output_console(stream: TextIO | None = None) -> Console:
    """Return the console for results on standard output, or for tables on another stream."""
    stream = stream or sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=_Pipe(stream), highlight=False, width=PLAIN_WIDTH)  # type: ignore[arg-type]


def print_tables(console: Console, tables: Sequence[TableOfTexts], *, has_details: bool = True) -> None:
    """Print tables of results, with those of details or without; where one is too wide its names are broken."""
    for table in tables:
        if has_details or not table.is_detail:
            caption = f"[bold]{escape(table.caption.removesuffix('.'))}[/bold]"
            console.print(caption, soft_wrap=console.width >= PLAIN_WIDTH)  # a terminal would break it within words
            for drawn in fitting(table, console):
                console.print(drawn)
                console.print()


def fitting(table: TableOfTexts, console: Console) -> list[Table]:
    """Return a table with as wide headings and names as there is room for, as several where not all columns fit."""
    return _fitting(table, list(range(1, len(table.texts[0]))), console)


def _fitting(table: TableOfTexts, places: Sequence[int], console: Console) -> list[Table]:
    unlimited = console.options.update(width=10 * PLAIN_WIDTH)  # a measure is cut to the width there is, else
    drawn = [_table(table, places, *widths) for widths in ((PLAIN_WIDTH, PLAIN_WIDTH), *BREAKS)]
    needed = [console.measure(one, options=unlimited) for one in drawn]
    # Texts are wrapped, numbers and names never: half of one beside half of another cannot be read.
    has_texts = not table.is_whole and any(place in table.text_columns for place in places)
    least = [one.maximum for one in needed] + [one.minimum for one in needed if has_texts]
    for one, width in zip((*drawn, *drawn), least, strict=False):
        if width <= console.width:
            return [one]
    if len(places) == 1:  # narrower than a name and one cell: wrapped loses less than cut
        return [_table(replace(table, is_whole=False), places, *BREAKS[-1], is_name_kept=False)]
    middle = (len(places) + 1) // 2
    return [*_fitting(table, places[:middle], console), *_fitting(table, places[middle:], console)]


def _table(
    content: TableOfTexts, places: Sequence[int], heading_width: int, name_width: int, *, is_name_kept: bool = True
) -> Table:
    """Draw the first column, which names the rows, and those at `places`."""
    header, rows = content.texts
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place in (0, *places):
        is_text = place in content.text_columns
        heading = _broken(header[place], heading_width)
        is_kept = content.is_whole or not is_text or (is_name_kept and place == 0)
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=is_kept, overflow="fold")
    for row in rows:
        name = row[0] if content.is_whole else _broken(row[0], name_width)
        table.add_row(*(escape(text) for text in (name, *(row[place] for place in places))))
    return table


def _broken(name: str, width: int) -> str:
    """Break a long name into lines after underscores and spaces."""
    lines = [""]
    for part in re.findall("[^_ ]*[_ ]|[^_ ]+", name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def plain_table(headings: Iterable[str], *, right: Container[str] = (), whole: Container[str] = ()) -> Table:
    """Return an empty table without lines; columns in `right` hold numbers, and those in `whole` are not broken."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        side: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading, justify=side, no_wrap=heading in whole, overflow="fold")
    return table


def print_rows(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Container[str] = (),
    wrapped: Container[str] = (),
    num_names: int = 1,
) -> None:
    """Print rows as a table that breaks cells in `wrapped` between words, and nothing else, whatever the width.

    What finds no room beside the first columns, which name the rows, stands in a table of its own below.
    """
    kept = [[str(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(word) for text in texts for word in (text.split() if texts[0] in wrapped else [text]) or [""])
        for texts in zip(headings, *kept, strict=True)
    ]
    names = list(range(num_names))
    tables = [names]
    for place in range(num_names, len(headings)):
        if tables[-1] != names and sum(widths[one] + 2 for one in (*tables[-1], place)) - 2 > console.width:
            tables.append(names)
        tables[-1] = [*tables[-1], place]
    for number, places in enumerate(tables):
        has_room = sum(widths[place] + 2 for place in places) - 2 <= console.width  # else broken loses less than cut
        whole = [headings[place] for place in places if has_room and headings[place] not in wrapped]
        table = plain_table([headings[place] for place in places], right=right, whole=whole)
        for row in kept:
            table.add_row(*(escape(row[place]) for place in places))
        console.print(*([""] if number else []), table, sep="\n")


def attempts_table(rows: list[dict[str, str]]) -> Table:
    """Return the attempts at stages as a table; rows as of `attempt_rows`."""
    table = Table(
        title="stages that took more than one attempt",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for heading, is_wrapped in ATTEMPT_COLUMNS.items():
        table.add_column(heading, no_wrap=not is_wrapped, overflow="fold")
    for row in rows:
        table.add_row(*(escape(row[heading]) for heading in ATTEMPT_COLUMNS))
    return table
