"""A timeline of a log: the score of every window, and why each alarm was raised, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, write_bytes_atomically
from kdgat.can.detection.alarms import Alarm, identifier_text
from kdgat.can.detection.output import describe_log_time, describe_suspects
from kdgat.can.detection.watch import Timeline
from kdgat.can.models.names import HABITS
from kdgat.can.models.scaling import logit
from kdgat.run import counted

if TYPE_CHECKING:
    import plotly.graph_objects as go

SUFFIX: Final = ".html"
MAX_DRAWN: Final = 500  # alarms
MAX_POINTS: Final = 20_000  # of a line
NETWORK: Final = "network"
# Who raises alarms, as they are drawn: name, colour of the band, colour and symbol of the mark above it.
RAISED_BY: Final = {
    NETWORK: ("the network", "rgba(213, 94, 0, 0.22)", "#D55E00", "triangle-down"),
    HABITS: ("the habits of identifiers", "rgba(0, 158, 115, 0.22)", "#009E73", "diamond"),
}
BY_SEVERAL: Final = ("rgba(204, 121, 167, 0.28)", "#A6508A", "star")
LABEL_SHARE: Final = 0.14  # of the width, which a reason that is written above its alarm takes


def check_picture(path: Path) -> None:
    """Raise UserError for a format that cannot be written, before anything is computed."""
    if path.suffix.lower() != SUFFIX:
        raise UserError(f"--picture {path}: only {SUFFIX} is written, a page that any browser shows; name it so")


def draw_timeline(
    path: Path,
    title: str,
    timeline: Timeline,
    alarms: Sequence[Alarm],
    threshold: float | None,
    num_alarms: int | None = None,
) -> None:
    """Write the timeline as a page, with its alarms, or the first ones of `num_alarms`.

    The threshold is a calibrated logit of the network; None where the habits of identifiers decide alone.
    """
    from kdgat.report import Document, Picture, Section, blank
    from kdgat.report.document import render_document

    num_alarms = len(alarms) if num_alarms is None else num_alarms
    time_s = _joined(timeline.time_s)
    start_s = float(time_s[0]) if len(time_s) else 0.0
    figure = blank(560, x="seconds since the first window")
    _draw_scores(figure, time_s - start_s, _joined(timeline.score), threshold)
    _draw_alarms(figure, alarms[:MAX_DRAWN], start_s)
    figure.update_layout(
        modebar={"orientation": "v"},
        margin={"t": 30},
        dragmode="zoom",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        hovermode="closest",
    )
    heading = f"{title}: {counted(num_alarms, 'alarm')}"
    more = f", {num_alarms - MAX_DRAWN:,} of them not drawn" if num_alarms > MAX_DRAWN else ""
    picture = Picture(
        "Score of every window",
        figure,
        "Coloured bands are alarms; the mark above says who raised one, and why when it is pointed at.",
        f"The score of every window of {heading}{more}, over time.",
        is_wide=True,
    )
    timeline_section = Section("timeline", f"Timeline{more}", pictures={"": [picture]}, is_open=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path, render_document(Document(heading, [timeline_section])).encode())


def _joined(parts: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    return np.concatenate([*parts, np.zeros(0)]).astype(np.float64)


def _draw_scores(
    figure: go.Figure, time_s: NDArray[np.float64], scores: NDArray[np.float64], threshold: float | None
) -> None:
    """Draw the score of each window on a log-odds axis, and where the network raises an alarm."""
    from kdgat.can.report.timeline import LIMIT, TICKS, thinned
    from kdgat.report import BLACK, ORANGE
    from kdgat.report.style import FONT_SIZE

    height = np.clip(logit(scores), -LIMIT, LIMIT)
    shown = thinned(height, MAX_POINTS)
    figure.add_scatter(
        x=time_s[shown],
        y=height[shown],
        mode="lines",
        showlegend=False,
        line={"color": BLACK, "width": 1.1},
        customdata=scores[shown],
        hovertemplate="%{x:.2f} s<br>score %{customdata:.4f}<extra></extra>",
    )
    if threshold is not None:
        bound = float(np.clip(threshold, -LIMIT, LIMIT))
        line = {"color": ORANGE, "width": 1.5, "dash": "dash"}
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=bound, y1=bound, line=line)
    figure.update_layout(
        yaxis={
            "title": {"text": "score of a window", "font": {"size": FONT_SIZE}},
            "domain": [0.0, 0.9],
            "tickvals": [float(logit(tick)) for tick in TICKS],
            "ticktext": [f"{tick:g}" for tick in TICKS],
            "range": [-LIMIT - 0.6, LIMIT + 0.6],
        }
    )


def _draw_alarms(figure: go.Figure, alarms: Sequence[Alarm], start_s: float) -> None:
    """Shade the time of each alarm, with a mark above it that says why it was raised."""
    span = max((alarm.end_s for alarm in alarms), default=0.0) - start_s
    groups: dict[tuple[str, ...], list[Alarm]] = {}
    for alarm in alarms:
        groups.setdefault(tuple(name for name in RAISED_BY if name in alarm.by), []).append(alarm)
    labelled_until = -span
    labels: dict[Alarm, str] = {}
    for alarm in alarms:
        if _centre(alarm) - labelled_until >= LABEL_SHARE * span:
            labels[alarm], labelled_until = _short_reason(alarm), _centre(alarm)
    for by, group in groups.items():
        band, colour, symbol = RAISED_BY[by[0]][1:] if len(by) == 1 else BY_SEVERAL
        for alarm in group:
            begin, end = alarm.begin_s - start_s, alarm.end_s - start_s
            figure.add_shape(
                type="rect", xref="x", yref="paper", x0=begin, x1=end, y0=0.0, y1=1.0, fillcolor=band,
                line={"width": 0.6, "color": band}, layer="below",
            )  # fmt: skip
        figure.add_scatter(
            x=[_centre(alarm) - start_s for alarm in group],
            y=[0.3] * len(group),
            yaxis="y2",
            mode="markers+text",
            name=f"{counted(len(group), 'alarm')} by {_names(by)}",
            marker={"symbol": symbol, "size": 10, "color": colour},
            text=[labels.get(alarm, "") for alarm in group],
            textposition="top center",
            textfont={"size": 11},
            hovertext=[_reason(alarm, start_s) for alarm in group],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    figure.update_layout(
        yaxis2={"domain": [0.91, 1.0], "range": [0, 1], "visible": False, "fixedrange": True, "anchor": "x"}
    )


def _centre(alarm: Alarm) -> float:
    return (alarm.begin_s + alarm.end_s) / 2.0


def _names(by: Sequence[str]) -> str:
    return " and ".join(RAISED_BY[name][0] for name in by)


def _short_reason(alarm: Alarm) -> str:
    """Return the first identifier of an alarm and what is unusual about it."""
    if not alarm.suspects:
        return alarm.guess
    first = alarm.suspects[0]
    return f"{identifier_text(first.identifier)}: {', '.join(first.reasons[:2])}"


def _reason(alarm: Alarm, start_s: float) -> str:
    """Say when an alarm was, who raised it, and why."""
    by = _names([name for name in RAISED_BY if name in alarm.by])
    lines = (
        f"<b>{alarm.guess}</b>, {alarm.begin_s - start_s:.3f} to {alarm.end_s - start_s:.3f} s",
        f"raised by {by}",
        *(f"{suspect}" for suspect in describe_suspects(alarm).replace("), ", ")\n").splitlines()),
        describe_log_time(alarm).removeprefix("; "),
    )
    return "<br>".join(line for line in lines if line)
