"""Shape of results.json: everything an evaluation says, validated when written and when read.

`scenarios` holds the default detector, scenario name directly below it and `f1` directly in each; `f1` repeats that
value at the top for scripts.  A value that the data cannot define is null.  `python -m
kdgat.can.evaluation.results` prints the JSON schema; a wheel brings it, beside this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from kdgat.base import Config
from kdgat.can.evaluation.calibration import DecisionRule, FalseAlarmRate, OperatingPoint
from kdgat.canbus.summary import DataSummary, InjectionSummary
from kdgat.run import Interval, Measure
from kdgat.run.results import Count, Finite, RunResults, Value

DETECTOR = "detector"  # key of the default detector among the models' curves
DEFAULT_DETECTOR = "default detector"  # what people are told of it
COUNT_NAMES = ("0", "1", "2-3", "4-9", "10+")  # of injected messages in an attacked window; 0: some are kept away


class WindowMetrics(Config):
    """Metrics over one set of windows, as `metrics.binary_metrics` returns them."""

    num_windows: Count
    num_attack_windows: Count
    threshold: Value = Field(description="on the score; null where the rule has one threshold per recording")
    accuracy: Value
    precision: Value
    recall: Value
    f1: Value
    specificity: Value
    false_alarm_rate: Value
    balanced_accuracy: Value
    mcc: Value
    auc: Value
    pr_auc: Value = Field(description="average precision")
    detection_rate_at_fpr: dict[str, Value] = Field(description="recall reached at a false-positive rate of 0.05, ...")
    confusion_matrix: tuple[tuple[Count, Count], tuple[Count, Count]] = Field(
        description="[[true negatives, false positives], [false negatives, true positives]]"
    )


class ScenarioMetrics(WindowMetrics):
    """Metrics of a scenario, pooled over its recordings, and of each recording."""

    recordings: dict[str, WindowMetrics] = Field(default={})


class Spread(Config):
    """One metric over seeds; std is the sample deviation, null for a single seed."""

    mean: Value
    std: Value
    min: Value
    max: Value
    count: Count
    values: list[Value] = Field(default=[], description="of each seed, in the order of `detector.seeds`")

    def by_seed(self, seeds: Sequence[int]) -> dict[int, float]:
        """Return the value of each seed; empty where it is not known of all."""
        known = [value for value in self.values if value is not None]
        return dict(zip(seeds, known, strict=True)) if len(known) == len(self.values) == len(seeds) else {}


class Found(Config):
    """How many of some attacked windows raise an alarm."""

    num_windows: Count
    num_found: Count
    recall: Value


class Episodes(Config):
    """Attacks as a driver meets them: attacked windows of a recording, those within a second of each other as one."""

    num_episodes: Count
    num_found: Count = Field(description="with an alarm before they are over")
    median_delay_s: Value = Field(
        description="from the start of the first attacked window to the end of the first alarm"
    )
    worst_delay_s: Value


class VehicleAlarms(Config):
    """False alarms on one vehicle."""

    num_windows: Count = Field(description="without attack")
    num_false_alarms: Count
    num_false_episodes: Count = Field(description="false alarms less than a second apart as one")
    hours: Finite = Field(description="time that these windows cover")


class ConfidenceInterval(Config):
    """A confidence interval of 95 %."""

    low: Value
    high: Value


class Breakdown(Config):
    """What the metrics of a scenario do not say."""

    recall_by_count: dict[str, Found] = Field(default={}, description="injected messages in the window -> recall")
    recall_by_kind: dict[str, Found] = Field(default={}, description="kind of attack -> recall")
    benign_hours: Value = Field(default=None, description="time that the windows without attack cover")
    false_alarms_per_hour: Value = Field(default=None, description="benign windows in alarm, per benign hour")
    num_false_episodes: Count | None = Field(
        default=None,
        description="alarms on recorded windows that meet no attack; those less than a second apart are one",
        exclude_if=lambda value: value is None,
    )
    episodes: Episodes | None = None
    vehicles: dict[str, VehicleAlarms] = Field(
        default={}, description="vehicle -> its false alarms, where several are", exclude_if=lambda value: not value
    )
    f1_interval: ConfidenceInterval | None = Field(
        default=None, description="bootstrap over blocks of consecutive windows"
    )
    false_alarm_interval: ConfidenceInterval | None = Field(
        default=None, description="the same, and never narrower than of windows taken as independent"
    )

    @property
    def benign_s(self) -> float:
        """Return the time that the windows without attack cover; 0 where it is not known."""
        return (self.benign_hours or 0.0) * 3600.0


class HitRates(Config):
    """Shares of windows in which one of the most suspicious identifiers is an attacked one."""

    num_windows: Count = Field(description="attacked windows that raise an alarm")
    hit_at_1: Value = None
    hit_at_3: Value = None
    random_at_1: Value = Field(default=None, description="what identifiers in a random order would hit")
    random_at_3: Value = None


class ExplanationScores(Config):
    """Explanations of a scenario's alarms against the injected, or silenced, identifiers."""

    named_by: str = Field(description="model that orders the identifiers")
    num_attacked_windows: Count = Field(description="those with an identifier that is attacked; at most 20,000")
    detector: HitRates
    habits: HitRates | None = Field(
        None, description="the habits of identifiers alone, on windows that are alarms by them; null in older files"
    )


