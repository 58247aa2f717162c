"""The figure of a curriculum: what it moves over the epochs."""

from __future__ import annotations

from kdgat.report.style import Picture, axis_title, blank, line_key, series_style
from kdgat.report.training import FIRST_SHARE_COLOUR, Seeds, epoch_step

CURRICULUM_PREFIX = "curriculum_"
CURRICULUM_RATIO = "curriculum_ratio"
# What the curriculum's right axis shows: column, label, factor to percent.
CURRICULUM_SHARES = (
    ("curriculum_percentile", "percentile of the autoencoder's score from which benign windows are hard", 1.0),
    ("curriculum_hard_fraction", "hard windows among the benign ones", 100.0),
    ("curriculum_competence", "attacked windows, easiest first, that are drawn from", 100.0),
)


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
            legendgroup=label,
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
