"""The tables of the report, as plain cells; the template turns them into HTML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kdgat.can.evaluation.costs import COSTS_FILE, Costs
from kdgat.can.evaluation.results import DETECTOR, Results, Spread, WindowMetrics
from kdgat.can.evaluation.tables import format_share, format_value
from kdgat.can.report.figures import spreads_of_models
from kdgat.can.report.names import TEACHERS, model_name, model_of_count, model_order
from kdgat.canbus.summary import DataSummary, InjectionSummary
from kdgat.run import Table
from kdgat.run.table import Cell

# Column heading, field of WindowMetrics, what it means.
DECISION_COLUMNS = (
    ("F1", "f1", "harmonic mean of precision and recall"),
    ("Precision", "precision", "share of alarms that are attacks"),
    ("Recall", "recall", "share of attack windows that raise an alarm"),
    ("Accuracy", "accuracy", "share of windows decided correctly"),
    ("Specificity", "specificity", "share of benign windows without alarm"),
    ("Balanced acc.", "balanced_accuracy", "mean of recall and specificity"),
    ("MCC", "mcc", "Matthews correlation"),
    ("Benign in alarm", "false_alarm_rate", "share of benign windows in alarm"),
)
RANKING_COLUMNS = (
    ("AUC", "auc", "area under the ROC curve"),
    ("PR-AUC", "pr_auc", "average precision"),
)
SEED_COLUMNS = (
    ("F1", "f1"),
    ("Precision", "precision"),
    ("Recall", "recall"),
    ("AUC", "auc"),
    ("PR-AUC", "pr_auc"),
    ("Benign in alarm", "false_alarm_rate"),
)
COST_COLUMNS = ("Model", "Parameters", "Weights, kB", "ms per window, median", "99 %", "Windows per s, in batches")
MAX_SCENARIO_COLUMNS = 6
HIDDEN_MEANINGS = (
    "1 msg, 2-3 msg, ...: recall of attacked windows that hold so many injected messages; 0: messages are kept away",
    "F1 95 %, benign in alarm 95 %: intervals by drawing blocks of consecutive windows again",
    "episodes: attacks with an alarm before they are over, of all; attacked windows within a second are one attack",
    "delay s, worst: seconds from the start of an attack to the end of the first window with an alarm",
)
MAX_RECORDING_ROWS = 200


def metrics_tables(name: str, rows: Mapping[str, WindowMetrics], caption: str) -> list[Table]:
    """All metrics, one row per scenario, recording or model: those of the decision, then those of the ranking.

    Two tables, because sixteen columns do not fit a page.
    """
    decision = Table.of(
        [name, "Windows", "Attacks", *(heading for heading, _, _ in DECISION_COLUMNS)],
        [
            [key, f"{row.num_windows:,}", f"{row.num_attack_windows:,}"]
            + [format_value(getattr(row, column)) for _, column, _ in DECISION_COLUMNS]
            for key, row in rows.items()
        ],
        f"{caption} Decisions at the threshold.",
    )
    rates = list(dict.fromkeys(rate for row in rows.values() for rate in row.detection_rate_at_fpr))
    ranked = {key: row for key, row in rows.items() if row.auc is not None}
    if not ranked:
        return [decision]
    found_at = [f"Found at FPR {100 * float(rate):g} %" for rate in rates]
    ranking = Table.of(
        [name, *(heading for heading, _, _ in RANKING_COLUMNS), *found_at],
        [
            [key, *(format_value(getattr(row, column)) for _, column, _ in RANKING_COLUMNS)]
            + [format_value(row.detection_rate_at_fpr.get(rate)) for rate in rates]
            for key, row in ranked.items()
        ],
        f"{caption} Ranking, whatever the threshold.",
    )
    return [decision, ranking]


def confusion_table(scenarios: Mapping[str, WindowMetrics]) -> Table:
    """Counts of windows by truth and decision, with their share of those that are truly so."""
    rows: list[list[str | Cell]] = []
    for name, row in scenarios.items():
        benign, attacked = row.confusion_matrix
        counts = [(attacked[1], sum(attacked)), (attacked[0], sum(attacked)), (benign[1], sum(benign))]
        counts.append((benign[0], sum(benign)))
        shares = [format_share(count / whole if whole else None) for count, whole in counts]
        rows.append([name, *(Cell(f"{count:,}", share) for (count, _), share in zip(counts, shares, strict=True))])
    header = ["Scenario", "Attacked, found", "Attacked, missed", "Benign, in alarm", "Benign, no alarm"]
    return Table.of(header, rows, "Confusion matrix: windows by truth and decision.")


def meanings() -> str:
    """Explain the columns of `metrics_tables` one per line."""
    columns = [f"{heading}: {meaning}" for heading, _, meaning in (*DECISION_COLUMNS, *RANKING_COLUMNS)]
    return "\n".join([*columns, "Found at FPR: recall at the best threshold with at most this share benign in alarm"])


def seeds_table(results: Results) -> Table | None:
    """The spread of the default detector's single-seed versions, one row per scenario."""
    shown = [
        (heading, column)
        for heading, column in SEED_COLUMNS
        if any(_num_seeds(scenario.over_seeds.get(column)) > 1 for scenario in results.scenarios.values())
    ]
    if not shown:
        return None
    rows: list[list[str | Cell]] = [
        [name, *(_spread_cell(scenario.over_seeds.get(column)) for _, column in shown)]
        for name, scenario in results.scenarios.items()
    ]
    header = ["Scenario", *(heading for heading, _ in shown)]
    caption = "Single seeds of the default detector: mean ± sample standard deviation, smallest to largest below."
    return Table.of(header, rows, caption)


