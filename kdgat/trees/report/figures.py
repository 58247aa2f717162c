"""Figures of a run on trees: histograms of growth, scores with intervals, the map of embeddings, and trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import plotly.graph_objects as go

from kdgat.report import BLACK, BLUE, GREY, ORANGE, VERMILLION, Key, Picture, blank
from kdgat.report.style import SERIES_COLOURS, axis_title
from kdgat.trees.evaluation.results import (
    FINETUNED,
    FOREST,
    GIN,
    NEIGHBOURS,
    PROBE,
    SCRATCH,
    DrawnTree,
    Point,
    ScoreSummary,
    Shares,
    TreesResults,
    with_untrained,
)

ROW_PIXELS: Final = 34
WORST_R2: Final = -1.0  # that is drawn to scale
PRETRAINED_KEY: Final = Key("with pretraining", VERMILLION, symbol="★")
SAME_KEY: Final = Key("the same without pretraining", BLUE, symbol="●")
OTHER_KEY: Final = Key("another method", BLACK, symbol="■")
KEYS: Final = {
    FINETUNED: PRETRAINED_KEY,
    PROBE: PRETRAINED_KEY,
    NEIGHBOURS: PRETRAINED_KEY,
    SCRATCH: SAME_KEY,
    with_untrained(PROBE): SAME_KEY,
    with_untrained(NEIGHBOURS): SAME_KEY,
    FOREST: OTHER_KEY,
    GIN: OTHER_KEY,
}
SYMBOLS: Final = {"★": "star", "●": "circle", "■": "square"}
TRUE, PREDICTED, BASELINE = "test trees", "predicted", "mean of the training trees"
SHARE_KEYS: Final = (
    Key(TRUE, "#b6bec7", symbol="■"),
    Key(PREDICTED, VERMILLION),
    Key(BASELINE, BLUE, "dash"),
)
AXES: Final = {
    "length": "length of a child's edge, in median edges",
    "angle": "angle to the edge before, in degrees",
    "radius": "radius of a child by its parent's",
}
LENGTH_TICKS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
RATIO_TICKS: Final = (0.25, 0.35, 0.5, 0.7, 1, 1.4)
MAP_SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up")
MAP_CHARACTERS: Final = ("●", "◆", "■", "▲")  # as a legend shows them
THINNEST, THICKEST = 0.8, 5.0  # pixels of a branch
NUM_WIDTHS: Final = 6  # of branches that are told apart in a picture
BRANCH: Final = "#37474f"


def histogram(shares: Shares) -> Picture:
    """Draw the mean distribution of a channel over nodes at some depths: true, predicted, and that of a baseline."""
    edges, is_angle = shares.edges, shares.channel == "angle"
    step = edges[1] - edges[0]
    limits = [edges[0] - step, *edges, edges[-1] + step]  # beyond the thresholds everything is one bin
    if is_angle:
        limits[0], limits[-1] = 0.0, math.pi
    # The outermost bins of angles are narrower: shares are shown for bins of one width.
    factors = [step / (high - low) for low, high in pairwise(limits)]
    texts = _bin_texts(shares.channel, edges)
    figure = blank(270, x=AXES.get(shares.channel, shares.channel), y="share of the children")
    drawn = (
        (TRUE, shares.true, {"color": "#98a2ad", "width": 1}, "tozeroy"),
        (BASELINE, shares.baseline, {"color": BLUE, "width": 1.6, "dash": "dash"}, "none"),
        (PREDICTED, shares.predicted, {"color": VERMILLION, "width": 2}, "none"),
    )
    for name, values, line, fill in drawn:
        heights = [value * factor for value, factor in zip(values, factors, strict=True)]
        figure.add_scatter(
            x=limits,
            y=[*heights, heights[-1]],
            mode="lines",
            line={**line, "shape": "hv"},
            fill=fill,
            fillcolor="rgba(120, 132, 145, 0.28)",
            name=name,
            customdata=[f"{text}: {value:.1%}" for text, value in zip(texts, values, strict=True)] + [""],
            hovertemplate=f"{name}<br>%{{customdata}}<extra></extra>",
        )
    figure.update_xaxes(range=[limits[0], limits[-1]], showgrid=False, **_ticks(shares.channel, limits))
    figure.update_yaxes(rangemode="tozero", tickformat=".0%")
    own, mean = (
        math.degrees(one) if is_angle else one
        for one in (_distance(shares.true, values, step) for values in (shares.predicted, shares.baseline))
    )
    text = (
        f"Children of nodes at depth {shares.depth}. Distance from the test trees' histogram, in"
        f" {'degrees' if is_angle else 'natural logarithms'}: prediction {own:.3g}, mean of the training trees"
        f" {mean:.3g}."
    )
    return Picture(f"Depth {shares.depth}", figure, text, f"Histograms of {shares.channel}. {text}", SHARE_KEYS)


def _distance(one: Sequence[float], other: Sequence[float], step: float) -> float:
    """Return the earth mover's distance of two histograms."""
    return step * sum(abs(a - b) for a, b in zip(accumulate(one), accumulate(other), strict=True))


