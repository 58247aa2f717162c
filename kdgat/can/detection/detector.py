"""A detector as it stands: networks with their calibration, a threshold, and the habits of identifiers beside them.

A window is an alarm if the mean of the networks' calibrated logits reaches the threshold, or if the habits say so.
Without networks the habits decide alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.can.models.runtime import Network
from kdgat.can.models.scaling import CALIBRATED_LIMIT, Scaling, sigmoid
from kdgat.canbus import WindowConfig
from kdgat.canbus.features.suspicion import NOTHING
from kdgat.graphs import GraphColumns

CERTAIN: Final = 0.9  # the score of a window that is an alarm by the habits of identifiers, at least


class Verdicts(NamedTuple):
    """What a detector says of G windows with N nodes."""

    logit: NDArray[np.float64]  # [G] calibrated
    score: NDArray[np.float64]  # [G] the network's probability; of an alarm of the habits, at least CERTAIN
    node_logit: NDArray[np.float64]  # [N]
    by_network: NDArray[np.bool_]  # [G] alarms
    by_habits: NDArray[np.bool_]  # [G]

    @property
    def is_alarm(self) -> NDArray[np.bool_]:
        """Return which windows [G] are alarms."""
        return self.by_network | self.by_habits


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
    habits: bool = True  # False: the networks decide alone

    def decide(self, graphs: GraphColumns) -> Verdicts:
        """Return the verdicts on windows."""
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
        by_habits = np.asarray(graphs["suspicion"] != NOTHING) & self.habits
        by_network = logits >= self.threshold if self.members else np.zeros(graphs.num_graphs, bool)
        scores = sigmoid(logits)
        scores = np.where(by_habits, np.maximum(scores, CERTAIN), scores)
        return Verdicts(logits, scores, node_logits, by_network, by_habits)
