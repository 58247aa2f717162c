"""What a LAP run is worth, as tables for a terminal or a file; 80 columns are enough."""

from __future__ import annotations

from rich.table import Table

from kdgat.lap.results import Group, LapResults, MethodSummary, format_number, format_share

COMPARISON_HEADINGS = (
    "family",
    "n",
    "gap\nleft",
    "searches",
    "scipy\nms",
    "un-\ntrained\nms",
    "trained\nms",
    "gain",
    "at\nmost",
    "times\nscipy",
)
METHOD_HEADINGS = ("method", "R2\nof u", "gap\nleft", "searches", "scanned", "duals\nms", "total\nms", "times\nscipy")


def comparison_table(results: LapResults) -> Table:
    """Return one row per family and size: the trained model against the best untrained seed, the oracle and scipy.

    Gap left is that of the trained model's duals, column minima being 100 %; searches are those left by the best
    untrained seed and by the trained model. Gain is how many times as fast as the best untrained seed the trained model
    is, at most what optimal duals for nothing would be.
    """
    rows = [_comparison_row(results, group) for group in results.groups]
    return _table(f"warm starts, {results.final_method or 'no trained model'}", COMPARISON_HEADINGS, rows)


def _comparison_row(results: LapResults, group: Group) -> list[str]:
    methods = {method.name: method for method in reversed(group.methods)}
    trained, scipy = methods.get(results.final_method or ""), methods.get("scipy")
    verdict = group.verdict
    untrained = group.best_untrained
    searches = [format_number(method.augmentations if method else None, 0) for method in (untrained, trained)]
    return [
        group.family,
        f"{group.size:,}",
        format_share(trained.gap_share if trained else None),
        " → ".join(searches),
        *(format_number(method.milliseconds if method else None) for method in (scipy, untrained, trained)),
        format_number(verdict.ratio if verdict else None, 2),
        format_number(verdict.headroom if verdict else None, 2),
        format_number(fastest.times_scipy if (fastest := trained or untrained) else None),
    ]


def methods_table(group: Group) -> Table:
    """Return every method on one family and size; scanned are entries of the matrix looked at in searches."""
    return _table(f"{group.family}, n = {group.size:,}", METHOD_HEADINGS, [_method_row(row) for row in group.methods])


def _method_row(method: MethodSummary) -> list[str]:
    scanned = method.scanned_entries
    return [
        method.name if method.solver in (None, "core") else f"{method.name} ({method.solver})",
        format_number(method.u_r2, 2),
        format_share(method.gap_share),
        format_number(method.augmentations, 0),
        "-" if scanned is None else f"{scanned / 1e6:,.2f} M",
        format_number(method.seed_milliseconds),
        format_number(method.milliseconds),
        format_number(method.times_scipy),
    ]


def lap_tables(results: LapResults) -> list[Table]:
    """Return every method at the largest size, then the comparison."""
    largest = [group for group in results.groups if group.size == results.sizes[-1]]
    return [*(methods_table(group) for group in largest), comparison_table(results)]


def _table(title: str, headings: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
