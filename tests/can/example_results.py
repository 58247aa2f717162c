"""The content of a results.json, computed by the real metrics from scores that are made up."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdgat.can.evaluation.calibration import DecisionRule, false_alarm_rate
from kdgat.can.evaluation.metrics import (
    binary_metrics,
    per_recording_metrics,
    precision_recall_curve,
    roc_curve,
    spread_over_seeds,
)


def example() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    label, recording = np.repeat([0, 1, 0], 100), np.repeat([0, 0, 1], 100)
    names, scenarios, models = ["attacked", "clean"], {}, {}
    for scenario in ("test_01", "test_02"):
        seeds = [4.0 * label - 2.0 + rng.normal(size=label.size) for _ in range(3)]
        over_seeds = spread_over_seeds([binary_metrics(score, label, 0.0) for score in seeds])
        mean = np.mean(seeds, axis=0)
        metrics = binary_metrics(mean, label, 0.0)
        metrics["recordings"] = per_recording_metrics(mean, label, 0.0, recording, names)
        scenarios[scenario] = {**metrics, "over_seeds": over_seeds}
        models.setdefault("normal", {}).setdefault("0", {})[scenario] = metrics
        curves = {"roc": roc_curve(mean, label), "precision_recall": precision_recall_curve(mean, label)}
    rule = DecisionRule()
    return {
        "dataset": "synthetic",
        "created": "2026-01-01T00:00:00+00:00",
        "seeds": [0, 1, 2],
        "detector": {
            "name": "normal, mean of 3 seeds",
            "models": ["normal"],
            "seeds": [0, 1, 2],
            "decision": rule.model_dump(),
            "rule": rule.sentence(),
            "false_alarm_rate": false_alarm_rate(np.zeros(100, bool)).model_dump(),
        },
        "scenarios": scenarios,
        "models": models,
        "curves": {"detector": {"test_02": curves}},
    }
