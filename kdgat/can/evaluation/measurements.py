"""What an evaluation measures: the default detector and every model, on every scenario."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kdgat.can.evaluation.decision import (
    DefaultDetector,
    Tables,
    calibrated_detector,
    curves_of,
    describe_detector,
    judged_windows,
    model_names,
    scenario_of_detector,
    scenario_of_model,
)
from kdgat.can.evaluation.results import DETECTOR, Curves, DetectorScenario, Results, ScenarioMetrics
from kdgat.can.evaluation.run import FinishedCanRun
from kdgat.can.evaluation.scores import Scores, is_baseline
from kdgat.can.models.names import FUSIONS, describe_simple
from kdgat.can.sections import EvaluationConfig
from kdgat.canbus.features import VALIDATION
from kdgat.run.results import origin

if TYPE_CHECKING:
    from kdgat.can.evaluation.vehicle import VehicleCalibration


class Measurements:
    """Metrics of the default detector and of every model on every scenario."""

    def __init__(
        self,
        default_detector: DefaultDetector,
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
                measured = {name: scenario_of_model(own, seed, tables[seed]) for name, tables in splits.items()}
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
        calibration: "VehicleCalibration | None" = None,
        **parts: Any,
    ) -> Results:
        """Put everything together."""
        made_of = _made_of(run, self.default_detector)
        return Results(
            **origin(run.index.config),
            dataset=dataset or run.dataset,
            seeds=run.seeds,
            detector=describe_detector(
                self.default_detector,
                self.validation,
                made_of,
                None if calibration is None else calibration.sentence,
            ),
            scenarios=self.scenarios,
            models=self.models,
            curves=self.curves,
            **parts,
        )


def _made_of(run: FinishedCanRun, detector: DefaultDetector) -> str:
    """State what a detector is made of."""
    weights = run.weights(next(iter(detector.scalings)))
    if not detector.model.startswith(FUSIONS):
        return describe_simple(detector.model, weights)
    from kdgat.can.evaluation.detectors import DetectorSet  # torch: which weights a fusion joins

    return DetectorSet(weights).describe(detector.model)
