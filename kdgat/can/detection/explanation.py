"""Why a window is an alarm: which identifiers, for which reasons in words, and a guess of the kind of attack.

Identifiers are ordered by what the network says of each, first of all the one that the habits of identifiers speak
against. Reasons are theirs, and what is unusual about an identifier against its own past, read from the features that
the network sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.evaluation.decision import Verdicts
from kdgat.can.evaluation.explanation import EVIDENCE_OF_HABITS, evidence_of, flooding
from kdgat.canbus.features import NODE_FEATURES
from kdgat.canbus.features.suspicion import Known, Reason, kind_of_reason
from kdgat.canbus.profile import Database
from kdgat.graphs import GraphColumns

MAX_IDENTIFIERS: Final = 5  # named for a window
EARLY, LATE = 0.6, 1.0  # log2 of what an identifier's own intervals explain: from there on that is a reason
RARE: Final = 6.0  # -log2 of a share of an identifier's past: it was so in one part of 64
LEAST_EVIDENCE: Final = 0.0  # of an identifier that is named, unless none has as much
FUZZED_IDENTIFIERS: Final = 3

TOO_EARLY, OVERDUE, TOO_MANY = "too early", "overdue", "too many"
VALUE, STANDS_STILL = "value far off for one message", "counter stands still"
UNKNOWN, PAYLOAD, OUT_OF_STEP, ORDER = "unknown identifier", "payload", "out of step", "order"
CHECKSUM, COUNTER = "wrong checksum", "broken counter"
NETWORK: Final = "the network's judgement"
OF_HABITS: Final[dict[int, str]] = {
    Reason.TOO_MANY: TOO_MANY,
    Reason.EXTRA: TOO_EARLY,
    Reason.PAYLOAD: PAYLOAD,
    Reason.FAST: TOO_MANY,
    Reason.STRANGERS: UNKNOWN,
    Reason.SILENT: OVERDUE,
    Reason.NEW: UNKNOWN,
    Reason.JUMP: VALUE,
    Reason.MANY_BITS: PAYLOAD,
    Reason.STILL: STANDS_STILL,
    Reason.BREAK: COUNTER,
    Reason.CHECKSUM: CHECKSUM,
}

_COLUMN: Final = {name: column for column, name in enumerate(NODE_FEATURES)}


@dataclass(frozen=True)
class Suspect:
    """One identifier of an alarm, and what is unusual about it."""

    identifier: int
    evidence: float  # larger is more suspicious; logits of the network
    reasons: tuple[str, ...]
    name: str = ""  # of the message, by a database


@dataclass(frozen=True)
class Explanation:
    """Why one window is an alarm."""

    suspects: tuple[Suspect, ...]  # the most suspicious first
    signs: frozenset[str] = field(default=frozenset())  # of the window as a whole: flood


def explain(
    graphs: GraphColumns,
    verdicts: Verdicts,
    window: int,
    known: Known | None = None,
    database: Database | None = None,
) -> Explanation:
    """Name the most suspicious identifiers of a window, and the field that a profile knows, if it is about one."""
    nodes = slice(int(graphs.node_ptr[window]), int(graphs.node_ptr[window + 1]))
    x, node_id = graphs.x[nodes], graphs["node_id"][nodes]
    num_messages = graphs["message_count"][window]
    accused = int(graphs["suspect"][window]) if verdicts.by_habits[window] else -1
    by_habits = _of_habits(int(graphs["suspicion"][window]), accused, known, database) if accused >= 0 else ()
    evidence = evidence_of(x, verdicts.node_logit[nodes], num_messages, node_id == accused)
    order = np.argsort(-evidence, kind="stable")
    named = order[evidence[order] >= LEAST_EVIDENCE][:MAX_IDENTIFIERS]
    named = order[:1] if verdicts.by_network[window] and not len(named) else named
    floods = flooding(x, num_messages)
    is_absent = accused >= 0 and accused not in node_id
    suspects = [Suspect(accused, EVIDENCE_OF_HABITS, by_habits)] if is_absent else []
    for node in named.tolist():
        reasons = reasons_of(x[node], bool(floods[node]), by_habits if node_id[node] == accused else ())
        suspects.append(Suspect(int(node_id[node]), float(evidence[node]), reasons))
    return Explanation(tuple(suspects[:MAX_IDENTIFIERS]), frozenset(["flood"] if floods.any() else []))


def _of_habits(reason: int, accused: int, known: Known | None, database: Database | None) -> tuple[str, ...]:
    place, bits = ("", frozenset[int]()) if known is None else known.field_of(accused, reason)
    signals = () if database is None else database.signals_in(accused, bits)
    return (OF_HABITS[kind_of_reason(reason)], *(signals or ((place,) if place else ())))


def reasons_of(x: NDArray[np.float32], floods: bool = False, by_habits: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Say in words what is unusual about a node, from its features [F], whether it floods, and what its habits say."""

    def of(name: str) -> float:
        return float(x[_COLUMN[name]])

    is_unknown = of("novelty_maximum") > 0.5 and of("experience_minimum") < np.log2(9.0) / 16.0
    ranks = ("toggle_rank_maximum", "twin_rank_maximum", "repeat_rank_maximum")
    others = ("odd_mean", "new_toggles_maximum", "length_changed_mean", "missing_toggles_maximum")
    is_odd = max(map(of, ranks)) > RARE or max(map(of, others)) > 0.0
    broken = {CHECKSUM: of("checksum_break_maximum") > 0.0, COUNTER: of("counter_break_maximum") > 0.0}
    found = {
        TOO_EARLY: of("early_maximum") >= EARLY or of("interval_low_rank_maximum") > RARE,
        OVERDUE: of("overdue_maximum") >= LATE or of("interval_high_rank_maximum") > RARE,
        TOO_MANY: floods or of("count_excess") > 1.0,
        UNKNOWN: is_unknown,
        PAYLOAD: not is_unknown and (is_odd or any(broken.values())),
        **broken,
        OUT_OF_STEP: of("phase_run_maximum") > np.log2(1.0 + 3.0) / 8.0,
        ORDER: not is_unknown and of("order_surprise_maximum") > 0.75,
    }
    shown = (reason for reason, holds in found.items() if holds)
    return tuple(dict.fromkeys((*by_habits, *shown))) or (NETWORK,)


def guess_kind(explanations: Iterable[Explanation]) -> str:
    """Guess the kind of attack behind the windows of one alarm, by plain rules over its reasons."""
    windows = list(explanations)
    signs = [sign for window in windows for sign in window.signs]
    best = [window.suspects[0] for window in windows if window.suspects]
    unknown = {one.identifier for window in windows for one in window.suspects if UNKNOWN in one.reasons}

    def share(*reasons: str) -> float:
        return sum(any(reason in one.reasons for reason in reasons) for one in best) / max(len(best), 1)

    is_suppressed = share(OVERDUE) >= 0.5 and share(TOO_EARLY, TOO_MANY) < 0.5  # who is left has more of the bus
    if signs.count("flood") * 2 >= max(len(windows), 1) and not is_suppressed:
        return "flood"
    if len(unknown) >= FUZZED_IDENTIFIERS:
        return "fuzzing: unknown identifiers"
    if unknown and share(UNKNOWN) >= 0.5:
        return "unknown identifier"
    if share(TOO_EARLY, TOO_MANY) >= 0.5:
        return "injected messages"
    if share(OVERDUE) >= 0.5:
        return "suppressed messages"
    if share(PAYLOAD, VALUE, STANDS_STILL, OUT_OF_STEP, CHECKSUM, COUNTER) >= 0.5:
        return "masquerade"
    return "unclear"
