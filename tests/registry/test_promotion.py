"""When a new model takes the place of the one in service."""

import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import ConfigurationError, validate_config
from kdgat.registry import Judgement, ModelEntry, Promotion, PromotionRule, ServiceChange, judge
from kdgat.registry.entry import Metrics, RegistryIndex, Scores
from kdgat.registry.promotion import best_models, ceiling, lost_scenarios

RULE = PromotionRule(margin=0.01, worse_by=0.02, more_false_alarms=0.005)


def attacked(f1: float | None, false_alarms: float | None = 0.0, *, windows: float = 1000.0) -> Scores:
    return {"f1": f1, "false_alarm_rate": false_alarms, "num_windows": windows, "num_attack_windows": 10.0}


def clean(false_alarms: float | None) -> Scores:
    return {"f1": None, "false_alarm_rate": false_alarms, "num_windows": 1000.0, "num_attack_windows": 0.0}


def per_hour(f1: float, alarms: float | None, suppression: float | None = None) -> Scores:
    scores = attacked(f1) | {"false_alarms_per_hour": alarms}
    return scores if suppression is None else scores | {"recall_suppression": suppression}


@pytest.mark.parametrize(
    ("new", "current", "accepted", "words"),
    [
        (
            {"a": per_hour(0.95, 30.0)},
            {"a": per_hour(0.9, 20.0)},
            False,
            "benign windows in alarm per hour 20 -> 30",
        ),
        ({"a": per_hour(0.95, 20.0)}, {"a": per_hour(0.9, 20.0)}, True, "no scenario is worse"),
        # What is more in one recording may be less in the others.
        (
            {"a": per_hour(0.95, 30.0), "b": per_hour(0.95, 0.0)},
            {"a": per_hour(0.9, 20.0), "b": per_hour(0.9, 15.0)},
            True,
            "no scenario is worse",
        ),
        ({"a": per_hour(0.95, None)}, {"a": per_hour(0.9, None)}, True, "no scenario is worse"),  # no time in it
        (
            {"a": per_hour(0.95, 1.0, 0.90)},
            {"a": per_hour(0.9, 1.0, 0.95)},
            False,
            "a: recall_suppression 0.9500 -> 0.9000, worse",
        ),
        ({"a": per_hour(0.95, 1.0, 0.94)}, {"a": per_hour(0.9, 1.0, 0.95)}, True, "no scenario is worse"),
        (
            {"a": per_hour(0.95, 1.0, 0.94)},
            {"a": per_hour(0.9, 1.0)},
            False,
            "a: recall_suppression of the model in service is None",
        ),
    ],
)
def test_a_model_with_more_alarms_per_hour_or_worse_at_suppression_stays_out(
    new: Metrics, current: Metrics, accepted: bool, words: str
) -> None:
    promotion = judge(new, current, RULE)
    assert promotion.accepted == accepted
    assert words in promotion.describe()


