"""The key figures and curves of a report as markdown, for pages that show no HTML of others: the Prefect UI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kdgat.report.document import Document
from kdgat.report.drawing import as_data_uri, as_svg
from kdgat.run.markdown import as_tables, escaped
from kdgat.run.table import Table

MOST_CURVES: Final = 24  # each is some kilobytes of a database; the page has all of them
CURVES: Final = "training"  # identifier of the section that draws what stages logged


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
