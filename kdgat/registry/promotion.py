"""Whether a new model takes the place of the one in service: a pure function of what all score on the same data."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from kdgat.registry.entry import Metrics, Scores
from kdgat.registry.promotion_rule import (
    ACCURACY,
    ALARMS_PER_HOUR,
    FALSE_ALARMS,
    NUM_ATTACKS,
    NUM_WINDOWS,
    RECALL_PREFIX,
    PromotionRule,
)

NEW_MODEL: Final = "the new model"
MODEL_IN_SERVICE: Final = "the model in service"
RANKINGS: Final = frozenset({"auc", "pr_auc"})  # of scores: no count of wrong windows says how much worse they are


@dataclass(frozen=True)
class Promotion:
    """The decision and its reasons, each a sentence."""

    accepted: bool
    reasons: tuple[str, ...]

    def describe(self) -> str:
        """Say all reasons in one line."""
        return "; ".join(self.reasons)


def judge(
    new: Metrics,
    current: Metrics | None,
    rule: PromotionRule,
    prior_faults: Sequence[str] = (),
    anchors: Mapping[str, Metrics] | None = None,
) -> Promotion:
    """Decide whether the new model goes into service.

    The mean of the rule's metric over all scenarios with attacks must be better than that of the model in service by
    the margin; with `accept="not_worse"` it may be below the best of all that it is held to by no more than the margin,
    or by what `more_windows` more wrong windows cost.
    Where no scenario has attacks, the mean false alarm rate is compared. In no scenario may metric or false alarm
    rate, or the recall of a held kind of attack, be worse than the best of the model in service and the anchors by more
    than the rule allows: held to last night alone, a scenario could be lost little by little. Nor may there be more
    benign windows in alarm per hour than of the model in service, over all scenarios. Scenarios with few windows have
    no part.

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

    compared = _compared(new, judged, rule)
    attacked = [name for name in judged if _has_attacks(new[name])]
    small = [
        f"{name}: {_count(new[name], NUM_WINDOWS)} windows, fewer than min_windows={rule.min_windows}: no part in this"
        for name in new
        if name not in judged
    ]
    if current is None:
        too_low = [f"no model was in service before, and {text}" for text in _below_floors(new, judged, attacked, rule)]
        return Promotion(not too_low, (*(too_low or ["no model was in service before"]), *small))
    is_good, sentence = _on_the_whole(measured, compared, judged, rule)
    reasons = [sentence]
    after, before = _wrong_windows(new, judged), _wrong_windows(current, judged)
    if after is not None and before is not None:
        has_fewer, text = _fewer_windows(after, before, sum(_count(new[name], NUM_WINDOWS) for name in judged), rule)
        is_good = is_good and has_fewer
        reasons.append(text)
    worse = [text for name in judged for text in _worse(name, measured, rule)]
    worse += _more_alarms(new, current, judged, rule)
    reasons += worse
    if is_good and not worse:
        reasons.append("no scenario is worse by more than the rule allows")
    return Promotion(is_good and not worse, (*reasons, *small))


def ceiling(in_service: Metrics, rule: PromotionRule) -> str:
    """Warn, in one sentence, where no model, or only one as good in every window, can replace one with these scores."""
    judged = [name for name in in_service if _is_judged(in_service[name], rule)]
    return _ceiling_of_means(in_service, judged, rule) or _ceiling_of_alarms(in_service, judged, rule) if judged else ""


def _ceiling_of_alarms(in_service: Metrics, judged: Sequence[str], rule: PromotionRule) -> str:
    known = [name for name in judged if _is_number(in_service[name].get(ALARMS_PER_HOUR))]
    if not known or rule.more_alarms_per_hour > 0.0 or _mean(in_service, known, ALARMS_PER_HOUR) > 0.0:
        return ""
    return (
        "the model in service has no benign window in alarm, so no night can replace it by a model with one, however "
        f"much better that is otherwise: set more_alarms_per_hour={rule.more_alarms_per_hour:g} higher"
    )


