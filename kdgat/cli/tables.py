"""Scores and attempts as tables for a terminal or a file."""

import re
import sys
from statistics import fmean
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kdgat.can.results import Results, format_value, results_table

PLAIN_WIDTH: Final = 400  # of what goes into a file or a pipe: nothing is cut or wrapped
NAME_WIDTH: Final = 24  # in a narrow place
HEADING_WIDTH: Final = 16
DEFAULT_DETECTOR: Final = "default detector"
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


def score_tables(results: Results, *, is_narrow: bool = False) -> list[Table]:
    """Return the table of the default detector and the F1 of every model, both per scenario.

    Where the place is narrow, names break after underscores.
    """
    num_seeds = len(results.seeds)
    caption = "F1 per model" + (f", mean over {num_seeds} seeds" if num_seeds > 1 else "")
    return [
        _table(f"{DEFAULT_DETECTOR}: {results.detector.name}", *results_table(results), is_narrow),
        _table(caption, *models_table(results), is_narrow),
    ]


def models_table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the F1 of every model, its mean over seeds, per scenario."""
    scenarios = list(results.scenarios)
    rows = []
    for model, seeds in results.models.items():
        values = []
        for scenario in scenarios:
            found = [by_scenario[scenario].f1 for by_scenario in seeds.values() if scenario in by_scenario]
            known = [value for value in found if value is not None]
            values.append(format_value(fmean(known)) if known else "-")
        rows.append([model, *values])
    rows.append([DEFAULT_DETECTOR, *(format_value(results.f1.get(scenario)) for scenario in scenarios)])
    return ["model", *scenarios], rows


def _table(title: str, header: list[str], rows: list[list[str]], is_narrow: bool) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(header):
        is_name = place == 0
        table.add_column(
            _broken(heading, HEADING_WIDTH) if is_narrow else heading,
            justify="left" if is_name else "right",
            no_wrap=is_name,
        )
    for name, *cells in rows:
        table.add_row(_broken(name, NAME_WIDTH) if is_narrow else name, *cells)
    return table


def _broken(name: str, width: int) -> str:
    """Break a long name into lines after underscores."""
    lines = [""]
    for part in re.findall("[^_]*_|[^_]+", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


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