@pytest.mark.parametrize(
    ("new", "current", "accepted", "words"),
    [
        ({"a": attacked(0.5)}, None, True, "no model was in service"),
        ({"a": attacked(None)}, None, False, "a: f1 of the new model is None"),
        ({"a": attacked(math.nan)}, None, False, "a: f1 of the new model is nan"),
        ({}, None, False, "no scenario"),
        ({"a": attacked(0.92)}, {"a": attacked(0.9)}, True, "0.9000 -> 0.9200"),
        ({"a": attacked(0.91)}, {"a": attacked(0.9)}, True, "better by the margin"),  # exactly the margin
        ({"a": attacked(0.905)}, {"a": attacked(0.9)}, False, "not better by the margin of 0.01"),
        ({"a": attacked(0.8)}, {"a": attacked(0.9)}, False, "not better"),
        # Better on the mean, and too much worse in one place.
        ({"a": attacked(1.0), "b": attacked(0.87)}, {"a": attacked(0.8), "b": attacked(0.9)}, False, "b: f1 0.9000"),
        ({"a": attacked(1.0), "b": attacked(0.88)}, {"a": attacked(0.8), "b": attacked(0.9)}, True, "no scenario"),
        # A scenario without attacks has no F1: its false alarms count, not in the mean.
        ({"a": attacked(0.95), "c": clean(0.01)}, {"a": attacked(0.9), "c": clean(0.005)}, True, "better"),
        (
            {"a": attacked(0.95), "c": clean(0.02)},
            {"a": attacked(0.9), "c": clean(0.005)},
            False,
            "c: false_alarm_rate",
        ),
        (
            {"a": attacked(0.95), "c": clean(None)},
            {"a": attacked(0.9), "c": clean(0.1)},
            False,
            "c: false_alarm_rate of",
        ),
        ({"c": clean(0.01)}, {"c": clean(0.05)}, True, "mean false_alarm_rate"),
        ({"c": clean(0.045)}, {"c": clean(0.05)}, False, "not better"),
        # Both must have been measured everywhere.
        ({"a": attacked(0.95)}, {"a": attacked(0.9), "b": attacked(0.9)}, False, "b: the new model was not measured"),
        ({"a": attacked(0.95), "b": attacked(1.0)}, {"a": attacked(0.9)}, False, "b: the model in service was not"),
        ({"a": attacked(0.95)}, {"a": attacked(math.nan)}, False, "a: f1 of the model in service is nan"),
        # False alarms count where there are attacks as well.
        ({"a": attacked(0.95, 0.011)}, {"a": attacked(0.9, 0.005)}, False, "a: false_alarm_rate 0.0050 -> 0.0110"),
        ({"a": attacked(0.95, 0.010)}, {"a": attacked(0.9, 0.005)}, True, "no scenario"),
        ({"a": attacked(0.95, None)}, {"a": attacked(0.9, 0.005)}, False, "false_alarm_rate of the new model is None"),
        ({"a": attacked(0.95, None, windows=10)}, {"a": attacked(0.9, None, windows=10)}, False, "min_windows=100"),
        # The first model has floors to reach.
        ({"a": attacked(0.0, 1.0)}, None, False, "mean f1 0.0000 is below minimum=0.5"),
        ({"a": attacked(0.9, 1.0)}, None, False, "a: false_alarm_rate 1.0000 is above most_false_alarms=0.1"),
        ({"a": attacked(0.9), "b": clean(0.2)}, None, False, "b: false_alarm_rate 0.2000 is above"),
        ({"a": attacked(0.9), "b": attacked(0.3)}, None, True, "no model was in service"),
        # Few windows prove nothing, for or against.
        ({"a": attacked(0.9, windows=1)}, None, False, "no scenario has as many windows as min_windows=100"),
        (
            {"a": attacked(0.92), "b": attacked(0.1, windows=99)},
            {"a": attacked(0.9), "b": attacked(1.0, windows=99)},
            True,
            "b: 99 windows, fewer than min_windows=100",
        ),
        (
            {"a": attacked(0.9), "b": attacked(1.0, windows=99)},
            {"a": attacked(0.9), "b": attacked(0.1, windows=99)},
            False,
            "not better",
        ),
    ],
)
def test_a_model_is_promoted_if_it_is_better_on_the_whole_and_worse_nowhere(
    new: Metrics, current: Metrics | None, accepted: bool, words: str
) -> None:
    promotion = judge(new, current, RULE)
    assert promotion.accepted is accepted
    assert words in promotion.describe()


def wrong(num_wrong: int, f1: float, *, windows: int = 1000) -> Scores:
    return attacked(f1, windows=windows) | {"accuracy": 1.0 - num_wrong / windows}


BY_DEFAULT = PromotionRule()
NOT_WORSE = PromotionRule(accept="not_worse")