def _ceiling_of_means(in_service: Metrics, judged: Sequence[str], rule: PromotionRule) -> str:
    compared = _compared(in_service, judged, rule)
    if not all(_is_number(in_service[name].get(compared.metric)) for name in compared.scenarios):
        return ""
    mean = _mean(in_service, compared.scenarios, compared.metric)
    error, move = compared.error(mean), "rise" if compared.sign > 0 else "fall"
    wrong = _wrong_windows(in_service, judged)
    is_counted = wrong is not None and _counts_windows(compared, rule)
    if rule.accept == "not_worse":
        is_less_than_one = rule.margin is None and wrong is not None and rule.error_margin * wrong < 1.0
        if is_counted or rule.margin or not (is_less_than_one or round(error, 12) <= 0.0):
            return ""
        keys = "margin" if compared.metric in RANKINGS or rule.margin is not None else "more_windows or margin"
        return (
            f"mean {compared.metric} {mean:.4f} of the model in service leaves a margin of less than one window, so no "
            f"night can replace it by a model with one more wrong window: set {keys}"
        )
    head = f"mean {compared.metric} {mean:.4f} of the model in service cannot {move}"
    if round(error, 12) <= 0.0:
        return (
            f"{head} any further, so no night can replace that model: add test recordings that are harder, or set "
            + (
                f"accept=not_worse, which lets more_windows={rule.more_windows} more windows be wrong"
                if is_counted
                else "accept=not_worse and a margin above 0"
            )
        )
    if rule.margin is not None and round(rule.margin - error, 12) > 0.0:
        return (
            f"{head} by margin={rule.margin:g}, so no night can replace that model: leave margin out, then "
            f"error_margin={rule.error_margin:g} of the error counts, or set accept=not_worse"
        )
    if wrong is not None and wrong < rule.fewer_windows:
        return (
            f"the model in service has {wrong} wrong windows, fewer than fewer_windows={rule.fewer_windows}, so no "
            "night can replace it: set fewer_windows lower"
        )
    return ""


@dataclass(frozen=True)
class _Compared:
    """What decides on the whole: a metric in some scenarios, 1 where more of it is better, else -1."""

    scenarios: Sequence[str]
    metric: str
    sign: float

    def error(self, mean: float) -> float:
        return 1.0 - mean if self.sign > 0 else mean


def _compared(metrics: Metrics, judged: Sequence[str], rule: PromotionRule) -> _Compared:
    attacked = [name for name in judged if _has_attacks(metrics[name])]
    return _Compared(attacked, str(rule.metric), 1.0) if attacked else _Compared(judged, FALSE_ALARMS, -1.0)


def _counts_windows(compared: _Compared, rule: PromotionRule) -> bool:
    """Return whether wrong windows, too, say that a model is not worse."""
    return rule.margin is None and rule.more_windows > 0 and compared.metric not in RANKINGS


def _on_the_whole(
    measured: Mapping[str, Metrics], compared: _Compared, judged: Sequence[str], rule: PromotionRule
) -> tuple[bool, str]:
    """Compare the means: whether they let the new model in, and the sentence that says so."""
    new, *others = measured
    means = {model: _mean(metrics, compared.scenarios, compared.metric) for model, metrics in measured.items()}
    is_strict = rule.accept == "better"
    held_to = MODEL_IN_SERVICE if is_strict else max(others, key=lambda model: compared.sign * means[model])
    before, after = means[held_to], means[new]
    # Rounded, so that a difference of exactly the margin is not lost to the last bit of a float.
    gain, error = round(compared.sign * (after - before), 12), compared.error(before)
    margin = rule.error_margin * error if rule.margin is None else rule.margin
    windows = ""
    if is_strict:
        is_good = gain > 0.0 and round(gain - margin, 12) >= 0.0
        result = "better" if is_good else "not better"
    else:
        is_good = round(gain + margin, 12) >= 0.0
        more = _more_wrong(measured[new], measured[held_to], judged) if _counts_windows(compared, rule) else None
        if not is_good and more is not None:
            is_good = more <= rule.more_windows
            windows = f" or more_windows={rule.more_windows}, with {more:,} more wrong windows"
        result = "not worse" if is_good else "worse"
    share = ""
    if rule.margin is None:
        direction = "less" if gain >= 0.0 else "more"
        share = f", {abs(gain) / error:.1%} {direction} error" if error > 0.0 else ", no error was left"
    of = "" if held_to == MODEL_IN_SERVICE else f" (the best so far, of {held_to})"
    limit = f"{rule.error_margin:g} of the error" if rule.margin is None else f"{rule.margin:g}"
    by = "by the margin" if is_strict else "by more than the margin"
    digits = 4 if gain == 0.0 or abs(gain) >= 1e-4 else 6
    values = f"{before:.{digits}f}{of} -> {after:.{digits}f}"
    return is_good, f"mean {compared.metric} {values}{share}: {result} {by} of {limit}{windows}"


