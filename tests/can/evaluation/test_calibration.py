from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from kdgat.base import UserError
from kdgat.can.evaluation.calibration import (
    HIGHEST_LOGIT,
    LOWEST_LOGIT,
    DecisionRule,
    OperatingPoint,
    Tail,
    covered_seconds,
    false_alarm_rate,
    mean_over_seeds,
    otsu,
    wilson_interval,
)
from kdgat.can.models.scaling import MAX_TEMPERATURE, fit_scaling, logit, sigmoid

recording_logits = arrays(np.float64, st.integers(1, 200), elements=st.floats(-12, 12))
per_recording = DecisionRule(kind="per_recording")


def cross_entropy(logits: np.ndarray, label: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, logits) - label * logits))


@pytest.mark.parametrize(("temperature", "bias"), [(1.0, 0.0), (5.0, 2.0), (0.3, -1.5)])
def test_platt_recovers_the_scaling_that_spoilt_the_logits(temperature: float, bias: float) -> None:
    rng = np.random.default_rng(0)
    true_logits = rng.normal(0, 3, 40_000)
    label = rng.random(true_logits.size) < sigmoid(true_logits)
    scaling = fit_scaling((true_logits - bias) * temperature, label)
    assert scaling.temperature == pytest.approx(temperature, rel=0.05)
    assert scaling.bias == pytest.approx(bias, abs=0.1)


def test_platt_equals_logistic_regression_on_many_windows() -> None:
    rng = np.random.default_rng(1)
    label = np.repeat([0, 1], 20_000)
    logits = rng.normal(size=label.size) * 4 + label * 6
    reference = LogisticRegression(C=1e9).fit(logits[:, None], label)
    scaling = fit_scaling(logits, label)
    assert 1 / scaling.temperature == pytest.approx(reference.coef_[0, 0], rel=0.01)
    assert scaling.bias == pytest.approx(reference.intercept_[0], rel=0.01)


def test_temperature_lowers_the_loss_and_moves_no_decision_at_one_half() -> None:
    rng = np.random.default_rng(2)
    label = rng.random(5000) < 0.4
    logits = 20 * (label - 0.5) + rng.normal(0, 12, label.size)
    scaling = fit_scaling(logits, label, method="temperature")
    assert scaling.bias == 0
    assert scaling.temperature > 5
    assert cross_entropy(scaling.calibrated(logits), label) < cross_entropy(logits, label)
    decision = DecisionRule(temperature=scaling.temperature).apply(logits)[1]
    np.testing.assert_array_equal(decision, logits >= 0)


def test_separable_validation_gives_finite_scaling_between_the_classes() -> None:
    label = np.repeat([0, 1], 500)
    logits = np.where(label == 1, 3.0, -25.0) + np.linspace(-1, 1, label.size)
    scaling = fit_scaling(logits, label)
    assert np.isfinite([scaling.temperature, scaling.bias]).all()
    decision = DecisionRule(**scaling.model_dump()).apply(logits)[1]
    np.testing.assert_array_equal(decision, label == 1)


def test_backward_ranking_becomes_uninformative_but_never_inverted() -> None:
    label = np.repeat([0, 1], 500)
    scaling = fit_scaling(-5.0 * label + np.random.default_rng(0).normal(size=label.size), label)
    assert scaling.temperature == MAX_TEMPERATURE
    assert sigmoid(scaling.calibrated(np.array([-5.0, 5.0]))) == pytest.approx([0.5, 0.5], abs=0.02)


def test_weights_let_a_small_vehicle_count() -> None:
    label = np.concatenate([np.repeat([0, 1], 5000), np.repeat([0, 1], 50)])
    rng = np.random.default_rng(4)
    logits = 6.0 * label - 3 + rng.normal(0, 1.5, label.size)
    logits[10_000:] += 4  # the small vehicle scores higher throughout
    weight = np.concatenate([np.full(10_000, 1 / 10_000), np.full(100, 1 / 100)])
    plain, weighted = fit_scaling(logits, label), fit_scaling(logits, label, weight=weight)
    small = slice(10_000, None)
    assert cross_entropy(weighted.calibrated(logits[small]), label[small]) < cross_entropy(
        plain.calibrated(logits[small]), label[small]
    )


