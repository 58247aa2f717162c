"""From raw scores to decisions: one detector, which decides about tables of scores and about windows as they come.

`Detector.decide` is the only place where logits and habits become alarms; `decide` asks it about the tables of an
evaluation, `kdgat.can.detection` about the graphs of a log. Validation windows alone choose and calibrate it, those of
virtual vehicles among them: no test window and no test label is read. Clean minutes of a vehicle may move the threshold
(`kdgat.can.evaluation.vehicle`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.base import UserError
from kdgat.can.evaluation.calibration import DecisionRule, OperatingPoint, covered_seconds, mean_over_seeds
from kdgat.can.evaluation.metrics import binary_metrics
from kdgat.can.evaluation.scores import ScoreTable, is_baseline
from kdgat.can.models.names import ENSEMBLE, ENSEMBLE_MEMBERS, ERROR_MODELS, HABITS
from kdgat.can.models.scaling import CALIBRATED_LIMIT, Scaling, fit_scaling, logit, sigmoid
from kdgat.can.sections import AUTO, EvaluationConfig

logger = logging.getLogger(__name__)

FUSION_PREFIX: Final = "fusion"  # of the names of models that learn from validation windows
CERTAIN: Final = 0.9  # the score of a window that is an alarm by the habits of identifiers, at least

Tables = Mapping[int, ScoreTable]  # seed -> scores of the same windows
RawScores = Mapping[int, Mapping[str, ArrayLike]]  # seed -> member -> raw scores [G] of the same windows
_NOT_ASKED: Final = np.zeros(0)


class Verdicts(NamedTuple):
    """What a detector says of G windows."""

    logit: NDArray[np.float64]  # [G] calibrated, of the networks
    by_network: NDArray[np.bool_]  # [G] alarms
    by_habits: NDArray[np.bool_]  # [G]
    node_logit: NDArray[np.float64] = _NOT_ASKED  # [N] of their nodes, where the networks were asked about them

    @property
    def is_alarm(self) -> NDArray[np.bool_]:
        """Return which windows [G] are alarms."""
        return self.by_network | self.by_habits

    @property
    def probability(self) -> NDArray[np.float64]:
        """Return the networks' probability [G] of an attack."""
        return sigmoid(self.logit)

    @property
    def score(self) -> NDArray[np.float64]:
        """Return it as people are shown it [G]: of an alarm of the habits at least CERTAIN."""
        return np.where(self.by_habits, np.maximum(self.probability, CERTAIN), self.probability)


@dataclass(frozen=True)
class Detector:
    """A detector: one model, the calibration of each of its members per seed, and the rule.

    A window is an alarm if the mean of its members' calibrated logits reaches the rule's threshold, or, where the rule
    asks them, if the habits of identifiers say so. Without members the habits decide alone.
    """

    model: str
    scalings: Mapping[int, Mapping[str, Scaling]]  # seed -> member, a column of the tables -> calibration
    rule: DecisionRule
    operating_point: OperatingPoint | None = None  # of the rule `budget`

    @property
    def first_seed(self) -> int:
        """Return the seed whose table says what all of them do: labels, times, habits."""
        return next(iter(self.scalings))

    @property
    def members(self) -> list[tuple[int, str]]:
        """List its members: seed and name."""
        return [(seed, name) for seed, names in self.scalings.items() for name in names]

    @property
    def columns(self) -> list[str]:
        """List the columns of score tables that it reads, the habits' included."""
        return [*self.scalings[self.first_seed], HABITS]

    @property
    def threshold(self) -> float:
        """Return the calibrated logit from which a window is an alarm, unless its recording moves it."""
        return float(logit(self.rule.threshold))

    def decide(self, scores: RawScores, is_suspicious: ArrayLike, recording: ArrayLike | None = None) -> Verdicts:
        """Return the verdicts on windows.

        Args:
            scores: of the members.
            is_suspicious: whether the habits speak against one of a window's identifiers, [G].
            recording: index, [G], for a rule whose threshold moves inside a recording; by default all are of one.
        """
        suspicious = np.asarray(is_suspicious, np.bool_)
        logits = self._logits(scores) if self.scalings else np.full(len(suspicious), -CALIBRATED_LIMIT)
        return Verdicts(logits, self.rule.apply(logits, recording)[1], suspicious & self.rule.habits)

    def at(self, point: OperatingPoint, *, habits: bool = True) -> "Detector":
        """Return the detector with the threshold of an operating point, and the habits beside it or not."""
        return replace(self, rule=DecisionRule.of_budget(point.threshold, habits=habits), operating_point=point)

    def of_seed(self, seed: int) -> "Detector":
        """Return the members of one seed as a detector."""
        return replace(self, scalings={seed: self.scalings[seed]})

    def _logits(self, scores: RawScores) -> NDArray[np.float64]:
        """Return the calibrated logits [G]: the mean over seeds of that over members, each calibrated by itself."""
        of_seeds = []
        for seed, scalings in self.scalings.items():
            members = [scaling.calibrated(scores[seed][name]) for name, scaling in scalings.items()]
            of_seeds.append(
                mean_over_seeds([np.clip(logits, -CALIBRATED_LIMIT, CALIBRATED_LIMIT) for logits in members])
            )
        return mean_over_seeds(of_seeds)


def decide(detector: Detector, tables: Tables) -> Verdicts:
    """Return the verdicts on the windows of score tables."""
    table = tables[detector.first_seed]
    scores = {seed: tables[seed].scores for seed in detector.scalings}
    return detector.decide(scores, table.scores[HABITS] >= 0.0, table.recording)


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


def choose_detector(validation: Tables, config: EvaluationConfig) -> Detector:
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
) -> Detector:
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
        return Detector(model, scalings, DecisionRule())
    if is_baseline(model):  # of any scale: a quantile of benign windows is its threshold already
        return Detector(model, scalings, DecisionRule(threshold=config.threshold))
    rule = DecisionRule(kind=config.rule, threshold=config.threshold)
    if config.rule != "budget":
        return Detector(model, scalings, rule)
    detector = Detector(model, scalings, rule)
    return detector.at(_operating_point_of_validation(detector, tables, config), habits=with_habits)


def _operating_point_of_validation(detector: Detector, validation: Tables, config: EvaluationConfig) -> OperatingPoint:
    """Return the higher of the thresholds of recorded and of virtual windows; the default one if either is unknown.

    That of known vehicles alone would be far too low for others: at a logit of -2.6, 0 of 891 windows of known vehicles
    were alarms, and 155 of 2,320 virtual ones. Where whole vehicles validate, they are others, and alone say it; but
    fusions have learned from their windows, too.
    """
    table = validation[detector.first_seed]
    logits = decide(detector, validation).logit
    budget, default = config.alarms_per_hour, float(logit(config.threshold))
    if table.vehicles and detector.model.startswith(FUSION_PREFIX):
        reason = "fusions learn from windows of all vehicles that validate, so none is left to set a threshold"
        return OperatingPoint.default(default, budget, reason)
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


def _quality(detector: Detector, validation: Tables) -> tuple[float, float]:
    verdicts = decide(detector, validation)
    label = validation[detector.first_seed].label
    metrics = binary_metrics(verdicts.logit, label, None, decision=verdicts.is_alarm)
    if metrics["f1"] is None:  # no attack to find: the fewest false alarms
        return -float(metrics["false_alarm_rate"] or 0.0), 0.0
    return float(metrics["f1"]), 0.0 if metrics["auc"] is None else float(metrics["auc"])