def _fewer_windows(after: int, before: int, total: int, rule: PromotionRule) -> tuple[bool, str]:
    """Compare how many windows are judged wrongly: whether there are few enough, and the sentence that says so."""
    text = f"wrong windows {before:,} -> {after:,} of {total:,}"
    if rule.accept == "not_worse" or rule.fewer_windows == 0:
        return True, text
    is_good = before - after >= rule.fewer_windows
    return is_good, f"{text}: {'' if is_good else 'not '}fewer by fewer_windows={rule.fewer_windows}"


def _wrong_windows(metrics: Metrics, scenarios: Sequence[str]) -> int | None:
    """Count the windows that are judged wrongly; None if a scenario's accuracy is not known."""
    known = [(metrics[name].get(ACCURACY), _count(metrics[name], NUM_WINDOWS)) for name in scenarios]
    wrong = [round((1.0 - value) * count) for value, count in known if value is not None and math.isfinite(value)]
    return sum(wrong) if len(wrong) == len(known) else None


def _more_wrong(new: Metrics, before: Metrics, scenarios: Sequence[str]) -> int | None:
    """Add up the wrong windows that are more, of the scenarios that have more: those with fewer make up for none."""
    pairs = [(_wrong_windows(new, [name]), _wrong_windows(before, [name])) for name in scenarios]
    more = [max(0, after - earlier) for after, earlier in pairs if after is not None and earlier is not None]
    return sum(more) if len(more) == len(pairs) else None


def best_models(measured: Mapping[str, Metrics], rule: PromotionRule) -> list[str]:
    """Name the models of which each is the best somewhere, of equal ones the first: anchors of the next decision.

    Args:
        measured: model -> scenario -> metric -> value, of a new model that was accepted and all it was held to.
        rule: which metric counts, and how many windows make a scenario count.
    """
    scenarios = next(iter(measured.values()))
    judged = [name for name in scenarios if _is_judged(scenarios[name], rule)]
    best = [
        max(measured, key=lambda model: sign * _value(measured[model][name], metric))
        for name in judged
        for metric, sign, _ in _held(scenarios[name], rule)
    ]
    if rule.accept == "not_worse":  # the mean is held to the best so far, too: no sequence of nights walks it down
        compared = _compared(scenarios, judged, rule)
        best.append(
            max(measured, key=lambda model: compared.sign * _mean(measured[model], compared.scenarios, compared.metric))
        )
    return list(dict.fromkeys(best))


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
            if rule.fewer_windows and name in metrics and not _is_number(metrics[name].get(ACCURACY)):
                yield f"{name}: {ACCURACY} of {model} is {metrics[name].get(ACCURACY)}, and fewer_windows needs it"


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
    """State by how much the benign windows in alarm per hour are above those in service, if it is too much.

    Over all scenarios: one window more is many an hour in a recording of seconds. A recording without time has none.
    """
    known = [name for name in judged if all(_is_number(m[name].get(ALARMS_PER_HOUR)) for m in (new, current))]
    if known:
        before, after = _mean(current, known, ALARMS_PER_HOUR), _mean(new, known, ALARMS_PER_HOUR)
        if round(after - before - rule.more_alarms_per_hour, 9) > 0.0:
            yield (
                f"mean of benign windows in alarm per hour {before:.4g} -> {after:.4g}, more by more than "
                f"more_alarms_per_hour={rule.more_alarms_per_hour:g}"
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
