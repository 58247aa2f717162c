"""Whether a new model takes the place of the one in service: a pure function of what both score on the same data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pydantic import Field

from kdgat.registry.entry import Metrics, Scores
from kdgat.stage.configuration import Config

FALSE_ALARMS = "false_alarm_rate"
NUM_ATTACKS = "num_attack_windows"


class PromotionRule(Config):
    """State how much better a model must be on the whole, and how much worse it may be anywhere."""

    metric: Literal["f1", "auc", "pr_auc", "mcc", "balanced_accuracy", "accuracy", "recall", "precision"] = Field(
        "f1", description="what is compared in scenarios with attacks"
    )
    margin: float = Field(0.001, ge=0.0, le=1.0, description="by which the mean over scenarios must be better")
    worse_by: float = Field(0.01, ge=0.0, le=1.0, description="by which any one scenario may be worse")
    more_false_alarms: float = Field(
        0.002, ge=0.0, le=1.0, description="by which the false alarm rate may rise in a scenario without attacks"
    )


@dataclass(frozen=True)
class Promotion:
    """The decision and its reasons, each a sentence."""

    accepted: bool
    reasons: tuple[str, ...]

    def describe(self) -> str:
        """Say all reasons in one line."""
        return "; ".join(self.reasons)


def decide(new: Metrics, current: Metrics | None, rule: PromotionRule, prior_faults: Sequence[str] = ()) -> Promotion:
    """Decide whether the new model goes into service.

    The mean of the rule's metric over all scenarios with attacks must be better by the margin, and no scenario may be
    worse by more than the rule allows; those without attacks, where such a metric has no value, are judged by their
    false alarm rate. Where no scenario has attacks, the mean false alarm rate must be lower by the margin.

    Args:
        new: scenario -> metric -> value of the new model. `num_attack_windows` tells scenarios without attacks apart.
        current: the same of the model in service on the same recordings; None if there is none.
        rule: margins.
        prior_faults: why the two cannot be held against each other, if something speaks against it.
    """
    faults = [*prior_faults, *_faults("the new model", new, new, rule)]
    if current is not None:
        faults += _faults("the model in service", current, new, rule)
        faults += [f"{name}: the new model was not measured" for name in sorted(current.keys() - new.keys())]
    if not new:
        faults.append("no scenario was measured")
    if faults:
        return Promotion(False, tuple(faults))
    if current is None:
        return Promotion(True, ("no model was in service before",))

    attacked = [name for name in new if _has_attacks(new[name])]
    metric: str = rule.metric if attacked else FALSE_ALARMS
    compared = attacked or list(new)
    gain = _mean(new, compared, metric) - _mean(current, compared, metric)
    gain = gain if attacked else -gain
    message = f"mean {metric} {_mean(current, compared, metric):.4f} -> {_mean(new, compared, metric):.4f}"
    worse = [text for name in new if (text := _worse(name, new[name], current[name], rule))]
    # Rounded, so that a difference of exactly the margin is not lost to the last bit of a float.
    is_better = gain > 0.0 and round(gain - rule.margin, 12) >= 0.0
    result = "better" if is_better else "not better"
    reasons = (f"{message}: {result} by the margin of {rule.margin:g}", *worse)
    if is_better and not worse:
        reasons = (*reasons, "no scenario is worse by more than the rule allows")
    return Promotion(is_better and not worse, reasons)


def _faults(whose: str, metrics: Metrics, scenarios: Metrics, rule: PromotionRule) -> list[str]:
    """List what of a model is missing or no number in these scenarios."""
    faults = []
    for name in sorted(scenarios):
        metric = rule.metric if _has_attacks(scenarios[name]) else FALSE_ALARMS
        if name not in metrics:
            faults.append(f"{name}: {whose} was not measured")
        elif not _is_number(metrics[name].get(metric)):
            faults.append(f"{name}: {metric} of {whose} is {metrics[name].get(metric)}")
    return faults


def _worse(name: str, new: Scores, current: Scores, rule: PromotionRule) -> str:
    """State by how much a scenario is worse, if that is more than the rule allows."""
    metric: str
    if _has_attacks(new):
        metric, loss, allowed = rule.metric, _value(current, rule.metric) - _value(new, rule.metric), rule.worse_by
    else:
        metric, allowed = FALSE_ALARMS, rule.more_false_alarms
        loss = _value(new, FALSE_ALARMS) - _value(current, FALSE_ALARMS)
    if round(loss - allowed, 12) <= 0.0:
        return ""
    values = f"{_value(current, metric):.4f} -> {_value(new, metric):.4f}"
    return f"{name}: {metric} {values}, worse by more than {allowed:g}"


def _has_attacks(scores: Scores) -> bool:
    return scores.get(NUM_ATTACKS) != 0


def _mean(metrics: Metrics, scenarios: list[str], metric: str) -> float:
    return fmean(_value(metrics[name], metric) for name in scenarios)


def _value(scores: Scores, metric: str) -> float:
    value = scores[metric]
    assert value is not None  # _faults has looked
    return value


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
