"""Whether a new model takes the place of the one in service: a pure function of what all score on the same data."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from pydantic import Field

from kdgat.registry.entry import Metrics, Scores
from kdgat.stage.configuration import Config

FALSE_ALARMS: Final = "false_alarm_rate"
ALARMS_PER_HOUR: Final = "false_alarms_per_hour"
RECALL_PREFIX: Final = "recall_"  # of a kind of attack: recall_suppression
NUM_WINDOWS: Final = "num_windows"
NUM_ATTACKS: Final = "num_attack_windows"
NEW_MODEL: Final = "the new model"
MODEL_IN_SERVICE: Final = "the model in service"


class PromotionRule(Config):
    """State how much better a model must be on the whole, and how much worse it may be anywhere."""

    metric: Literal["f1", "auc", "pr_auc", "mcc", "balanced_accuracy", "accuracy", "recall", "precision"] = Field(
        "f1", description="what is compared in scenarios with attacks"
    )
    margin: float = Field(0.001, ge=0.0, le=1.0, description="by which the mean over scenarios must be better")
    worse_by: float = Field(
        0.01, ge=0.0, le=1.0, description="by which any one scenario may be worse than the best so far"
    )
    more_false_alarms: float = Field(
        0.002,
        ge=0.0,
        le=1.0,
        description="by which the false alarm rate of any one scenario may be above the lowest",
    )
    more_alarms_per_hour: float = Field(
        0.0, ge=0.0, description="by which the mean of false alarms per hour may be above that of the model in service"
    )
    held_kinds: tuple[str, ...] = Field(
        ("suppression",), description="kinds of attack of which the recall is held in every scenario that has them"
    )
    min_windows: int = Field(100, ge=1, description="windows that a scenario needs to have a part in the decision")
    minimum: float = Field(0.5, ge=0.0, le=1.0, description="mean over scenarios that the first model must reach")
    most_false_alarms: float = Field(
        0.1, ge=0.0, le=1.0, description="false alarm rate that the first model may have in any one scenario"
    )


@dataclass(frozen=True)
class Promotion:
    """The decision and its reasons, each a sentence."""

    accepted: bool
    reasons: tuple[str, ...]

    def describe(self) -> str:
        """Say all reasons in one line."""
        return "; ".join(self.reasons)


def decide(
    new: Metrics,
    current: Metrics | None,
    rule: PromotionRule,
    prior_faults: Sequence[str] = (),
    anchors: Mapping[str, Metrics] | None = None,
) -> Promotion:
    """Decide whether the new model goes into service.

    The mean of the rule's metric over all scenarios with attacks must be better than that of the model in service by
    the margin; where no scenario has attacks, the mean false alarm rate must be lower by it. In no scenario may metric
    or false alarm rate, or the recall of a held kind of attack, be worse than the best of the model in service and the
    anchors by more than the rule allows: held to last night alone, a scenario could be lost little by little. Nor may
    there be more false alarms per hour than of the model in service, over all scenarios. Scenarios with few windows
    have no part in it.

    Args:
        new: scenario -> metric -> value of the new model.
        current: the same of the model in service on the same recordings; None if there is none.
        rule: margins.
        prior_faults: why they cannot be held against each other, if something speaks against it.
        anchors: name -> the same of earlier models on the same recordings; see `best_models`.
    """
    measured = {NEW_MODEL: new}
    if current is not None:
        measured |= {MODEL_IN_SERVICE: current, **(anchors or {})}
    judged = [name for name in new if _is_judged(new[name], rule)]
    faults = [*prior_faults, *_faults(measured, judged, rule)]
    if not new:
        faults.append("no scenario was measured")
    elif not judged:
        faults.append(f"no scenario has as many windows as min_windows={rule.min_windows}")
    if faults:
        return Promotion(False, tuple(faults))

    attacked = [name for name in judged if _has_attacks(new[name])]
    compared, metric, sign = (attacked, str(rule.metric), 1.0) if attacked else (judged, FALSE_ALARMS, -1.0)
    small = [
        f"{name}: {_count(new[name], NUM_WINDOWS)} windows, fewer than min_windows={rule.min_windows}: no part in this"
        for name in new
        if name not in judged
    ]
    mean = _mean(new, compared, metric)
    if current is None:
        too_low = [f"no model was in service before, and {text}" for text in _below_floors(new, judged, attacked, rule)]
        return Promotion(not too_low, (*(too_low or ["no model was in service before"]), *small))
    before = _mean(current, compared, metric)
    # Rounded, so that a difference of exactly the margin is not lost to the last bit of a float.
    gain = sign * (mean - before)
    is_better = gain > 0.0 and round(gain - rule.margin, 12) >= 0.0
    worse = [text for name in judged for text in _worse(name, measured, rule)]
    worse += _more_alarms(new, current, judged, rule)
    result = "better" if is_better else "not better"
    reasons = [f"mean {metric} {before:.4f} -> {mean:.4f}: {result} by the margin of {rule.margin:g}", *worse]
    if is_better and not worse:
        reasons.append("no scenario is worse by more than the rule allows")
    return Promotion(is_better and not worse, (*reasons, *small))


def best_models(measured: Mapping[str, Metrics], rule: PromotionRule) -> list[str]:
    """Name the models of which each is the best somewhere, of equal ones the first: anchors of the next decision.

    Args:
        measured: model -> scenario -> metric -> value, of a new model that was accepted and all it was held to.
        rule: which metric counts, and how many windows make a scenario count.
    """
    scenarios = next(iter(measured.values()))
    return list(
        dict.fromkeys(
            max(measured, key=lambda model: sign * _value(measured[model][name], metric))
            for name in scenarios
            if _is_judged(scenarios[name], rule)
            for metric, sign, _ in _held(scenarios[name], rule)
        )
    )


def lost_scenarios(new: Metrics, registered: Metrics, rule: PromotionRule) -> list[str]:
    """State which scenarios that counted when a model was registered are gone, or too small to count, by now."""
    faults = []
    for name, scores in registered.items():
        left, before = _count(new.get(name, {}), NUM_WINDOWS), _count(scores, NUM_WINDOWS)
        if name not in new:
            faults.append(f"{name}: {MODEL_IN_SERVICE} was measured there, and no test recording of it is left")
        elif left < rule.min_windows <= before:
            faults.append(f"{name}: {left} of {before} windows are left, fewer than min_windows={rule.min_windows}")
    return faults


def _faults(measured: Mapping[str, Metrics], judged: Sequence[str], rule: PromotionRule) -> Iterator[str]:
    """List what of a model is missing or no number in these scenarios, or is measured there alone."""
    scenarios = measured[NEW_MODEL]
    for model, metrics in measured.items():
        for name in sorted(metrics.keys() ^ scenarios.keys()):
            yield f"{name}: {model if name in scenarios else NEW_MODEL} was not measured"
        for name in judged:
            for metric, *_ in _held(scenarios[name], rule):
                if name in metrics and not _is_number(metrics[name].get(metric)):
                    yield f"{name}: {metric} of {model} is {metrics[name].get(metric)}"


def _held(scores: Scores, rule: PromotionRule) -> Iterator[tuple[str, float, float]]:
    """List what a scenario is judged by: metric, 1 if more of it is better or -1, and by how much it may be worse."""
    if _has_attacks(scores):
        yield rule.metric, 1.0, rule.worse_by
    if _count(scores, NUM_ATTACKS) < _count(scores, NUM_WINDOWS):
        yield FALSE_ALARMS, -1.0, rule.more_false_alarms
    for kind in rule.held_kinds:
        if f"{RECALL_PREFIX}{kind}" in scores:
            yield f"{RECALL_PREFIX}{kind}", 1.0, rule.worse_by


def _below_floors(new: Metrics, judged: Sequence[str], attacked: Sequence[str], rule: PromotionRule) -> Iterator[str]:
    if attacked and (mean := _mean(new, attacked, rule.metric)) < rule.minimum:
        yield f"mean {rule.metric} {mean:.4f} is below minimum={rule.minimum:g}"
    for name in judged:
        for metric, *_ in _held(new[name], rule):
            if metric == FALSE_ALARMS and (rate := _value(new[name], metric)) > rule.most_false_alarms:
                yield f"{name}: {FALSE_ALARMS} {rate:.4f} is above most_false_alarms={rule.most_false_alarms:g}"


def _worse(name: str, measured: Mapping[str, Metrics], rule: PromotionRule) -> Iterator[str]:
    """State by what a scenario is worse than the best before, if that is more than the rule allows."""
    new, *others = measured
    for metric, sign, allowed in _held(measured[new][name], rule):
        values = {model: _value(measured[model][name], metric) for model in others}
        best = max(others, key=lambda model: sign * values[model])
        value = _value(measured[new][name], metric)
        if round(sign * (values[best] - value) - allowed, 12) > 0.0:
            of = "" if best == MODEL_IN_SERVICE else f" (the best so far, of {best})"
            yield f"{name}: {metric} {values[best]:.4f}{of} -> {value:.4f}, worse by more than {allowed:g}"


def _more_alarms(new: Metrics, current: Metrics, judged: Sequence[str], rule: PromotionRule) -> Iterator[str]:
    """State by how much the false alarms per hour are above those of the model in service, if it is too much.

    Over all scenarios: one alarm more is many an hour in a recording of seconds. A recording without time has none.
    """
    known = [name for name in judged if all(_is_number(m[name].get(ALARMS_PER_HOUR)) for m in (new, current))]
    if known:
        before, after = _mean(current, known, ALARMS_PER_HOUR), _mean(new, known, ALARMS_PER_HOUR)
        if round(after - before - rule.more_alarms_per_hour, 9) > 0.0:
            yield (
                f"mean {ALARMS_PER_HOUR} {before:.4g} -> {after:.4g}, more by more than {rule.more_alarms_per_hour:g}"
            )


def _is_judged(scores: Scores, rule: PromotionRule) -> bool:
    return _count(scores, NUM_WINDOWS) >= rule.min_windows


def _has_attacks(scores: Scores) -> bool:
    return scores.get(NUM_ATTACKS) != 0


def _mean(metrics: Metrics, scenarios: Sequence[str], metric: str) -> float:
    return fmean(_value(metrics[name], metric) for name in scenarios)


def _count(scores: Scores, metric: str) -> int:
    return int(scores.get(metric) or 0)


def _value(scores: Scores, metric: str) -> float:
    value = scores[metric]
    assert value is not None  # _faults has looked
    return value


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