def _bin_texts(channel: str, edges: Sequence[float]) -> list[str]:
    names = [f"{math.degrees(edge):.0f}°" if channel == "angle" else f"{math.exp(edge):.2g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(names)]
    return [f"up to {names[0]}", *between, f"above {names[-1]}"]


def _ticks(channel: str, limits: Sequence[float]) -> dict[str, list[float] | list[str]]:
    if channel == "angle":
        degrees = range(0, 181, 30)
        return {"tickvals": [math.radians(one) for one in degrees], "ticktext": [str(one) for one in degrees]}
    known = RATIO_TICKS if channel == "radius" else LENGTH_TICKS
    ticks = [tick for tick in known if limits[0] <= math.log(tick) <= limits[-1]]
    return {"tickvals": [math.log(tick) for tick in ticks], "ticktext": [f"{tick:g}" for tick in ticks]}


def scores(results: TreesResults, fraction: float) -> Picture | None:
    """Draw the score of every method with one share of the labels, with its interval; None without any."""
    found = sorted((row for row in results.scores if row.label_fraction == fraction), key=lambda row: row.score.mean)
    if not found:
        return None
    is_number = results.task == "number"
    name = "R²" if is_number else "accuracy"
    figure = blank(80 + ROW_PIXELS * len(found), x=name)
    lowest = WORST_R2 if is_number else 0.0
    for row in found:
        key, mean = KEYS.get(row.method, OTHER_KEY), row.score.mean
        is_left_out = mean < lowest
        figure.add_scatter(
            x=[max(mean, lowest)],
            y=[row.method],
            error_x={
                "type": "data",
                "array": [row.score.high - mean],
                "arrayminus": [mean - row.score.low],
                "color": key.colour,
                "thickness": 1.6,
                "width": 5,
                "visible": not is_left_out,
            },
            mode="markers",
            marker={
                "symbol": "triangle-left" if is_left_out else SYMBOLS[key.symbol],
                "size": 12 if key is PRETRAINED_KEY else 9,
                "color": key.colour,
            },
            name=row.method,
            legendgroup=key.label,
            hovertemplate=f"{row.method}<br>{name} {row.score.text}<extra></extra>",
        )
    # Few seeds make wide intervals: the axis shows what can be, they are cut off there.
    low = min(0.0, *(max(row.score.mean, lowest) for row in found))
    figure.update_xaxes(range=[low - 0.02 * (1 - low), 1 + 0.02 * (1 - low)])
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=[row.method for row in found])
    notes = ["right is better."]
    if any(row.score.mean < lowest for row in found):
        notes.append(f"Triangles: below {lowest:g}.")
    if results.classes and not is_number:
        notes.append(f"Dotted: one of {len(results.classes)} classes by chance.")
        figure.add_vline(x=1 / len(results.classes), line={"color": GREY, "width": 1, "dash": "dot"})
    text = f"{found[0].num_labels:.0f} labelled trees, {_seeds(found)}; {' '.join(notes)}"
    values = "; ".join(f"{row.method} {row.score.text}" for row in reversed(found))
    keys = (PRETRAINED_KEY, SAME_KEY, OTHER_KEY)
    return Picture(f"{fraction:.0%} of the labels", figure, text, f"{name}, {text} {values}.", keys, is_wide=True)


def _seeds(found: Sequence[ScoreSummary]) -> str:
    count = max(row.score.count for row in found)
    return "one seed" if count < 2 else f"mean and 95% interval over {count} seeds"


