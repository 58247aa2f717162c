"""When a new model takes the place of the one in service."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.registry.entry import Metrics
from kdgat.registry.promotion import PromotionRule, decide

RULE = PromotionRule(margin=0.01, worse_by=0.02, more_false_alarms=0.005)


def attacked(f1: float | None, false_alarms: float | None = 0.0) -> dict[str, float | None]:
    return {"f1": f1, "false_alarm_rate": false_alarms, "num_attack_windows": 10.0}


def clean(false_alarms: float | None) -> dict[str, float | None]:
    return {"f1": None, "false_alarm_rate": false_alarms, "num_attack_windows": 0.0}


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
    ],
)
def test_a_model_is_promoted_if_it_is_better_on_the_whole_and_worse_nowhere(
    new: Metrics, current: Metrics | None, accepted: bool, words: str
) -> None:
    promotion = decide(new, current, RULE)
    assert promotion.accepted is accepted
    assert words in promotion.describe()


def test_numbers_that_cannot_be_held_against_each_other_promote_nothing() -> None:
    for current in ({"a": attacked(0.1)}, None):
        promotion = decide({"a": attacked(0.9)}, current, RULE, ["other windows"])
        assert not promotion.accepted
        assert promotion.reasons == ("other windows",)


def test_the_metric_is_chosen_by_the_rule() -> None:
    new, current = ({"a": {"f1": f1, "auc": auc, "num_attack_windows": 3.0}} for f1, auc in ((0.5, 0.99), (0.9, 0.9)))
    assert not decide(new, current, RULE).accepted
    assert decide(new, current, RULE.model_copy(update={"metric": "auc"})).accepted


values = st.one_of(st.none(), st.floats(0.0, 1.0), st.just(math.nan))
scores = st.builds(
    lambda f1, alarms, attacks: {"f1": f1, "false_alarm_rate": alarms, "num_attack_windows": attacks},
    values,
    values,
    st.sampled_from([0.0, 7.0]),
)
metrics = st.dictionaries(st.sampled_from("abcd"), scores, max_size=4)
rules = st.builds(PromotionRule, margin=st.floats(0.0, 0.2), worse_by=st.floats(0.0, 0.2))


@given(metrics, metrics, rules)
def test_no_two_models_are_each_better_than_the_other_and_none_than_itself(
    one: Metrics, other: Metrics, rule: PromotionRule
) -> None:
    assert not decide(one, one, rule).accepted
    # The scenarios must agree in having attacks, or they are not the same recordings.
    other = {
        name: {**row, "num_attack_windows": one[name]["num_attack_windows"] if name in one else 0.0}
        for name, row in other.items()
    }
    assert not (decide(one, other, rule).accepted and decide(other, one, rule).accepted)


@given(metrics, metrics, rules)
def test_what_is_promoted_is_measured_everywhere_and_nowhere_worse_than_allowed(
    new: Metrics, current: Metrics, rule: PromotionRule
) -> None:
    promotion = decide(new, current, rule)
    assert promotion.reasons
    if promotion.accepted:
        assert new.keys() == current.keys()
        for name, row in new.items():
            key, sign = ("f1", 1.0) if row["num_attack_windows"] else ("false_alarm_rate", -1.0)
            ours, theirs = row[key], current[name][key]
            assert ours is not None
            assert theirs is not None
            allowed = rule.worse_by if row["num_attack_windows"] else rule.more_false_alarms
            assert sign * (theirs - ours) <= allowed + 1e-9
