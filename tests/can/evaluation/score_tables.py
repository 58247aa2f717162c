"""Tables of made-up scores."""

from typing import Any

import numpy as np

from kdgat.can.evaluation.scores import ScoreTable

WINDOW_S = 0.1


def made_table(label: Any, *, scores: dict[str, Any] | None = None, **columns: Any) -> ScoreTable:
    """Make a table of windows that follow one another in one recording, but for the columns that are given."""
    labels = np.asarray(label, np.int8)
    start = np.arange(labels.size) * WINDOW_S
    defaults = {
        "recording": np.zeros(labels.size, np.int32),
        "start_time": start,
        "end_time": np.asarray(columns.get("start_time", start)) + WINDOW_S,
        "attack_count": labels.astype(np.int32) * 20,
        "kind": np.zeros(labels.size, np.int8),
        "is_virtual": np.zeros(labels.size, bool),
        "is_learned": np.zeros(labels.size, bool),
    }
    found = {"habits": np.full(labels.size, -1.0, np.float32)} | (scores or {})
    names = [f"drive-{place}" for place in range(10)]
    return ScoreTable(label=labels, scores=found, recording_names=names, **(defaults | columns))