def embedding_map(results: TreesResults) -> Picture | None:
    """Draw the embeddings of test trees in the plane; None without any."""
    points = results.map
    if not points:
        return None
    figure = blank(460, x="first principal axis", y="second principal axis")
    keys: list[Key] = []
    if results.task == "number" and any(point.target is not None for point in points):
        known = [point for point in points if point.target is not None]
        _add_points(figure, known, "", {"color": [point.target for point in known], **_colour_bar()})
    else:
        labels = [label for label in results.classes if any(point.label == label for point in points)]
        for place, label in enumerate([*labels, None]):
            chosen = [
                point for point in points if point.label == label or (label is None and point.label not in labels)
            ]
            if not chosen:
                continue
            name = label or ("no label" if labels else "tree")
            colour = SERIES_COLOURS[place % len(SERIES_COLOURS)] if label else GREY
            turn = place // len(SERIES_COLOURS) % len(MAP_SYMBOLS)
            _add_points(figure, chosen, name, {"color": colour, "symbol": MAP_SYMBOLS[turn]})
            if labels:
                keys.append(Key(name, colour, symbol=MAP_CHARACTERS[turn]))
    figure.update_layout(dragmode="zoom", margin={"t": 30})  # room for the buttons
    kinds = ", ".join(key.label for key in keys)
    text = f"{len(points):,} test trees; nearby ones have similar embeddings. Point at one for its name."
    alternative = f"Map of the embeddings of {text}" + (f" Coloured by class: {kinds}." if kinds else "")
    return Picture("Embeddings", figure, text, alternative, tuple(keys), is_wide=True)


def _add_points(figure: go.Figure, points: Sequence[Point], name: str, marker: dict[str, object]) -> None:
    figure.add_scatter(
        x=[point.x for point in points],
        y=[point.y for point in points],
        mode="markers",
        marker={"size": 8, "opacity": 0.8, "line": {"width": 0.5, "color": "white"}, **marker},
        name=name,
        customdata=[[point.name, point.label if point.target is None else f"{point.target:.4g}"] for point in points],
        hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )


def _colour_bar() -> dict[str, object]:
    return {"colorscale": "Viridis", "showscale": True, "colorbar": {"thickness": 12, "outlinewidth": 0}}


def tree(drawn: DrawnTree, place: int) -> Picture:
    """Draw a tree: lines as thick as the branch, the root marked."""
    figure = blank(230)
    below = [node for node, parent in enumerate(drawn.parent) if parent >= 0]
    widest = max((drawn.width[node] for node in below), default=0.0)
    groups: dict[int, list[int]] = {}
    for node in below:
        share = drawn.width[node] / widest if widest > 0 else 0.0
        groups.setdefault(min(int(share * NUM_WIDTHS), NUM_WIDTHS - 1), []).append(node)
    for group, nodes in sorted(groups.items()):
        x: list[float | None] = []
        y: list[float | None] = []
        for node in nodes:
            parent = drawn.parent[node]
            x += [drawn.x[parent], drawn.x[node], None]
            y += [drawn.y[parent], drawn.y[node], None]
        width = THINNEST + (THICKEST - THINNEST) * group / (NUM_WIDTHS - 1)
        figure.add_scatter(
            x=x, y=y, mode="lines", line={"color": BRANCH, "width": width}, hoverinfo="skip", connectgaps=False
        )
    roots = [node for node, parent in enumerate(drawn.parent) if parent < 0]
    figure.add_scatter(
        x=[drawn.x[node] for node in roots],
        y=[drawn.y[node] for node in roots],
        mode="markers",
        marker={"size": 9, "color": ORANGE, "line": {"width": 1, "color": "white"}},
        hoverinfo="skip",
    )
    hidden = {"visible": False, "title": axis_title("")}
    figure.update_xaxes(**hidden)
    figure.update_yaxes(**hidden, scaleanchor="x", scaleratio=1)
    figure.update_layout(margin={"l": 4, "r": 4, "t": 4, "b": 4})
    title = drawn.label or f"tree {place + 1}"
    text = f"{drawn.name}: {len(drawn.parent):,} nodes"
    return Picture(title, figure, text, f"Picture of a tree, {title}, {text}.")
