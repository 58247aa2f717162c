"""Detectors that nobody trains."""

import numpy as np
import pytest

from kdgat.can.evaluation.untrained import BASELINE_FEATURES, baseline_scores, clock_column, clock_scores
from kdgat.canbus.features import NODE_FEATURES
from tests.canbus.features.planted_graphs import NUM_NODE_FEATURES, planted_columns


@pytest.mark.parametrize(
    ("early", "overdue", "is_alarm"),
    [(-9.0, -9.0, False), (0.59, 0.99, False), (0.6, -9.0, True), (-9.0, 1.0, True), (3.0, 4.0, True)],
)
def test_the_clock_alarms_from_either_bound_on(early: float, overdue: float, is_alarm: bool) -> None:
    assert bool(clock_scores([early], [overdue])[0] >= 0.0) == is_alarm


def test_the_clocks_column_runs_over_all_parts() -> None:
    parts = [planted_columns(4, attack_share=0.0), planted_columns(3, seed=1, attack_share=0.0)]
    parts[1]["overdue"][2] = 2.0
    np.testing.assert_array_equal(np.flatnonzero(clock_column(parts) >= 0.0), [6])


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