def _num_seeds(spread: Spread | None) -> int:
    return 0 if spread is None else spread.count


def _spread_cell(spread: Spread | None, *, is_best: bool = False) -> Cell:
    if spread is None or spread.mean is None:
        return Cell("-")
    if spread.std is None:
        return Cell(format_value(spread.mean), is_best=is_best)
    text = f"{format_value(spread.mean)} ± {format_value(spread.std)}"
    return Cell(text, f"{format_value(spread.min)} to {format_value(spread.max)}", is_best)


def comparison_tables(results: Results) -> list[Table]:
    """F1 of every model on every scenario with attacks, side by side; several tables if there are many scenarios."""
    measured = {
        scenario: spreads_of_models(results.models, scenario)
        for scenario in dict.fromkeys(s for seeds in results.models.values() for rows in seeds.values() for s in rows)
    }
    best = {
        scenario: max((round(value, 4) for value in _values(results, scenario, spreads)), default=None)
        for scenario, spreads in measured.items()
    }
    counts = {model_of_count(key): count for key, count in results.parameter_counts.items()}
    scenarios = [scenario for scenario in measured if best[scenario] is not None]
    tables = []
    for start in range(0, len(scenarios), MAX_SCENARIO_COLUMNS):
        part = scenarios[start : start + MAX_SCENARIO_COLUMNS]
        own_cells = [_detector_cell(results, scenario, best[scenario]) for scenario in part]
        rows: list[list[str | Cell]] = [[model_name(DETECTOR), "-", *own_cells]]
        for model in sorted(results.models, key=model_order):
            cells: list[str | Cell] = [model_name(model), _parameter_cell(counts, model)]
            for scenario in part:
                own = measured[scenario].get(model)
                is_best = own is not None and own.mean is not None and round(own.mean, 4) == best[scenario]
                cells.append(_spread_cell(own, is_best=is_best))
            rows.append(cells)
        has_seeds = len(results.seeds) > 1
        spread = ": mean ± standard deviation over seeds, smallest to largest below; best of the column in bold"
        caption = f"F1 of every model{spread if has_seeds else ', one seed; best of the column in bold'}."
        tables.append(Table.of(["Model", "Parameters", *part], rows, caption))
    return tables


def _parameter_cell(counts: Mapping[str, int], model: str) -> Cell:
    if model not in counts:
        return Cell("-")
    teacher = counts.get(TEACHERS.get(model, ""))
    return Cell(f"{counts[model]:,}", f"{counts[model] / teacher:.1%} of its teacher" if teacher else "")


def _values(results: Results, scenario: str, spreads: Mapping[str, Spread]) -> list[float]:
    """Return all that stands in the column of a scenario: the default detector is compared like any model."""
    found = results.scenarios.get(scenario)
    values = [*([] if found is None else [found.f1]), *(spread.mean for spread in spreads.values())]
    return [value for value in values if value is not None]


