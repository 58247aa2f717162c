"""The score along one recording, with the periods under attack shaded."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.can.evaluation.calibration import DecisionRule
from kdgat.can.evaluation.scores import Scores
from kdgat.can.models.scaling import logit, sigmoid
from kdgat.report import BLACK, BLUE, ORANGE, PURPLE, Key, Picture, blank
from kdgat.report.style import ATTACK_BAND
from kdgat.run import counted

MAX_POINTS = 1200  # twice the pixels of a wide page is enough
MAX_MARKERS = 200  # of each kind of mistake
MIN_GAP_SHARE = 1 / 1500  # attack periods closer than this share of the recording are drawn as one
LIMIT = float(logit(0.9999))
KEYS = (
    Key("score", BLUE),
    Key("under attack", "#f0c4a8", symbol="■"),
    Key("threshold", ORANGE, "dash"),
    Key("missed attack", BLACK, symbol="◯"),
    Key("benign, in alarm", PURPLE, symbol="✕"),
)
TICKS = (0.0001, 0.01, 0.5, 0.99, 0.9999)


def decisions(scores: Scores, rule: DecisionRule) -> NDArray[np.bool_]:
    """Return the decision per window: the stored one, or the rule's on probabilities that are calibrated already."""
    if scores.decision is not None:
        return scores.decision.astype(np.bool_)
    if rule.habits:
        raise UserError("the scores are kept without decisions, and the rule asks the habits: run the evaluation again")
    plain = rule.model_copy(update={"temperature": 1.0, "bias": 0.0})
    return plain.apply(logit(scores.probability), scores.recording)[1]


def thinned(values: NDArray[np.float64], max_points: int = MAX_POINTS) -> NDArray[np.intp]:
    """Return increasing indices that keep the smallest and the largest value of every stretch."""
    if values.size <= max_points:
        return np.arange(values.size)
    edges = np.linspace(0, values.size, max_points // 2 + 1).astype(np.int64)
    kept = []
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        stretch = values[start:end]
        kept += [start + int(stretch.argmin()), start + int(stretch.argmax())]
    return np.unique(kept)


def attack_periods(position: NDArray[np.float64], label: NDArray[np.int8]) -> list[tuple[float, float]]:
    """Return (start, end) of runs of attack windows in the unit of position, near ones merged.

    A window lasts until the next one begins.
    """
    if not label.any():
        return []
    step = float(np.median(np.diff(position))) if position.size > 1 else 1.0
    end_of_window = np.append(position[1:], position[-1] + step)
    edges = np.diff(np.concatenate(([0], label.astype(np.int8), [0])))
    starts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    gap = (end_of_window[-1] - position[0]) * MIN_GAP_SHARE
    periods: list[tuple[float, float]] = []
    for start, end in zip(position[starts].tolist(), end_of_window[lasts].tolist(), strict=True):
        if periods and start - periods[-1][1] <= gap:
            periods[-1] = (periods[-1][0], end)
        else:
            periods.append((start, end))
    return periods


def score_along_recording(scores: Scores, index: int, decided: NDArray[np.bool_], rule: DecisionRule) -> Picture:
    """Draw the calibrated probability of one recording over time, on a log-odds axis, with mistakes marked."""
    rows = np.flatnonzero(scores.recording == index)
    name = scores.recording_names[index]
    label, decision = scores.label[rows] != 0, decided[rows]
    height = np.clip(logit(scores.probability[rows]), -LIMIT, LIMIT)
    seconds = scores.start_time[rows].astype(np.float64)
    runs_backwards = bool(np.any(np.diff(seconds) < 0))
    position = np.arange(rows.size, dtype=np.float64) if runs_backwards else seconds - seconds[0]
    unit = "window (time stamps run backwards)" if runs_backwards else "seconds since the start of the recording"

    figure = blank(240, x=unit, y="attack probability")
    periods = attack_periods(position, label.astype(np.int8))
    _add_periods(figure, periods)
    shown = thinned(height)
    figure.add_scatter(
        x=position[shown].astype(np.float32),
        y=height[shown].astype(np.float32),
        mode="lines",
        line={"color": BLUE, "width": 1.1},
        name="score",
        customdata=scores.probability[rows][shown].astype(np.float32),
        hovertemplate="%{x:.2f}<br>probability %{customdata:.4f}<extra></extra>",
    )
    false_alarms, misses = np.flatnonzero(decision & ~label), np.flatnonzero(label & ~decision)
    for mistakes, text, symbol, colour in (
        (false_alarms, "benign, in alarm", "x-thin", PURPLE),
        (misses, "missed attack", "circle-open", BLACK),
    ):
        if mistakes.size:
            some = mistakes[np.unique(np.linspace(0, mistakes.size - 1, MAX_MARKERS).astype(np.int64))]
            figure.add_scatter(
                x=position[some].astype(np.float32),
                y=height[some].astype(np.float32),
                mode="markers",
                marker={"symbol": symbol, "size": 7, "color": colour, "line": {"width": 1.6, "color": colour}},
                name=text,
                hovertemplate=f"{text} at %{{x:.2f}}<extra></extra>",
            )
    threshold = _threshold(scores, rows, index, rule)
    end = float(position[-1]) if position.size else 1.0
    figure.add_scatter(
        x=[0.0, end],
        y=[threshold, threshold],
        mode="lines",
        line={"color": ORANGE, "width": 1.5, "dash": "dash"},
        name="threshold",
        hoverinfo="skip",
    )
    figure.update_yaxes(
        tickvals=[float(logit(tick)) for tick in TICKS],
        ticktext=["0.0001", "0.01", "0.5", "0.99", "0.9999"],
        range=[-LIMIT - 0.6, LIMIT + 0.6],
        fixedrange=True,
    )
    figure.update_xaxes(range=[0, end])
    figure.update_layout(dragmode="zoom", margin={"t": 30})  # room for the buttons
    under_attack = int(np.count_nonzero(label))
    text = (
        f"{counted(rows.size, 'window')}, {under_attack:,} under attack"
        f"{f' in {len(periods):,} shaded periods' if len(periods) > 1 else ''};"
        f" {misses.size:,} missed, {false_alarms.size:,} benign in alarm;"
        f" threshold {float(sigmoid(threshold)):.3g}."
    )
    return Picture(name, figure, text, f"Attack probability over time, {name}: {text}", KEYS, is_wide=True)


def _add_periods(figure: go.Figure, periods: list[tuple[float, float]]) -> None:
    """Shade the periods as one filled outline: thousands of separate shapes would make the page slow."""
    if not periods:
        return
    x = [value for start, end in periods for value in (start, start, end, end, None)]
    low, high = -LIMIT - 0.6, LIMIT + 0.6
    figure.add_scatter(
        x=x,
        y=[low, high, high, low, None] * len(periods),
        mode="lines",
        line={"width": 0.6, "color": ATTACK_BAND},
        fill="toself",
        fillcolor=ATTACK_BAND,
        name="under attack",
        hoverinfo="skip",
    )


def _threshold(scores: Scores, rows: NDArray[np.intp], index: int, rule: DecisionRule) -> float:
    """Return the log-odds from which windows of this recording are alarms."""
    plain = rule.model_copy(update={"temperature": 1.0, "bias": 0.0})
    found = plain.probability_thresholds(logit(scores.probability[rows]), scores.recording[rows])
    return float(logit(found.get(index, rule.threshold)))
