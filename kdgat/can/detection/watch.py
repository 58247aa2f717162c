"""From messages as they come to alarms as they come; a whole log is one that comes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.alarms import MERGE_S, Alarm, AlarmMerger
from kdgat.can.evaluation.decision import Verdicts
from kdgat.canbus import Messages, OnlineWindows
from kdgat.canbus.features.suspicion import Known
from kdgat.canbus.features.suspicion.habits import BELIEVED_AFTER, BELIEVED_S
from kdgat.canbus.findings import judged_text
from kdgat.canbus.profile import Database
from kdgat.graphs import GraphColumns
from kdgat.run import counted

if TYPE_CHECKING:
    from kdgat.can.detection.loading import GraphDetector

MAX_POINTS = 1 << 18  # of a picture: five hours of a busy bus
MAX_PARTS = 4096


@dataclass
class Summary:
    """What was looked at, and what was found."""

    num_messages: int = 0
    num_windows: int = 0
    num_alarm_windows: int = 0
    num_alarms: int = 0
    first_s: float = 0.0  # on the bus
    last_s: float = 0.0
    num_judged: int = 0  # identifiers whose usual interval was known at some time,
    num_frequent: int = 0  # of those that came often and long enough for one

    @property
    def duration_s(self) -> float:
        """Return the time between the first message and the last."""
        return self.last_s - self.first_s

    @property
    def is_by_other_signs(self) -> bool:
        """Return whether there are alarms though no identifier came evenly enough to be judged by its times."""
        return bool(self.num_alarms and self.num_frequent and not self.num_judged)

    def sentence(self) -> str:
        """Say it in words."""
        alarms = counted(self.num_alarms, "alarm") if self.num_alarms else "no alarm"
        unjudged = ""
        if self.is_by_other_signs:
            named, whose = counted(self.num_frequent, "identifier"), "its" if self.num_frequent == 1 else "their"
            signs = f"number, order and payloads of {whose} messages, not by {whose} times"
            unjudged = f"; {named} came unevenly: judged by {signs}"
        elif self.num_judged < self.num_frequent:
            unjudged = f"; by their times {judged_text(self.num_judged, self.num_frequent)}"
        return (
            f"{alarms} in {counted(self.num_messages, 'message')} of {self.duration_s:,.1f} s: "
            f"{self.num_alarm_windows:,} of {counted(self.num_windows, 'window')}{unjudged}"
        )

    def problem(self, has_network: bool = False) -> str:
        """State why nothing was decided, and the fix; empty if a network did, or some identifier could be judged."""
        if not self.num_messages:
            return "no message came, so nothing could be judged"
        if self.num_judged or self.num_alarms or has_network:
            return ""
        if not self.num_frequent:
            return (
                f"no identifier comes more than {BELIEVED_AFTER:.0f} times and for {BELIEVED_S} s in "
                f"{counted(self.num_messages, 'message')} of {self.duration_s:,.1f} s: too few to be judged by their "
                "times; give a longer log, or a --model"
            )
        return (
            f"by their times {judged_text(0, self.num_frequent)}: they come at no usual intervals, or the times are "
            "too coarse or disordered; give a log with the time of each message, or a --model"
        )


@dataclass
class Timeline:
    """The score of every window, for a picture; of a bounded number of them."""

    time_s: list[NDArray[np.float64]] = field(default_factory=list)
    score: list[NDArray[np.float32]] = field(default_factory=list)
    _num_points: int = 0

    def add(self, graphs: GraphColumns, verdicts: Verdicts) -> None:
        """Take the next windows; of too many, the higher of each two is kept."""
        self.time_s.append(np.asarray(graphs["end_time"]))
        self.score.append(verdicts.score.astype(np.float32))
        self._num_points += graphs.num_graphs
        if self._num_points < MAX_POINTS and len(self.score) < MAX_PARTS:
            return
        time_s, score = np.concatenate(self.time_s), np.concatenate(self.score)
        if self._num_points >= MAX_POINTS:
            pairs = slice(0, len(score) // 2 * 2)
            time_s, score = time_s[pairs][::2], score[pairs].reshape(-1, 2).max(axis=1)
        self.time_s, self.score, self._num_points = [time_s], [score], len(score)


class Watch:
    """Decide about a stream of messages; `summary` says how far it is."""

    def __init__(
        self,
        detector: GraphDetector,
        *,
        timeline: Timeline | None = None,
        on_begin: Callable[[float], None] | None = None,
        merge_s: float = MERGE_S,
        known: Known | None = None,
        database: Database | None = None,
    ) -> None:
        """Use a detector, what a profile knows, and names of a database; `on_begin`, `merge_s` as of AlarmMerger."""
        self.summary = Summary()
        self._detector = detector
        self._stream = OnlineWindows(detector.windows, known)
        self._merger = AlarmMerger(merge_s, on_begin, known, database)
        self._timeline = timeline

    def run(self, chunks: Iterable[Messages]) -> Iterator[Alarm]:
        """Yield alarms as they end, the last one at the end of the stream."""
        for chunk in chunks:
            yield from self.feed(chunk)
        yield from self.finish()

    def feed(self, messages: Messages) -> list[Alarm]:
        """Take the next messages; return the alarms that ended."""
        if not len(messages):
            return []
        graphs = self._stream.feed(messages)
        self.summary.num_messages += len(messages)
        self.summary.first_s, self.summary.last_s = self._stream.span_s
        return self._decide(graphs)

    def finish(self) -> list[Alarm]:
        """Return what is left at the end of the stream; a log shorter than a window is one window."""
        alarms = self._decide(self._stream.finish())
        self.summary.num_judged, self.summary.num_frequent = self._stream.count_judged()
        ended = self._merger.finish()
        self.summary.num_alarms += len(ended)
        return [*alarms, *ended]

    def _decide(self, graphs: GraphColumns) -> list[Alarm]:
        if not graphs.num_graphs:
            return []
        verdicts = self._detector.decide(graphs)
        alarms = self._merger.add(graphs, verdicts, self._stream.log_times)
        self.summary.num_windows += graphs.num_graphs
        self.summary.num_alarm_windows += int(np.count_nonzero(verdicts.is_alarm))
        self.summary.num_alarms += len(alarms)
        if self._timeline is not None:
            self._timeline.add(graphs, verdicts)
        return alarms
