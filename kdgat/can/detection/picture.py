"""A timeline of a log: the attack probability of every window, and the alarms, as one page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from kdgat.can.detection.accumulated import ACCUMULATION
from kdgat.can.detection.alarms import Alarm
from kdgat.can.detection.output import describe_since, describe_suspects
from kdgat.can.detection.watch import Timeline
from kdgat.can.evaluation.calibration import logit, sigmoid
from kdgat.stage.files import write_bytes_atomically

SUFFIX: Final = ".html"
MAX_DRAWN: Final = 500  # alarms
ADDED_UP_BAND: Final = "rgba(0, 114, 178, 0.18)"  # of an alarm that no single window raised


class PictureError(ValueError):
    """A picture cannot be drawn as it was asked for."""


def check_picture(path: Path) -> None:
    """Raise PictureError for a format that cannot be written, before anything is computed."""
    if path.suffix.lower() != SUFFIX:
        raise PictureError(f"--picture {path}: only {SUFFIX} is written, a page that any browser shows; name it so")


def draw_timeline(
    path: Path, title: str, timeline: Timeline, alarms: Sequence[Alarm], threshold: float, num_alarms: int | None = None
) -> None:
    """Write the timeline as a page; `alarms` may be the first ones of `num_alarms`."""
    num_alarms = len(alarms) if num_alarms is None else num_alarms
    from kdgat.can.report.timeline import LIMIT, TICKS, thinned
    from kdgat.report.style import BLUE, ORANGE, blank

    time_s = np.concatenate([*timeline.time_s, np.zeros(0)])
    height = np.clip(np.concatenate([*timeline.logit, np.zeros(0)]).astype(np.float64), -LIMIT, LIMIT)
    start_s = float(time_s[0]) if len(time_s) else 0.0
    figure = blank(420, x="seconds since the first window", y="attack probability")
    low, high = -LIMIT - 0.6, LIMIT + 0.6
    for alarm in alarms[:MAX_DRAWN]:
        begin, end = alarm.begin_s - start_s, alarm.end_s - start_s
        figure.add_scatter(
            x=[begin, begin, end, end],
            y=[low, high, high, low],
            mode="lines",
            fill="toself",
            fillcolor=_band(alarm),
            line={"width": 0.6, "color": _band(alarm)},
            hoveron="fills",
            text=f"{alarm.guess}: {describe_suspects(alarm)}{describe_since(alarm, start_s)}",
            hoverinfo="text",
        )
    shown = thinned(height, 20_000)
    figure.add_scatter(
        x=time_s[shown] - start_s,
        y=height[shown],
        mode="lines",
        line={"color": BLUE, "width": 1.1},
        customdata=sigmoid(height[shown]),
        hovertemplate="%{x:.2f} s<br>probability %{customdata:.4f}<extra></extra>",
    )
    figure.add_hline(y=threshold, line={"color": ORANGE, "width": 1.5, "dash": "dash"})
    figure.update_yaxes(
        tickvals=[float(logit(tick)) for tick in TICKS], ticktext=[f"{tick:g}" for tick in TICKS], range=[low, high]
    )
    more = f", {num_alarms - MAX_DRAWN:,} of them not drawn" if num_alarms > MAX_DRAWN else ""
    figure.update_layout(title=f"{title}: {num_alarms:,} alarms{more}", margin={"t": 48}, dragmode="zoom")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path, figure.to_html(include_plotlyjs=True, full_html=True).encode())


def _band(alarm: Alarm) -> str:
    from kdgat.report.style import ATTACK_BAND

    return ADDED_UP_BAND if alarm.by == (ACCUMULATION,) else ATTACK_BAND
