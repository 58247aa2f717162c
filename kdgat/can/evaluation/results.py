"""Shape of results.json: everything an evaluation says, validated when written and when read.

`scenarios` holds the default detector, scenario name directly below it and `f1` directly in each; `f1` repeats that
value at the top for scripts.  A value that the data cannot define is null.  The JSON schema lies beside this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field, model_validator

from kdgat.can.evaluation.accumulation import Accumulation
from kdgat.can.evaluation.calibration import DecisionRule, FalseAlarmRate
from kdgat.can.evaluation.explanation_scores import ExplanationScores
from kdgat.can.evaluation.metrics import SPREAD_METRICS
from kdgat.can.evaluation.operating_point import OperatingPoint
from kdgat.run.results import Count, RunResults, Value
from kdgat.run.table import Table
from kdgat.stage.configuration import Config

SCHEMA_PATH = Path(__file__).with_name("results.schema.json")
DETECTOR = "detector"  # key of the default detector among the models' curves
DEFAULT_DETECTOR = "default detector"  # what people are told of it
COUNT_NAMES = ("0", "1", "2-3", "4-9", "10+")  # of injected messages in an attacked window; 0: some are kept away
COMPARED = ("autoencoder", "normal", "curriculum")


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


class AccumulatedEvidence(Config):
    """What evidence of single identifiers finds that adds up over windows (`kdgat.can.evaluation.accumulation`)."""

    alone: Episodes | None = Field(default=None, description="attacks found by it alone")
    with_windows: Episodes | None = Field(default=None, description="attacks found by it or by single windows")
    num_false_episodes: Count = Field(description="its alarms that touch no attack")
    hours: Value = Field(description="time that windows without attack cover")
    false_episodes_per_hour: Value
    designed_false_episodes_per_hour: Value = Field(description="what its limit is for: no more than that")
    num_added_windows: Count = Field(description="attacked windows that it alone marks")
    num_added_false_windows: Count = Field(description="windows without attack that it alone marks, after one or not")
    is_counted: bool = Field(description="whether F1 and the like count the windows that it marks")


class Interval(Config):
    """A confidence interval of 95 %."""

    low: Value
    high: Value


class Breakdown(Config):
    """What the metrics of a scenario do not say."""

    recall_by_count: dict[str, Found] = Field(default={}, description="injected messages in the window -> recall")
    recall_by_kind: dict[str, Found] = Field(default={}, description="kind of attack -> recall")
    benign_hours: Value = Field(default=None, description="time that the windows without attack cover")
    false_alarms_per_hour: Value = Field(default=None, description="windows with a false alarm, per benign hour")
    episodes: Episodes | None = None
    accumulated: AccumulatedEvidence | None = None
    f1_interval: Interval | None = Field(default=None, description="bootstrap over blocks of consecutive windows")
    false_alarm_interval: Interval | None = Field(
        default=None, description="the same, and never narrower than of windows taken as independent"
    )


class DetectorScenario(ScenarioMetrics):
    """A scenario seen by the default detector; `over_seeds` is the spread of its single-seed versions."""

    over_seeds: dict[str, Spread] = Field(default={})
    breakdown: Breakdown | None = None
    explanations: ExplanationScores | None = Field(
        default=None, description="whether alarms name the attacked identifiers first; null where it was not asked"
    )


class Detector(Config):
    """The default detector: what it is made of, how it decides, how often it is wrong on benign validation windows."""

    name: str
    models: list[str]
    seeds: list[int]
    decision: DecisionRule
    rule: str = Field(description="the decision rule in words")
    operating_point: OperatingPoint | None = Field(default=None, description="of the rule `budget`")
    accumulation: Accumulation | None = Field(default=None, description="evidence that adds up over windows")
    calibration: str | None = Field(default=None, description="the vehicle's calibration that gave the threshold")
    false_alarm_rate: FalseAlarmRate | None = None
    recorded_false_alarm_rate: FalseAlarmRate | None = Field(
        default=None, description="on benign validation windows as they were recorded"
    )
    virtual_false_alarm_rate: FalseAlarmRate | None = Field(
        default=None, description="on those of virtual vehicles: a property of what makes them, too"
    )
    validation: Breakdown | None = Field(default=None, description="of validation windows, recorded and virtual")


class Curves(Config):
    """Thinned curves of one detector on one scenario; null where a class is missing."""

    roc: dict[str, list[Value]] | None = None
    precision_recall: dict[str, list[Value]] | None = None


class RecordingSummary(Config):
    """One recording as it was read."""

    name: str
    scenario: str
    role: str = Field(description="train, validation or test")
    num_messages: Count = 0
    num_windows: Count = 0
    num_attack_windows: Count = 0
    num_bad_rows: Count = 0
    num_backward: Count = Field(default=0, description="timestamps that run backwards, kept in file order")
    duplicate_of: str | None = Field(
        default=None, description="the recording with the same messages that is used instead"
    )
    content_hash: str | None = None
    blocks: list[str] = Field(default=[], description="hashes of some blocks of a training recording's messages")


class SplitSummary(Config):
    """One store of windows: train, validation, injected, test-..."""

    num_windows: Count
    num_attack_windows: Count
    num_messages: Count = 0


class DataSummary(Config):
    """Where the windows come from."""

    num_messages: Count = 0
    num_windows: Count = 0
    num_attack_windows: Count = 0
    num_dropped_duplicates: Count = 0
    num_bad_rows: Count = 0
    bad_rows: list[str] = Field(default=[], description="the first bad rows: file, line, reason")
    splits: dict[str, SplitSummary] = Field(default={})
    recordings: list[RecordingSummary] = Field(default=[])
    window: dict[str, Any] = Field(default={}, description="window parameters the graphs were built with")
    notes: list[str] = Field(default=[])


class InjectedAttack(Config):
    """How much of one attack kind was injected into benign traffic for training."""

    num_windows: Count = Field(description="windows that hold at least one injected message of this kind")
    num_messages: Count = Field(default=0, description="injected messages in these windows")
    num_recordings: Count = Field(default=0, description="virtual recordings under this attack")


class InjectionSummary(Config):
    """Attacks injected into benign traffic of virtual vehicles while training."""

    enabled: bool
    seed: int | None = None
    num_virtual_vehicles: Count = 0
    num_windows: Count = 0
    num_attack_windows: Count = 0
    attacks: dict[str, InjectedAttack] = Field(default={})
    diversity: dict[str, Count] = Field(
        default={}, description="benign change -> number of virtual vehicles that got it"
    )


class Results(RunResults):
    """Everything one evaluation says."""

    family: str = "can"
    dataset: str
    detector: Detector
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


def scores_table(results: Results, columns: tuple[str, ...] = SPREAD_METRICS[:4]) -> Table:
    """Return the default detector: one row per scenario, with the spread of F1 over seeds."""
    header = ["scenario", "windows", "attacks", *columns, "AUC", "false alarms", "F1 over seeds"]
    rows = []
    for name, scenario in results.scenarios.items():
        values = [format_value(getattr(scenario, column)) for column in columns]
        over = scenario.over_seeds.get("f1")
        rows.append(
            [
                name,
                f"{scenario.num_windows:,}",
                f"{scenario.num_attack_windows:,}",
                *values,
                format_value(scenario.auc),
                format_value(scenario.false_alarm_rate),
                format_spread(over),
            ]
        )
    return Table.of(header, rows, f"{DEFAULT_DETECTOR}: {results.detector.name}; {results.detector.rule}", key="scores")


def models_table(results: Results) -> Table:
    """Return the F1 of every model, its mean over seeds, per scenario; the default detector comes last."""
    scenarios = list(results.scenarios)
    rows = []
    for model, seeds in results.models.items():
        values = []
        for scenario in scenarios:
            found = [by_scenario[scenario].f1 for by_scenario in seeds.values() if scenario in by_scenario]
            known = [value for value in found if value is not None]
            values.append(format_value(fmean(known)) if known else "-")
        rows.append([model, *values])
    rows.append([DEFAULT_DETECTOR, *(format_value(results.f1.get(scenario)) for scenario in scenarios)])
    seeds_text = f", mean over {len(results.seeds)} seeds" if len(results.seeds) > 1 else ""
    return Table.of(["model", *scenarios], rows, f"F1 per model{seeds_text}", key="models")


def hidden_table(results: Results) -> Table | None:
    """Return what an F1 and an AUC hide, one row per scenario and one of validation; None where nothing is known."""
    rows = {name: row.breakdown for name, row in results.scenarios.items()} | {
        "validation": results.detector.validation
    }
    known = {name: row for name, row in rows.items() if row is not None}
    if not known:
        return None
    counts = [name for name in COUNT_NAMES if any(name in row.recall_by_count for row in known.values())]
    header = ["scenario", *(f"{name} msg" for name in counts), "F1 95 %", "false alarms 95 %", "per hour"]
    header += ["episodes", "delay s", "worst"]
    body = []
    for name, row in known.items():
        found = [row.recall_by_count.get(count) for count in counts]
        cells = ["-" if one is None else f"{format_short(one.recall)} ({one.num_windows:,})" for one in found]
        cells += [format_interval(row.f1_interval), format_interval(row.false_alarm_interval)]
        cells += [format_short(row.false_alarms_per_hour)]
        episodes = row.episodes
        if episodes is None or not episodes.num_episodes:
            cells += ["-"] * 3
        else:
            cells += [f"{episodes.num_found}/{episodes.num_episodes}"]
            cells += [format_short(episodes.median_delay_s), format_short(episodes.worst_delay_s)]
        body.append([name, *cells])
    caption = "what hides behind it: recall by injected messages in a window; false alarms per hour; attacks found"
    rates = (results.detector.recorded_false_alarm_rate, results.detector.virtual_false_alarm_rate)
    shares = [
        f"{kind} {rate.num_false_alarms:,} of {rate.num_windows:,}"
        for kind, rate in zip(("recorded", "virtual"), rates, strict=True)
        if rate is not None
    ]
    if shares:
        caption += f"; false alarms in benign validation windows: {', '.join(shares)}"
    return Table.of(header, body, caption, key="what-hides")


def accumulation_table(results: Results) -> Table | None:
    """Return what evidence finds that adds up over windows, one row per scenario; None where it was not used."""
    body = []
    for name, scenario in results.scenarios.items():
        found = None if scenario.breakdown is None else scenario.breakdown.accumulated
        if scenario.breakdown is None or found is None:
            continue
        cells = []
        for episodes in (scenario.breakdown.episodes, found.alone, found.with_windows):
            if episodes is None or not episodes.num_episodes:
                cells += ["-", "-"]
            else:
                cells += [f"{episodes.num_found}/{episodes.num_episodes}", format_short(episodes.median_delay_s)]
        per_hour = format_short(found.false_episodes_per_hour)
        designed = format_short(found.designed_false_episodes_per_hour)
        body.append([name, *cells, f"{found.num_false_episodes:,}", format_short(found.hours), per_hour, designed])
    header = ["scenario", "windows", "delay s", "adding up", "delay s", "both", "delay s"]
    header += ["false", "hours", "per hour", "designed"]
    caption = "attacks found by single windows, by evidence that adds up over them, and by both; its false alarms"
    return Table.of(header, body, caption, key="adding-up") if body else None


def kinds_table(results: Results) -> Table | None:
    """Return the recall of each kind of attack, one column per scenario; None where no kind is known."""
    rows = {name: row.breakdown for name, row in results.scenarios.items()} | {
        "validation": results.detector.validation
    }
    known = {name: row.recall_by_kind for name, row in rows.items() if row is not None and row.recall_by_kind}
    kinds = list(dict.fromkeys(kind for found in known.values() for kind in found))
    if not kinds:
        return None
    body = [
        [
            kind,
            *(f"{format_short(found[kind].recall)} of {found[kind].num_windows:,}" if kind in found else "-"
              for found in known.values()),
        ]
        for kind in kinds
    ]  # fmt: skip
    table = Table.of(["kind", *known], body, "recall of attacked windows by kind of attack", key="recall-by-kind")
    return replace(table, in_terminal=False)


def compared_table(results: Results) -> Table | None:
    """Return the rows of `models_table` that ask what a curriculum gains; None where there is only one of them."""
    table = models_table(results)
    rows = [row for row in table.rows if row[0].text in COMPARED]
    caption = "the autoencoder, the attention network without and with a curriculum, side by side (F1)"
    compared = replace(table, rows=rows, caption=caption, key="autoencoder-and-gat", in_terminal=False)
    return compared if len(rows) > 1 else None


def format_value(value: float | None) -> str:
    """Write a metric with four decimals, never rounding an imperfect one up to 1 nor a false alarm down to 0."""
    if value is None:
        return "-"
    text = f"{value:.4f}"
    if text == "1.0000" and value < 1:
        return ">0.9999"
    return "<0.0001" if text == "0.0000" and value > 0 else text


def format_short(value: float | None) -> str:
    """Write a value with three significant digits, a share below 1 never as 1."""
    if value is None:
        return "-"
    text = f"{value:.3g}"
    return ">0.999" if text == "1" and value < 1 else text


def format_interval(interval: Interval | None) -> str:
    """Write both ends of an interval."""
    if interval is None or interval.low is None or interval.high is None:
        return "-"
    return f"{format_short(interval.low)} to {format_short(interval.high)}"


def format_spread(spread: Spread | None) -> str:
    """Write mean, deviation and worst value over seeds."""
    if spread is None or spread.mean is None or spread.std is None:
        return "-"
    return f"{spread.mean:.4f} ± {spread.std:.4f} (min {format_value(spread.min)}, {spread.count} seeds)"


if __name__ == "__main__":
    Results.write_schema(SCHEMA_PATH)
