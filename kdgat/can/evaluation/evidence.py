"""How suspicious each identifier of a window is: what the network says of it, and the clock where it is certain."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.evaluation.untrained import CLOCK_BOUNDS, ClockBounds, clock_scores
from kdgat.canbus.features import NODE_FEATURES
from kdgat.canbus.features.schema import LOG_MIXED_PERIOD, LOSSLESS_MARGIN

EVIDENCE_OF_CLOCK: Final = 5.0  # logits that an alarm of the clock is worth, beside its score
ROUNDING: Final = 2.0**-11  # of a margin: those of nodes are features, rounded to float16, those of windows are not
FLOOD_RATE: Final = 1.0  # log2 of the bus's rate over its long-run mean
FLOOD_NOVELTY: Final = 0.1  # share of the recording before the identifier came
FLOOD_SHARE: Final = 0.25  # of a window's messages that one identifier has
EVIDENCE_OF_FLOOD: Final = 10.0  # logits: what others suffer from a flood is no reason to name them first

_COLUMN: Final = {name: column for column, name in enumerate(NODE_FEATURES)}


def evidence_of(
    x: NDArray[np.float32],
    node_logit: NDArray[np.floating[Any]],
    num_messages: NDArray[Any],
    bounds: ClockBounds | None = CLOCK_BOUNDS,
) -> NDArray[np.float64]:
    """Return how suspicious nodes [N] are, larger is more, from their features [N, F] and the network's logits [N].

    `num_messages` is how many messages their window has, of all or of each; `bounds` are the clock's, if it is asked.
    """
    evidence = node_logit.astype(np.float64)
    if bounds is not None:
        score = clock_scores(*clock_margins(x), bounds)
        evidence = np.where(score >= -ROUNDING, np.maximum(evidence, 0.0) + EVIDENCE_OF_CLOCK + score, evidence)
    return np.where(flooding(x, num_messages), np.maximum(evidence, 0.0) + EVIDENCE_OF_FLOOD, evidence)


def clock_margins(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return by how much nodes [N] come early and are overdue; a window's margins are the largest of its nodes."""
    is_slow = 8.0 * x[:, _COLUMN["log_period_mean"]] >= LOG_MIXED_PERIOD
    early = np.where(is_slow, np.float32(-np.inf), x[:, _COLUMN["early_maximum"]])
    lossless = np.where(x[:, _COLUMN["losses_mean"]] == 0.0, np.float32(LOSSLESS_MARGIN), np.float32(0.0))
    return early, x[:, _COLUMN["overdue_maximum"]] + lossless


def flooding(x: NDArray[np.float32], num_messages: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the nodes [N] of windows of so many messages that fill the bus and are foreign to it, or make it fast."""
    has_sent = x[:, _COLUMN["waiting"]] == 0.0
    # A whole number: the logarithm was rounded, and a share of exactly FLOOD_SHARE is none that is larger.
    share = np.rint(np.exp2(4.0 * x[:, _COLUMN["count"]].astype(np.float64))) / num_messages
    is_foreign = (x[:, _COLUMN["outranks_maximum"]] > 0.0) | (x[:, _COLUMN["novelty_maximum"]] > FLOOD_NOVELTY)
    return has_sent & (share > FLOOD_SHARE) & (is_foreign | (x[:, _COLUMN["bus_rate_maximum"]] > FLOOD_RATE))
