"""Figures of a LAP run: what duals are worth before the solver, and how long solving takes with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kdgat.lap.evaluation.results import Group, Kind, LapResults, MethodSummary, format_number, format_share
from kdgat.report import BLACK, BLUE, GREY, ORANGE, PURPLE, VERMILLION, Key, Picture, blank
from kdgat.report.style import GREEN, SKY, series_style
from kdgat.report.training import decade_ticks

# One colour per method, in every figure of the page.
COLOURS: Final = {
    "scipy": BLACK,
    "lapx": GREY,
    "column or row minima": ORANGE,
    "column minima": "#B8860B",
    "row minima": "#E6C200",
    "Sinkhorn": PURPLE,
    "neighbour sweeps": SKY,
    "untrained network": "#3b7a99",
    "oracle": GREEN,
}
FINAL_COLOUR: Final = VERMILLION
EARLIER_COLOURS: Final = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", BLUE)
SYMBOLS: Final = {
    Kind.COMPETITOR: "square",
    Kind.UNTRAINED: "circle",
    Kind.TRAINED: "star",
    Kind.ORACLE: "diamond-open",
}
SYMBOL_TEXTS: Final = {Kind.COMPETITOR: "■", Kind.UNTRAINED: "●", Kind.TRAINED: "★", Kind.ORACLE: "◇"}
ROW_PIXELS: Final = 44
MINOR: Final = ("column minima", "row minima")  # both are in "column or row minima"


def label_of(method: MethodSummary) -> str:
    """Name a method; with its way to search where there are several."""
    return method.name if method.solver in (None, "core") else f"{method.name} ({method.solver})"


def colour_of(method: MethodSummary, results: LapResults) -> str:
    """Return the colour of a method: one for the model that users get, shades for those of earlier stages."""
    if method.name in COLOURS:
        return COLOURS[method.name]
    if method.name == results.final_method:
        return FINAL_COLOUR
    trained = list(results.parameter_counts)
    place = trained.index(method.name) if method.name in trained else 0
    return EARLIER_COLOURS[place % len(EARLIER_COLOURS)]


def method_keys(results: LapResults, groups: Sequence[Group], shown: Sequence[Kind] = tuple(Kind)) -> tuple[Key, ...]:
    """Return the legend of the methods of some groups, those of lesser interest hidden until asked for."""
    methods = {label_of(method): method for group in groups for method in group.methods if method.kind in shown}
    return tuple(
        Key(label, colour_of(method, results), symbol=SYMBOL_TEXTS[method.kind], is_hidden=_is_minor(method, results))
        for label, method in methods.items()
    )


def _is_minor(method: MethodSummary, results: LapResults) -> bool:
    is_earlier = method.kind is Kind.TRAINED and method.name != results.final_method
    return method.name in MINOR or is_earlier


def times(results: LapResults, size: int) -> Picture | None:
    """Draw the milliseconds of every method on every family, one row per family."""
    groups = [group for group in results.groups if group.size == size]
    figure = blank(90 + ROW_PIXELS * len(groups), x="milliseconds, features and inference included")
    drawn: list[float] = []
    for group in reversed(groups):
        for method in group.methods:
            if method.milliseconds is None:
                continue
            drawn.append(method.milliseconds)
            figure.add_scatter(
                x=[method.milliseconds],
                y=[group.family],
                mode="markers",
                marker={
                    "symbol": SYMBOLS[method.kind],
                    "size": 14 if method.name == results.final_method else 11,
                    "color": colour_of(method, results),
                    "opacity": 0.9,
                },
                name=label_of(method),
                hovertemplate=_times_text(group, method),
            )
    if not drawn:
        return None
    figure.update_xaxes(type="log", **decade_ticks(drawn))
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=[group.family for group in groups][::-1])
    sentences = " ".join(f"{group.family}: {group.verdict.sentence}." for group in groups if group.verdict)
    text = f"Time to solve at n = {size:,}: median over instances, logarithmic axis, left is better."
    return Picture(
        f"Milliseconds at n = {size:,}", figure, text, f"{text} {sentences}", method_keys(results, groups), is_wide=True
    )


def _times_text(group: Group, method: MethodSummary) -> str:
    lines = [f"{group.family}, n = {group.size:,}", label_of(method), f"{format_number(method.milliseconds)} ms"]
    if method.seed_milliseconds is not None:
        lines.append(f"of which duals {format_number(method.seed_milliseconds)} ms")
    if method.times_scipy is not None:
        lines.append(f"{format_number(method.times_scipy, 2)} times as fast as scipy")
    return "<br>".join(lines) + "<extra></extra>"


def gaps(results: LapResults, size: int) -> Picture | None:
    """Draw how much of the dual gap of the column minima is left by each way to get duals."""
    groups = [group for group in results.groups if group.size == size]
    names = dict.fromkeys(
        label_of(method)
        for group in groups
        for method in group.methods
        if method.gap_share is not None and method.kind in (Kind.UNTRAINED, Kind.TRAINED)
    )
    figure = blank(340, y="share of the dual gap that is left")
    alternatives = []
    for label in names:
        found = [(group.family, method) for group in groups for method in group.methods if label_of(method) == label]
        figure.add_bar(
            x=[family for family, _ in found],
            y=[method.gap_share for _, method in found],
            name=label,
            marker={"color": colour_of(found[0][1], results)},
            customdata=[format_share(method.gap_share) for _, method in found],
            hovertemplate=f"%{{x}}<br>{label}<br>%{{customdata}} of the gap is left<extra></extra>",
        )
        values = ", ".join(f"{family} {format_share(method.gap_share)}" for family, method in found)
        alternatives.append(f"{label}: {values}.")
    if not names:
        return None
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    figure.update_xaxes(showgrid=False)
    text = f"Dual gap of each seed before the solver at n = {size:,}, as a share of the column minima's: 0 is optimal."
    keys = tuple(
        Key(key.label, key.colour, symbol="■", is_hidden=key.is_hidden)
        for key in method_keys(results, groups, (Kind.UNTRAINED, Kind.TRAINED))
        if key.label in names
    )
    return Picture(f"Dual gap at n = {size:,}", figure, text, f"{text} {' '.join(alternatives)}", keys, is_wide=True)


def growth(results: LapResults, family: str) -> Picture | None:
    """Draw how the times of one family grow with n; None with a single size."""
    groups = [group for group in results.groups if group.family == family]
    if len(groups) < 2:
        return None
    figure = blank(330, x="n", y="milliseconds")
    drawn: list[float] = []
    names = dict.fromkeys(label_of(method) for group in groups for method in group.methods)
    for label in names:
        found = [
            (group.size, method, method.milliseconds)
            for group in groups
            for method in group.methods
            if label_of(method) == label and method.milliseconds is not None
        ]
        if not found:
            continue
        drawn += [value for _, _, value in found]
        method = found[0][1]
        is_final = method.name == results.final_method
        figure.add_scatter(
            x=[size for size, _, _ in found],
            y=[value for _, _, value in found],
            mode="lines+markers",
            line={
                "color": colour_of(method, results),
                "width": 2.6 if is_final else 1.5,
                "dash": "dot" if method.kind is Kind.ORACLE else "solid",
            },
            marker={"symbol": SYMBOLS[method.kind], "size": 10 if is_final else 7},
            name=label,
            hovertemplate=f"{label}<br>n = %{{x:,}}<br>%{{y:.3g}} ms<extra></extra>",
        )
    if not drawn:
        return None
    sizes = [group.size for group in groups]
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=[f"{size:,}" for size in sizes])
    figure.update_yaxes(type="log", **decade_ticks(drawn))
    text = f"{family}: median milliseconds over n, both axes logarithmic."
    return Picture(family, figure, text, text, method_keys(results, groups))


def seed_ratios(results: LapResults) -> Picture | None:
    """Draw the speed of every training seed against the best untrained one; None with a single seed."""
    verdicts = [(group, group.verdict) for group in results.groups if group.verdict is not None]
    seeds = list(dict.fromkeys(seed for _, verdict in verdicts for seed in verdict.ratio_of_seeds))
    if len(seeds) < 2:
        return None
    rows = [f"{group.family}, n = {group.size:,}" for group, _ in verdicts]
    figure = blank(90 + 26 * len(rows), x="times as fast as the best untrained seed")
    for place, seed in enumerate(seeds):
        figure.add_scatter(
            x=[verdict.ratio_of_seeds.get(seed) for _, verdict in verdicts],
            y=rows,
            mode="markers",
            marker={"size": 10, "color": series_style(place + 1)["color"]},
            name=f"training seed {seed}",
            hovertemplate=f"%{{y}}<br>training seed {seed}: %{{x:.2f}} times<extra></extra>",
        )
    figure.add_vline(x=1.0, line={"color": BLACK, "width": 1, "dash": "dot"})
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=rows[::-1])
    text = "Median over instances for every training seed; 1 is no faster than without training."
    keys = tuple(
        Key(f"training seed {seed}", series_style(place + 1)["color"], symbol="●") for place, seed in enumerate(seeds)
    )
    return Picture("Training seeds", figure, text, text, keys, is_wide=True)
