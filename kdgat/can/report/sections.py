"""Sections of the report that stand apart from its scenarios: whether alarms name identifiers, the map of windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.evaluation.embeddings import EMBEDDINGS_FILE, EmbeddingMap, read_map
from kdgat.can.evaluation.results import ExplanationScores, HitRates, Results
from kdgat.can.evaluation.tables import format_short
from kdgat.can.models.names import HABITS
from kdgat.can.report.names import model_name
from kdgat.canbus.features import ATTACK_KINDS
from kdgat.report import BLACK, BLUE, GREY, ORANGE, PURPLE, VERMILLION, Key, Picture, Section, blank
from kdgat.report.style import GREEN, SKY
from kdgat.run import Table

EXPLANATION_COLUMNS: Final = (
    "Scenario",
    "Alarms",
    "hit@1",
    "hit@3",
    "random @1",
    "random @3",
    "Habits: alarms",
    "Habits: hit@1",
    "Habits: hit@3",
)
COLOURS: Final = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
# A form of its own for each colour, and one more round in other forms: nobody has to tell colours apart.
SYMBOLS: Final = (
    ("circle", "●"), ("square", "■"), ("diamond", "◆"), ("triangle-up", "▲"), ("triangle-down", "▼"), ("star", "★"),
    ("hexagon", "⬢"), ("circle-open", "○"), ("square-open", "□"), ("diamond-open", "◇"), ("triangle-up-open", "△"),
    ("triangle-down-open", "▽"), ("star-open", "☆"),
)  # fmt: skip
NO_ATTACK, OTHERS, VIRTUAL = "no attack", "others", "virtual vehicles"
BACKGROUND: Final = {NO_ATTACK: "circle", OTHERS: "x-thin", VIRTUAL: "circle"}  # in grey, behind the rest


def explanations(results: Results, missing: list[str]) -> Section:
    """Return the table of hit rates with what it means."""
    section = Section("explanations", "Are attacked IDs named?")
    known = {name: row.explanations for name, row in results.scenarios.items() if row.explanations is not None}
    if not known:
        missing.append("results.json does not say whether alarms name the attacked identifiers.")
        section.paragraphs.append("Not in results.json.")
        return section
    section.paragraphs.append(
        "Of attacked windows that raise an alarm, hit@1 is the share in which the most suspicious identifier is one"
        " whose messages were injected, or are kept off the bus; hit@3, in which one of the three most suspicious is."
        " Random is what identifiers of the same windows in a random order would hit. Attacked windows without an"
        " attacked identifier in them are left out, as where one that is kept off the bus is not missed yet."
    )
    namers = list(dict.fromkeys(row.named_by for row in known.values()))
    named = (
        "by their habits alone" if namers == [HABITS] else
        f"by {', '.join(map(model_name, namers))}, behind the one that the habits of identifiers speak against"
    )  # fmt: skip
    section.paragraphs.append(
        f"Identifiers are ordered {named}. The columns of the habits are their own order, on windows that are alarms by"
        " them, which are others than those of the columns before them."
    )
    rows = [[name, *_cells(row)] for name, row in known.items()]
    section.tables.append(Table.of(EXPLANATION_COLUMNS, rows, "Attacked identifiers among the most suspicious ones."))
    return section


def _cells(row: ExplanationScores) -> list[str]:
    detector, habits = row.detector, row.habits or HitRates(num_windows=0)
    shares = (detector.hit_at_1, detector.hit_at_3, detector.random_at_1, detector.random_at_3)
    return [
        f"{detector.num_windows:,} of {row.num_attacked_windows:,}",
        *map(format_short, shares),
        f"{habits.num_windows:,}",
        *map(format_short, (habits.hit_at_1, habits.hit_at_3)),
    ]


def embeddings(output: Path, vehicle_of: Callable[[str], str | None], missing: list[str]) -> Section:
    """Return the map by car and by kind of attack, and add to `missing` what is not there.

    `vehicle_of` names the car of a recording, None where its name does not tell.
    """
    section = Section("embeddings", "Map of windows")
    path = output / EMBEDDINGS_FILE
    if not path.is_file():
        missing.append(f"{EMBEDDINGS_FILE}: no map of windows by car and kind of attack.")
        section.paragraphs.append("There is no such file.")
        return section
    found = read_map(path)
    section.paragraphs.append(
        f"{len(found.kind):,} validation and test windows, about as many of each recording and kind of attack as there"
        f" are, as the model {model_name(found.model)} sees them: the embedding that it decides by, projected on the"
        " two directions in which the sample differs most (principal components, fitted without labels). Windows that"
        " lie together look alike to the network: attacks that lie among windows without one are hard to find, and cars"
        " that lie apart are told apart. Both pictures show the same points."
    )
    kinds = [NO_ATTACK if kind == 0 else ATTACK_KINDS[kind] for kind in found.kind.tolist()]
    # Under a heading each: neighbouring pictures would share one legend.
    section.pictures["By car"] = [_scatter("Cars", found, cars(found, vehicle_of))]
    section.pictures["By kind of attack"] = [_scatter("Kinds of attack", found, kinds)]
    return section


def cars(found: EmbeddingMap, vehicle_of: Callable[[str], str | None]) -> list[str]:
    """Name the car of each window [M]; where its recording's name tells none, the recording."""
    named = {name: vehicle_of(name) or name.rpartition("/")[2] for name in np.unique(found.recording).tolist()}
    recordings = zip(found.recording.tolist(), found.is_virtual.tolist(), strict=True)
    return [VIRTUAL if is_virtual else named[name] for name, is_virtual in recordings]


