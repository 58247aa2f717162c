"""Figures of training: losses, the curriculum and whatever else a stage logs per epoch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kdgat.report.content import StageContent
from kdgat.report.document import Section
from kdgat.report.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    SERIES_COLOURS,
    VERMILLION,
    Key,
    Picture,
    blank,
    line_key,
    series_style,
)
from kdgat.run import StageRecord
from kdgat.run.finished import Curve

FIRST_SHARE_COLOUR = 3  # after those of the two losses beside it
LOGARITHMIC_FROM = 8  # a smaller ratio of largest to smallest loss needs no logarithm
VALIDATION = ("validation_loss", "val_loss")  # as this package and as many others call it
MOST_OPEN = 4  # stages whose curves are seen at once
SHARE = re.compile(
    r"(f1|auc|auroc|auprc|acc|iou|mrr|precision|recall|accuracy|rate|ratio|fraction|share|percentile|epsilon)$"
)
Seeds = Mapping[int, Curve]  # seed -> curve


def curves_by_stage(
    stages: Iterable[StageContent], name_of: Callable[[StageRecord, str], str]
) -> dict[str, dict[int, Curve]]:
    """Group the curves that hold a loss as name -> seed -> columns; `name_of` names the curve of a stage and a fit."""
    found: dict[str, dict[int, Curve]] = {}
    for stage in stages:
        for fit, curve in stage.curves.items():
            if any(name.endswith("loss") for name in curve):
                found.setdefault(name_of(stage.record, fit), {})[stage.record.seed] = curve
    return found


def training_section(
    by_stage: Mapping[str, Seeds], paragraph: str, *more: Callable[[str, Seeds], Picture | None]
) -> Section:
    """Return the section that draws losses and shares of every stage, and what else the family draws of one."""
    section = Section("training", "Training", [paragraph], is_open=len(by_stage) <= MOST_OPEN)
    for name, seeds in by_stage.items():
        pictures = [losses(name, seeds), *(draw(name, seeds) for draw in more or (logged_shares,))]
        section.pictures[name] = [picture for picture in pictures if picture is not None]
    return section


def losses(stage: str, seeds: Seeds) -> Picture:
    """Draw every column that ends in `loss` over epochs, one line per seed."""
    figure = blank(300, x="epoch", y="loss")
    preferred = {"train_loss": BLUE, **dict.fromkeys(VALIDATION, VERMILLION)}
    logged = dict.fromkeys(name for columns in seeds.values() for name in columns if name.endswith("loss"))
    names = sorted(logged, key=lambda name: name not in preferred)  # the totals first, then the parts as logged
    spare = iter([GREEN, ORANGE, *SERIES_COLOURS[4:]] * len(names))
    colours = {name: preferred.get(name) or next(spare) for name in names}
    ends: list[str] = []
    for seed, columns in seeds.items():
        for name in names:
            if name not in columns:
                continue
            figure.add_scatter(
                x=columns["epoch"],
                y=[value if value is not None and value > 0 else None for value in columns[name]],
                mode="lines+markers" if len(columns["epoch"]) < 40 else "lines",
                marker={"size": 4},
                line={"color": colours[name], "width": 1.6},
                name=name.replace("_", " "),
                hovertemplate=f"seed {seed}, epoch %{{x}}<br>{name.replace('_', ' ')} %{{y:.4g}}<extra></extra>",
            )
        best = [row for row, is_best in enumerate(columns.get("is_best", [])) if is_best]
        of_validation = next((columns[name] for name in VALIDATION if name in columns), None)
        value = of_validation[best[-1]] if best and of_validation is not None else None
        if value is not None:
            epoch = columns["epoch"][best[-1]]
            figure.add_scatter(
                x=[epoch],
                y=[value],
                mode="markers",
                marker={"symbol": "star", "size": 11, "color": BLACK},
                name="kept weights",
                hovertemplate=f"seed {seed}: the weights of epoch %{{x}} are kept<extra></extra>",
            )
            ends.append(f"seed {seed} keeps epoch {epoch:.0f} with validation loss {value:.4g}")
    drawn = [
        value for name in names if name in preferred for columns in seeds.values() for value in columns.get(name, ())
    ]
    positive = [value for value in drawn if value is not None and value > 0]
    if positive and max(positive) > LOGARITHMIC_FROM * min(positive):
        figure.update_yaxes(type="log", **decade_ticks(positive))
    figure.update_xaxes(dtick=epoch_step(seeds))
    # Parts of the loss are one click away: all at once would hide the two that matter.
    has_totals = bool(set(preferred) & set(names))
    keys = [
        Key(name.replace("_", " "), colours[name], is_hidden=has_totals and name not in preferred) for name in names
    ]
    keys += [Key("kept weights", BLACK, symbol="★")] if ends else []
    text = f"Losses of {stage} over epochs, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}."
    return Picture(stage, figure, text, f"{text} {'; '.join(ends)}", tuple(keys))


def epoch_step(seeds: Seeds) -> int:
    """Return the distance of ticks, in whole epochs."""
    longest = max(len(columns.get("epoch", ())) for columns in seeds.values())
    return max(1, 5 * math.ceil(longest / 50) if longest > 12 else math.ceil(longest / 6))


def decade_ticks(values: Sequence[float]) -> dict[str, list[Any]]:
    """Return ticks at 1, 2 and 5 of every decade (at whole decades, if there are many) around positive values."""
    if not values:
        return {}
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def logged_shares(stage: str, seeds: Seeds, left_out: Sequence[str] = ()) -> Picture | None:
    """Draw the logged shares that lie in 0 to 1 (validation F1, exploration, ...); None without any.

    Columns whose names begin with one of `left_out` are drawn elsewhere.
    """
    columns_by_name: dict[str, list[float]] = {}
    for columns in seeds.values():
        for name, values in columns.items():
            if SHARE.search(name) and name != "learning_rate" and not name.startswith(tuple(left_out)):
                columns_by_name.setdefault(name, []).extend(value for value in values if value is not None)
    names = [name for name, values in columns_by_name.items() if values and 0 <= min(values) <= max(values) <= 1]
    if not names:
        return None
    figure = blank(300, x="epoch", y="value")
    for index, name in enumerate(names):
        for seed, columns in seeds.items():
            if name not in columns:
                continue
            figure.add_scatter(
                x=columns["epoch"],
                y=columns[name],
                mode="lines+markers" if len(columns["epoch"]) < 40 else "lines",
                marker={"size": 4},
                line={"width": 1.6, **series_style(index + FIRST_SHARE_COLOUR)},
                name=name.replace("_", " "),
                hovertemplate=f"seed {seed}, epoch %{{x}}<br>{name.replace('_', ' ')} %{{y:.4f}}<extra></extra>",
            )
    figure.update_yaxes(range=[-0.03, 1.03])
    figure.update_xaxes(dtick=epoch_step(seeds))
    text = f"Other values logged by {stage}: {', '.join(name.replace('_', ' ') for name in names)}."
    keys = tuple(line_key(name.replace("_", " "), index + FIRST_SHARE_COLOUR) for index, name in enumerate(names))
    return Picture(stage, figure, text, text, keys)
