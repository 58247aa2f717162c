"""The tables of the report, as plain cells; the template turns them into HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kdgat.can.results import DataSummary, InjectionSummary, Results, Spread, WindowMetrics, format_spread, format_value
from kdgat.report.figures import spreads_of_models
from kdgat.report.run import StageContent
from kdgat.report.style import MODEL_NAMES, model_name, model_order

# Column heading, field of WindowMetrics, what it means.
METRIC_COLUMNS = (
    ("F1", "f1", "harmonic mean of precision and recall"),
    ("Precision", "precision", "share of alarms that are attacks"),
    ("Recall", "recall", "share of attack windows that raise an alarm"),
    ("Accuracy", "accuracy", "share of windows decided correctly"),
    ("Specificity", "specificity", "share of benign windows without alarm"),
    ("Balanced accuracy", "balanced_accuracy", "mean of recall and specificity"),
    ("MCC", "mcc", "Matthews correlation"),
    ("AUC", "auc", "area under the ROC curve"),
    ("PR-AUC", "pr_auc", "average precision"),
)
MAX_SCENARIO_COLUMNS = 6
MAX_RECORDING_ROWS = 200


@dataclass(frozen=True)
class Cell:
    """One cell: text, an optional second line in small type, and whether it is the best of its column."""

    text: str
    note: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Table:
    """Header and rows; the first column is the row's name, the others hold numbers unless named in `text_columns`."""

    header: list[Cell]
    rows: list[list[Cell]]
    caption: str
    text_columns: tuple[int, ...] = (0,)


def metrics_table(name: str, rows: Mapping[str, WindowMetrics], caption: str) -> Table:
    """All metrics, one row per scenario, recording or model."""
    rates = list(dict.fromkeys(rate for row in rows.values() for rate in row.detection_rate_at_fpr))
    header = [Cell(name), Cell("Windows"), Cell("Attacks")]
    header += [Cell(heading) for heading, _, _ in METRIC_COLUMNS]
    header += [Cell(f"Found at {float(rate):.3g}".replace("e-", "e-") + " FPR") for rate in rates] + [
        Cell("False alarms")
    ]
    body = []
    for key, row in rows.items():
        cells = [Cell(key), Cell(f"{row.num_windows:,}"), Cell(f"{row.num_attack_windows:,}")]
        cells += [Cell(format_value(getattr(row, column))) for _, column, _ in METRIC_COLUMNS]
        cells += [Cell(format_value(row.detection_rate_at_fpr.get(rate))) for rate in rates]
        cells += [Cell(format_value(row.false_alarm_rate))]
        body.append(cells)
    return Table(header, body, caption)


def seeds_table(results: Results) -> Table | None:
    """The spread of the default detector's single-seed versions, one row per scenario."""
    names = {heading: column for heading, column, _ in METRIC_COLUMNS} | {"False alarms": "false_alarm_rate"}
    shown = [
        (heading, column)
        for heading, column in names.items()
        if any(column in scenario.over_seeds for scenario in results.scenarios.values())
    ]
    if not shown:
        return None
    rows = []
    for name, scenario in results.scenarios.items():
        rows.append([Cell(name), *(_spread_cell(scenario.over_seeds.get(column)) for _, column in shown)])
    header = [Cell("Scenario"), *(Cell(heading) for heading, _ in shown)]
    caption = "Single seeds of the default detector: mean ± sample standard deviation, smallest to largest below."
    return Table(header, rows, caption)


def _spread_cell(spread: Spread | None, *, is_best: bool = False) -> Cell:
    if spread is None or spread.mean is None:
        return Cell("-")
    if spread.std is None:
        return Cell(format_value(spread.mean), f"{spread.count} seed", is_best)
    text = f"{format_value(spread.mean)} ± {format_value(spread.std)}"
    return Cell(text, f"{format_value(spread.min)} to {format_value(spread.max)}", is_best)


def comparison_tables(results: Results) -> list[Table]:
    """F1 of every model on every scenario, side by side; several tables if there are many scenarios."""
    scenarios = list(dict.fromkeys(s for seeds in results.models.values() for rows in seeds.values() for s in rows))
    models = sorted(results.models, key=model_order)
    tables = []
    for start in range(0, len(scenarios), MAX_SCENARIO_COLUMNS):
        part = scenarios[start : start + MAX_SCENARIO_COLUMNS]
        columns = {scenario: spreads_of_models(results.models, scenario) for scenario in part}
        rows = [[Cell(MODEL_NAMES["detector"]), Cell(""), *(_detector_cell(results, scenario) for scenario in part)]]
        for model in models:
            cells = [Cell(model_name(model)), Cell(_count(results.parameter_counts.get(model)))]
            for scenario in part:
                spreads = columns[scenario]
                means = [round(spread.mean, 4) for spread in spreads.values() if spread.mean is not None]
                own = spreads.get(model)
                best = own is not None and own.mean is not None and round(own.mean, 4) == max(means)
                cells.append(_spread_cell(own, is_best=best))
            rows.append(cells)
        header = [Cell("Model"), Cell("Parameters"), *(Cell(scenario) for scenario in part)]
        tables.append(
            Table(header, rows, "F1 of every model, mean ± standard deviation over seeds; best mean in bold.")
        )
    return tables


