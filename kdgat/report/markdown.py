"""Tables, key figures and curves as markdown, for narrow pages that show no HTML of others: the Prefect UI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from kdgat.report.document import Document
from kdgat.report.drawing import as_data_uri, as_svg
from kdgat.run import Table
from kdgat.run.table import Cell

WIDTH: Final = 105  # of a table, in characters: the page has room for so many, and scrolls without showing that it does
PADDING: Final = 3  # of a column, in characters
MARKUP: Final = re.compile(r"([*<\[\]\\]|(?<!\w)_|_(?!\w))")
MOST_CURVES: Final = 24  # each is some kilobytes of a database; the page has all of them
CURVES: Final = "training"  # identifier of the section that draws what stages logged


def as_tables(table: Table, width: int = WIDTH) -> str:
    """Write a table, or several below each other where it is too wide for one, each with the names of its rows.

    A table of numbers whose columns have long names is turned, if that makes fewer lines.
    """
    ways = [_narrow(table, width)]
    if table.text_columns == (0,) and table.rows:
        header = [Cell(""), *(row[0] for row in table.rows)]
        columns = range(1, len(table.header))
        rows = [[table.header[column], *(row[column] for row in table.rows)] for column in columns]
        ways.append(_narrow(replace(table, header=header, rows=rows), width))
    best = min(ways, key=lambda parts: sum(2 + len(part.rows) for part in parts))
    return "\n\n".join(as_table(part) for part in best)


def as_table(table: Table) -> str:
    """Write a table; numbers stand at the right."""
    header, rows = table.texts
    lines = [" --- " if column in table.text_columns else " --: " for column in range(len(header))]
    first, *others = [f"| {' | '.join(map(_cell, row))} |" for row in (header, *rows)]
    return "\n".join([first, f"|{'|'.join(lines)}|", *others])


def escaped(text: str) -> str:
    """Let no name be taken for markup; what stands between backticks stays as it is."""
    parts = text.split("`")
    parts[::2] = [MARKUP.sub(r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _narrow(table: Table, width: int) -> list[Table]:
    """Split a table by columns; a column that is too wide by itself stays."""
    header, rows = table.texts
    sizes = [PADDING + max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    groups: list[list[int]] = [[0]]
    for column in range(1, len(header)):
        if len(groups[-1]) > 1 and sum(sizes[one] for one in (*groups[-1], column)) > width:
            groups.append([0])
        groups[-1].append(column)
    return [_chosen(table, group) for group in groups]


def _chosen(table: Table, columns: Sequence[int]) -> Table:
    return replace(
        table,
        header=[table.header[column] for column in columns],
        rows=[[row[column] for column in columns] for row in table.rows],
        text_columns=tuple(place for place, column in enumerate(columns) if column in table.text_columns),
    )


def _cell(text: str) -> str:
    """Keep a cell in its column and its line."""
    return escaped(text).replace("|", "\\|").replace("\n", " ")


def as_markdown(document: Document, conclusions: Sequence[str], tables: Sequence[Table], last: str = "") -> str:
    """Write what a run came to: conclusions, tables, the curves of training, and text of the caller's own.

    The first table stands before the curves, the others after them; `last` is markdown for the end.
    """
    parts = [f"# {document.title}", "\n".join(f"* {escaped(sentence)}" for sentence in conclusions)]
    written = [f"{escaped(table.caption)}\n\n{as_tables(table)}" for table in tables]
    parts.extend(written[:1])
    curves = list(_curves(document))
    if curves:
        parts += ["## Training", *curves[:MOST_CURVES]]
    if len(curves) > MOST_CURVES:
        parts.append(f"{len(curves) - MOST_CURVES} more are in the report.")
    if written[1:]:
        parts += ["## More results", *written[1:]]
    return "\n\n".join(filter(None, [*parts, last])) + "\n"


def _curves(document: Document) -> Iterator[str]:
    for section in document.sections:
        if section.identifier != CURVES:
            continue
        for heading, pictures in section.pictures.items():
            drawn = [(picture, svg) for picture in pictures if (svg := as_svg(picture))]
            for number, (picture, svg) in enumerate(drawn):
                title = f"### {escaped(heading)}\n\n" if number == 0 and heading else ""
                yield f"{title}![{_alternative(picture.caption)}]({as_data_uri(svg)})"


def _alternative(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").replace("\n", " ")
