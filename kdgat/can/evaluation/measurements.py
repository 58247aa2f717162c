"""What an evaluation measures: the default detector and every model, on every scenario."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base import write_bytes_atomically
from kdgat.can.evaluation.calibration import FalseAlarmRate, false_alarm_rate
from kdgat.can.evaluation.costs import COSTS_FILE
from kdgat.can.evaluation.decision import (
    Detector,
    Tables,
    Verdicts,
    calibrated_detector,
    choose_detector,
    decide,
    judged_windows,
    model_names,
    windows_for,
)
from kdgat.can.evaluation.embeddings import EMBEDDINGS_FILE
from kdgat.can.evaluation.explanation import read_ranks, score_explanations
from kdgat.can.evaluation.metrics import (
    binary_metrics,
    break_down,
    per_recording_metrics,
    precision_recall_curve,
    roc_curve,
    spread_over_seeds,
)
from kdgat.can.evaluation.results import (
    DETECTOR,
    Curves,
    DetectorDescription,
    DetectorScenario,
    ExplanationScores,
    Results,
    ScenarioMetrics,
)
from kdgat.can.evaluation.run import COSTS, EMBEDDINGS, RANKS_PREFIX, TEST_PREFIX, FinishedCanRun
from kdgat.can.evaluation.scores import Scores, ScoreTable, is_baseline, scores_path, write_scores
from kdgat.can.models.names import FUSIONS, HABITS, describe_simple
from kdgat.can.sections import EvaluationConfig
from kdgat.canbus.features import VALIDATION
from kdgat.canbus.summary import DataSummary, InjectionSummary
from kdgat.run import OutputDirectory
from kdgat.run.results import origin


class Measurements:
    """Metrics of the default detector and of every model on every scenario."""

    def __init__(
        self,
        default_detector: Detector,
        config: EvaluationConfig,
        validation: Tables,
        tests: Mapping[str, Tables],
    ) -> None:
        self.default_detector = default_detector
        self.validation = validation
        self.scenarios: dict[str, DetectorScenario] = {}
        self.scores: dict[str, Scores] = {}
        self.curves: dict[str, dict[str, Curves]] = {DETECTOR: {}}
        for name, tables in tests.items():
            scenario, scores, curves = scenario_of_detector(default_detector, tables)
            self.scenarios[name], self.scores[name], self.curves[DETECTOR][name] = scenario, scores, curves
        self.models: dict[str, dict[str, dict[str, ScenarioMetrics]]] = {}
        # No model is measured on windows that it, or another one, has learned from: all have the same ones.
        splits = {VALIDATION: {seed: judged_windows(table) for seed, table in validation.items()}, **tests}
        for model in model_names(next(iter(validation.values()))):
            own = calibrated_detector(model, validation, config)
            for seed in validation:
                measured = {name: scenario_of_model(own, seed, tables) for name, tables in splits.items()}
                self.models.setdefault(model, {})[str(seed)] = {name: row for name, (row, _) in measured.items()}
                if model not in self.curves and not is_baseline(
                    model
                ):  # curves of the first seed: the spread is in the numbers
                    self.curves[model] = {
                        name: curves_of(logits, splits[name][seed]) for name, (_, logits) in measured.items()
                    }

    def results(
        self,
        run: FinishedCanRun,
        dataset: str | None = None,
        profile: str | None = None,
        **parts: Any,
    ) -> Results:
        """Put everything together; `profile` says how a vehicle's set the threshold."""
        made_of = _made_of(run, self.default_detector)
        return Results(
            **origin(run.index.config),
            dataset=dataset or run.dataset,
            seeds=run.seeds,
            detector=describe_detector(self.default_detector, self.validation, made_of, profile),
            scenarios=self.scenarios,
            models=self.models,
            curves=self.curves,
            **parts,
        )


def _made_of(run: FinishedCanRun, detector: Detector) -> str:
    """State what a detector is made of."""
    weights = run.weights(detector.first_seed)
    if not detector.model.startswith(FUSIONS):
        return describe_simple(detector.model, weights)
    from kdgat.can.evaluation.detectors import DetectorSet  # torch: which weights a fusion joins

    return DetectorSet(weights).describe(detector.model)


def describe_detector(
    default_detector: Detector,
    validation: Tables,
    made_of: str,
    profile: str | None = None,
) -> DetectorDescription:
    """State what the detector is, its rule, and its false alarms on benign validation windows."""
    judged = {seed: windows_for(default_detector.model, table) for seed, table in validation.items()}
    table, decision = judged[default_detector.first_seed], decide(default_detector, judged).is_alarm
    benign = table.label == 0
    num_virtual = int(np.count_nonzero(benign & table.is_virtual))
    source = "benign validation windows"
    virtual = f" ({num_virtual:,} of them of virtual vehicles)" if num_virtual else ""
    point = default_detector.operating_point
    seeds = list(default_detector.scalings)
    mean = f", mean of {len(seeds)} seeds' calibrated logits" if len(seeds) > 1 else ""
    return DetectorDescription(
        name=f"{default_detector.model}{mean}",
        models=[
            f"{default_detector.model} ({made_of})" if made_of != default_detector.model else default_detector.model
        ],
        seeds=seeds,
        decision=default_detector.rule,
        rule=" ".join([default_detector.rule.sentence(), *([point.sentence()] if point else [])]),
        operating_point=point,
        profile=profile,
        false_alarm_rate=_rate_of(decision[benign], f"{source}{virtual}"),
        recorded_false_alarm_rate=_rate_of(decision[benign & ~table.is_virtual], f"recorded {source}"),
        virtual_false_alarm_rate=_rate_of(decision[benign & table.is_virtual], f"virtual {source}"),
        validation=break_down(table, decision) if table.num_windows else None,
    )


