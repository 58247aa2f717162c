"""A budget of false alarms per hour becomes a threshold, within bounds, or a reason why not."""

import numpy as np
import pytest

from kdgat.can.evaluation.operating_point import LOWEST_LOGIT, OperatingPoint, Tail, UserError, covered_seconds

WINDOW_S = 0.05
NUM_WINDOWS = 4000

DEFAULT = 3.0


def of(logits: np.ndarray, budget: float = 72.0) -> OperatingPoint:
    return OperatingPoint.of_benign(logits, len(logits) * WINDOW_S, budget, DEFAULT, "clean minutes of drive")


def normal(mean: float, size: int = NUM_WINDOWS, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, size)


def test_a_budget_per_hour_is_the_share_of_windows_that_the_recording_says() -> None:
    point = of(normal(-1.5))
    assert point.windows_per_hour == pytest.approx(72_000)
    assert point.share == pytest.approx(1e-3)
    assert LOWEST_LOGIT < point.threshold < DEFAULT
    assert np.mean(normal(-1.5, 200_000, seed=1) >= point.threshold) == pytest.approx(1e-3, rel=0.5)
    assert point.expected_alarms_per_hour == pytest.approx(72.0)
    assert "clean minutes of drive, 4,000 windows" in point.sentence()


def test_a_smaller_budget_never_lowers_the_threshold() -> None:
    thresholds = [of(normal(-2.0), budget).threshold for budget in (7200.0, 720.0, 72.0, 7.2, 0.72)]
    assert thresholds == sorted(thresholds)


def test_the_threshold_is_never_above_the_default_one_and_says_what_that_costs() -> None:
    point = of(normal(2.0))
    assert point.threshold == DEFAULT
    assert point.expected_alarms_per_hour is not None
    assert point.expected_alarms_per_hour > 72.0
    assert "more than the budget" in point.sentence()


def test_the_threshold_is_never_below_what_is_more_likely_benign_than_not() -> None:
    point = of(normal(-20.0))
    assert point.threshold == LOWEST_LOGIT
    assert point.expected_alarms_per_hour is not None
    assert point.expected_alarms_per_hour < 72.0


def test_too_few_windows_leave_the_default_threshold_and_say_why() -> None:
    point = of(normal(-5.0, 999))
    assert (point.threshold, point.source) == (DEFAULT, "default")
    assert "999 windows, 1,000 are needed" in point.sentence()


def test_windows_without_time_leave_the_default_threshold() -> None:
    point = OperatingPoint.of_benign(normal(-5.0), 0.0, 40.0, 0.0, "drive")
    assert "no time passes" in point.sentence()


def test_time_under_overlapping_windows_counts_once_and_gaps_and_other_recordings_not() -> None:
    start = np.array([0.0, 1.0, 2.0, 10.0, 0.0, 1.0])
    end = start + 2.0
    recording = np.array([0, 0, 0, 0, 1, 1], np.int32)
    assert covered_seconds(start, end, recording) == pytest.approx(4.0 + 2.0 + 3.0)
    assert covered_seconds(start[:0], end[:0], recording[:0]) == 0.0


def test_time_that_runs_backwards_is_no_negative_time() -> None:
    start, end = np.array([5.0, 1.0]), np.array([6.0, 2.0])
    assert covered_seconds(start, end, np.zeros(2, np.int32)) == pytest.approx(2.0)


def test_a_pause_inside_a_window_is_not_driven() -> None:
    start = np.arange(0.0, 100.0, 0.5)
    start[100:] += 8 * 3600.0  # the log pauses in the window before
    end = np.append(start[1:], start[-1] + 0.5) + 0.5
    recording = np.zeros(len(start), np.int32)
    assert 100.0 < covered_seconds(start, end, recording) < 130.0


def test_the_quantile_of_an_exponential_tail_is_found_beyond_the_sample() -> None:
    scores = np.random.default_rng(0).exponential(size=20_000)
    tail = Tail.fit(scores)
    assert tail.score_at(1e-5) == pytest.approx(np.log(1e5), rel=0.1)


def test_a_heavy_tail_reaches_further_than_an_exponential_one() -> None:
    generator = np.random.default_rng(1)
    heavy, light = Tail.fit(generator.pareto(4.0, 50_000)), Tail.fit(generator.exponential(size=50_000))
    assert heavy.shape == pytest.approx(0.25, abs=0.08)
    assert light.shape < 0.08
    assert heavy.score_at(1e-5) == pytest.approx(1e5**0.25 - 1.0, rel=0.35)


def test_score_and_share_are_inverse() -> None:
    tail = Tail.fit(np.random.default_rng(2).standard_t(5, size=5000))
    for share in (1e-2, 1e-3, 1e-5):
        assert tail.share_above(tail.score_at(share)) == pytest.approx(share)


def test_a_tail_that_ends_is_not_believed_to_end() -> None:
    scores = np.random.default_rng(3).random(5000)  # none above 1
    tail = Tail.fit(scores)
    assert tail.shape == 0.0
    assert tail.score_at(1e-6) > 1.0


def test_equal_scores_have_a_tail_at_their_value() -> None:
    assert Tail.fit(np.full(2000, -7.0)).score_at(1e-4) == pytest.approx(-7.0, abs=1e-6)


@pytest.mark.parametrize("scores", [np.zeros(10), np.append(np.zeros(100), np.nan)])
def test_few_or_broken_scores_have_no_tail(scores: np.ndarray) -> None:
    with pytest.raises(UserError, match="finite scores"):
        Tail.fit(scores)
