"""Why a window is an alarm: which identifiers, for which reasons in words, and a guess of the kind of attack.

Identifiers are ordered by what the network says of each, and by the arrival clock where it alone is certain. Reasons
are what is unusual about an identifier against its own past, read from the features that the network sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.detector import Verdicts
from kdgat.can.evaluation.evidence import evidence_of, flooding
from kdgat.can.evaluation.untrained import CLOCK_BOUNDS
from kdgat.can.windows.feature_names import NODE_FEATURES
from kdgat.graphs.columns import GraphColumns

MAX_IDENTIFIERS: Final = 5  # named for a window
RARE: Final = 6.0  # -log2 of a share of an identifier's past: it was so in one part of 64
LEAST_EVIDENCE: Final = 0.0  # of an identifier that is named, unless none has as much
FUZZED_IDENTIFIERS: Final = 3

TOO_EARLY, OVERDUE, TOO_MANY = "too early", "overdue", "too many"
UNKNOWN, PAYLOAD, OUT_OF_STEP, ORDER = "unknown identifier", "payload", "out of step", "order"
CHECKSUM, COUNTER = "wrong checksum", "broken counter"
NETWORK: Final = "the network's judgement"

_COLUMN: Final = {name: column for column, name in enumerate(NODE_FEATURES)}


@dataclass(frozen=True)
class Suspect:
    """One identifier of an alarm, and what is unusual about it."""

    identifier: int
    evidence: float  # larger is more suspicious; logits of the network
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """Why one window is an alarm."""

    suspects: tuple[Suspect, ...]  # the most suspicious first
    signs: frozenset[str] = field(default=frozenset())  # of the window as a whole: flood


def explain(graphs: GraphColumns, verdicts: Verdicts, window: int) -> Explanation:
    """Name the most suspicious identifiers of a window."""
    nodes = slice(int(graphs.node_ptr[window]), int(graphs.node_ptr[window + 1]))
    x, node_id = graphs.x[nodes], graphs["node_id"][nodes]
    num_messages = graphs["message_count"][window]
    evidence = evidence_of(x, verdicts.node_logit[nodes], num_messages)
    order = np.argsort(-evidence, kind="stable")
    named = order[evidence[order] >= LEAST_EVIDENCE][:MAX_IDENTIFIERS]
    named = named if len(named) else order[:1]
    floods = flooding(x, num_messages)
    suspects = tuple(
        Suspect(int(np.uint32(node_id[node])), float(evidence[node]), reasons_of(x[node], bool(floods[node])))
        for node in named.tolist()
    )
    return Explanation(suspects, frozenset(["flood"] if floods.any() else []))


def node_evidence(graphs: GraphColumns, verdicts: Verdicts) -> NDArray[np.float64]:
    """Return how suspicious each node is, [N]."""
    return evidence_of(graphs.x, verdicts.node_logit, np.repeat(graphs["message_count"], graphs.node_counts))


def reasons_of(x: NDArray[np.float32], floods: bool = False) -> tuple[str, ...]:
    """Say in words what is unusual about a node, from its features [F] and whether it fills the bus."""

    def of(name: str) -> float:
        return float(x[_COLUMN[name]])

    is_unknown = of("novelty_maximum") > 0.5 and of("experience_minimum") < np.log2(9.0) / 16.0
    ranks = ("toggle_rank_maximum", "twin_rank_maximum", "repeat_rank_maximum")
    others = ("odd_mean", "new_toggles_maximum", "length_changed_mean", "missing_toggles_maximum")
    is_odd = max(map(of, ranks)) > RARE or max(map(of, others)) > 0.0
    broken = {CHECKSUM: of("checksum_break_maximum") > 0.0, COUNTER: of("counter_break_maximum") > 0.0}
    found = {
        TOO_EARLY: of("early_maximum") > CLOCK_BOUNDS.early or of("interval_low_rank_maximum") > RARE,
        OVERDUE: of("overdue_maximum") > CLOCK_BOUNDS.overdue or of("interval_high_rank_maximum") > RARE,
        TOO_MANY: floods or of("count_excess") > 1.0,
        UNKNOWN: is_unknown,
        PAYLOAD: not is_unknown and (is_odd or any(broken.values())),
        **broken,
        OUT_OF_STEP: of("phase_run_maximum") > np.log2(1.0 + 3.0) / 8.0,
        ORDER: not is_unknown and of("order_surprise_maximum") > 0.75,
    }
    return tuple(reason for reason, holds in found.items() if holds) or (NETWORK,)


def guess_kind(explanations: Iterable[Explanation]) -> str:
    """Guess the kind of attack behind the windows of one alarm, by plain rules over its reasons."""
    windows = list(explanations)
    signs = [sign for window in windows for sign in window.signs]
    best = [window.suspects[0] for window in windows if window.suspects]
    unknown = {one.identifier for window in windows for one in window.suspects if UNKNOWN in one.reasons}

    def share(*reasons: str) -> float:
        return sum(any(reason in one.reasons for reason in reasons) for one in best) / max(len(best), 1)

    if signs.count("flood") * 2 >= max(len(windows), 1):
        return "flood"
    if len(unknown) >= FUZZED_IDENTIFIERS:
        return "fuzzing: unknown identifiers"
    if unknown and share(UNKNOWN) >= 0.5:
        return "unknown identifier"
    if share(TOO_EARLY, TOO_MANY) >= 0.5:
        return "injected messages"
    if share(OVERDUE) >= 0.5:
        return "suppressed messages"
    if share(PAYLOAD, OUT_OF_STEP) >= 0.5:
        return "masquerade"
    return "unclear"


def hit_rates(
    graphs: GraphColumns, verdicts: Verdicts, places: Sequence[int] = (1, 3), *, alarms_only: bool = True
) -> dict[int, float | None]:
    """Return how often one of the k most suspicious identifiers of an attacked window is an attacked one.

    Over windows with an attacked node (and an alarm, by default); None where there is none.
    """
    evidence, attacked = node_evidence(graphs, verdicts), np.asarray(graphs["node_y"]) == 1
    hits: dict[int, list[bool]] = {place: [] for place in places}
    judged = np.flatnonzero(verdicts.is_alarm) if alarms_only else np.arange(graphs.num_graphs)
    for window in judged.tolist():
        nodes = slice(int(graphs.node_ptr[window]), int(graphs.node_ptr[window + 1]))
        if attacked[nodes].any():
            order = np.argsort(-evidence[nodes], kind="stable")
            for place in places:
                hits[place].append(bool(attacked[nodes][order[:place]].any()))
    return {place: float(np.mean(found)) if found else None for place, found in hits.items()}
