"""Evidence that adds up over windows, in what is decided and said of each of them."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from kdgat.can.detection.detector import Verdicts
from kdgat.can.detection.explanation import LEAST_EVIDENCE, NETWORK, Explanation, Suspect, reasons_of
from kdgat.can.evaluation.accumulator import Accumulator
from kdgat.graphs import GraphColumns

ADDS_UP: Final = "adds up"  # the reason of an identifier that is a little suspicious again and again
ACCUMULATION: Final = "accumulation"  # who raised an alarm


class Since(NamedTuple):
    """How long evidence has added up when it is an alarm."""

    begin_s: float  # on the bus
    num_windows: int  # that were evidence since, of the identifier with most of them


def with_accumulated(verdicts: Verdicts, graphs: GraphColumns, accumulator: Accumulator) -> Verdicts:
    """Return the verdicts on the next windows with what has added up by the end of each."""
    found = accumulator.add(
        np.asarray(graphs["start_time"]),
        np.asarray(graphs["end_time"]),
        graphs.node_ptr,
        graphs["node_id"],
        verdicts.node_logit,
    )
    score = np.where(found.is_alarm, np.maximum(verdicts.score, 0.5), verdicts.score)
    return verdicts._replace(accumulated=found, score=score)


def since_of(verdicts: Verdicts, window: int) -> Since | None:
    """Return since when the evidence of a window's identifiers has added up; None where it is no alarm."""
    found = verdicts.accumulated
    if found is None or not found.is_alarm[window]:
        return None
    named = found.identifier[window] >= 0
    return Since(float(found.since_s[window][named].min()), int(found.num_windows[window][named].max()))


def explain_accumulated(explanation: Explanation, graphs: GraphColumns, verdicts: Verdicts, window: int) -> Explanation:
    """Name the identifiers whose evidence adds up: beside those of the window itself, or alone if it is no alarm."""
    found = verdicts.accumulated
    if found is None or not found.is_alarm[window]:
        return explanation
    is_alarm_itself = bool(verdicts.by_network[window] or verdicts.by_habits[window])
    suspects = {one.identifier: one for one in explanation.suspects} if is_alarm_itself else {}
    first = int(graphs.node_ptr[window])
    node_id = graphs["node_id"][first : int(graphs.node_ptr[window + 1])].view(np.uint32)
    for identifier in found.identifier[window][found.identifier[window] >= 0].tolist():
        evidence, reasons = LEAST_EVIDENCE, tuple[str, ...]()
        places = np.flatnonzero(node_id == identifier)
        if len(places):
            node = first + int(places[0])
            evidence = max(evidence, float(verdicts.node_logit[node]))
            reasons = reasons_of(graphs.x[node])
        known = suspects.get(identifier)
        if known is not None:
            evidence, reasons = max(evidence, known.evidence), (*known.reasons, *reasons)
        named = [reason for reason in dict.fromkeys(reasons) if reason != NETWORK]
        suspects[identifier] = Suspect(identifier, evidence, (*named, ADDS_UP))
    ordered = sorted(suspects.values(), key=lambda one: -one.evidence)
    return Explanation(tuple(ordered), explanation.signs)
