"""What a LAP run is worth, as tables of texts."""

from __future__ import annotations

from dataclasses import replace

from kdgat.lap.evaluation.results import Group, LapResults, MethodSummary, format_number, format_share
from kdgat.run import Table

COMPARISON_HEADINGS = (
    "family", "n", "gap left", "scipy ms", "untrained ms", "trained ms", "gain", "at most", "times scipy"
)  # fmt: skip
METHOD_HEADINGS = ("method", "R2 of u", "gap left", "searches", "scanned", "duals ms", "total ms", "times scipy")
RESULTS_HEADINGS = (
    "family", "n", "instances", "R2 of u", "gap left", "augmentations", "scipy ms", "untrained ms", "best untrained",
    "trained ms", "gain", "at most", "times scipy",
)  # fmt: skip
RESULTS_CAPTION = (
    "One row per family and size. Gap left: of the trained model's duals, column minima being 100 %."
    " Augmentations: best untrained seed → trained model. Gain: how many times as fast as the best untrained seed the"
    " trained model is; at most: what optimal duals for nothing (the oracle) would be."
)


def methods_tables(results: LapResults) -> list[Table]:
    """Return every method at the largest size."""
    largest = [group for group in results.groups if group.size == results.sizes[-1]]
    return [replace(methods_table(group), is_detail=True) for group in largest]


def comparison_table(results: LapResults) -> Table:
    """Return one row per family and size: the trained model against the best untrained seed, the oracle and scipy.

    Gap left is that of the trained model's duals, column minima being 100 %. Gain is how many times as fast as the best
    untrained seed the trained model is, at most what optimal duals for nothing would be.
    """
    found = (dict(zip(RESULTS_HEADINGS, _cells(results, group), strict=True)) for group in results.groups)
    rows = [[cells[name] for name in COMPARISON_HEADINGS] for cells in found]
    return Table.of(COMPARISON_HEADINGS, rows, f"warm starts, {results.final_method or 'no trained model'}")


def methods_table(group: Group) -> Table:
    """Return every method on one family and size; scanned are entries of the matrix looked at in searches."""
    rows = [
        [
            method.name if method.solver in (None, "core") else f"{method.name} ({method.solver})",
            format_number(method.u_r2, 2),
            format_share(method.gap_share),
            format_number(method.augmentations, 0),
            format_millions(method.scanned_entries),
            format_number(method.seed_milliseconds),
            format_number(method.milliseconds),
            format_number(method.times_scipy),
        ]
        for method in group.methods
    ]
    return Table.of(METHOD_HEADINGS, rows, f"{group.family}, n = {group.size:,}")


def results_table(results: LapResults) -> Table:
    """Return the compact table of reports and of the Prefect UI: one row per family and size, counters before times."""
    rows = [_cells(results, group) for group in results.groups]
    names = (0, RESULTS_HEADINGS.index("best untrained"))
    return Table.of(RESULTS_HEADINGS, rows, RESULTS_CAPTION, key="warm-starts", text_columns=names, is_detail=True)


def _cells(results: LapResults, group: Group) -> list[str]:
    methods = {method.name: method for method in reversed(group.methods)}
    untrained, trained, scipy = group.best_untrained, methods.get(results.final_method or ""), methods.get("scipy")
    verdict, fastest = group.verdict, trained or untrained
    return [
        group.family,
        f"{group.size:,}",
        f"{group.num_checked:,}",
        format_number(trained.u_r2 if trained else None, 2),
        format_share(trained.gap_share if trained else None),
        _searches(untrained, trained),
        format_number(scipy.milliseconds if scipy else None),
        format_number(untrained.milliseconds if untrained else None),
        untrained.name if untrained else "-",
        format_number(trained.milliseconds if trained else None),
        format_number(verdict.ratio if verdict else None, 2),
        format_number(verdict.headroom if verdict else None, 2),
        format_number(fastest.times_scipy if fastest else None),
    ]


def _searches(untrained: MethodSummary | None, trained: MethodSummary | None) -> str:
    return " → ".join(format_number(method.augmentations if method else None, 0) for method in (untrained, trained))


def format_millions(value: float | None) -> str:
    """Write a count in millions; a dash for what is not known."""
    return "-" if value is None else f"{value / 1e6:,.2f} M"