class DetectorScenario(ScenarioMetrics):
    """A scenario seen by the default detector; `over_seeds` is the spread of its single-seed versions."""

    over_seeds: dict[str, Spread] = Field(default={})
    breakdown: Breakdown | None = None
    explanations: ExplanationScores | None = Field(
        default=None, description="whether alarms name the attacked identifiers first; null where it was not asked"
    )


class DetectorDescription(Config):
    """The default detector: what it is made of, how it decides, how often it is wrong on benign validation windows."""

    name: str
    models: list[str]
    seeds: list[int]
    decision: DecisionRule
    rule: str = Field(description="the decision rule in words")
    operating_point: OperatingPoint | None = Field(default=None, description="of the rule `budget`")
    profile: str | None = Field(default=None, description="how the vehicle's profile sets the threshold, if it does")
    false_alarm_rate: FalseAlarmRate | None = None
    recorded_false_alarm_rate: FalseAlarmRate | None = Field(
        default=None, description="on benign validation windows as they were recorded"
    )
    virtual_false_alarm_rate: FalseAlarmRate | None = Field(
        default=None, description="on those of virtual vehicles: a property of what makes them, too"
    )
    validation: Breakdown | None = Field(default=None, description="of validation windows, recorded and virtual")

    @property
    def model(self) -> str:
        """Return what `kdgat detect --detector` calls it."""
        return self.name.partition(",")[0]


class Curves(Config):
    """Thinned curves of one detector on one scenario; null where a class is missing."""

    roc: dict[str, list[Value]] | None = None
    precision_recall: dict[str, list[Value]] | None = None


class Results(RunResults):
    """Everything one evaluation says."""

    family: str = "can"
    dataset: str
    detector: DetectorDescription
    f1: dict[str, Value] = Field(default={}, description="scenario -> F1 of the default detector")
    scenarios: dict[str, DetectorScenario]
    models: dict[str, dict[str, dict[str, ScenarioMetrics]]] = Field(
        default={}, description="model -> seed -> scenario -> metrics; `validation` may be among the scenarios"
    )
    curves: dict[str, dict[str, Curves]] = Field(
        default={}, description=f"model, or `{DETECTOR}` for the default detector -> scenario -> curves"
    )
    data: DataSummary = DataSummary()
    parameter_counts: dict[str, Count] = Field(default={})
    training_curves: dict[str, dict[str, list[Value]]] = Field(
        default={}, description="stage -> column (epoch, train_loss, validation_loss, ...) -> values"
    )
    injection: InjectionSummary | None = None

    def measures(self) -> list[Measure]:
        """Return F1 and false alarms of the default detector on every scenario, beside those of single seeds."""
        found = []
        for key, title, is_higher_better in (
            ("f1", "F1", True),
            ("false_alarm_rate", "benign windows in alarm", False),
        ):
            for name, scenario in self.scenarios.items():
                value, spread = getattr(scenario, key), scenario.over_seeds.get(key)
                seeds, by_seed = None, dict[int, float]()
                if spread is not None and spread.mean is not None:
                    seeds = Interval.of_moments(spread.mean, spread.std or 0.0, spread.count).of_share()
                    by_seed = spread.by_seed(self.detector.seeds)
                if value is not None:
                    found.append(Measure(f"{title} {name}", value, seeds, is_higher_better, by_seed))
        return found

    @model_validator(mode="before")
    @classmethod
    def _repeat_f1(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "f1" not in data and isinstance(data.get("scenarios"), Mapping):
            scenarios = data["scenarios"].items()
            f1 = {name: row["f1"] if isinstance(row, Mapping) else row.f1 for name, row in scenarios}
            return {**data, "f1": f1}
        return data

    @model_validator(mode="after")
    def _agree(self) -> Results:
        if self.f1 != {name: scenario.f1 for name, scenario in self.scenarios.items()}:
            raise ValueError("top-level f1 and scenarios disagree")
        return self


if __name__ == "__main__":
    Results.print_schema()