def _detector_cell(results: Results, scenario: str) -> Cell:
    if scenario not in results.scenarios:
        return Cell("-")
    found = results.scenarios[scenario]
    over = found.over_seeds.get("f1")
    return Cell(format_value(found.f1), "" if over is None or over.std is None else f"over seeds {format_spread(over)}")


def model_tables(results: Results) -> dict[str, Table]:
    """All metrics of every model and seed, by scenario."""
    tables = {}
    for scenario in dict.fromkeys(s for seeds in results.models.values() for rows in seeds.values() for s in rows):
        rows = {
            f"{model_name(model)}, seed {seed}": found[scenario]
            for model in sorted(results.models, key=model_order)
            for seed, found in results.models[model].items()
            if scenario in found
        }
        tables[scenario] = metrics_table("Model", rows, f"Every model and seed on {scenario}.")
    return tables


def parameter_table(results: Results) -> Table | None:
    """Numbers of parameters, with the ratio to the largest."""
    counts = results.parameter_counts
    if not counts:
        return None
    largest = max(counts.values())
    rows = [
        [
            Cell(model_name(model)),
            Cell(f"{counts[model]:,}"),
            Cell(f"{largest / counts[model]:.1f} x" if counts[model] else "-"),
        ]
        for model in sorted(counts, key=model_order)
    ]
    return Table([Cell("Model"), Cell("Parameters"), Cell("Smaller than the largest")], rows, "Trainable parameters.")


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def split_table(data: DataSummary) -> Table | None:
    """Windows of each store."""
    if not data.splits:
        return None
    rows = [
        [
            Cell(name),
            Cell(f"{row.num_windows:,}"),
            Cell(f"{row.num_attack_windows:,}"),
            Cell(_count(row.num_messages or None)),
        ]
        for name, row in data.splits.items()
    ]
    header = [Cell("Split"), Cell("Windows"), Cell("Attack windows"), Cell("Messages")]
    return Table(header, rows, "Windows used for training, validation and tests.")


def recording_table(data: DataSummary) -> Table | None:
    """The recordings as they were read."""
    if not data.recordings:
        return None
    rows = []
    for recording in data.recordings[:MAX_RECORDING_ROWS]:
        note = f"same messages as {recording.duplicate_of}: not used again" if recording.duplicate_of else ""
        cells = [Cell(recording.name, note), Cell(recording.scenario), Cell(recording.role)]
        counts = (recording.num_messages, recording.num_windows, recording.num_attack_windows)
        cells += [Cell(f"{count:,}") for count in (*counts, recording.num_bad_rows, recording.num_backward)]
        rows.append(cells)
    headings = ("Recording", "Scenario", "Role", "Messages", "Windows", "Attack windows", "Bad rows", "Time backwards")
    caption = "Recordings as read."
    if len(data.recordings) > MAX_RECORDING_ROWS:
        caption += f" The first {MAX_RECORDING_ROWS} of {len(data.recordings):,}; results.json lists all."
    return Table([Cell(heading) for heading in headings], rows, caption, text_columns=(0, 1, 2))


def injection_table(injection: InjectionSummary) -> Table | None:
    """Injected attacks by kind."""
    if not injection.attacks:
        return None
    rows = [
        [
            Cell(kind.replace("_", " ")),
            Cell(f"{row.num_windows:,}"),
            Cell(_count(row.num_messages)),
            Cell(_count(row.num_campaigns)),
        ]
        for kind, row in injection.attacks.items()
    ]
    header = [Cell("Attack"), Cell("Windows"), Cell("Messages"), Cell("Campaigns")]
    return Table(header, rows, "Attacks injected into benign traffic for training.")


def stage_table(stages: list[StageContent]) -> Table | None:
    """State, attempts, machine and code of every stage."""
    if not stages:
        return None
    rows = []
    for stage in stages:
        last = stage.attempts[-1] if stage.attempts else {}
        git = last.get("git") or {}
        revision = f"{git.get('revision', '')[:10]}{' with changes' if git.get('dirty') else ''}" if git else "-"
        torch = (last.get("packages") or {}).get("torch") or "-"
        cells = [
            Cell(stage.record.name),
            Cell(stage.record.state),
            Cell(str(max(len(stage.attempts), stage.record.attempts))),
        ]
        cells += [Cell(last.get("started_at", "-")), Cell(last.get("hostname", "-")), Cell(revision), Cell(torch)]
        cells += [Cell(stage.record.identity or "-")]
        rows.append(cells)
    headings = ("Stage", "State", "Attempts", "Last started", "Machine", "Revision", "torch", "Identity")
    columns = (0, 1, 3, 4, 5, 6, 7)
    return Table([Cell(heading) for heading in headings], rows, "Stages of the run.", text_columns=columns)