@pytest.mark.parametrize(
    ("rule", "new", "current", "accepted", "words"),
    [
        # The default margin is a part of the error that is left, at any height.
        (BY_DEFAULT, attacked(0.9987), attacked(0.9984), True, "0.9984 -> 0.9987, 18.7% less error: better by the"),
        (BY_DEFAULT, attacked(0.9984), attacked(0.9987), False, "23.1% more error: not better by the margin of 0.05"),
        (BY_DEFAULT, attacked(0.99996), attacked(0.99995), True, "0.999950 -> 0.999960, 20.0% less error"),
        (BY_DEFAULT, attacked(0.905), attacked(0.9), True, "5.0% less error: better"),  # exactly the margin
        (BY_DEFAULT, attacked(0.904), attacked(0.9), False, "4.0% less error: not better by the margin of 0.05 of the"),
        (BY_DEFAULT, attacked(1.0), attacked(0.9999), True, "100.0% less error: better"),
        (BY_DEFAULT, attacked(1.0), attacked(1.0), False, "1.0000 -> 1.0000, no error was left: not better"),
        (BY_DEFAULT, clean(0.0094), clean(0.01), True, "mean false_alarm_rate 0.0100 -> 0.0094, 6.0% less error"),
        (BY_DEFAULT, clean(0.0096), clean(0.01), False, "4.0% less error: not better"),
        (BY_DEFAULT, clean(0.0), clean(0.0), False, "no error was left: not better"),
        # Rules of before error_margin mean what they meant.
        (PromotionRule(margin=0.001), attacked(0.9987), attacked(0.9984), False, "not better by the margin of 0.001"),
        (PromotionRule(margin=0.0001), attacked(0.9987), attacked(0.9984), True, "better by the margin of 0.0001"),
        (PromotionRule(margin=0.0), attacked(1.0), attacked(1.0), False, "not better"),
        # A model that is as good may come in, if a person says so.
        (NOT_WORSE, attacked(1.0), attacked(1.0), True, "no error was left: not worse by more than the margin"),
        (NOT_WORSE, attacked(0.9), attacked(0.9), True, "not worse"),
        (NOT_WORSE, attacked(0.896), attacked(0.9), True, "4.0% more error: not worse"),
        (NOT_WORSE, attacked(0.894), attacked(0.9), False, "6.0% more error: worse by more than the margin of 0.05"),
        (NOT_WORSE, attacked(0.9999), attacked(1.0), False, "worse by more than the margin"),
        # Near 1 the margin is less than one window: those that are wrong are counted.
        (NOT_WORSE, wrong(1, 0.9999, windows=10_000), wrong(0, 1.0, windows=10_000), True, "with 1 more wrong windows"),
        (
            NOT_WORSE,
            wrong(12, 0.9988),
            wrong(10, 0.999),
            True,
            "not worse by more than the margin of 0.05 of the error",
        ),
        (NOT_WORSE, wrong(13, 0.9987), wrong(10, 0.999), False, ": worse by more than the margin of 0.05 of the error"),
        (NOT_WORSE, attacked(0.9999), wrong(0, 1.0), False, "worse by more than the margin"),
        (
            PromotionRule(accept="not_worse", more_windows=0),
            wrong(1, 0.9999),
            wrong(0, 1.0),
            False,
            "worse by more than the margin",
        ),
        (
            PromotionRule(accept="not_worse", metric="auc"),
            wrong(0, 1.0) | {"auc": 0.9999},
            wrong(0, 1.0) | {"auc": 1.0},
            False,
            "worse by more than the margin",
        ),
        (
            PromotionRule(accept="not_worse", margin=0.0),
            wrong(1, 0.9999),
            wrong(0, 1.0),
            False,
            "worse by more than the margin of 0",
        ),
        (
            PromotionRule(accept="not_worse", margin=0.001),
            attacked(0.9990),
            attacked(1.0),
            True,
            "not worse by more than the margin of 0.001",
        ),
        # In a small test set one window is a large part of the error.
        (BY_DEFAULT, wrong(2, 0.96, windows=100), wrong(3, 0.94, windows=100), True, "wrong windows 3 -> 2 of 100"),
        (
            PromotionRule(fewer_windows=2),
            wrong(2, 0.96, windows=100),
            wrong(3, 0.94, windows=100),
            False,
            "wrong windows 3 -> 2 of 100: not fewer by fewer_windows=2",
        ),
        (PromotionRule(fewer_windows=2), wrong(1, 0.98), wrong(3, 0.94), True, "of 1,000: fewer by fewer_windows=2"),
        (PromotionRule(fewer_windows=2), attacked(0.98), wrong(3, 0.94), False, "a: accuracy of the new model is None"),
        (BY_DEFAULT, attacked(0.99, windows=99), attacked(0.9, windows=99), False, "min_windows=100"),
    ],
)
def test_the_margin_is_a_part_of_the_error_unless_the_rule_says_otherwise(
    rule: PromotionRule, new: Scores, current: Scores, accepted: bool, words: str
) -> None:
    promotion = judge({"a": new}, {"a": current}, rule)
    assert words in promotion.describe()
    assert promotion.accepted is accepted


