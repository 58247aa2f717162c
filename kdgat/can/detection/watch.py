"""From messages as they come to alarms as they come; a whole log is one that comes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.accumulated import with_accumulated
from kdgat.can.detection.alarms import Alarm, AlarmMerger
from kdgat.can.detection.detector import Detector, Verdicts
from kdgat.can.evaluation.accumulator import Accumulator
from kdgat.can.recordings.messages import Messages
from kdgat.can.windows.online import WindowStream
from kdgat.graphs.columns import GraphColumns

CHUNK_MESSAGES = 50_000  # of a log that is read at once: bounds memory


@dataclass
class Summary:
    """What was looked at, and what was found."""

    num_messages: int = 0
    num_windows: int = 0
    num_alarm_windows: int = 0
    num_alarms: int = 0
    first_s: float | None = None
    last_s: float | None = None

    @property
    def duration_s(self) -> float:
        """Return the time between the first message and the last."""
        return 0.0 if self.first_s is None or self.last_s is None else self.last_s - self.first_s

    def sentence(self) -> str:
        """Say it in words."""
        alarms = (
            "no alarm" if not self.num_alarms else "1 alarm" if self.num_alarms == 1 else f"{self.num_alarms:,} alarms"
        )
        return (
            f"{alarms} in {self.num_messages:,} messages of {self.duration_s:,.1f} s: "
            f"{self.num_alarm_windows:,} of {self.num_windows:,} windows"
        )


@dataclass
class Timeline:
    """The score of every window, for a picture."""

    time_s: list[NDArray[np.float64]] = field(default_factory=list)
    logit: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, graphs: GraphColumns, verdicts: Verdicts) -> None:
        """Take the next windows."""
        self.time_s.append(np.asarray(graphs["end_time"]))
        self.logit.append(verdicts.logit.astype(np.float32))


class Watch:
    """Decide about a stream of messages; `summary` says how far it is."""

    def __init__(
        self,
        detector: Detector,
        *,
        timeline: Timeline | None = None,
        on_begin: Callable[[float], None] | None = None,
    ) -> None:
        """Use a detector; `on_begin` is called with the time at which an alarm has begun, before it ends."""
        self.summary = Summary()
        self._detector = detector
        self._stream = WindowStream(detector.windows)
        self._merger = AlarmMerger()
        self._accumulator = None if detector.accumulation is None else Accumulator(detector.accumulation)
        self._timeline = timeline
        self._on_begin = on_begin

    def run(self, chunks: Iterable[Messages]) -> Iterator[Alarm]:
        """Yield alarms as they end, the last one at the end of the stream."""
        for chunk in chunks:
            yield from self.feed(chunk)
        yield from self.finish()

    def feed(self, messages: Messages) -> list[Alarm]:
        """Take the next messages; return the alarms that ended."""
        if not len(messages):
            return []
        times = messages.timestamp
        summary = self.summary
        summary.num_messages += len(messages)
        summary.first_s = float(times[0]) if summary.first_s is None else summary.first_s
        summary.last_s = max(float(times.max()), summary.last_s or float(times[0]))
        return self._decide(self._stream.feed(messages))

    def finish(self) -> list[Alarm]:
        """Return what is left at the end of the stream; a log shorter than a window is one window."""
        alarms = self._decide(self._stream.finish())
        ended = self._merger.finish()
        self.summary.num_alarms += len(ended)
        return [*alarms, *ended]

    def _decide(self, graphs: GraphColumns) -> list[Alarm]:
        if not graphs.num_graphs:
            return []
        verdicts = self._detector.decide(graphs)
        if self._accumulator is not None:
            verdicts = with_accumulated(verdicts, graphs, self._accumulator)
        was_open = self._merger.is_open
        alarms = self._merger.add(graphs, verdicts)
        self.summary.num_windows += graphs.num_graphs
        self.summary.num_alarm_windows += int(np.count_nonzero(verdicts.is_alarm))
        self.summary.num_alarms += len(alarms)
        if self._timeline is not None:
            self._timeline.add(graphs, verdicts)
        if self._on_begin is not None and self._merger.is_open and not was_open:
            self._on_begin(float(graphs["end_time"][-1]))
        return alarms


def in_chunks(messages: Messages, size: int = CHUNK_MESSAGES) -> Iterator[Messages]:
    """Yield a recording in pieces."""
    for start in range(0, len(messages), size):
        yield messages.select(slice(start, start + size))
