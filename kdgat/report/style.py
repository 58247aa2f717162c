"""Colours, names and the plain frame shared by all figures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito's colours: told apart with every common colour-vision deficiency.
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#1b1f24", "#57606a"
SERIES_COLOURS = (BLACK, BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
SERIES_DASHES = ("solid", "dash", "dot")  # once more round the colours
ATTACK_BAND = "rgba(213, 94, 0, 0.22)"
GRID = "#e4e8ec"

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
FONT_SIZE = 13


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a button that shows and hides the traces whose legendgroup is `label`."""

    label: str
    colour: str
    dash: str = "solid"
    symbol: str = ""  # a character instead of a line
    is_hidden: bool = False  # until asked for


@dataclass(frozen=True)
class Picture:
    """A figure with its heading, and with what a reader needs who does not see it."""

    title: str
    figure: go.Figure
    caption: str
    alternative: str
    keys: tuple[Key, ...] = ()  # the page draws the legend, once for neighbouring figures, because it can wrap lines
    is_wide: bool = False

    def __post_init__(self) -> None:
        """Let what a trace is called be the entry of the legend that shows it, unless it says another one."""
        for trace in self.figure.data:
            trace.legendgroup = trace.legendgroup or trace.name


def series_style(index: int) -> dict[str, Any]:
    """Return colour and dash of the index-th line of a figure."""
    colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
    return {"color": colour, "dash": SERIES_DASHES[index // len(SERIES_COLOURS) % len(SERIES_DASHES)]}


def line_key(label: str, index: int, *, is_hidden: bool = False) -> Key:
    """Return the legend entry of the index-th line of a figure."""
    style = series_style(index)
    return Key(label, style["color"], style["dash"], is_hidden=is_hidden)


def wrapped(name: str, width: int = 22) -> str:
    """Break a long name after underscores into lines of about `width` characters, for axis labels."""
    lines = [""]
    for part in re.split(r"(?<=[_ ])", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "<br>".join(lines)


def blank(height: int, *, x: str = "", y: str = "") -> go.Figure:
    """Return an empty figure in the report's style; axis names x and y, height in pixels."""
    axis = {
        "showline": True,
        "linecolor": "#8c959f",
        "gridcolor": GRID,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": "#8c959f",
        "ticklen": 4,
        "automargin": True,
    }
    # An empty template keeps plotly's default one, 6 kB, out of every figure.
    figure = go.Figure(layout={"template": {}})
    figure.update_layout(
        height=height,
        margin={"l": 56, "r": 22, "t": 10, "b": 48},
        paper_bgcolor="rgba(0, 0, 0, 0)",  # the page may be dark
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"family": FONT, "size": FONT_SIZE, "color": BLACK},
        showlegend=False,
        hoverlabel={"font": {"family": FONT, "size": 12}},
        xaxis={**axis, "title": axis_title(x)},
        yaxis={**axis, "title": axis_title(y)},
        dragmode=False,
        modebar={"bgcolor": "rgba(0, 0, 0, 0)", "color": GREY, "activecolor": BLACK},
    )
    return figure


def axis_title(text: str) -> dict[str, Any]:
    """Return the settings of an axis title, in the size of everything else."""
    return {"text": text, "standoff": 8, "font": {"size": FONT_SIZE}}


# Detection is compared close to 1, where a linear axis shows nothing: place a value by its distance from 1.
SMALLEST_ERROR = 1e-4
NINES_TICKS = (0.0, 0.9, 0.99, 0.999, 0.9999)


def nines(value: float) -> float:
    """Return -log10(1 - value), the number of nines, limited to 4."""
    return -math.log10(max(1.0 - value, SMALLEST_ERROR))


def nines_axis(name: str, largest: float = 1.0) -> dict[str, Any]:
    """Return the settings of an axis for values placed by `nines`, up to the first tick that is not below `largest`."""
    ticks = [0.0]
    for tick in NINES_TICKS[1:]:
        if ticks[-1] < largest:
            ticks.append(tick)
    if len(ticks) <= 3:  # room enough to tell apart what is far from 1
        ticks.insert(1, 0.5)
    labels = ["1" if tick == NINES_TICKS[-1] else f"{tick:g}" for tick in ticks]  # everything from 0.9999 on
    return {
        "title": axis_title(name),
        "tickmode": "array",
        "tickvals": [nines(tick) for tick in ticks],
        "ticktext": labels,
        "tickangle": 0,
        "range": [-0.03 * nines(ticks[-1]), 1.04 * nines(ticks[-1])],
    }
