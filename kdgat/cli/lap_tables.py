"""What a LAP run is worth, as tables for a terminal or a file."""

from __future__ import annotations

from rich.table import Table

from kdgat.lap.results import Group, LapResults, MethodSummary, format_number, format_share, results_table

METHOD_HEADINGS = (
    "method",
    "R2 of u",
    "gap left",
    "augmentations",
    "entries scanned",
    "duals ms",
    "total ms",
    "times scipy",
)


def comparison_table(results: LapResults) -> Table:
    """Return one row per family and size: the trained model against the best untrained seed and scipy."""
    trained = results.final_method or "no trained model"
    return _table(f"warm starts, {trained}", *results_table(results), num_names=1)


def methods_table(results: LapResults, group: Group) -> Table:
    """Return every method on one family and size."""
    rows = [_method_row(method) for method in group.methods]
    return _table(f"{group.family}, n = {group.size:,}", list(METHOD_HEADINGS), rows, num_names=1)


def _method_row(method: MethodSummary) -> list[str]:
    return [
        method.name if method.solver in (None, "core") else f"{method.name} ({method.solver})",
        format_number(method.u_r2, 2),
        format_share(method.gap_share),
        format_number(method.augmentations, 0),
        format_number(method.scanned_entries, 0),
        format_number(method.seed_milliseconds),
        format_number(method.milliseconds),
        format_number(method.times_scipy, 2),
    ]


def lap_tables(results: LapResults) -> list[Table]:
    """Return the comparison, then every method at the largest size."""
    largest = [group for group in results.groups if group.size == results.sizes[-1]]
    return [comparison_table(results), *(methods_table(results, group) for group in largest)]


def _table(title: str, header: list[str], rows: list[list[str]], num_names: int) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(header):
        table.add_column(heading, justify="left" if place < num_names else "right", no_wrap=place < num_names)
    for row in rows:
        table.add_row(*row)
    return table