@pytest.mark.parametrize(
    ("rule", "scores", "words"),
    [
        (PromotionRule(margin=0.001), attacked(0.9995), "mean f1 0.9995 of the model in service cannot rise by margin"),
        (PromotionRule(margin=0.001), attacked(0.999), ""),
        (BY_DEFAULT, attacked(0.9995), ""),
        (BY_DEFAULT, attacked(1.0), "mean f1 1.0000 of the model in service cannot rise any further"),
        (
            PromotionRule(margin=0.001),
            clean(0.0005),
            "mean false_alarm_rate 0.0005 of the model in service cannot fall",
        ),
        (BY_DEFAULT, clean(0.0), "cannot fall any further"),
        (PromotionRule(fewer_windows=4), wrong(3, 0.99), "has 3 wrong windows, fewer than fewer_windows=4"),
        (PromotionRule(fewer_windows=3), wrong(3, 0.99), ""),
        (BY_DEFAULT, wrong(0, 1.0), "accept=not_worse, which lets more_windows=2 more windows be wrong"),
        (BY_DEFAULT, attacked(1.0), "accept=not_worse and a margin above 0"),
        (NOT_WORSE, wrong(0, 1.0), ""),
        (NOT_WORSE, attacked(0.9), ""),
        (NOT_WORSE, attacked(1.0), "leaves a margin of less than one window"),
        (PromotionRule(accept="not_worse", more_windows=0), wrong(19, 0.99), "set more_windows or margin"),
        (PromotionRule(accept="not_worse", more_windows=0), wrong(20, 0.99), ""),
        (PromotionRule(accept="not_worse", margin=0.0), wrong(0, 1.0), "set margin"),
        (PromotionRule(accept="not_worse", margin=0.001), wrong(0, 1.0), ""),
        (PromotionRule(accept="not_worse", metric="auc"), wrong(0, 1.0) | {"auc": 1.0}, "set margin"),
        (BY_DEFAULT, attacked(None), ""),
        (BY_DEFAULT, attacked(1.0, windows=99), ""),  # has no part in any decision
    ],
)
def test_a_rule_that_no_model_can_meet_any_more_is_warned_of(rule: PromotionRule, scores: Scores, words: str) -> None:
    warning = ceiling({"a": scores}, rule)
    assert words in warning if words else warning == ""


@pytest.mark.parametrize("accept", ["better", "not_worse"])
def test_a_model_without_benign_windows_in_alarm_that_keeps_better_ones_out_is_warned_of(
    accept: Literal["better", "not_worse"],
) -> None:
    current, new = {"a": per_hour(0.9, 0.0), "b": attacked(0.9)}, {"a": per_hour(0.99, 0.2), "b": attacked(0.99)}
    rule = PromotionRule(accept=accept)
    assert not judge(new, current, rule).accepted
    assert "no benign window in alarm" in ceiling(current, rule)
    assert "set more_alarms_per_hour=0 higher" in ceiling(current, rule)
    higher = PromotionRule(accept=accept, more_alarms_per_hour=0.2)
    assert judge(new, current, higher).accepted
    assert not ceiling(current, higher)
    assert not ceiling(new, rule)


def test_with_not_worse_no_sequence_of_nights_walks_the_mean_down() -> None:
    """Each night has 4 % more error than the one before, which is within the margin of 5 %."""
    nights = Nights(PromotionRule(accept="not_worse", worse_by=1.0))
    scores: dict[str, Metrics] = {}
    decisions = []
    for number in range(20):
        scores[f"m{number}"] = {"a": attacked(1.0 - 0.05 * 1.04**number), "b": attacked(0.99)}
        decisions.append(nights.night(f"m{number}", scores))
    assert [decision.accepted for decision in decisions] == [True, True] + [False] * 18
    assert "mean f1 0.9700 (the best so far, of m0) -> " in decisions[2].describe()


