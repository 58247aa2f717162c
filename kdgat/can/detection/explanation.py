"""Why a window is an alarm: which identifiers, for which reasons in words, and a guess of the kind of attack.

Identifiers are ordered by what the network says of each, and by the arrival clock where it alone is certain. Reasons
are what is unusual about an identifier against its own past, read from the features that the network sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.detector import Verdicts
from kdgat.can.evaluation.evidence import ROUNDING, clock_margins, evidence_of, flooding
from kdgat.can.evaluation.untrained import CLOCK_BOUNDS, ClockBounds
from kdgat.canbus.features import NODE_FEATURES, suspicion
from kdgat.graphs import GraphColumns

MAX_IDENTIFIERS: Final = 5  # named for a window
RARE: Final = 6.0  # -log2 of a share of an identifier's past: it was so in one part of 64
LEAST_EVIDENCE: Final = 0.0  # of an identifier that is named, unless none has as much
FUZZED_IDENTIFIERS: Final = 3

TOO_EARLY, OVERDUE, TOO_MANY = "too early", "overdue", "too many"
VALUE, STANDS_STILL = "value far off for one message", "counter stands still"
UNKNOWN, PAYLOAD, OUT_OF_STEP, ORDER = "unknown identifier", "payload", "out of step", "order"
CHECKSUM, COUNTER = "wrong checksum", "broken counter"
NETWORK: Final = "the network's judgement"
OF_HABITS_EVIDENCE: Final = 10.0  # against whom the habits of identifiers speak
OF_HABITS: Final = {
    suspicion.TOO_MANY: TOO_MANY,
    suspicion.EXTRA: TOO_EARLY,
    suspicion.PAYLOAD: PAYLOAD,
    suspicion.FAST: TOO_MANY,
    suspicion.STRANGERS: UNKNOWN,
    suspicion.SILENT: OVERDUE,
    suspicion.NEW: UNKNOWN,
    suspicion.JUMP: VALUE,
    suspicion.MANY_BITS: PAYLOAD,
    suspicion.STILL: STANDS_STILL,
}

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
    evidence = evidence_of(x, verdicts.node_logit[nodes], num_messages, verdicts.clock)
    order = np.argsort(-evidence, kind="stable")
    named = order[evidence[order] >= LEAST_EVIDENCE][:MAX_IDENTIFIERS]
    named = named if len(named) or verdicts.suspicions is not None else order[:1]
    floods = flooding(x, num_messages)

    def reasons(node: int) -> tuple[str, ...]:
        return reasons_of(x[node], verdicts.clock, bool(floods[node]))

    identifiers = node_id.astype(np.uint32)
    suspects = [Suspect(int(identifiers[node]), float(evidence[node]), reasons(node)) for node in named.tolist()]
    found = verdicts.suspicions
    if found is not None and found.reason[window] != suspicion.NOTHING:
        accused, reason = int(found.suspect[window]), OF_HABITS[int(found.reason[window])]
        shown = (other for node in np.flatnonzero(identifiers == accused).tolist() for other in reasons(node))
        known = dict.fromkeys((reason, *(other for other in shown if other != NETWORK)))
        others = (one for one in suspects if one.identifier != accused)
        suspects = [Suspect(accused, OF_HABITS_EVIDENCE, tuple(known)), *others]
    return Explanation(tuple(suspects[:MAX_IDENTIFIERS]), frozenset(["flood"] if floods.any() else []))


def reasons_of(x: NDArray[np.float32], bounds: ClockBounds | None, floods: bool = False) -> tuple[str, ...]:
    """Say in words what is unusual about a node, from its features [F], the clock's bounds, and whether it floods."""
    bounds = bounds or CLOCK_BOUNDS
    early, overdue = (float(margin[0]) for margin in clock_margins(x[None]))

    def of(name: str) -> float:
        return float(x[_COLUMN[name]])

    is_unknown = of("novelty_maximum") > 0.5 and of("experience_minimum") < np.log2(9.0) / 16.0
    ranks = ("toggle_rank_maximum", "twin_rank_maximum", "repeat_rank_maximum")
    others = ("odd_mean", "new_toggles_maximum", "length_changed_mean", "missing_toggles_maximum")
    is_odd = max(map(of, ranks)) > RARE or max(map(of, others)) > 0.0
    broken = {CHECKSUM: of("checksum_break_maximum") > 0.0, COUNTER: of("counter_break_maximum") > 0.0}
    found = {
        TOO_EARLY: early >= bounds.early * (1.0 - ROUNDING) or of("interval_low_rank_maximum") > RARE,
        OVERDUE: overdue >= bounds.overdue * (1.0 - ROUNDING) or of("interval_high_rank_maximum") > RARE,
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
    if share(PAYLOAD, VALUE, STANDS_STILL, OUT_OF_STEP) >= 0.5:
        return "masquerade"
    return "unclear"
