"""Tables of an evaluation's results, for the terminal and the report, and how values are written in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Final

from kdgat.base.text import describe_seconds, list_some
from kdgat.can.evaluation.metrics import FEWEST_WINDOWS, SPREAD_METRICS
from kdgat.can.evaluation.results import (
    COUNT_NAMES,
    DEFAULT_DETECTOR,
    Breakdown,
    ConfidenceInterval,
    Results,
    Spread,
)
from kdgat.run import Table

MOST_SCENARIOS: Final = 4  # that a sentence names
COMPARED: Final = ("autoencoder", "normal", "curriculum")
NOTHING_TESTED: Final = "No test scenario was scored: there are no recordings to test on."


def summary_table(results: Results) -> Table:
    """Return what a person asks first of the default detector: one row per scenario of recordings that nobody saw."""
    rows = []
    for name, scenario in results.scenarios.items():
        row = scenario.breakdown
        episodes = None if row is None else row.episodes
        interval = "" if row is None or row.f1_interval is None else f" ({format_interval(row.f1_interval)})"
        rows.append(
            [
                name,
                f"{episodes.num_found:,} of {episodes.num_episodes:,}" if episodes and episodes.num_episodes else "-",
                f"{format_short(episodes.median_delay_s)} s" if episodes and episodes.num_found else "-",
                "-" if scenario.f1 is None else f"{format_value(scenario.f1)}{interval}",
                "-" if row is None or row.num_false_episodes is None else f"{row.num_false_episodes:,}",
                describe_seconds(row.benign_s) if row is not None and row.benign_s else "-",
                format_share(scenario.false_alarm_rate),
            ]
        )
    header = ["scenario", "attacks found", "median delay", "F1 (95 %)"]
    header += ["false alarms", "benign time", "benign windows in alarm"]
    caption = (
        f"{DEFAULT_DETECTOR} ({results.detector.name}) on test recordings. A false alarm meets no attack; benign"
        " windows in alarm are also those right after an attack, whose alarm is not over yet"
    )
    return Table.of(header, rows, caption)


def compare_with_networks(results: Results) -> list[str]:
    """Say in one sentence how the default detector stands beside the best network alone, why, and what to do."""
    own = {name: row.f1 for name, row in results.scenarios.items() if row.f1 is not None}
    means = {}
    for model, by_seed in results.models.items():
        f1 = [row.f1 for rows in by_seed.values() for name, row in rows.items() if name in own and row.f1 is not None]
        if f1 and (model in results.parameter_counts or model == results.detector.model):
            means[model] = fmean(f1)
    if not means:
        return []
    mean, best = fmean(own.values()), max(means, key=means.__getitem__)
    text = f"Its mean F1 is {format_value(mean)}, that of the best network alone ({best}) {format_value(means[best])}: "
    if means[best] <= mean:
        return [f"{text}no network of this run does better"]
    if results.detector.decision.habits and means.get(results.detector.model, 0.0) > mean:
        return [f"{text}the habits of identifiers cost more than they find; -O evaluation.rule=fixed leaves them out"]
    return [f"{text}if that holds on other recordings, too, decide by it with -O evaluation.detector={best}"]


def warn_of_few_windows(results: Results) -> list[str]:
    """Say which scenarios are too small to judge by, and what is needed."""
    few = [f"{name} {row.num_windows:,}" for name, row in results.scenarios.items() if row.num_windows < FEWEST_WINDOWS]
    needed = f"an interval needs {FEWEST_WINDOWS:,}: test on longer recordings, or on more"
    return [f"Too few test windows to judge by: {list_some(few, MOST_SCENARIOS)}; {needed}"] if few else []


def scores_table(results: Results, columns: tuple[str, ...] = SPREAD_METRICS[:4]) -> Table:
    """Return the default detector: one row per scenario, with the spread of F1 over seeds."""
    header = ["scenario", "windows", "attacks", *columns, "AUC of networks", "benign in alarm", "F1 over seeds"]
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
    caption = f"{DEFAULT_DETECTOR} ({results.detector.name}): {results.detector.rule}"
    return Table.of(header, rows, caption, key="scores", is_detail=True)


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
    return Table.of(["model", *scenarios], rows, f"F1 per model{seeds_text}", key="models", is_detail=True)


def _breakdowns(results: Results) -> dict[str, Breakdown]:
    """Return what stands behind the numbers of each scenario, and of validation, where that is known."""
    found = {name: row.breakdown for name, row in results.scenarios.items()}
    return {name: row for name, row in {**found, "validation": results.detector.validation}.items() if row is not None}


def hidden_table(results: Results) -> Table | None:
    """Return what an F1 and an AUC hide, one row per scenario and one of validation; None where nothing is known."""
    known = _breakdowns(results)
    if not known:
        return None
    counts = [name for name in COUNT_NAMES if any(name in row.recall_by_count for row in known.values())]
    header = ["scenario", *(f"{name} msg" for name in counts), "F1 95 %", "benign in alarm 95 %"]
    header += ["episodes", "delay s", "worst"]
    body = []
    for name, row in known.items():
        found = [row.recall_by_count.get(count) for count in counts]
        cells = ["-" if one is None else f"{format_share(one.recall)} of {one.num_windows:,}" for one in found]
        cells += [format_interval(row.f1_interval), format_interval(row.false_alarm_interval)]
        episodes = row.episodes
        if episodes is None or not episodes.num_episodes:
            cells += ["-"] * 3
        else:
            cells += [f"{episodes.num_found}/{episodes.num_episodes}"]
            cells += [format_short(episodes.median_delay_s), format_short(episodes.worst_delay_s)]
        body.append([name, *cells])
    caption = "what hides behind the F1: recall by injected messages in a window, benign windows in alarm, attacks"
    rates = (results.detector.recorded_false_alarm_rate, results.detector.virtual_false_alarm_rate)
    shares = [
        f"{kind} {rate.num_false_alarms:,} of {rate.num_windows:,}"
        for kind, rate in zip(("recorded", "virtual"), rates, strict=True)
        if rate is not None
    ]
    if shares:
        caption += f"; benign validation windows in alarm: {', '.join(shares)}"
    return Table.of(header, body, caption, key="what-hides", is_detail=True)


def vehicles_table(results: Results) -> Table | None:
    """Return how benign windows in alarm spread over vehicles, one row per scenario; None where none has several."""
    body = []
    for name, row in _breakdowns(results).items():
        found = {key: one for key, one in row.vehicles.items() if one.num_windows}
        if not found:
            continue
        shares = {vehicle: one.num_false_alarms / one.num_windows for vehicle, one in found.items()}
        worst = max(shares, key=shares.__getitem__)
        windows = sum(one.num_windows for one in found.values())
        pooled = sum(one.num_false_alarms for one in found.values()) / windows
        hours = sum(one.hours for one in found.values())
        episodes = sum(one.num_false_episodes for one in found.values())
        cells = [f"{len(found)}", f"{sum(share == 0.0 for share in shares.values())}", f"{windows:,}"]
        cells += [f"{median(shares.values()):.3%}", f"{shares[worst]:.3%} ({worst})", f"{pooled:.3%}"]
        body.append([name, *cells, format_short(episodes / hours if hours else None)])
    header = ["scenario", "vehicles", "without", "windows", "median vehicle", "worst", "pooled", "alarms an hour"]
    caption = "benign windows in alarm by vehicle; alarms an hour: less than a second apart they are one"
    return Table.of(header, body, caption, key="vehicles", is_detail=True) if body else None


def kinds_table(results: Results) -> Table | None:
    """Return the recall of each kind of attack, one column per scenario; None where no kind is known."""
    known = {name: row.recall_by_kind for name, row in _breakdowns(results).items() if row.recall_by_kind}
    kinds = list(dict.fromkeys(kind for found in known.values() for kind in found))
    if not kinds:
        return None
    body = [
        [
            kind,
            *(f"{format_share(found[kind].recall)} of {found[kind].num_windows:,}" if kind in found else "-"
              for found in known.values()),
        ]
        for kind in kinds
    ]  # fmt: skip
    caption = "recall of attacked windows by kind of attack"
    return Table.of(["kind", *known], body, caption, key="recall-by-kind", is_detail=True)


def compared_table(results: Results) -> Table | None:
    """Return the rows of `models_table` that ask what a curriculum gains; None where there is only one of them."""
    table = models_table(results)
    rows = [row for row in table.rows if row[0].text in COMPARED]
    caption = "the autoencoder, the attention network without and with a curriculum, side by side (F1)"
    compared = replace(table, rows=rows, caption=caption, key="autoencoder-and-gat", is_detail=True)
    return compared if len(rows) > 1 else None


def format_value(value: float | None) -> str:
    """Write a metric with four decimals, never rounding an imperfect one up to 1 nor a false alarm down to 0."""
    if value is None:
        return "-"
    text = f"{value:.4f}"
    if text == "1.0000" and value < 1:
        return ">0.9999"
    return "<0.0001" if text == "0.0000" and value > 0 else text


def format_range(values: Sequence[float]) -> str:
    """Write the least and the largest of values.

    >>> format_range([0.5, 0.75]), format_range([0.5])
    ('0.5000 to 0.7500', '0.5000')
    """
    return " to ".join(dict.fromkeys(map(format_value, (min(values), max(values)))))


def format_share(value: float | None) -> str:
    """Write a share in percent with three significant digits, never rounding up to all nor down to nothing."""
    if value is None:
        return "-"
    text = f"{100.0 * value:.3g}"
    if text == "100" and value < 1.0:
        return ">99.9 %"
    return "<0.01 %" if 0.0 < value < 1e-4 else f"{text} %"


def format_short(value: float | None) -> str:
    """Write a value with three significant digits, or none behind the point; a share below 1 never as 1."""
    if value is None:
        return "-"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return ">0.999" if text == "1" and value < 1 else text


def format_interval(interval: ConfidenceInterval | None) -> str:
    """Write both ends of an interval."""
    if interval is None or interval.low is None or interval.high is None:
        return "-"
    return f"{format_short(interval.low)} to {format_short(interval.high)}"


def format_spread(spread: Spread | None) -> str:
    """Write mean, deviation and worst value over seeds."""
    if spread is None or spread.mean is None or spread.std is None:
        return "-"
    return f"{spread.mean:.4f} ± {spread.std:.4f} (min {format_value(spread.min)}, {spread.count} seeds)"