def test_with_not_worse_no_sequence_of_nights_adds_wrong_windows() -> None:
    """Each night has one wrong window more than the one before; the best so far has none."""
    nights = Nights(PromotionRule(accept="not_worse"))
    scores: dict[str, Metrics] = {}
    for number in range(10):
        scores[f"m{number}"] = {"a": wrong(number, 1.0 - number / 10_000, windows=10_000)}
        assert nights.night(f"m{number}", scores).accepted is (number <= 2)


def test_scenarios_with_fewer_wrong_windows_make_up_for_none_with_more() -> None:
    before = {"large": wrong(5, 0.9999, windows=100_000), "small": wrong(0, 1.0)}
    new = {"large": wrong(0, 1.0, windows=100_000), "small": wrong(5, 0.995)}
    assert "with 5 more wrong windows" in judge(new, before, NOT_WORSE).describe()
    assert not judge(new, before, NOT_WORSE).accepted


def test_numbers_that_cannot_be_held_against_each_other_promote_nothing() -> None:
    for current in ({"a": attacked(0.1)}, None):
        promotion = judge({"a": attacked(0.9)}, current, RULE, ["other windows"])
        assert not promotion.accepted
        assert promotion.reasons == ("other windows",)


def test_where_every_window_is_attacked_there_are_no_false_alarms_to_look_at() -> None:
    new, current = ({"a": attacked(f1, None) | {"num_attack_windows": 1000.0}} for f1 in (0.95, 0.9))
    assert judge(new, current, RULE).accepted


def test_the_metric_is_chosen_by_the_rule() -> None:
    new, current = ({"a": attacked(f1) | {"auc": auc}} for f1, auc in ((0.5, 0.99), (0.9, 0.9)))
    assert not judge(new, current, RULE).accepted
    assert judge(new, current, RULE.model_copy(update={"metric": "auc"})).accepted


values = st.one_of(st.none(), st.floats(0.0, 1.0), st.just(math.nan))
scores = st.builds(
    lambda f1, alarms, windows, attacks: {
        "f1": f1,
        "false_alarm_rate": alarms,
        "num_windows": windows,
        "num_attack_windows": attacks,
    },
    values,
    values,
    st.sampled_from([99.0, 1000.0]),
    st.sampled_from([0.0, 7.0]),
)
metrics = st.dictionaries(st.sampled_from("abcd"), scores, max_size=4)
rules = st.builds(
    PromotionRule,
    margin=st.one_of(st.none(), st.floats(0.0, 0.2)),
    error_margin=st.floats(0.0, 0.5),
    worse_by=st.floats(0.0, 0.2),
)
lenient_rules = st.builds(PromotionRule, accept=st.just("not_worse"), error_margin=st.floats(0.0, 0.5))


@given(metrics, metrics, rules)
def test_no_two_models_are_each_better_than_the_other_and_none_than_itself(
    one: Metrics, other: Metrics, rule: PromotionRule
) -> None:
    assert not judge(one, one, rule).accepted
    other = of_the_same_recordings(other, one)
    assert not (judge(one, other, rule).accepted and judge(other, one, rule).accepted)


def of_the_same_recordings(other: Metrics, one: Metrics) -> Metrics:
    """Let scores be of the recordings of others: as many windows, as many of them attacked."""
    counts = ("num_windows", "num_attack_windows")
    return {name: {**row, **{key: one.get(name, row)[key] for key in counts}} for name, row in other.items()}


@given(metrics, metrics, metrics, st.one_of(rules, lenient_rules))
def test_what_is_promoted_is_measured_everywhere_and_nowhere_worse_than_allowed(
    new: Metrics, current: Metrics, anchor: Metrics, rule: PromotionRule
) -> None:
    current, anchor = of_the_same_recordings(current, new), of_the_same_recordings(anchor, new)
    promotion = judge(new, current, rule, anchors={"old": anchor})
    assert promotion.reasons
    if promotion.accepted:
        assert new.keys() == current.keys() == anchor.keys()
        assert any(row["num_windows"] == 1000.0 for row in new.values())
        for before in (current, anchor):
            assert_not_worse(new, before, rule)