@given(arrays(np.float32, st.integers(2, 60), elements=st.floats(-1000, 1000, width=32)))
@settings(max_examples=60, deadline=None)
def test_any_finite_logits_give_a_usable_scaling(logits: np.ndarray) -> None:
    label = np.arange(logits.size) % 2
    scaling = fit_scaling(logits, label)
    assert scaling.temperature > 0
    assert np.isfinite(scaling.calibrated(logits)).all()


def test_calibration_needs_both_classes_and_finite_logits() -> None:
    with pytest.raises(UserError, match="got 3 and 0"):
        fit_scaling([0.0, 1.0, 2.0], [0, 0, 0])
    with pytest.raises(UserError, match="NaN"):
        fit_scaling([0.0, np.nan], [0, 1])
    assert fit_scaling([0.0], [0], method="none").temperature == 1.0


@given(recording_logits)
@settings(max_examples=200, deadline=None)
def test_recording_without_alarms_stays_without_alarms(logits: np.ndarray) -> None:
    benign = np.minimum(logits, -0.001)  # any shape of scores that the fixed rule finds clean
    assert not per_recording.apply(benign)[1].any()


@given(recording_logits)
@settings(max_examples=200, deadline=None)
def test_false_alarms_of_a_clean_recording_never_more_than_double(logits: np.ndarray) -> None:
    fixed = DecisionRule().apply(logits)[1].sum()
    assert per_recording.apply(logits)[1].sum() <= 2 * fixed


@pytest.mark.parametrize("shape", ["bell", "flat", "skewed", "two groups", "few outliers"])
def test_clean_recordings_of_benign_shapes_cause_almost_no_alarms(shape: str) -> None:
    rng = np.random.default_rng(5)
    size = 4000
    benign = {
        "bell": rng.normal(-3, 1, size),
        "flat": rng.uniform(-9, 0, size),
        "skewed": rng.exponential(0.9, size) - 8,
        "two groups": np.where(rng.random(size) < 0.3, rng.normal(-1.2, 0.25, size), rng.normal(-8, 1, size)),
        "few outliers": np.where(rng.random(size) < 0.002, 3.0, rng.normal(-6, 1.5, size)),
    }[shape]
    assert per_recording.apply(benign)[1].mean() <= 0.005
    # The unguarded threshold would not have been safe: that is what the guards are for.
    if shape in ("bell", "flat", "two groups"):
        assert (benign >= otsu(benign)[0]).mean() > 0.2


@given(recording_logits)
@settings(max_examples=100, deadline=None)
def test_decision_grows_with_the_logit_inside_a_recording(logits: np.ndarray) -> None:
    for rule in (DecisionRule(temperature=2.0, bias=0.3), per_recording):
        probability, decision = rule.apply(logits)
        order = np.argsort(logits, kind="stable")
        assert (np.diff(probability[order]) >= 0).all()
        assert (np.diff(decision[order].astype(int)) >= 0).all()


def test_threshold_moves_to_the_valley_of_each_recording_alone() -> None:
    rng = np.random.default_rng(6)
    shifted_benign, attack = rng.normal(0.5, 0.3, 300), rng.normal(7, 0.5, 200)  # an unknown vehicle that scores high
    quiet = rng.normal(-6, 1, 400)
    logits = np.concatenate([shifted_benign, attack, quiet])
    recording = np.repeat([4, 9], [500, 400])
    decision = per_recording.apply(logits, recording)[1]
    assert not decision[:300].any()
    assert decision[300:500].all()
    assert not decision[500:].any()
    thresholds = per_recording.probability_thresholds(logits, recording)
    assert thresholds[9] == pytest.approx(0.5)
    assert 0.5 < thresholds[4] <= sigmoid(4.0)
    permutation = rng.permutation(logits.size)
    np.testing.assert_array_equal(
        per_recording.apply(logits[permutation], recording[permutation])[1], decision[permutation]
    )


def test_fixed_rule_ignores_the_recording_and_uses_the_calibrated_probability() -> None:
    rule = DecisionRule(threshold=0.9, temperature=2.0, bias=1.0)
    probability, decision = rule.apply(np.array([2.0, 2.3, 2.5]), np.array([0, 1, 2]))
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-(np.array([2.0, 2.3, 2.5]) / 2 + 1))))
    np.testing.assert_array_equal(decision, probability >= 0.9)


def test_rule_is_stated_in_words() -> None:
    assert "at least 0.9" in DecisionRule(threshold=0.9, temperature=2.0, bias=-1.0).sentence()
    assert "logit / 2 - 1" in DecisionRule(temperature=2.0, bias=-1.0).sentence()
    assert "valley" in per_recording.sentence()
    assert DecisionRule().sentence() == "A window is an alarm if its attack probability is at least 0.5."