def _scatter(title: str, found: EmbeddingMap, labels: Sequence[str]) -> Picture:
    counts = Counter(labels)
    groups = [name for name, _ in counts.most_common() if name not in BACKGROUND]
    shown = groups if len(groups) <= len(SYMBOLS) else groups[: len(SYMBOLS) - 1]
    names = np.array([name if name in shown or name in BACKGROUND else OTHERS for name in labels])
    first, second = (f"{share:.0%}" for share in found.share.tolist())
    figure = blank(
        460, x=f"first principal component ({first} of variance)", y=f"second principal component ({second})"
    )
    keys = []
    for name in [*(name for name in BACKGROUND if name in names), *sorted(shown)]:
        rows: NDArray[np.bool_] = names == name
        colour, symbol, character = _look(name, sorted(shown))
        is_background, label = name in BACKGROUND, f"{name} ({int(rows.sum()):,})"
        figure.add_scatter(
            x=found.point[rows, 0],
            y=found.point[rows, 1],
            mode="markers",
            marker={
                "size": 5 if is_background else 7,
                "color": colour,
                "symbol": symbol,
                "opacity": 0.45 if is_background else 0.8,
                "line": {"width": 1, "color": colour},
            },
            name=name,
            legendgroup=label,
            hovertemplate=f"{name}<extra></extra>",
        )
        keys.append(Key(label, colour, symbol=character))
    text = f"Together the axes hold {float(found.share.sum()):.0%} of the variance of the embeddings."
    listed = ", ".join(key.label for key in keys)
    alternative = f"Scatter plot of {len(labels):,} windows, {title.lower()}: {listed}. {text}"
    return Picture(title, figure, text, alternative, tuple(keys), is_wide=True)


def _look(name: str, shown: Sequence[str]) -> tuple[str, str, str]:
    """Return colour and symbol of a group, and the character that stands for it in the legend."""
    if name in BACKGROUND:
        return GREY, BACKGROUND[name], "✕" if name == OTHERS else "●"
    place = shown.index(name)
    symbol, character = SYMBOLS[place % len(SYMBOLS)]
    return COLOURS[place % len(COLOURS)], symbol, character
