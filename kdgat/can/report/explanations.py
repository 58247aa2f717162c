"""The part of the report that says whether alarms name the attacked identifiers first."""

from __future__ import annotations

from kdgat.can.evaluation.explanation_scores import ExplanationScores
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.tables import format_short
from kdgat.can.models.names import CLOCK
from kdgat.can.report.names import model_name
from kdgat.report.document import Section
from kdgat.run.table import Table

HEADER = (
    "Scenario",
    "Alarms",
    "hit@1",
    "hit@3",
    "random @1",
    "random @3",
    "Clock alarms",
    "Clock hit@1",
    "Clock hit@3",
)


def explanations(results: Results, missing: list[str]) -> Section:
    """Return the table of hit rates with what it means."""
    section = Section("explanations", "Do alarms name the attacked identifiers?")
    known = {name: row.explanations for name, row in results.scenarios.items() if row.explanations is not None}
    if not known:
        missing.append("results.json does not say whether alarms name the attacked identifiers.")
        section.paragraphs.append("Not in results.json.")
        return section
    section.paragraphs.append(
        "Of attacked windows that raise an alarm, hit@1 is the share in which the most suspicious identifier is one"
        " whose messages were injected, or are kept off the bus; hit@3, in which one of the three most suspicious is."
        " Random is what identifiers of the same windows in a random order would hit."
    )
    namers = list(dict.fromkeys(row.named_by for row in known.values()))
    named = (
        "by the arrival clock alone" if namers == [CLOCK] else
        f"by {', '.join(map(model_name, namers))} and, where it is certain, by the arrival clock"
    )  # fmt: skip
    section.paragraphs.append(
        f"Identifiers are ordered {named}. The columns of the clock are its own order, on windows in which it raises"
        " an alarm itself, which are others than those of the columns before them."
    )
    rows = [[name, *_cells(row)] for name, row in known.items()]
    section.tables.append(Table.of(HEADER, rows, "Attacked identifiers among the most suspicious ones."))
    return section


def _cells(row: ExplanationScores) -> list[str]:
    detector, clock = row.detector, row.clock
    shares = (detector.hit_at_1, detector.hit_at_3, detector.random_at_1, detector.random_at_3)
    return [
        f"{detector.num_windows:,} of {row.num_attacked_windows:,}",
        *map(format_short, shares),
        f"{clock.num_windows:,}",
        *map(format_short, (clock.hit_at_1, clock.hit_at_3)),
    ]