def _detector_cell(results: Results, scenario: str, best: float | None) -> Cell:
    found = results.scenarios.get(scenario)
    if found is None:
        return Cell("-")
    return Cell(format_value(found.f1), is_best=found.f1 is not None and round(found.f1, 4) == best)


def model_tables(results: Results) -> dict[str, list[Table]]:
    """All metrics of every model and seed, by scenario."""
    tables = {}
    for scenario in dict.fromkeys(s for seeds in results.models.values() for rows in seeds.values() for s in rows):
        rows = {
            f"{model_name(model)}, seed {seed}": found[scenario]
            for model in sorted(results.models, key=model_order)
            for seed, found in results.models[model].items()
            if scenario in found
        }
        tables[scenario] = metrics_tables("Model", rows, f"Every model and seed on {scenario}.")
    return tables


def parameter_table(results: Results) -> Table | None:
    """Numbers of parameters of what the comparison does not list."""
    counts = {model_of_count(key): count for key, count in results.parameter_counts.items()}
    others = [model for model in sorted(counts, key=model_order) if model not in results.models]
    if not others:
        return None
    rows: list[list[str | Cell]] = [[model_name(model), _parameter_cell(counts, model)] for model in others]
    return Table.of(["Model", "Parameters"], rows, "Trainable parameters.")


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def split_table(data: DataSummary) -> Table | None:
    """Windows of each store."""
    if not data.splits:
        return None
    rows = []
    for name, row in data.splits.items():
        counts = (row.num_windows, row.num_attack_windows, row.num_messages or None)
        rows.append([name.replace("test-", "test: ", 1), *map(_count, counts)])
    header = ["Split", "Windows", "Attack windows", "Messages"]
    return Table.of(header, rows, "Windows used for training, validation and tests.")


def recording_table(data: DataSummary) -> Table | None:
    """The recordings as they were read."""
    if not data.recordings:
        return None
    rows: list[list[str | Cell]] = []
    for recording in data.recordings[:MAX_RECORDING_ROWS]:
        note = f"same messages as {recording.duplicate_of}: not used again" if recording.duplicate_of else ""
        counts = [recording.num_messages, recording.num_windows, recording.num_attack_windows]
        counts += [recording.num_bad_rows, recording.num_backward]
        rows.append([Cell(recording.name, note), recording.scenario, recording.role, *map(_count, counts)])
    headings = ("Recording", "Scenario", "Role", "Messages", "Windows", "Attack windows", "Bad rows", "Time backwards")
    caption = "Recordings as read."
    if len(data.recordings) > MAX_RECORDING_ROWS:
        caption += f" The first {MAX_RECORDING_ROWS} of {len(data.recordings):,}; results.json lists all."
    return Table.of(headings, rows, caption, text_columns=(0, 1, 2))


def injection_table(injection: InjectionSummary) -> Table | None:
    """Injected attacks by kind."""
    if not injection.attacks:
        return None
    rows = [
        [kind.replace("_", " "), *map(_count, (row.num_windows, row.num_messages, row.num_recordings))]
        for kind, row in injection.attacks.items()
    ]
    header = ["Attack", "Windows", "Messages", "Virtual recordings"]
    return Table.of(header, rows, "Attacks injected into benign traffic for training.")


def costs_table(output: Path) -> Table | None:
    """Return size and latency of each model of a run; None where they were not measured."""
    path = output / COSTS_FILE
    if not path.is_file():
        return None
    costs = Costs.read(path)
    rows = [
        [
            model_name(name),
            f"{cost.num_parameters:,}",
            f"{cost.num_bytes / 1000:,.0f}",
            f"{cost.median_ms:.3g}",
            f"{cost.percentile_99_ms:.3g}",
            f"{cost.windows_per_second:,.0f}",
        ]
        for name, cost in sorted(costs.models.items(), key=lambda item: model_order(item[0]))
    ]
    caption = (
        f"Size and latency of the models of seed {costs.seed} on {costs.device}, one thread: up to"
        f" {costs.num_single:,} windows one by one, and batches of {costs.batch_size:,}. From a window's graph to its"
        " score in torch, without making the graph. A fusion's times include its members', its size does not."
    )
    return Table.of(COST_COLUMNS, rows, caption)
