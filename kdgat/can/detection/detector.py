"""A detector as it stands: networks with their calibration, a threshold, and the arrival clock beside them.

A window is an alarm if the mean of the networks' calibrated logits reaches the threshold, or if the clock says so: a
message came too early, or an identifier is overdue. In the clock's place the habits of identifiers may be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.can.evaluation.accumulation import Accumulation
from kdgat.can.evaluation.accumulator import Accumulated
from kdgat.can.evaluation.untrained import CLOCK_BOUNDS, ClockBounds, clock_scores
from kdgat.can.models.runtime import Network
from kdgat.can.models.scaling import CALIBRATED_LIMIT, Scaling, sigmoid
from kdgat.canbus import WindowConfig
from kdgat.canbus.features.suspicion import WindowSuspicions
from kdgat.graphs import GraphColumns

CERTAIN: Final = 0.9  # the score of a window that the habits of identifiers call an alarm, at least


class Verdicts(NamedTuple):
    """What a detector says of G windows with N nodes."""

    logit: NDArray[np.float64]  # [G] calibrated
    score: NDArray[np.float64]  # [G] the network's probability; of an alarm of the clock, at least one half
    node_logit: NDArray[np.float64]  # [N]
    by_network: NDArray[np.bool_]  # [G] alarms
    by_clock: NDArray[np.bool_]  # [G]
    accumulated: Accumulated | None = None  # evidence of earlier windows, too; only where they come in order
    clock: ClockBounds | None = CLOCK_BOUNDS  # by which `by_clock` was decided
    suspicions: WindowSuspicions | None = None  # of [G], where the habits of identifiers were asked

    @property
    def is_alarm(self) -> NDArray[np.bool_]:
        """Return which windows [G] are alarms."""
        by_window = self.by_network | self.by_clock
        if self.suspicions is not None:
            by_window = by_window | self.suspicions.is_alarm
        return by_window if self.accumulated is None else by_window | self.accumulated.is_alarm


@dataclass(frozen=True)
class Member:
    """One network of a detector."""

    network: Network
    scaling: Scaling


@dataclass(frozen=True)
class Detector:
    """Decide about windows."""

    name: str
    windows: WindowConfig
    members: tuple[Member, ...]
    threshold: float = 0.0  # calibrated logit
    clock: ClockBounds | None = CLOCK_BOUNDS  # None: the networks decide alone
    accumulation: Accumulation | None = None
    by_habits: bool = False  # of identifiers, in the clock's place

    def decide(self, graphs: GraphColumns, suspicions: WindowSuspicions | None = None) -> Verdicts:
        """Return the verdicts on windows; `suspicions` of them [G], if the habits of identifiers were asked."""
        logits = np.full(graphs.num_graphs, -CALIBRATED_LIMIT)
        node_logits = np.full(graphs.num_nodes, -CALIBRATED_LIMIT)
        if self.members and graphs.num_graphs:
            found = [member.network.score(graphs) for member in self.members]
            calibrated = [
                np.clip(member.scaling.calibrated(window), -CALIBRATED_LIMIT, CALIBRATED_LIMIT)
                for member, (window, _) in zip(self.members, found, strict=True)
            ]
            logits = sum(calibrated, start=np.zeros(graphs.num_graphs)) / len(self.members)
            nodes = [node.astype(np.float64) for _, node in found]
            node_logits = sum(nodes, start=np.zeros(graphs.num_nodes)) / len(self.members)
        clock = np.full(graphs.num_graphs, -1.0, np.float32)
        if self.clock is not None:
            clock = clock_scores(graphs["early"], graphs["overdue"], self.clock)
        by_clock = clock >= 0.0
        by_network = logits >= self.threshold if self.members else np.zeros(graphs.num_graphs, bool)
        scores = sigmoid(np.where(by_clock, np.maximum(logits, clock), logits))
        if suspicions is not None:
            scores = np.where(suspicions.is_alarm, np.maximum(scores, CERTAIN), scores)
        return Verdicts(logits, scores, node_logits, by_network, by_clock, clock=self.clock, suspicions=suspicions)