def test_otsu_finds_the_gap_and_its_share_of_variance() -> None:
    valley, separation = otsu(np.array([0.0, 0.0, 0.1, 5.0, 5.1]))
    assert valley == pytest.approx(2.55)
    assert separation > 0.99
    assert otsu(np.full(7, 3.0)) == (3.0, 0.0)
    assert otsu(np.linspace(0, 1, 10_001))[1] == pytest.approx(0.75, abs=1e-3)


def test_the_mean_over_seeds_is_that_of_their_logits() -> None:
    members = [np.array([-2.0, 8.0]), np.array([4.0, -1.0])]
    np.testing.assert_allclose(mean_over_seeds(members), [1.0, 3.5])
    with pytest.raises(UserError, match="different windows"):
        mean_over_seeds([np.zeros(2), np.zeros(3)])
    with pytest.raises(UserError, match="at least one"):
        mean_over_seeds([])


def test_false_alarm_rate_is_stated_with_its_interval() -> None:
    rate = false_alarm_rate(np.array([True] * 3 + [False] * 997))
    assert rate.rate == pytest.approx(0.003)
    reference = binomtest(3, 1000).proportion_ci(0.95, method="wilson")
    assert (rate.low, rate.high) == pytest.approx((reference.low, reference.high))
    assert rate.sentence.startswith("3 of 1,000 benign validation windows")
    with pytest.raises(UserError, match="cannot be stated"):
        false_alarm_rate(np.empty(0, bool))


def test_interval_of_no_false_alarm_is_not_empty() -> None:
    low, high = wilson_interval(0, 1000, 0.95)
    assert low == 0
    assert 0.003 < high < 0.004
    assert wilson_interval(1000, 1000, 0.95)[1] == 1.0


def test_extreme_probabilities_stay_finite() -> None:
    np.testing.assert_allclose(logit([0.0, 0.5, 1.0]), [-30, 0, 30])
    np.testing.assert_allclose(sigmoid([-1e6, 0.0, 1e6]), [0, 0.5, 1])


WINDOW_S = 0.05
NUM_WINDOWS = 4000

DEFAULT = 3.0
VEHICLE_DEFAULT = 1.1


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


def of_vehicle(logits: np.ndarray, trained: float = VEHICLE_DEFAULT) -> OperatingPoint:
    seconds = len(logits) * WINDOW_S
    return OperatingPoint.of_vehicle(logits, seconds, 72.0, VEHICLE_DEFAULT, trained, "clean minutes of drive")


def test_minutes_of_a_vehicle_lower_its_threshold_and_raise_it_up_to_a_limit() -> None:
    quiet, loud = of_vehicle(normal(-3.0)), of_vehicle(normal(-1.0))
    assert LOWEST_LOGIT <= quiet.threshold < VEHICLE_DEFAULT < loud.threshold < HIGHEST_LOGIT
    assert loud.expected_alarms_per_hour == pytest.approx(72.0)
    assert of_vehicle(normal(2.0)).threshold == HIGHEST_LOGIT
    assert of_vehicle(normal(-20.0)).threshold == LOWEST_LOGIT


def test_no_alarms_are_lost_by_what_may_be_chance() -> None:
    few = np.full(1000, -1.0)
    few[:100] = np.linspace(0.5, VEHICLE_DEFAULT - 0.01, 100)
    few[:2] = 8.0  # one is the budget
    assert of_vehicle(few).threshold == VEHICLE_DEFAULT
    few[:6] = 8.0
    assert of_vehicle(few).threshold > VEHICLE_DEFAULT


def test_a_threshold_that_training_has_raised_comes_down_by_enough_minutes_alone() -> None:
    """Others asked for it: a thousand windows without any are no proof that this vehicle does not."""
    assert of_vehicle(normal(-6.0, 1000), trained=2.5).threshold == 2.5
    assert of_vehicle(normal(-6.0, 4000), trained=2.5).threshold == LOWEST_LOGIT
    assert of_vehicle(normal(-1.0, 4000), trained=0.5) == of_vehicle(normal(-1.0, 4000)), "a lower one is no limit"
    assert of_vehicle(normal(3.0, 4000), trained=2.5).threshold == HIGHEST_LOGIT


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