def _rate_of(decision: NDArray[np.bool_], source: str) -> FalseAlarmRate | None:
    return false_alarm_rate(decision, source=source) if decision.size else None


def scenario_of_detector(default_detector: Detector, tables: Tables) -> tuple[DetectorScenario, Scores, Curves]:
    """Measure the default detector on one scenario, and each of its seeds for the spread."""
    table, verdicts = tables[default_detector.first_seed], decide(default_detector, tables)
    singles = [default_detector.of_seed(seed) for seed in default_detector.scalings]
    members = [_metrics(one, decide(one, tables), table, with_recordings=False) for one in singles]
    scenario = DetectorScenario(
        **_metrics(default_detector, verdicts, table, with_recordings=True),
        over_seeds=spread_over_seeds(members),
        breakdown=break_down(table, verdicts.is_alarm),
    )
    scores = Scores(
        probability=verdicts.probability.astype(np.float32),
        label=table.label,
        recording=table.recording,
        recording_names=table.recording_names,
        start_time=table.start_time,
        attack_count=table.attack_count,
        decision=verdicts.is_alarm,
    )
    return scenario, scores, curves_of(verdicts.logit, table)


def scenario_of_model(detector: Detector, seed: int, tables: Tables) -> tuple[ScenarioMetrics, NDArray[np.float64]]:
    """Measure one model of one seed on one scenario; also return its calibrated logits."""
    single = detector.of_seed(seed)
    verdicts = decide(single, tables)
    return ScenarioMetrics(**_metrics(single, verdicts, tables[seed], with_recordings=False)), verdicts.logit


def curves_of(logits: NDArray[np.float64], table: ScoreTable) -> Curves:
    """Return ROC and precision-recall curves over calibrated logits."""
    return Curves(roc=roc_curve(logits, table.label), precision_recall=precision_recall_curve(logits, table.label))


def _metrics(detector: Detector, verdicts: Verdicts, table: ScoreTable, with_recordings: bool) -> dict[str, Any]:
    threshold = detector.threshold if detector.rule.kind != "per_recording" else None
    metrics = binary_metrics(verdicts.logit, table.label, threshold, decision=verdicts.is_alarm)
    if with_recordings:
        metrics["recordings"] = per_recording_metrics(
            verdicts.logit, table.label, threshold, table.recording, table.recording_names, decision=verdicts.is_alarm
        )
    return metrics


def collect_results(output: OutputDirectory, config: EvaluationConfig | None = None) -> Results:
    """Make the results of a finished run from its evaluation stages: writes `results.json` and `scores/*.npz`.

    It is decided by `config`, by default the section `evaluation` of the run's configuration.

    Raises:
        RunError: if no evaluation stage of the run has finished.
    """
    run = FinishedCanRun(output)
    config = config or run.evaluation_config()
    validation = run.tables(VALIDATION)
    default_detector = choose_detector(validation, config)
    tests = {name.removeprefix(TEST_PREFIX): run.tables(name) for name in run.test_splits()}
    data = run.summary_of("data_summary", DataSummary)
    report = Measurements(default_detector, config, validation, tests)
    results = report.results(
        run,
        data=data or DataSummary(),
        injection=run.summary_of("injection_summary", InjectionSummary),
        parameter_counts=run.parameter_counts(),
        training_curves=run.training_curves(),
    )
    for scenario, explained in explanations_of(run, default_detector, tests).items():
        results.scenarios[scenario] = results.scenarios[scenario].model_copy(update={"explanations": explained})
    for scenario, scores in report.scores.items():
        write_scores(scores_path(output.path, scenario), scores)
    copy_beside_results(run, default_detector)
    results.write(output.results_path)
    return results


def explanations_of(
    run: FinishedCanRun, detector: Detector, tests: Mapping[str, Tables]
) -> dict[str, ExplanationScores]:
    """Score the explanations of every scenario whose ranks the run has, by scenario."""
    found = {}
    for scenario, tables in tests.items():
        paths = [_artifact(run, seed, f"{RANKS_PREFIX}{TEST_PREFIX}{scenario}") for seed in detector.scalings]
        ranks = [read_ranks(path) for path in paths if path is not None]
        if len(ranks) < len(paths) or not len(ranks[0].window):
            continue
        by_habits = tables[detector.first_seed].scores[HABITS] >= 0.0
        scored = score_explanations(ranks, detector.model, decide(detector, tables).is_alarm, by_habits)
        if scored is not None:
            found[scenario] = scored
    return found


def copy_beside_results(run: FinishedCanRun, detector: Detector) -> None:
    """Put the map of embeddings and the costs of the detector's first seed where reports look for them."""
    for artifact, name in ((EMBEDDINGS, EMBEDDINGS_FILE), (COSTS, COSTS_FILE)):
        path = _artifact(run, detector.first_seed, artifact)
        if path is not None:
            write_bytes_atomically(run.output.path / name, path.read_bytes())


def _artifact(run: FinishedCanRun, seed: int, name: str) -> Path | None:
    """Find an artifact of a seed's evaluation; None where it was evaluated before there were such."""
    record = run.evaluations()[seed]
    return run.artifact(record, name) if name in run.outcome(record).artifacts else None
