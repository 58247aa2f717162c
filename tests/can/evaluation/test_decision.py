"""From scores to alarms: members calibrated one by one, and the network or the habits of identifiers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.decision import calibrated_detector, choose_detector, decide
from kdgat.can.evaluation.measurements import describe_detector, scenario_of_detector
from kdgat.can.evaluation.scores import ScoreTable, read_table, write_table
from kdgat.can.models.scaling import fit_scaling
from kdgat.can.sections import EvaluationConfig
from tests.can.evaluation.score_tables import made_table

NUM_WINDOWS = 6000


def validation(num_windows: int = NUM_WINDOWS, *, benign: float = -5.0, seed: int = 0) -> ScoreTable:
    """Return a quarter of attacked windows; `curriculum` speaks ten times as loud as `normal` and is less right."""
    generator = np.random.default_rng(seed)
    label = (np.arange(num_windows) % 4 == 3).astype(np.int8)
    centre = np.where(label == 1, 5.0, benign)
    scores = {
        "normal": (centre + generator.normal(0.0, 1.0, num_windows)).astype(np.float32),
        "curriculum": (10.0 * (centre + generator.normal(0.0, 4.0, num_windows))).astype(np.float32),
    }
    return made_table(label, scores=scores, is_virtual=np.arange(num_windows) // 64 % 2 == 1)


def test_members_of_the_ensemble_are_calibrated_before_they_are_averaged() -> None:
    table = validation()
    detector = choose_detector({0: table}, EvaluationConfig(rule="fixed"))
    expected = np.mean(
        [fit_scaling(table.scores[name], table.label, method="temperature").calibrated(table.scores[name])
         for name in ("normal", "curriculum")], axis=0,
    )  # fmt: skip
    np.testing.assert_allclose(decide(detector, {0: table}).logit, expected)
    assert detector.scalings[0]["curriculum"].temperature > 5 * detector.scalings[0]["normal"].temperature


def test_the_loudest_member_no_longer_decides_alone() -> None:
    table = validation()
    mean = np.mean([table.scores["normal"], table.scores["curriculum"]], axis=0)
    detector = choose_detector({0: table}, EvaluationConfig(rule="fixed"))
    wrong = np.count_nonzero(decide(detector, {0: table}).is_alarm != (table.label == 1))
    assert wrong < 0.5 * np.count_nonzero((mean >= 0.0) != (table.label == 1))


def test_by_a_budget_the_network_or_the_habits_alarm() -> None:
    table = validation()
    quiet = made_table(table.label, scores={name: np.full(NUM_WINDOWS, -9.0) for name in ("normal", "curriculum")})
    chosen = choose_detector({0: table}, EvaluationConfig())
    assert not decide(chosen, {0: quiet}).is_alarm.any()
    quiet.scores["habits"][:3] = 1.0
    np.testing.assert_array_equal(np.flatnonzero(decide(chosen, {0: quiet}).is_alarm), [0, 1, 2])
    fixed = choose_detector({0: table}, EvaluationConfig(rule="fixed"))
    assert not decide(fixed, {0: quiet}).is_alarm.any()


def test_a_models_own_row_does_not_borrow_the_habits() -> None:
    table = validation()
    table.scores["habits"][:] = 1.0
    detector = calibrated_detector("normal", {0: table}, EvaluationConfig())
    assert not decide(detector, {0: table}).is_alarm[table.label == 0].all()
    alone = calibrated_detector("habits", {0: table}, EvaluationConfig())
    assert decide(alone, {0: table}).is_alarm.all()


def test_a_budget_lowers_the_threshold_by_benign_windows_and_says_so() -> None:
    table = validation()
    detector = choose_detector({0: table}, EvaluationConfig(detector="normal"))
    point = detector.operating_point
    assert point is not None
    assert 0.0 <= point.threshold < np.log(3.0)
    assert 1000 <= point.num_windows < NUM_WINDOWS // 2
    described = describe_detector(detector, {0: table}, "normal")
    assert described.operating_point == point
    assert "or if the habits of identifiers say so" in described.rule
    assert "a budget of 40 benign windows in alarm per hour" in described.rule


@pytest.mark.parametrize(("is_virtual", "missing"), [(True, "vehicles that it was trained on"), (False, "virtual")])
def test_windows_of_one_sort_alone_set_no_threshold(is_virtual: bool, missing: str) -> None:
    table = validation()
    alone = made_table(table.label, scores=table.scores, is_virtual=np.full(NUM_WINDOWS, is_virtual))
    detector = choose_detector({0: alone}, EvaluationConfig())
    assert detector.rule.threshold == pytest.approx(0.75)
    assert detector.operating_point is not None
    assert "0 windows, 1,000 are needed" in detector.operating_point.sentence()
    assert missing in detector.operating_point.sentence()


def test_virtual_vehicles_that_score_higher_keep_the_threshold_up() -> None:
    table = validation()
    low = choose_detector({0: table}, EvaluationConfig(detector="normal")).rule.threshold
    table.scores["normal"][table.is_virtual & (table.label == 0)] += 4.0
    assert choose_detector({0: table}, EvaluationConfig(detector="normal")).rule.threshold > low


@pytest.mark.parametrize(("benign", "is_higher"), [(-5.0, False), (-2.0, True)])
def test_half_of_the_vehicles_that_did_not_train_keep_the_budget_whatever_the_worst_needs(
    benign: float, is_higher: bool
) -> None:
    table = validation(benign=benign)
    recording = np.minimum(np.arange(NUM_WINDOWS) // 2000, 2).astype(np.int32)
    recorded = (table.label == 0) & ~table.is_virtual
    table.scores["normal"][np.flatnonzero(recorded & (recording == 2))[::5]] += 8.0  # a vehicle that nothing can save
    held_out = replace(table, recording=recording, vehicles=("bmw", "leaf", "kia", *[""] * 7))
    detector = choose_detector({0: held_out}, EvaluationConfig(detector="normal", calibration="none"))
    point = detector.operating_point
    assert point is not None
    assert (detector.rule.threshold > 0.75) == is_higher
    assert "3 vehicles that did not train" in point.sentence()
    decision = decide(detector, {0: held_out}).logit >= point.threshold
    assert decision[recorded & (recording < 2)].mean() < 0.005
    assert decision[recorded & (recording == 2)].mean() > 0.1
    assert decision[table.label == 1].mean() > 0.9


def test_few_windows_of_vehicles_that_did_not_train_leave_the_default_threshold_and_say_why() -> None:
    held_out = replace(validation(1000), vehicles=("bmw",) * 10)
    point = choose_detector({0: held_out}, EvaluationConfig(detector="normal")).operating_point
    assert point is not None
    assert "two vehicles and 1,000 windows are needed" in point.sentence()


def test_a_fusion_has_the_default_threshold_where_it_has_learned_from_the_vehicles_that_validate() -> None:
    table = validation()
    recording = (np.arange(NUM_WINDOWS) // 2000 % 2).astype(np.int32)
    scores = table.scores | {"fusion": table.scores["normal"]}
    held_out = replace(table, scores=scores, recording=recording, vehicles=("bmw", "leaf"))
    point = choose_detector({0: held_out}, EvaluationConfig(detector="fusion")).operating_point
    assert point is not None
    assert point.threshold == pytest.approx(np.log(3.0))
    assert "fusions learn from windows of all vehicles" in point.sentence()


def test_a_baseline_alarms_above_what_benign_windows_seldom_reach() -> None:
    label = np.repeat([0, 1], 1000)
    scores = {"baseline: count_excess": np.arange(2000, dtype=np.float32)}
    table = made_table(label, scores=scores | {"normal": np.zeros(2000, np.float32)})
    detector = calibrated_detector("baseline: count_excess", {0: table}, EvaluationConfig(benign_quantile=0.01))
    decision = decide(detector, {0: table}).is_alarm
    assert decision[label == 1].all()
    assert np.count_nonzero(decision[label == 0]) == 10


def test_false_alarms_of_recorded_and_virtual_windows_are_told_apart() -> None:
    table = validation()
    is_virtual = np.arange(NUM_WINDOWS) >= NUM_WINDOWS // 2
    table.scores["habits"][np.flatnonzero((table.label == 0) & is_virtual)[:7]] = 1.0
    mixed = made_table(table.label, scores=table.scores, is_virtual=is_virtual)
    described = describe_detector(
        choose_detector({0: mixed}, EvaluationConfig(detector="normal")), {0: mixed}, "normal"
    )
    assert described.recorded_false_alarm_rate is not None
    assert described.virtual_false_alarm_rate is not None
    assert described.virtual_false_alarm_rate.num_false_alarms >= 7
    assert described.recorded_false_alarm_rate.num_false_alarms < 7
    assert described.recorded_false_alarm_rate.num_windows == np.count_nonzero((table.label == 0) & ~is_virtual)


def test_a_scenario_is_measured_with_the_decision_of_both() -> None:
    table = validation()
    test = validation(seed=1)
    test.scores["habits"][test.label == 1] = 1.0
    scenario, scores, _ = scenario_of_detector(choose_detector({0: table}, EvaluationConfig()), {0: test})
    assert scenario.recall == 1.0
    assert scores.decision is not None
    assert scenario.breakdown is not None
    assert scenario.breakdown.recall_by_count["10+"].recall == 1.0


def test_a_table_survives_writing_and_one_of_an_older_version_is_refused(tmp_path: Path) -> None:
    table = validation(20)
    path = tmp_path / "scores.npz"
    write_table(path, table)
    again = read_table(path)
    np.testing.assert_array_equal(again.end_time, table.end_time)
    np.testing.assert_array_equal(again.scores["habits"], table.scores["habits"])
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files if name not in ("end_time", "model:habits")}
    np.savez(path, **columns)
    with pytest.raises(UserError, match="without end_time, habits: run the evaluation stage again"):
        read_table(path)
