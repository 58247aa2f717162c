"""Detectors that nobody trains."""

import numpy as np

from kdgat.can.evaluation.untrained import BASELINE_FEATURES, baseline_scores, habits_column
from kdgat.canbus.features import NODE_FEATURES
from kdgat.canbus.features.suspicion import NEW, SILENT
from tests.canbus.features.planted_graphs import NUM_NODE_FEATURES, planted_columns


def test_the_column_of_the_habits_runs_over_all_parts_and_is_an_alarm_for_any_reason() -> None:
    parts = [planted_columns(4, attack_share=0.0), planted_columns(3, seed=1, attack_share=0.0)]
    parts[0]["suspicion"][1] = NEW
    parts[1]["suspicion"][2] = SILENT
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
