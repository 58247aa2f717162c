from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from kdgat.base import UserError
from kdgat.can.evaluation.metrics import (
    attack_episodes,
    binary_metrics,
    bootstrap_intervals,
    break_down,
    count_false_episodes,
    per_recording_metrics,
    precision_recall_curve,
    roc_curve,
    spread,
    spread_over_seeds,
)
from kdgat.canbus.features import ATTACK_KINDS
from tests.can.evaluation.score_tables import made_table

# Few distinct scores on purpose: ties are where implementations differ.
windows = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40)


def two_classes(rows: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    rows = [*rows, (0, True), (0, False)]
    return np.array([row[0] for row in rows], np.float32), np.array([row[1] for row in rows], np.int8)


@given(windows, st.integers(-3, 3))
@settings(max_examples=150, deadline=None)
def test_metrics_equal_scikit_learn_with_ties(rows: list[tuple[int, bool]], threshold: int) -> None:
    score, label = two_classes(rows)
    decision = score >= threshold
    ours = binary_metrics(score, label, threshold)
    assert ours["accuracy"] == pytest.approx(reference.accuracy_score(label, decision))
    assert ours["recall"] == pytest.approx(reference.recall_score(label, decision))
    assert ours["f1"] == pytest.approx(reference.f1_score(label, decision))
    assert ours["specificity"] == pytest.approx(reference.recall_score(label, decision, pos_label=0))
    assert ours["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(label, decision))
    assert ours["mcc"] == pytest.approx(reference.matthews_corrcoef(label, decision))
    assert ours["auc"] == pytest.approx(reference.roc_auc_score(label, score))
    assert ours["pr_auc"] == pytest.approx(reference.average_precision_score(label, score))
    assert ours["confusion_matrix"] == reference.confusion_matrix(label, decision).tolist()
    if decision.any():
        assert ours["precision"] == pytest.approx(reference.precision_score(label, decision))
    else:
        assert ours["precision"] is None
    rates, hits, _ = reference.roc_curve(label, score, drop_intermediate=False)
    for limit in (0.05, 0.01, 0.001):
        assert ours["detection_rate_at_fpr"][f"{limit:g}"] == pytest.approx(hits[rates <= limit].max())


@given(windows)
@settings(max_examples=100, deadline=None)
def test_curves_equal_scikit_learn_when_nothing_is_thinned(rows: list[tuple[int, bool]]) -> None:
    score, label = two_classes(rows)
    roc, expected = roc_curve(score, label), reference.roc_curve(label, score, drop_intermediate=True)
    assert roc is not None
    np.testing.assert_allclose(roc["false_positive_rate"], expected[0])
    np.testing.assert_allclose(roc["true_positive_rate"], expected[1])
    assert roc["threshold"][0] is None
    np.testing.assert_allclose(roc["threshold"][1:], expected[2][1:])

    curve = precision_recall_curve(score, label)
    precision, recall, threshold = reference.precision_recall_curve(label, score)
    assert curve is not None
    # scikit-learn goes on beyond full recall, where only false alarms are added.
    first = len(recall) - len(curve["recall"])
    assert np.all(recall[: first + 1] == 1.0)
    np.testing.assert_allclose(curve["recall"][::-1], recall[first:])
    np.testing.assert_allclose(curve["precision"][::-1], precision[first:])
    np.testing.assert_allclose(curve["threshold"][:0:-1], threshold[first:])


def test_thinned_curves_keep_shape_and_ends() -> None:
    rng = np.random.default_rng(0)
    label = rng.random(50_000) < 0.3
    score = rng.normal(size=label.size) + 1.5 * label
    roc, curve = roc_curve(score, label), precision_recall_curve(score, label)
    assert roc is not None
    assert curve is not None
    assert 200 < len(roc["threshold"]) <= 400
    assert 200 < len(curve["threshold"]) <= 400
    assert (roc["false_positive_rate"][0], roc["true_positive_rate"][0]) == (0, 0)
    assert (roc["false_positive_rate"][-1], roc["true_positive_rate"][-1]) == (1, 1)
    assert curve["recall"][-1] == 1
    area = np.trapezoid(roc["true_positive_rate"], roc["false_positive_rate"])
    assert area == pytest.approx(reference.roc_auc_score(label, score), abs=1e-4)
    alarms = score >= roc["threshold"][100]
    assert np.mean(alarms[~label]) == pytest.approx(roc["false_positive_rate"][100])


def test_one_class_leaves_undefined_values_none() -> None:
    benign = binary_metrics(np.array([-1.0, 0.5, 2.0]), np.zeros(3, np.int8), 1.0)
    for name in ("precision", "recall", "f1", "balanced_accuracy", "mcc", "auc", "pr_auc"):
        assert benign[name] is None
    assert set(benign["detection_rate_at_fpr"].values()) == {None}
    assert benign["false_alarm_rate"] == pytest.approx(1 / 3)
    assert benign["accuracy"] == pytest.approx(2 / 3)
    attack = binary_metrics(np.array([-1.0, 2.0]), np.ones(2, np.int8), 1.0)
    assert attack["recall"] == 0.5
    assert attack["f1"] == pytest.approx(2 / 3)
    assert attack["false_alarm_rate"] is None
    assert attack["specificity"] is None
    empty = binary_metrics(np.empty(0), np.empty(0, np.int8), 0.0)
    assert empty["accuracy"] is None
    assert empty["num_windows"] == 0
    assert roc_curve(np.ones(3), np.zeros(3)) is None
    assert precision_recall_curve(np.ones(3), np.ones(3)) is None
    json.dumps([benign, attack, empty], allow_nan=False)


@pytest.mark.parametrize("num_attacks", [49, 534, 12_345])
def test_perfect_ranking_gives_exactly_one(num_attacks: int) -> None:
    label = np.arange(20_000) < num_attacks
    result = binary_metrics(np.linspace(1, 0, label.size), label, 0.5)
    assert (result["auc"], result["pr_auc"], result["detection_rate_at_fpr"]["0.001"]) == (1.0, 1.0, 1.0)


def test_given_decisions_override_the_threshold() -> None:
    score, label = np.array([3.0, 1.0, 2.0, 0.0]), np.array([1, 1, 0, 0])
    result = binary_metrics(score, label, 0.5, decision=np.array([True, True, False, False]))
    assert result["f1"] == 1.0
    assert result["auc"] == 0.75


def test_recordings_are_measured_apart() -> None:
    score, label = np.array([3.0, -3.0, 3.0, -3.0]), np.array([1, 0, 0, 0])
    result = per_recording_metrics(score, label, 0.0, np.array([2, 2, 0, 0]), ["clean", "absent", "attacked"])
    assert list(result) == ["clean", "attacked"]
    assert result["attacked"]["f1"] == 1.0
    assert result["clean"]["f1"] is None
    assert result["clean"]["false_alarm_rate"] == 0.5


@pytest.mark.parametrize(
    ("score", "label", "message"),
    [
        ([0.1, np.nan], [0, 1], "1 NaN"),
        ([0.1, np.inf], [0, 1], "infinite"),
        ([0.1], [0, 1], "same length"),
        ([0.1, 0.2], [0, 7], "must be 0"),
    ],
)
def test_unusable_input_is_refused(score: list[float], label: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        binary_metrics(np.array(score), np.array(label), 0.5)


def test_spread_ignores_undefined_values() -> None:
    expected = {"mean": 0.75, "std": 0.5**0.5 / 2, "min": 0.5, "max": 1.0, "count": 2}
    assert spread([0.5, None, 1.0]) == pytest.approx(expected)
    assert spread([None]) == {"mean": None, "std": None, "min": None, "max": None, "count": 0}
    assert spread([0.9])["std"] is None
    rows = [binary_metrics(np.array([1.0, 0.0]), np.array([1, 0]), threshold) for threshold in (0.5, 2.0)]
    assert spread_over_seeds(rows)["f1"]["mean"] == 0.5


def test_recall_is_told_by_injected_messages_and_by_kind() -> None:
    dos, suppression = ATTACK_KINDS.index("dos"), ATTACK_KINDS.index("suppression")
    table = made_table(
        [0, 1, 1, 1, 1, 1, 1, 1],
        attack_count=np.array([0, 0, 1, 1, 3, 9, 10, 80], np.int32),
        kind=np.array([0, suppression, 0, 0, dos, dos, dos, dos], np.int8),
    )
    found = break_down(table, np.array([1, 0, 1, 0, 1, 1, 1, 0], bool))
    shares = {name: (row.num_found, row.num_windows) for name, row in found.recall_by_count.items()}
    assert shares == {"0": (0, 1), "1": (1, 2), "2-3": (1, 1), "4-9": (1, 1), "10+": (1, 2)}
    assert {name: row.recall for name, row in found.recall_by_kind.items()} == {
        "dos": 0.75, "suppression": 0.0, "unknown": 0.5,
    }  # fmt: skip


def test_false_alarms_are_counted_per_hour_of_traffic_without_attack() -> None:
    label = np.repeat([0, 1], [3600, 400])  # 360 s without attack
    decision = np.zeros(4000, bool)
    decision[[5, 70, 3999]] = True
    found = break_down(made_table(label), decision)
    assert found.benign_hours == pytest.approx(0.1)
    assert found.false_alarms_per_hour == pytest.approx(20.0)


def test_false_alarms_are_counted_by_vehicle_and_as_episodes() -> None:
    label = np.zeros(40)
    label[35:] = 1
    recording = np.repeat([0, 1, 2, 3], 10).astype(np.int32)
    decision = np.zeros(40, bool)
    decision[[0, 1, 9, 12, 38]] = True  # half a second apart; the last one is right
    table = made_table(label, recording=recording)
    found = break_down(replace(table, vehicles=("kia", "kia", "leaf", "", *[""] * 6)), decision).vehicles
    counts = {name: (one.num_windows, one.num_false_alarms, one.num_false_episodes) for name, one in found.items()}
    assert counts == {"kia": (20, 4, 2), "leaf": (10, 0, 0)}
    assert found["kia"].hours * 3600.0 == pytest.approx(2.0)
    assert break_down(replace(table, vehicles=("kia",) * 10), decision).vehicles == {}
    assert break_down(table, decision).vehicles == {}


def test_attacks_near_each_other_are_one_and_its_delay_ends_with_the_first_window_of_an_alarm() -> None:
    label = np.zeros(60, int)
    label[[10, 11, 15, 30, 31]] = 1  # 10 to 15 lie less than a second apart, 30 more
    decision = np.zeros(60, bool)
    decision[[3, 15, 50]] = True
    found = attack_episodes(made_table(label), decision)
    assert (found.num_episodes, found.num_found) == (2, 1)
    assert found.median_delay_s == pytest.approx(0.6)
    assert found.worst_delay_s == pytest.approx(0.6)


def test_an_alarm_that_outlasts_its_attack_is_no_false_one_and_those_near_each_other_are_one() -> None:
    label = np.zeros(80, int)
    label[10:14] = 1
    decision = np.zeros(80, bool)
    decision[12:20] = True  # goes on after the attack
    decision[[50, 52, 78]] = True  # the first two lie less than a second apart
    assert count_false_episodes(made_table(label), decision) == 2
    assert break_down(made_table(label), decision).num_false_episodes == 2


def test_no_attack_reaches_into_another_recording() -> None:
    table = made_table([1, 1, 1, 1], recording=np.array([0, 0, 1, 1], np.int32))
    assert attack_episodes(table, np.ones(4, bool)).num_episodes == 2


def test_episodes_of_virtual_vehicles_are_not_counted_for_their_windows_are_thinned() -> None:
    table = made_table(np.ones(10), is_virtual=np.ones(10, bool))
    assert break_down(table, np.ones(10, bool)).episodes is None


def test_an_interval_over_blocks_is_wider_where_alarms_come_together() -> None:
    label = np.zeros(6400, int)
    together, spread = np.zeros(6400, bool), np.zeros(6400, bool)
    together[640:740] = True
    spread[::64] = True
    widths = []
    for decision in (together, spread):
        _, interval = bootstrap_intervals(made_table(label), decision)
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= 100 / 6400 <= interval.high
        widths.append(interval.high - interval.low)
    assert widths[0] > 2 * widths[1]


def test_no_false_alarm_seen_is_not_taken_for_none_ever() -> None:
    label = np.repeat([0, 1], 1000)
    f1, false_alarms = bootstrap_intervals(made_table(label), label == 1)
    assert f1 is not None
    assert f1.low == 1.0
    assert false_alarms is not None
    assert false_alarms.high == pytest.approx(0.0038, abs=1e-4)


def test_few_windows_have_no_interval() -> None:
    assert bootstrap_intervals(made_table([0, 1] * 20), np.ones(40, bool)) == (None, None)
