from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.calibration import DecisionRule
from kdgat.can.evaluation.scores import Scores
from kdgat.can.report.timeline import LIMIT, attack_periods, decisions, score_along_recording, thinned

SCORES = Scores(
    probability=np.array([0.1, 0.9, 0.2, 0.7, 0.99, 0.4], np.float32),
    label=np.array([0, 1, 1, 0, 1, 0], np.int8),
    recording=np.array([0, 0, 0, 0, 0, 1], np.int32),
    recording_names=["attacked", "clean"],
    start_time=np.array([100.0, 101.0, 102.0, 103.0, 104.0, 7.0]),
    attack_count=np.array([0, 5, 5, 0, 5, 0], np.int32),
)
RULE = DecisionRule(temperature=3.0, bias=5.0)  # the scores are calibrated already: these must not be applied again


def trace(figure: go.Figure, group: str) -> dict[str, Any]:
    return next(data for data in figure.to_plotly_json()["data"] if data["legendgroup"] == group)


def column(values: Any) -> np.ndarray:
    """Undo plotly's base64 encoding of numpy columns."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
    return np.asarray(values)


def test_thinning_keeps_the_extremes() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    values[41_234], values[77_777] = 50.0, -50.0
    kept = thinned(values, 1000)
    assert kept.size <= 1000
    assert {41_234, 77_777} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(thinned(values[:800], 1000), np.arange(800))


def test_attack_periods_are_runs_of_attack_windows() -> None:
    position = np.arange(10.0)
    label = np.array([1, 1, 0, 0, 1, 0, 0, 0, 0, 1], np.int8)
    assert attack_periods(position, label) == [(0.0, 2.0), (4.0, 5.0), (9.0, 10.0)]
    assert attack_periods(position, np.zeros(10, np.int8)) == []
    assert attack_periods(position, np.ones(10, np.int8)) == [(0.0, 10.0)]


def test_periods_too_near_to_be_seen_apart_are_merged() -> None:
    label = np.tile([1, 0], 50_000).astype(np.int8)
    assert len(attack_periods(np.arange(100_000.0), label)) == 1


def test_score_threshold_attack_and_mistakes_are_drawn() -> None:
    decided = decisions(SCORES, RULE)
    np.testing.assert_array_equal(decided, SCORES.probability >= 0.5)
    picture = score_along_recording(SCORES, 0, decided, RULE)
    assert (
        "5 windows, 3 under attack in 2 shaded periods; 1 missed, 1 benign in alarm; threshold 0.5" in picture.caption
    )
    np.testing.assert_allclose(column(trace(picture.figure, "score")["x"]), [0, 1, 2, 3, 4])
    expected = np.log(SCORES.probability[:5] / (1 - SCORES.probability[:5]))
    np.testing.assert_allclose(column(trace(picture.figure, "score")["y"]), expected, rtol=1e-4)
    assert column(trace(picture.figure, "missed attack")["x"]).tolist() == [2.0]
    assert column(trace(picture.figure, "benign, in alarm")["x"]).tolist() == [3.0]
    assert trace(picture.figure, "threshold")["y"] == [0.0, 0.0]
    band = trace(picture.figure, "under attack")
    assert [x for x in band["x"] if x is not None] == [1.0, 1.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]


def test_certain_scores_stay_on_the_axis() -> None:
    scores = replace(SCORES, probability=np.array([0, 1, 0, 1, 1, 0], np.float32))
    figure = score_along_recording(scores, 0, decisions(scores, RULE), RULE).figure
    assert np.abs(column(trace(figure, "score")["y"])).max() == pytest.approx(LIMIT)


def test_stored_decisions_win_over_the_rule() -> None:
    stored = np.array([True, False, False, False, False, False])
    np.testing.assert_array_equal(decisions(replace(SCORES, decision=stored), RULE), stored)


def test_backward_time_is_drawn_by_window() -> None:
    scores = replace(SCORES, start_time=np.array([100.0, 99.0, 102.0, 103.0, 104.0, 7.0]))
    figure = score_along_recording(scores, 0, decisions(scores, RULE), RULE).figure
    assert "run backwards" in figure.layout.xaxis.title.text
    np.testing.assert_allclose(column(trace(figure, "score")["x"]), np.arange(5))


def test_a_million_windows_make_a_small_figure() -> None:
    rng = np.random.default_rng(0)
    size = 1_000_000
    scores = Scores(
        probability=rng.random(size).astype(np.float32),
        label=(rng.random(size) < 0.5).astype(np.int8),
        recording=np.zeros(size, np.int32),
        recording_names=["long"],
        start_time=np.arange(size) * 0.05,
        attack_count=np.zeros(size, np.int32),
    )
    figure = score_along_recording(scores, 0, decisions(scores, DecisionRule()), DecisionRule()).figure
    assert len(figure.to_json()) < 150_000


def test_recording_of_one_window_is_drawn() -> None:
    picture = score_along_recording(SCORES, 1, decisions(SCORES, RULE), RULE)
    assert "1 window, 0 under attack;" in picture.caption


def test_decisions_that_were_not_kept_are_not_made_without_the_habits_that_the_rule_asks() -> None:
    with pytest.raises(UserError, match="run the evaluation again"):
        decisions(SCORES, DecisionRule(kind="budget", habits=True))
