"""Alarms: windows close to each other that are one, with when, how sure, which identifiers and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.explanation import MAX_IDENTIFIERS, NETWORK, Explanation, Suspect, explain, guess_kind
from kdgat.can.evaluation.decision import Verdicts
from kdgat.can.models.names import HABITS
from kdgat.canbus.features.suspicion import Known
from kdgat.canbus.profile import Database
from kdgat.graphs import GraphColumns

MERGE_S: Final = 1.0  # alarms that are no further apart are one
MAX_SUSPECTS: Final = 4096  # remembered of an alarm that goes on: an attacker may use any number of identifiers
MAX_EXPLANATIONS: Final = 1000  # from which the kind is guessed


@dataclass(frozen=True)
class Alarm:
    """One alarm: windows that were alarms, in a row or with a short time without one between them."""

    begin_s: float  # on the bus, of the first window's first message
    end_s: float  # of the last window's last message
    log_begin_s: float  # the same on the log's clock, by which they are found there
    log_end_s: float
    first_message: int  # row in the log, from 0
    num_windows: int  # that were alarms
    score: float  # highest of its windows
    by: tuple[str, ...]  # who raised it: network, habits
    suspects: tuple[Suspect, ...]  # the most suspicious first
    guess: str  # the kind of attack, by plain rules

    @property
    def duration_s(self) -> float:
        """Return how long it lasts."""
        return self.end_s - self.begin_s

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data; times are those of the log, the length is that on the bus."""
        return {
            "begin_s": self.log_begin_s,
            "end_s": self.log_end_s,
            "length_s": round(self.duration_s, 6),
            "first_message": self.first_message,
            "windows": self.num_windows,
            "score": round(self.score, 6),
            "by": list(self.by),
            "identifiers": [
                {
                    "id": identifier_text(one.identifier),
                    **({"name": one.name} if one.name else {}),
                    "evidence": round(one.evidence, 3),
                    "reasons": list(one.reasons),
                }
                for one in self.suspects
            ],
            "guess": self.guess,
        }


def identifier_text(identifier: int) -> str:
    """Write an identifier as candump does: three hex digits, or eight for an extended one."""
    return f"{identifier:03X}" if identifier < 2048 else f"{identifier:08X}"


@dataclass
class _OpenAlarm:
    begin_s: float
    end_s: float
    log_begin_s: float
    log_end_s: float
    first_message: int
    num_windows: int = 0
    score: float = 0.0
    by: set[str] = field(default_factory=set)
    suspects: dict[int, Suspect] = field(default_factory=dict)
    explanations: list[Explanation] = field(default_factory=list)

    def add(self, end_s: float, log_end_s: float, score: float, by: set[str], explanation: Explanation) -> None:
        if end_s >= self.end_s:
            self.end_s, self.log_end_s = end_s, log_end_s
        self.num_windows += 1
        self.score = max(self.score, score)
        self.by |= by
        if len(self.explanations) < MAX_EXPLANATIONS:
            self.explanations.append(explanation)
        for one in explanation.suspects:
            before = self.suspects.get(one.identifier)
            if before is None and len(self.suspects) >= MAX_SUSPECTS:
                continue
            reasons = (*before.reasons, *one.reasons) if before else one.reasons
            evidence = max(one.evidence, before.evidence) if before else one.evidence
            known_reasons = tuple(dict.fromkeys(reason for reason in reasons if reason != NETWORK)) or (NETWORK,)
            self.suspects[one.identifier] = Suspect(one.identifier, evidence, known_reasons)

    def close(self, database: Database | None) -> Alarm:
        suspects = sorted(self.suspects.values(), key=lambda one: -one.evidence)[:MAX_IDENTIFIERS]
        if database is not None:
            suspects = [replace(one, name=database.message(one.identifier)) for one in suspects]
        return Alarm(
            self.begin_s, self.end_s, self.log_begin_s, self.log_end_s, self.first_message, self.num_windows,
            self.score, tuple(sorted(self.by)), tuple(suspects), guess_kind(self.explanations),
        )  # fmt: skip


class AlarmMerger:
    """Make alarms of windows as they come."""

    def __init__(
        self,
        merge_s: float = MERGE_S,
        on_begin: Callable[[float], None] | None = None,
        known: Known | None = None,
        database: Database | None = None,
    ) -> None:
        """Merge alarms no further apart than `merge_s`; call `on_begin` with the bus's time of each, as soon as it
        begins; `known` of a profile names fields, a database messages and signals.

        An alarm ends at the first window without one that begins later than that after it.
        """
        self._merge_s = merge_s
        self._on_begin = on_begin
        self._known, self._database = known, database
        self._open: _OpenAlarm | None = None

    def add(self, graphs: GraphColumns, verdicts: Verdicts, log_times: NDArray[np.float64]) -> list[Alarm]:
        """Take the next windows, with their begins and ends on the log's clock [2, G]; return the alarms that ended."""
        ended: list[Alarm] = []
        is_alarm, score = verdicts.is_alarm, verdicts.score
        for window in range(graphs.num_graphs):
            begin_s, end_s = float(graphs["start_time"][window]), float(graphs["end_time"][window])
            if not is_alarm[window]:
                if self._open is not None and begin_s - self._open.end_s > self._merge_s:
                    ended += self.finish()
                continue
            log_begin_s, log_end_s = log_times[:, window].tolist()
            if self._open is None:
                # It ends no sooner than it begins: time stamps may step back a little.
                first_message = int(graphs["first_message"][window])
                self._open = _OpenAlarm(begin_s, begin_s, log_begin_s, log_begin_s, first_message)
                if self._on_begin is not None:
                    self._on_begin(begin_s)
            flags = (("network", verdicts.by_network[window]), (HABITS, verdicts.by_habits[window]))
            by = {name for name, raised in flags if raised}
            explanation = explain(graphs, verdicts, window, self._known, self._database)
            self._open.add(end_s, log_end_s, float(score[window]), by, explanation)
        return ended

    def finish(self) -> list[Alarm]:
        """Return the alarm that has not ended, if there is one."""
        if self._open is None:
            return []
        alarm, self._open = self._open.close(self._database), None
        return [alarm]