def assert_not_worse(new: Metrics, before: Metrics, rule: PromotionRule) -> None:
    for name, row in new.items():
        if (row["num_windows"] or 0) < rule.min_windows:
            continue
        measures = [("false_alarm_rate", -1.0, rule.more_false_alarms)]
        measures += [("f1", 1.0, rule.worse_by)] if row["num_attack_windows"] else []
        for key, sign, allowed in measures:
            ours, theirs = row[key], before[name][key]
            assert ours is not None
            assert theirs is not None
            assert sign * (theirs - ours) <= allowed + 1e-9


class Nights:
    """A registry's index, without its files, and the nights that add to it."""

    def __init__(self, rule: PromotionRule) -> None:
        self.rule = rule
        self.index = RegistryIndex()

    def entry(self, model: str) -> ModelEntry:
        return ModelEntry(id=model, family="can", dataset="cars", content=model)

    def change(self, kind: str, model: str, anchors: tuple[str, ...] | None = None) -> None:
        parts = {"family": "can", "dataset": "cars", "previous": self.in_service(), "reason": "", "by": ""}
        change = ServiceChange.model_validate({"kind": kind, "model": model, "anchors": anchors, **parts})
        self.index = self.index.model_copy(update={"history": (*self.index.history, change)})

    def in_service(self) -> str | None:
        return self.index.in_service("can", "cars")

    def night(self, model: str, scores: dict[str, Metrics]) -> Promotion:
        """Measure a model with those it is held to on the recordings of tonight, and decide."""
        current = self.in_service()
        names = [] if current is None else [current, *self.index.anchors(self.entry(current))]
        anchors = {name: scores[name] for name in names[1:]}
        decision = judge(scores[model], scores[current] if current else None, self.rule, anchors=anchors)
        if decision.accepted:
            best = best_models({name: scores[name] for name in (model, *names)}, self.rule)
            self.change("promotion", model, tuple(name for name in best if name != model))
        return decision


def test_a_scenario_that_loses_a_little_every_night_is_lost_once_and_no_more() -> None:
    """60 nights, of which each loses 0.01 in one scenario, gains in five, and raises more false alarms."""
    nights = Nights(PromotionRule(margin=0.001))
    scores: dict[str, Metrics] = {}
    decisions = []
    for number in range(60):
        gained = {f"s{other}": attacked(0.8 + 0.0033 * number, 0.001) for other in range(5)}
        scores[f"m{number}"] = {"lost": attacked(0.95 - 0.01 * number, 0.001 + 0.01 * number), **gained}
        decisions.append(nights.night(f"m{number}", scores))
    assert [decision.accepted for decision in decisions] == [True] + [False] * 59
    assert "lost: false_alarm_rate 0.0010 -> 0.0110" in decisions[1].describe()

    slowly = Nights(PromotionRule(margin=0.001, more_false_alarms=1.0))  # by F1 alone
    accepted = [slowly.night(f"m{number}", scores).accepted for number in range(60)]
    assert accepted == [True, True] + [False] * 58
    assert "lost: f1 0.9500 (the best so far, of m0) -> 0.9300" in slowly.night("m2", scores).describe()


SCENARIOS = ("a", "b", "c")


def moved(scores: Metrics, shifts: dict[str, tuple[float, float]]) -> Metrics:
    """Let the scores of a model be others by so much: F1, false alarms."""
    found = {}
    for name, (f1, false_alarms) in shifts.items():
        values = (scores[name]["f1"] or 0.0) + f1, (scores[name]["false_alarm_rate"] or 0.0) + false_alarms
        found[name] = attacked(*(min(1.0, max(0.0, value)) for value in values))
    return found


small_shifts = st.fixed_dictionaries(
    {name: st.tuples(st.floats(-0.02, 0.05), st.floats(-0.001, 0.002)) for name in SCENARIOS}
)
large_shifts = st.fixed_dictionaries(
    {name: st.tuples(st.floats(-0.3, 0.3), st.floats(-0.01, 0.01)) for name in SCENARIOS}
)
events = st.sampled_from(["night"] * 6 + ["rollback", "promotion by a person", "other recordings"])


