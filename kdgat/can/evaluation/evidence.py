"""How suspicious each identifier of a window is: what the network says of it, and against whom its habits speak."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features import NODE_FEATURES

FLOOD_RATE: Final = 1.0  # log2 of the bus's rate over its long-run mean
FLOOD_NOVELTY: Final = 0.1  # share of the recording before the identifier came
FLOOD_SHARE: Final = 0.25  # of a window's messages that one identifier has
EVIDENCE_OF_FLOOD: Final = 10.0  # logits: what others suffer from a flood is no reason to name them first
EVIDENCE_OF_HABITS: Final = 20.0  # against whom they speak

_COLUMN: Final = {name: column for column, name in enumerate(NODE_FEATURES)}


def evidence_of(
    x: NDArray[np.float32],
    node_logit: NDArray[np.floating[Any]],
    num_messages: NDArray[Any],
    is_accused: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return how suspicious nodes [N] are, larger is more, from their features [N, F] and the network's logits [N].

    `num_messages` is how many messages their window has, of all or of each; the habits speak against who `is_accused`.
    """
    evidence = node_logit.astype(np.float64)
    evidence = np.where(flooding(x, num_messages), np.maximum(evidence, 0.0) + EVIDENCE_OF_FLOOD, evidence)
    return np.where(is_accused, np.maximum(evidence, 0.0) + EVIDENCE_OF_HABITS, evidence)


def flooding(x: NDArray[np.float32], num_messages: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the nodes [N] of windows of so many messages that fill the bus and are foreign to it, or make it fast."""
    has_sent = x[:, _COLUMN["waiting"]] == 0.0
    # A whole number: the logarithm was rounded, and a share of exactly FLOOD_SHARE is none that is larger.
    share = np.rint(np.exp2(4.0 * x[:, _COLUMN["count"]].astype(np.float64))) / num_messages
    is_foreign = (x[:, _COLUMN["outranks_maximum"]] > 0.0) | (x[:, _COLUMN["novelty_maximum"]] > FLOOD_NOVELTY)
    return has_sent & (share > FLOOD_SHARE) & (is_foreign | (x[:, _COLUMN["bus_rate_maximum"]] > FLOOD_RATE))
