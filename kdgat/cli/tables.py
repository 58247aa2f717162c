"""Scores and attempts as tables for a terminal or a file."""

import re
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

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


def output_console() -> Console:
    """Return the console for results on standard output."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=PLAIN_WIDTH)


def error_console() -> Console:
    """Return the console for tables on standard error."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else PLAIN_WIDTH)


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
    for heading_width, name_width in ((PLAIN_WIDTH, PLAIN_WIDTH), *BREAKS):
        drawn = _table(table, places, heading_width, name_width)
        needed = console.measure(drawn, options=unlimited)
        if needed.maximum <= console.width:
            return [drawn]
    # Texts are wrapped, numbers never: half of one beside half of another cannot be read.
    has_texts = not table.is_whole and any(place in table.text_columns for place in places)
    if table.is_whole and len(places) == 1:  # narrower than a name and one cell: wrapped loses less than cut
        return [_table(replace(table, is_whole=False), places, *BREAKS[0])]
    if len(places) == 1 or (has_texts and needed.minimum <= console.width):
        return [drawn]
    middle = (len(places) + 1) // 2
    return [*_fitting(table, places[:middle], console), *_fitting(table, places[middle:], console)]


def _table(content: TableOfTexts, places: Sequence[int], heading_width: int, name_width: int) -> Table:
    """Draw the first column, which names the rows, and those at `places`."""
    header, rows = content.texts
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place in (0, *places):
        is_text = place in content.text_columns
        heading = _broken(header[place], heading_width)
        is_kept = content.is_whole or not is_text
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


def print_listing(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows whose words stay whole: texts are wrapped between them; where that is too wide a row is a block."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(len(word) for text in column for word in text.split() or [""]) for column in columns]
    wanted = [max(map(len, column)) for column in columns]
    wanted[0] = widths[0] = max(map(len, columns[0]))  # names are copied
    gaps = len(widths) - 1
    gap = 2 if console.width >= sum(widths) + 2 * gaps else 1
    spare = console.width - sum(widths) - gap * gaps
    if spare < 0:
        for name, *texts in rows:
            console.print(name, soft_wrap=True, markup=False)
            console.print("  " + "; ".join(map(" ".join, zip(headings[1:], texts, strict=True))), markup=False)
        return
    lacking = sorted((most - width, place) for place, (most, width) in enumerate(zip(wanted, widths, strict=True)))
    for num_left, (lack, place) in zip(range(len(widths), 0, -1), lacking, strict=True):  # who lacks least comes first
        granted = min(lack, spare // num_left)
        widths[place], spare = widths[place] + granted, spare - granted
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, width=width)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def plain_table(headings: Iterable[str], *, right: Container[str] = (), whole: Container[str] = ()) -> Table:
    """Return an empty table without lines; columns in `right` hold numbers, and those in `whole` are not broken."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        side: Literal["left", "right"] = "right" if heading in right else "left"
        table.add_column(heading, justify=side, no_wrap=heading in whole, overflow="fold")
    return table


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