@given(st.data())
def test_no_sequence_of_nights_walks_a_scenario_down(data: st.DataObject) -> None:
    """What a night promotes is within the rule of all that nights put into service, measured on the same recordings."""
    nights = Nights(PromotionRule(worse_by=0.02, more_false_alarms=0.002, minimum=0.0))
    scores: dict[str, Metrics] = {"m0": {name: attacked(0.5, 0.01) for name in SCENARIOS}}
    nights.night("m0", scores)
    line = ["m0"]  # what was in service since a person decided, or since the recordings changed
    for number in range(1, data.draw(st.integers(1, 15))):
        current, model, event = nights.in_service(), f"m{number}", data.draw(events)
        assert current is not None
        if event == "other recordings":  # all score otherwise on them; those that were best before still bind
            scores = {name: moved(before, data.draw(large_shifts)) for name, before in scores.items()}
            line = [current, *nights.index.anchors(nights.entry(current))]
        scores[model] = moved(scores[current], data.draw(small_shifts))
        if event == "promotion by a person":
            nights.change("promotion", model)
            line = [model]
        elif event == "rollback" and len(served := nights.index.served("can", "cars")) > 1:
            nights.change("rollback", served[-2])
            line = [served[-2]]
        elif nights.night(model, scores).accepted:
            for before in line:
                assert_not_worse(scores[model], scores[before], nights.rule)
            line.append(model)


def test_the_best_models_are_few_and_the_new_one_is_preferred() -> None:
    measured = {
        "new": {"a": attacked(0.9, 0.01), "b": attacked(0.8, 0.0), "few": attacked(0.0, 1.0, windows=3)},
        "old": {"a": attacked(0.9, 0.01), "b": attacked(0.7, 0.0), "few": attacked(1.0, 0.0, windows=3)},
        "older": {"a": attacked(0.8, 0.0), "b": attacked(0.8, 0.0), "few": attacked(1.0, 0.0, windows=3)},
    }
    assert best_models(measured, RULE) == ["new", "older"]


def test_a_scenario_that_is_gone_or_too_small_by_now_is_named() -> None:
    registered = {name: attacked(0.9) for name in "abc"} | {"few": attacked(0.9, windows=5)}
    new = {"a": attacked(0.9, windows=100), "b": attacked(0.9, windows=99), "few": attacked(0.9, windows=4)}
    assert lost_scenarios(new, registered, RULE) == [
        "b: 99 of 1000 windows are left, fewer than min_windows=100",
        "c: the model in service was measured there, and no test recording of it is left",
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"worse_bye": 0.1}, "did you mean 'worse_by'"),
        ({"min_windows": 0}, "min_windows=0: write 1 or more"),
        ({"minimum": 1.5}, "minimum=1.5"),
        ({"metric": "f2"}, "metric='f2'"),
    ],
)
def test_a_mistake_in_the_rule_is_named(data: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("(", r"\(")):
        validate_config(PromotionRule, data)


def test_nights_that_promoted_nothing_are_counted_since_a_model_went_into_service() -> None:
    models = tuple(ModelEntry(id=name, family="can", dataset="cars", content=name) for name in "abcd")
    other = ModelEntry(id="x", family="can", dataset="vans", content="x")

    def judged(model: str, when: str, accepted: bool = False) -> Judgement:
        return Judgement(model=model, when=when, compared_with=None, accepted=accepted, reasons=(), by="nightly")

    decisions = (judged("a", "1", True), judged("b", "2"), judged("x", "2"), judged("c", "3"))
    index = RegistryIndex(models=(*models, other), decisions=decisions)
    assert [found.model for found in index.refused_since_promotion("can", "cars")] == ["b", "c"]
    change = ServiceChange(
        kind="promotion", when="2.5", family="can", dataset="cars", previous="a", model="b", reason="", by="ann"
    )
    index = index.model_copy(update={"history": (change,)})
    assert [found.model for found in index.refused_since_promotion("can", "cars")] == ["c"]
    assert [found.model for found in index.refused_since_promotion("can", "vans")] == ["x"]
    index = index.model_copy(update={"decisions": (*decisions, judged("d", "4", True))})
    assert index.refused_since_promotion("can", "cars") == []
