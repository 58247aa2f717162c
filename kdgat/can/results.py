"""Shape of results.json: everything an evaluation says, validated when written and when read.

`scenarios` holds the default detector, scenario name directly below it and `f1` directly in each; `f1` repeats that
value at the top for scripts.  A value that the data cannot define is null.  The JSON schema lies beside this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from pydantic import Field, ValidationError, model_validator

from kdgat.can.calibration import DecisionRule, FalseAlarmRate
from kdgat.can.metrics import SPREAD_METRICS
from kdgat.stage.configuration import Config, describe_validation_error
from kdgat.stage.files import write_bytes_atomically, write_json_atomically

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).with_name("results.schema.json")
DETECTOR = "detector"  # key of the default detector among the models' curves

Finite = Annotated[float, Field(allow_inf_nan=False)]
Value = Finite | None
Count = Annotated[int, Field(ge=0)]


class ResultsError(ValueError):
    """results.json is missing, damaged or of another version."""


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


class DetectorScenario(ScenarioMetrics):
    """A scenario seen by the default detector; `over_seeds` is the spread of its single-seed versions."""

    over_seeds: dict[str, Spread] = Field(default={})


class Detector(Config):
    """The default detector: what it is made of, how it decides, how often it is wrong on benign validation windows."""

    name: str
    models: list[str]
    seeds: list[int]
    decision: DecisionRule
    rule: str = Field(description="the decision rule in words")
    false_alarm_rate: FalseAlarmRate | None = None


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


class Results(Config):
    """Everything one evaluation says."""

    schema_version: int = SCHEMA_VERSION
    dataset: str
    created: str = Field(description="ISO 8601 with time zone")
    preset: str | None = None
    revision: str | None = Field(default=None, description="git revision of the code, if known")
    seeds: list[int]
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
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {self.schema_version} is not {SCHEMA_VERSION}; use the kdgat that wrote it"
            )
        if self.f1 != {name: scenario.f1 for name, scenario in self.scenarios.items()}:
            raise ValueError("top-level f1 and scenarios disagree")
        return self


def write_results(path: Path, results: Results) -> None:
    """Write results.json atomically."""
    # Validated again: model_construct or model_copy could have brought NaN past the models, and JSON has no NaN.
    checked = Results.model_validate(results.model_dump(mode="json"))
    text = json.dumps(checked.model_dump(mode="json"), indent=2, allow_nan=False)
    # A curve on one line instead of 400; a line break within brackets is never part of a JSON string.
    compact = re.sub(r"\[\n[^\[\]{}\"]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text)
    write_bytes_atomically(path, (compact + "\n").encode())


def read_results(path: Path) -> Results:
    """Read results.json; ResultsError says what is wrong with it."""
    if not path.is_file():
        raise ResultsError(f"{path} does not exist; run the evaluation stage first")
    try:
        return Results.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path} is not JSON ({error}); run the evaluation again") from error
    except ValidationError as error:
        raise ResultsError(
            f"{path} is not a results file of this version: {describe_validation_error(Results, error)}"
        ) from error


def results_schema() -> dict[str, Any]:
    """Return the JSON schema of results.json."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Results.model_json_schema(mode="serialization"),
    }


def write_schema(path: Path = SCHEMA_PATH) -> None:
    """Write the JSON schema; `python -m kdgat.can.results` does it for the copy in the package."""
    write_json_atomically(path, results_schema())


def training_curve(rows: Iterable[Mapping[str, object]]) -> dict[str, list[float | None]]:
    """Turn the rows of a stage's metrics.jsonl (`RunDirectory.read_metrics`) into columns with one entry per epoch.

    Rows of the same epoch are merged and the later value wins, so steps leave their last value.  True counts as 1.
    Rows of several fits (key `fit`) belong into several curves.
    """
    epochs: dict[float, dict[str, float]] = {}
    for row in rows:
        numbers = {key: float(value) for key, value in row.items() if _is_number(value)}
        if "epoch" in numbers:
            epochs.setdefault(numbers["epoch"], {}).update(numbers)
    names = list(dict.fromkeys(name for row in epochs.values() for name in row))
    return {name: [epochs[epoch].get(name) for epoch in sorted(epochs)] for name in names}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < float("inf")


def results_table(results: Results, columns: tuple[str, ...] = SPREAD_METRICS[:4]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the compact table: one row per scenario, with the spread of F1 over seeds."""
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
    return header, rows


def format_value(value: float | None) -> str:
    """Write a metric with four decimals, never rounding an imperfect one up to 1 nor a false alarm down to 0."""
    if value is None:
        return "-"
    text = f"{value:.4f}"
    if text == "1.0000" and value < 1:
        return ">0.9999"
    return "<0.0001" if text == "0.0000" and value > 0 else text


def format_spread(spread: Spread | None) -> str:
    """Write mean, deviation and worst value over seeds."""
    if spread is None or spread.mean is None or spread.std is None:
        return "-"
    return f"{spread.mean:.4f} ± {spread.std:.4f} (min {format_value(spread.min)}, {spread.count} seeds)"


if __name__ == "__main__":
    write_schema()
