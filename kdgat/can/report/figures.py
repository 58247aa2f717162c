"""One function per figure; each takes parts of results.json and returns a Picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from kdgat.can.evaluation.results import Curves, DetectorScenario, ScenarioMetrics, Spread, WindowMetrics
from kdgat.can.evaluation.tables import format_value
from kdgat.can.report.names import is_variant, model_name, model_order
from kdgat.canbus.summary import InjectionSummary
from kdgat.report import BLACK, BLUE, Key, Picture, blank
from kdgat.report.style import axis_title, line_key, nines, nines_axis, series_style, wrapped
from kdgat.report.training import FIRST_SHARE_COLOUR, Seeds, epoch_step

LIGHT_BLUE = "#9ecae1"
SINGLE_SEEDS = "single seeds, mean and range"
SMALLEST_RATE = 1e-4  # left end of the logarithmic false-positive axis
ROW_PIXELS = 30
CHOSEN = Key("chosen threshold", BLACK, symbol="◯")
CURRICULUM_PREFIX = "curriculum_"
CURRICULUM_RATIO = "curriculum_ratio"
# What the curriculum's right axis shows: column, label, factor to percent.
CURRICULUM_SHARES = (
    ("curriculum_percentile", "percentile of the autoencoder's score from which benign windows are hard", 1.0),
    ("curriculum_hard_fraction", "hard windows among the benign ones", 100.0),
    ("curriculum_competence", "attacked windows, easiest first, that are drawn from", 100.0),
)


def roc(scenario: str, curves: Mapping[str, Curves], chosen: WindowMetrics) -> Picture | None:
    """Draw the ROC curve of every model on one scenario over a logarithmic rate, the chosen threshold marked."""
    figure = blank(400, x="false-positive rate")
    keys: list[Key] = []
    for key in sorted(curves, key=model_order):
        curve = curves[key].roc
        if curve is None:
            continue
        rate = [max(value or 0.0, SMALLEST_RATE) for value in curve["false_positive_rate"]]
        figure.add_scatter(
            x=rate,
            y=[nines(value or 0.0) for value in curve["true_positive_rate"]],
            mode="lines",
            line={"width": 2.4 if key == "detector" else 1.5, "shape": "hv", **series_style(len(keys))},
            name=model_name(key),
            customdata=[format_value(value) for value in curve["true_positive_rate"]],
            hovertemplate=f"{model_name(key)}<br>false positives %{{x:.4f}}<br>detected %{{customdata}}<extra></extra>",
        )
        keys.append(line_key(model_name(key), len(keys), is_hidden=is_variant(key)))
    if not keys:
        return None
    if chosen.false_alarm_rate is not None and chosen.recall is not None:
        figure.add_scatter(
            x=[max(chosen.false_alarm_rate, SMALLEST_RATE)],
            y=[nines(chosen.recall)],
            mode="markers",
            cliponaxis=False,
            customdata=[format_value(chosen.recall)],
            marker={"symbol": "circle-open", "size": 13, "color": BLACK, "line": {"width": 2.5}},
            name="chosen threshold",
            hovertemplate="chosen threshold<br>benign in alarm %{x:.4f}<br>detected %{customdata}<extra></extra>",
        )
    figure.update_xaxes(
        type="log",
        range=[-4.06, 0.03],
        tickvals=[1e-4, 1e-3, 1e-2, 1e-1, 1],
        ticktext=["≤ 0.01 %", "0.1 %", "1 %", "10 %", "100 %"],
    )
    figure.update_yaxes(**nines_axis("detection rate"))
    text = f"ROC on {scenario}: AUC of the default detector {format_value(chosen.auc)}."
    return Picture("ROC", figure, text, f"{text} {_detection_rates(chosen)}", (*keys, CHOSEN))


def _detection_rates(metrics: WindowMetrics) -> str:
    rates = [f"{format_value(value)} at {float(rate):.1%}" for rate, value in metrics.detection_rate_at_fpr.items()]
    return f"Detection rate by false-positive rate: {', '.join(rates)}." if rates else ""


def precision_recall(scenario: str, curves: Mapping[str, Curves], chosen: WindowMetrics) -> Picture | None:
    """Draw precision over recall of all models on one scenario, with the chosen threshold marked."""
    figure = blank(400, x="recall", y="precision")
    keys: list[Key] = []
    for key in sorted(curves, key=model_order):
        curve = curves[key].precision_recall
        if curve is None:
            continue
        figure.add_scatter(
            x=curve["recall"],
            y=curve["precision"],
            mode="lines",
            line={"width": 2.4 if key == "detector" else 1.5, **series_style(len(keys))},
            name=model_name(key),
            hovertemplate=f"{model_name(key)}<br>recall %{{x:.4f}}<br>precision %{{y:.4f}}<extra></extra>",
        )
        keys.append(line_key(model_name(key), len(keys), is_hidden=is_variant(key)))
    if not keys:
        return None
    if chosen.precision is not None and chosen.recall is not None:
        figure.add_scatter(
            x=[chosen.recall],
            y=[chosen.precision],
            mode="markers",
            cliponaxis=False,
            marker={"symbol": "circle-open", "size": 13, "color": BLACK, "line": {"width": 2.5}},
            name="chosen threshold",
            hovertemplate="chosen threshold<br>recall %{x:.4f}<br>precision %{y:.4f}<extra></extra>",
        )
    figure.update_xaxes(range=[-0.02, 1.02])
    figure.update_yaxes(range=[-0.02, 1.02])
    text = (
        f"Precision over recall on {scenario}: average precision of the default detector {format_value(chosen.pr_auc)}."
    )
    return Picture("Precision and recall", figure, text, text, (*keys, CHOSEN))


def scenario_bars(scenarios: Mapping[str, DetectorScenario]) -> Picture:
    """Draw F1 of the default detector per scenario with mean, smallest and largest value over its seeds."""
    defined = {name: row for name, row in scenarios.items() if row.f1 is not None}
    names = list(defined)[::-1]
    labels = [wrapped(name) for name in names]
    figure = blank(80 + ROW_PIXELS * max(len(names), sum(label.count("<br>") + 1 for label in labels) * 2 // 3, 2))
    figure.add_bar(
        x=[nines(defined[name].f1 or 0.0) for name in names],
        y=labels,
        orientation="h",
        width=0.55,
        marker={"color": LIGHT_BLUE},
        name="default detector",
        customdata=[format_value(defined[name].f1) for name in names],
        hovertemplate="%{y}<br>F1 %{customdata}<extra></extra>",
    )
    spreads = [defined[name].over_seeds.get("f1") for name in names]
    has_seeds = any(spread is not None and spread.count > 1 for spread in spreads)
    if has_seeds:
        _add_spread(figure, labels, spreads, BLACK, SINGLE_SEEDS)
    shown = [row.f1 or 0.0 for row in defined.values()] + [(spread and spread.max) or 0.0 for spread in spreads]
    figure.update_xaxes(**nines_axis("F1", max(shown, default=1.0)))
    figure.update_yaxes(showgrid=False)
    without = [name for name in scenarios if name not in defined]
    text = (
        f"F1 of the default detector{', and of its single seeds' if has_seeds else ''}, spaced by the distance from 1."
    )
    if without:
        text += f" Undefined, because there is no attack: {', '.join(without)}."
    values = ", ".join(f"{name} {format_value(row.f1)}" for name, row in defined.items())
    keys = (Key("default detector", LIGHT_BLUE, symbol="■"), Key(SINGLE_SEEDS, BLACK, symbol="◆"))
    return Picture("F1 per scenario", figure, text, f"{text} {values}.", keys if has_seeds else keys[:1], is_wide=True)


def _add_spread(
    figure: go.Figure, names: Sequence[str], spreads: Sequence[Spread | None], colour: str, label: str
) -> None:
    """Add a diamond at the mean and a line from the smallest to the largest value."""
    rows = []
    for name, spread in zip(names, spreads, strict=True):
        if spread is not None and spread.mean is not None and spread.min is not None and spread.max is not None:
            rows.append((name, spread.mean, spread.min, spread.max))
    if not rows:
        return
    figure.add_scatter(
        x=[nines(row[1]) for row in rows],
        y=[row[0] for row in rows],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [nines(row[3]) - nines(row[1]) for row in rows],
            "arrayminus": [nines(row[1]) - nines(row[2]) for row in rows],
            "color": colour,
            "thickness": 1.6,
            "width": 5,
        },
        mode="markers",
        marker={"symbol": "diamond", "size": 9, "color": colour},
        name=label,
        customdata=[[format_value(row[1]), format_value(row[2]), format_value(row[3])] for row in rows],
        hovertemplate="%{y}<br>mean %{customdata[0]}, %{customdata[1]} to %{customdata[2]}<extra></extra>",
    )


def model_comparison(scenario: str, spreads: Mapping[str, Spread]) -> Picture | None:
    """Draw F1 of every model on one scenario: mean and range over seeds."""
    keys = [key for key in sorted(spreads, key=model_order) if spreads[key].mean is not None][::-1]
    if not keys:
        return None
    figure = blank(80 + ROW_PIXELS * len(keys))
    _add_spread(figure, [model_name(key) for key in keys], [spreads[key] for key in keys], BLUE, "over seeds")
    figure.update_xaxes(**nines_axis("F1", max(spreads[key].max or 0.0 for key in keys)))
    text = f"F1 of every model on {scenario}: mean and range over seeds, spaced by the distance from 1."
    values = ", ".join(f"{model_name(key)} {format_value(spreads[key].mean)}" for key in reversed(keys))
    return Picture(scenario, figure, text, f"{text} {values}.")


def injected_attacks(injection: InjectionSummary) -> Picture | None:
    """Draw how many training windows hold each kind of injected attack."""
    kinds = sorted(injection.attacks, key=lambda kind: injection.attacks[kind].num_windows)
    if not kinds:
        return None
    figure = blank(90 + ROW_PIXELS * len(kinds), x="training windows")
    figure.add_bar(
        x=[injection.attacks[kind].num_windows for kind in kinds],
        y=[kind.replace("_", " ") for kind in kinds],
        orientation="h",
        width=0.6,
        marker={"color": BLUE},
        customdata=[[injection.attacks[kind].num_messages, injection.attacks[kind].num_recordings] for kind in kinds],
        hovertemplate="%{x:,} windows<br>%{customdata[0]:,} messages<br>%{customdata[1]:,} recordings<extra></extra>",
        text=[f"{injection.attacks[kind].num_windows:,}" for kind in kinds],
        textposition="outside",
        cliponaxis=False,
    )
    figure.update_yaxes(showgrid=False)
    figure.update_layout(margin={"r": 60})
    text = f"Training windows with injected messages, on {injection.num_virtual_vehicles:,} virtual vehicles."
    values = ", ".join(f"{kind} {injection.attacks[kind].num_windows:,}" for kind in reversed(kinds))
    return Picture("Windows by kind of attack", figure, text, f"{text} {values}.", is_wide=True)


def curriculum(stage: str, seeds: Seeds) -> Picture | None:
    """Draw what a curriculum moves: benign windows per attacked one, and how hard they are; None without any.

    Drawn once: every seed has the same curriculum.
    """
    columns = next((columns for columns in seeds.values() if CURRICULUM_RATIO in columns), None)
    if columns is None:
        return None
    ratio = "benign windows per attacked one"
    figure = blank(300, x="epoch", y=ratio)
    keys = [line_key(ratio, FIRST_SHARE_COLOUR)]
    lines = [(CURRICULUM_RATIO, ratio, 1.0, "y")]
    lines += [(name, label, factor, "y2") for name, label, factor in CURRICULUM_SHARES if name in columns]
    keys += [line_key(label, FIRST_SHARE_COLOUR + 1 + place) for place, (_, label, _, _) in enumerate(lines[1:])]
    for place, (name, label, factor, axis) in enumerate(lines):
        figure.add_scatter(
            x=columns["epoch"],
            y=[None if value is None else factor * value for value in columns[name]],
            yaxis=axis,
            mode="lines+markers" if len(columns["epoch"]) < 40 else "lines",
            marker={"size": 4},
            line={"width": 1.6, **series_style(FIRST_SHARE_COLOUR + place)},
            name=label,
            hovertemplate=f"epoch %{{x}}<br>{label} %{{y:.4g}}<extra></extra>",
        )
    figure.update_layout(
        margin={"r": 56},
        yaxis={"rangemode": "tozero"},
        yaxis2={
            "overlaying": "y", "side": "right", "range": [-3, 103], "showgrid": False, "title": axis_title("%"),
        },
    )  # fmt: skip
    figure.update_xaxes(dtick=epoch_step(seeds))
    known = [value for value in columns[CURRICULUM_RATIO] if value is not None]
    text = f"Curriculum of {stage}: from {known[0]:.3g} to {known[-1]:.3g} benign windows per attacked one."
    return Picture(stage, figure, text, text, tuple(keys))


def spreads_of_models(
    models: Mapping[str, Mapping[str, Mapping[str, ScenarioMetrics]]], scenario: str, metric: str = "f1"
) -> dict[str, Spread]:
    """Return the spread over seeds of one metric on one scenario, by model."""
    from kdgat.can.evaluation.metrics import spread

    result = {}
    for model, seeds in models.items():
        values = [getattr(scenarios[scenario], metric) for scenarios in seeds.values() if scenario in scenarios]
        if values:
            result[model] = Spread(**spread(values))
    return result
