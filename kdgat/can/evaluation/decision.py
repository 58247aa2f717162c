"""From raw scores to the default detector: calibration, choice, mean over members and seeds, one decision rule.

Validation windows alone decide, those of virtual vehicles among them: no test window and no test label is read. Clean
minutes of a vehicle may move the threshold (`kdgat.can.evaluation.clean_minutes`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.can.evaluation.accumulation import Accumulation
from kdgat.can.evaluation.breakdown import break_down
from kdgat.can.evaluation.calibration import DecisionRule, FalseAlarmRate, false_alarm_rate, mean_over_seeds
from kdgat.can.evaluation.metrics import (
    binary_metrics,
    per_recording_metrics,
    precision_recall_curve,
    roc_curve,
    spread_over_seeds,
)
from kdgat.can.evaluation.operating_point import OperatingPoint, covered_seconds
from kdgat.can.evaluation.results import Curves, Detector, DetectorScenario, ScenarioMetrics
from kdgat.can.evaluation.score_tables import ScoreTable
from kdgat.can.evaluation.scores import Scores
from kdgat.can.evaluation.untrained import is_baseline
from kdgat.can.models.names import ENSEMBLE, ENSEMBLE_MEMBERS, ERROR_MODELS, HABITS
from kdgat.can.models.scaling import CALIBRATED_LIMIT, Scaling, fit_scaling, logit, sigmoid
from kdgat.can.sections import AUTO, EvaluationConfig

logger = logging.getLogger(__name__)

FUSION_PREFIX: Final = "fusion"  # of the names of models that learn from validation windows

Tables = Mapping[int, ScoreTable]  # seed -> scores of the same windows


@dataclass(frozen=True)
class DefaultDetector:
    """The default detector: one model, the calibration of each of its members per seed, and the rule."""

    model: str
    scalings: dict[int, dict[str, Scaling]]  # seed -> column of the tables -> calibration; the mean is the detector
    rule: DecisionRule
    operating_point: OperatingPoint | None = None  # of the rule `budget`

    @property
    def columns(self) -> list[str]:
        """List the columns of score tables that it reads, the habits' included."""
        return [*next(iter(self.scalings.values())), HABITS]

    def logits(self, tables: Tables) -> NDArray[np.float64]:
        """Return the detector's calibrated logits [G]."""
        return mean_over_seeds([self.member_logits(tables[seed], seed) for seed in self.scalings])

    def decide(self, tables: Tables) -> NDArray[np.bool_]:
        """Return which windows [G] raise an alarm."""
        return self.probability_and_decision(self.logits(tables), tables[next(iter(self.scalings))])[1]

    def member_logits(self, table: ScoreTable, seed: int) -> NDArray[np.float64]:
        """Return the calibrated logits [G] of one seed: the mean over its members, each calibrated by itself."""
        members = [scaling.calibrated(table.scores[column]) for column, scaling in self.scalings[seed].items()]
        return mean_over_seeds([np.clip(logits, -CALIBRATED_LIMIT, CALIBRATED_LIMIT) for logits in members])

    def probability_and_decision(
        self, logits: NDArray[np.float64], table: ScoreTable
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the network's probability [G], and the decision [G] in which the habits may have a part."""
        return self.rule.apply(logits, table.recording, table.scores[HABITS])

    def at(self, point: OperatingPoint, *, habits: bool = True) -> "DefaultDetector":
        """Return the detector with the threshold of an operating point, and the habits beside it or not."""
        rule = DecisionRule(kind="budget", threshold=float(sigmoid(point.threshold)), habits=habits)
        return replace(self, rule=rule, operating_point=point)


def model_names(table: ScoreTable) -> list[str]:
    """List the detectors that can be made of a table's columns: themselves, and the mean of the attention networks."""
    names = list(table.scores)
    untrained = [name for name in names if name == HABITS or is_baseline(name)]
    mean = [ENSEMBLE] if columns_of(ENSEMBLE, table) else []
    return [*(name for name in names if name not in untrained), *mean, *untrained]


def columns_of(model: str, table: ScoreTable) -> list[str]:
    """List the columns whose calibrated mean a model is."""
    members = ENSEMBLE_MEMBERS if model == ENSEMBLE else (model,)
    return [name for name in members if name in table.scores]


def choose_detector(validation: Tables, config: EvaluationConfig) -> DefaultDetector:
    """Choose and calibrate the default detector by the validation windows.

    With `average_seeds` the detector is the mean of all seeds, else the seed that is best on validation.
    """
    known = model_names(next(iter(validation.values())))
    names = [config.detector] if config.detector != AUTO else [name for name in config.candidates if name in known]
    if not names or names[0] not in known:
        wanted = config.detector if config.detector != AUTO else ", ".join(config.candidates)
        raise UserError(f"evaluation.detector: {wanted} was not trained; this run has {', '.join(sorted(known))}")
    seed_sets = [list(validation)] if config.average_seeds else [[seed] for seed in validation]
    choices = [
        calibrated_detector(name, {s: validation[s] for s in seeds}, config, with_habits=True)
        for name in names
        for seeds in seed_sets
    ]
    if len(choices) == 1:
        return choices[0]
    # A fusion would win on windows it has learned from: all are compared on the others.
    unseen = {seed: judged_windows(table) for seed, table in validation.items()}
    qualities = [_quality(choice, unseen) for choice in choices]
    best = max(range(len(choices)), key=lambda place: qualities[place])  # the first of equals
    for choice, quality in zip(choices, qualities, strict=True):
        logger.info("%s of seeds %s: validation F1 %.5f, AUC %.5f", choice.model, list(choice.scalings), *quality)
    logger.info("default detector: %s", choices[best].model)
    return choices[best]


def judged_windows(table: ScoreTable) -> ScoreTable:
    """Return the validation windows that no model has learned from."""
    return table if table.is_learned.all() else table.select(~table.is_learned)


def windows_for(model: str, table: ScoreTable) -> ScoreTable:
    """Return the validation windows that this model has not learned from."""
    return judged_windows(table) if model.startswith(FUSION_PREFIX) else table


def calibrated_detector(
    model: str, validation: Tables, config: EvaluationConfig, *, with_habits: bool = False
) -> DefaultDetector:
    """Calibrate one model on every seed's validation scores; a rule by budget may ask the habits, too.

    By a budget the threshold is the one that it allows on benign validation windows, of known and of virtual vehicles:
    no others are there without clean minutes.
    """
    tables = {seed: windows_for(model, table) for seed, table in validation.items()}
    scalings = {
        seed: {column: calibrate(column, table, config) for column in columns_of(model, table)}
        for seed, table in tables.items()
    }
    if model == HABITS:  # no window has set anything
        return DefaultDetector(model, scalings, DecisionRule())
    if is_baseline(model):  # of any scale: a quantile of benign windows is its threshold already
        return DefaultDetector(model, scalings, DecisionRule(threshold=config.threshold))
    rule = DecisionRule(kind=config.rule, threshold=config.threshold)
    if config.rule != "budget":
        return DefaultDetector(model, scalings, rule)
    detector = DefaultDetector(model, scalings, rule)
    return detector.at(_operating_point_of_validation(detector, tables, config), habits=with_habits)


def _operating_point_of_validation(
    detector: DefaultDetector, validation: Tables, config: EvaluationConfig
) -> OperatingPoint:
    """Return the higher of the thresholds of recorded and of virtual windows; the default one if either is unknown.

    That of known vehicles alone would be far too low for others: at a logit of -2.6, 0 of 891 windows of known vehicles
    were alarms, and 155 of 2,320 virtual ones. Where whole vehicles validate, they are others, and alone say it.
    """
    table = validation[next(iter(detector.scalings))]
    logits = detector.logits(validation)
    budget, default = config.alarms_per_hour, float(logit(config.threshold))
    if table.vehicles:
        return OperatingPoint.of_vehicles(_benign_by_vehicle(table, logits), budget, default)
    points = []
    for whose, is_chosen in (
        ("the vehicles that it was trained on", ~table.is_virtual),
        ("virtual vehicles", table.is_virtual),
    ):
        chosen = (table.label == 0) & is_chosen
        seconds = covered_seconds(table.start_time[chosen], table.end_time[chosen], table.recording[chosen])
        source = f"benign validation windows of {whose}"
        points.append(OperatingPoint.of_benign(logits[chosen], seconds, budget, default, source))
    return next((point for point in points if point.reason), max(points, key=lambda point: point.threshold))


def _benign_by_vehicle(table: ScoreTable, logits: NDArray[np.float64]) -> dict[str, tuple[NDArray[np.float64], float]]:
    """Return the logits of recorded windows without attack, and the seconds that they cover, by vehicle."""
    names, found = np.array([*table.vehicles])[table.recording], {}
    for vehicle in sorted(set(table.vehicles) - {""}):
        own = (names == vehicle) & (table.label == 0) & ~table.is_virtual
        seconds = covered_seconds(table.start_time[own], table.end_time[own], table.recording[own])
        found[vehicle] = (logits[own], seconds)
    return found


def calibrate(model: str, table: ScoreTable, config: EvaluationConfig) -> Scaling:
    """Map a model's raw scores to logits of probabilities."""
    if model == HABITS:
        return Scaling()
    scores, is_attack = table.scores[model], table.label == 1
    has_both = is_attack.any() and not is_attack.all()
    if has_both and not is_baseline(model):
        return fit_scaling(scores, table.label, method="platt" if model in ERROR_MODELS else config.calibration)
    if is_attack.all() or not (model in ERROR_MODELS or is_baseline(model)):
        return Scaling()  # a logit already; without both there is nothing to scale it by
    border = float(np.quantile(scores[~is_attack], 1.0 - config.benign_quantile))
    return Scaling(bias=float(logit(config.threshold)) - border)


def _quality(default_detector: DefaultDetector, validation: Tables) -> tuple[float, float]:
    table = validation[next(iter(default_detector.scalings))]
    logits = default_detector.logits(validation)
    _, decision = default_detector.probability_and_decision(logits, table)
    metrics = binary_metrics(logits, table.label, None, decision=decision)
    if metrics["f1"] is None:  # no attack to find: the fewest false alarms
        return -float(metrics["false_alarm_rate"] or 0.0), 0.0
    return float(metrics["f1"]), 0.0 if metrics["auc"] is None else float(metrics["auc"])


def describe_detector(
    default_detector: DefaultDetector,
    validation: Tables,
    made_of: str,
    calibration: str | None = None,
    accumulation: Accumulation | None = None,
) -> Detector:
    """State what the detector is, its rule, and its false alarms on benign validation windows."""
    judged = {seed: windows_for(default_detector.model, table) for seed, table in validation.items()}
    table = judged[next(iter(default_detector.scalings))]
    decision = default_detector.decide(judged)
    benign = table.label == 0
    num_virtual = int(np.count_nonzero(benign & table.is_virtual))
    source = "benign validation windows"
    virtual = f" ({num_virtual:,} of them of virtual vehicles)" if num_virtual else ""
    point = default_detector.operating_point
    parts = (point, accumulation)
    seeds = list(default_detector.scalings)
    mean = f", mean of {len(seeds)} seeds' calibrated logits" if len(seeds) > 1 else ""
    return Detector(
        name=f"{default_detector.model}{mean}",
        models=[
            f"{default_detector.model} ({made_of})" if made_of != default_detector.model else default_detector.model
        ],
        seeds=seeds,
        decision=default_detector.rule,
        rule=" ".join([default_detector.rule.sentence(), *(one.sentence() for one in parts if one)]),
        accumulation=accumulation,
        operating_point=point,
        calibration=calibration,
        false_alarm_rate=_rate_of(decision[benign], f"{source}{virtual}"),
        recorded_false_alarm_rate=_rate_of(decision[benign & ~table.is_virtual], f"recorded {source}"),
        virtual_false_alarm_rate=_rate_of(decision[benign & table.is_virtual], f"virtual {source}"),
        validation=break_down(table, decision) if table.num_windows else None,
    )


def _rate_of(decision: NDArray[np.bool_], source: str) -> FalseAlarmRate | None:
    return false_alarm_rate(decision, source=source) if decision.size else None


def scenario_of_detector(
    default_detector: DefaultDetector, tables: Tables, also: NDArray[np.bool_] | None = None
) -> tuple[DetectorScenario, Scores, Curves]:
    """Measure the default detector on one scenario, and each of its seeds for the spread.

    Windows marked in `also` [G] are alarms of the detector, too, whatever it says of them; not of its single seeds.
    """
    table = tables[next(iter(default_detector.scalings))]
    logits = default_detector.logits(tables)
    probability, decision = default_detector.probability_and_decision(logits, table)
    if also is not None:
        decision = decision | also
    members = [
        _metrics(default_detector, default_detector.member_logits(tables[seed], seed), table, with_recordings=False)
        for seed in default_detector.scalings
    ]
    scenario = DetectorScenario(
        **_metrics(default_detector, logits, table, with_recordings=True, decision=decision),
        over_seeds=spread_over_seeds(members),
        breakdown=break_down(table, decision),
    )
    scores = Scores(
        probability=probability.astype(np.float32),
        label=table.label,
        recording=table.recording,
        recording_names=table.recording_names,
        start_time=table.start_time,
        attack_count=table.attack_count,
        decision=decision,
    )
    return scenario, scores, curves_of(logits, table)


def scenario_of_model(
    default_detector: DefaultDetector, seed: int, table: ScoreTable
) -> tuple[ScenarioMetrics, NDArray[np.float64]]:
    """Measure one model of one seed on one scenario; also return its calibrated logits."""
    logits = default_detector.member_logits(table, seed)
    return ScenarioMetrics(**_metrics(default_detector, logits, table, with_recordings=False)), logits


def curves_of(logits: NDArray[np.float64], table: ScoreTable) -> Curves:
    """Return ROC and precision-recall curves over calibrated logits."""
    return Curves(roc=roc_curve(logits, table.label), precision_recall=precision_recall_curve(logits, table.label))


def _metrics(
    detector: DefaultDetector,
    logits: NDArray[np.float64],
    table: ScoreTable,
    with_recordings: bool,
    decision: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    if decision is None:
        decision = detector.probability_and_decision(logits, table)[1]
    rule = detector.rule
    threshold = float(logit(rule.threshold)) if rule.kind != "per_recording" else None
    metrics = binary_metrics(logits, table.label, threshold, decision=decision)
    if with_recordings:
        metrics["recordings"] = per_recording_metrics(
            logits, table.label, threshold, table.recording, table.recording_names, decision=decision
        )
    return metrics
