"""From raw scores to the default detector: calibration, choice, mean over seeds, one decision rule.

Validation windows alone decide, those of virtual vehicles among them: no test window and no test label is read.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.evaluation.calibration import (
    DecisionRule,
    FalseAlarmRate,
    Scaling,
    false_alarm_rate,
    fit_scaling,
    logit,
    mean_over_seeds,
)
from kdgat.can.evaluation.metrics import (
    binary_metrics,
    per_recording_metrics,
    precision_recall_curve,
    roc_curve,
    spread_over_seeds,
)
from kdgat.can.evaluation.results import Curves, Detector, DetectorScenario, ScenarioMetrics
from kdgat.can.evaluation.score_tables import ScoreTable
from kdgat.can.evaluation.scores import Scores
from kdgat.can.models.names import ERROR_MODELS
from kdgat.can.sections import AUTO, EvaluationConfig

logger = logging.getLogger(__name__)

FUSION_PREFIX: Final = "fusion"  # of the names of models that learn from validation windows
LOGIT_LIMIT: Final = 60.0  # of a calibrated logit: an autoencoder's error has no upper end

Tables = Mapping[int, ScoreTable]  # seed -> scores of the same windows


class DefaultDetectorError(ValueError):
    """The scores do not allow the decision that was asked for."""


@dataclass(frozen=True)
class DefaultDetector:
    """The default detector: one model, its calibration per seed, and the rule."""

    model: str
    scalings: dict[int, Scaling]  # seed -> calibration; the mean over these seeds is the detector
    rule: DecisionRule

    def logits(self, tables: Tables) -> NDArray[np.float64]:
        """Return the detector's calibrated logits [G]."""
        return mean_over_seeds([self.member_logits(tables[seed], seed) for seed in self.scalings])

    def decide(self, tables: Tables) -> NDArray[np.bool_]:
        """Return which windows [G] raise an alarm."""
        return self.rule.apply(self.logits(tables), tables[next(iter(self.scalings))].recording)[1]

    def member_logits(self, table: ScoreTable, seed: int) -> NDArray[np.float64]:
        """Return the calibrated logits [G] of one seed."""
        return np.clip(self.scalings[seed].calibrated(table.scores[self.model]), -LOGIT_LIMIT, LOGIT_LIMIT)


def choose_detector(validation: Tables, config: EvaluationConfig) -> DefaultDetector:
    """Choose and calibrate the default detector by the validation windows.

    With `average_seeds` the detector is the mean of all seeds, else the seed that is best on validation.
    """
    known = next(iter(validation.values())).scores
    names = [config.detector] if config.detector != AUTO else [name for name in config.candidates if name in known]
    if not names or names[0] not in known:
        wanted = config.detector if config.detector != AUTO else ", ".join(config.candidates)
        raise DefaultDetectorError(
            f"evaluation.detector: {wanted} was not trained; this run has {', '.join(sorted(known))}"
        )
    seed_sets = [list(validation)] if config.average_seeds else [[seed] for seed in validation]
    choices = [
        calibrated_detector(name, {s: validation[s] for s in seeds}, config) for name in names for seeds in seed_sets
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


def calibrated_detector(model: str, validation: Tables, config: EvaluationConfig) -> DefaultDetector:
    """Calibrate one model on every seed's validation scores."""
    scalings = {seed: calibrate(model, windows_for(model, table), config) for seed, table in validation.items()}
    return DefaultDetector(model, scalings, DecisionRule(kind=config.rule, threshold=config.threshold))


def calibrate(model: str, table: ScoreTable, config: EvaluationConfig) -> Scaling:
    """Map a model's raw scores to logits of probabilities."""
    scores, is_attack = table.scores[model], table.label == 1
    is_error = model in ERROR_MODELS
    if is_attack.any() and not is_attack.all():
        return fit_scaling(scores, table.label, method="platt" if is_error else config.calibration)
    if not is_error:
        return Scaling()  # a logit already; without attacks there is nothing to scale it by
    border = float(np.quantile(scores[~is_attack], 1.0 - config.benign_quantile))
    return Scaling(bias=float(logit(config.threshold)) - border)


def _quality(default_detector: DefaultDetector, validation: Tables) -> tuple[float, float]:
    table = validation[next(iter(default_detector.scalings))]
    logits = default_detector.logits(validation)
    _, decision = default_detector.rule.apply(logits, table.recording)
    metrics = binary_metrics(logits, table.label, None, decision=decision)
    if metrics["f1"] is None:  # no attack to find: the fewest false alarms
        return -float(metrics["false_alarm_rate"] or 0.0), 0.0
    return float(metrics["f1"]), 0.0 if metrics["auc"] is None else float(metrics["auc"])


def describe_detector(default_detector: DefaultDetector, validation: Tables, made_of: str) -> Detector:
    """State what the detector is, its rule, and its false alarms on benign validation windows."""
    judged = {seed: windows_for(default_detector.model, table) for seed, table in validation.items()}
    table = judged[next(iter(default_detector.scalings))]
    _, decision = default_detector.rule.apply(default_detector.logits(judged), table.recording)
    benign = table.label == 0
    rate: FalseAlarmRate | None = None
    if benign.any():
        num_virtual = int(np.count_nonzero(benign & table.is_virtual))
        source = "benign validation windows"
        if num_virtual:
            source += f" ({num_virtual:,} of them of virtual vehicles)"
        rate = false_alarm_rate(decision[benign], source=source)
    seeds = list(default_detector.scalings)
    mean = f", mean of {len(seeds)} seeds' calibrated logits" if len(seeds) > 1 else ""
    return Detector(
        name=f"{default_detector.model}{mean}",
        models=[
            f"{default_detector.model} ({made_of})" if made_of != default_detector.model else default_detector.model
        ],
        seeds=seeds,
        decision=default_detector.rule,
        rule=default_detector.rule.sentence(),
        false_alarm_rate=rate,
    )


def scenario_of_detector(default_detector: DefaultDetector, tables: Tables) -> tuple[DetectorScenario, Scores, Curves]:
    """Measure the default detector on one scenario, and each of its seeds for the spread."""
    table = tables[next(iter(default_detector.scalings))]
    logits = default_detector.logits(tables)
    probability, decision = default_detector.rule.apply(logits, table.recording)
    members = [
        _metrics(
            default_detector.rule, default_detector.member_logits(tables[seed], seed), table, with_recordings=False
        )
        for seed in default_detector.scalings
    ]
    scenario = DetectorScenario(
        **_metrics(default_detector.rule, logits, table, with_recordings=True), over_seeds=spread_over_seeds(members)
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
    return ScenarioMetrics(**_metrics(default_detector.rule, logits, table, with_recordings=False)), logits


def curves_of(logits: NDArray[np.float64], table: ScoreTable) -> Curves:
    """Return ROC and precision-recall curves over calibrated logits."""
    return Curves(roc=roc_curve(logits, table.label), precision_recall=precision_recall_curve(logits, table.label))


def _metrics(
    rule: DecisionRule, logits: NDArray[np.float64], table: ScoreTable, with_recordings: bool
) -> dict[str, Any]:
    _, decision = rule.apply(logits, table.recording)
    threshold = float(logit(rule.threshold)) if rule.kind == "fixed" else None
    metrics = binary_metrics(logits, table.label, threshold, decision=decision)
    if with_recordings:
        metrics["recordings"] = per_recording_metrics(
            logits, table.label, threshold, table.recording, table.recording_names, decision=decision
        )
    return metrics
