from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.scores import (
    BASELINE_FEATURES,
    Scores,
    baseline_scores,
    habits_column,
    read_scores,
    scores_path,
    write_scores,
)
from kdgat.canbus.features import NODE_FEATURES
from kdgat.canbus.features.suspicion import Reason
from tests.canbus.features.planted_graphs import NUM_NODE_FEATURES, planted_columns

SCORES = Scores(
    probability=np.array([0.1, 0.9, 0.2], np.float32),
    label=np.array([0, 1, 0], np.int8),
    recording=np.array([0, 0, 1], np.int32),
    recording_names=["Kia fuzzing", "Kia free"],
    start_time=np.array([0.0, 0.5, 0.0]),
    attack_count=np.array([0, 7, 0], np.int32),
)


@pytest.mark.parametrize("decision", [None, np.array([False, True, True])])
def test_scores_survive_writing_and_reading(tmp_path: Path, decision: np.ndarray | None) -> None:
    path = scores_path(tmp_path, "test_01")
    write_scores(path, replace(SCORES, decision=decision))
    found = read_scores(path)
    for name in ("probability", "label", "recording", "start_time", "attack_count"):
        np.testing.assert_array_equal(getattr(found, name), getattr(SCORES, name))
        assert getattr(found, name).dtype == getattr(SCORES, name).dtype
    assert found.recording_names == SCORES.recording_names
    assert (found.decision is None) == (decision is None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": np.zeros(2, np.int8)}, "label has 2"),
        ({"decision": np.zeros(2, bool)}, "decision has 2"),
        ({"probability": np.array([0.1, np.nan, 2.0], np.float32)}, "0 to 1"),
        ({"recording": np.array([0, 1, 2], np.int32)}, "2 recording names"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_scores(tmp_path / "a.npz", replace(SCORES, **change))


def test_damaged_file_is_named(tmp_path: Path) -> None:
    write_scores(tmp_path / "a.npz", SCORES)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("cut.npz", "other.npz"):
        with pytest.raises(UserError, match=name):
            read_scores(tmp_path / name)


def test_the_column_of_the_habits_runs_over_all_parts_and_is_an_alarm_for_any_reason() -> None:
    parts = [planted_columns(4, attack_share=0.0), planted_columns(3, seed=1, attack_share=0.0)]
    parts[0]["suspicion"][1] = Reason.NEW
    parts[1]["suspicion"][2] = Reason.SILENT
    np.testing.assert_array_equal(np.flatnonzero(habits_column(parts) >= 0.0), [1, 6])


def test_a_baseline_is_the_largest_value_of_its_feature_in_each_window() -> None:
    parts = [planted_columns(5), planted_columns(3, seed=1)]
    names = [f"other_{place}" for place in range(NUM_NODE_FEATURES)]
    names[1] = BASELINE_FEATURES[0]
    found = baseline_scores(parts, names)
    assert list(found) == [f"baseline: {BASELINE_FEATURES[0]}"]
    expected = [
        part.x[part.node_ptr[graph] : part.node_ptr[graph + 1], 1].max()
        for part in parts
        for graph in range(part.num_graphs)
    ]
    np.testing.assert_array_equal(found[f"baseline: {BASELINE_FEATURES[0]}"], expected)


def test_all_baselines_are_features_that_windows_have() -> None:
    assert set(BASELINE_FEATURES) <= set(NODE_FEATURES)
