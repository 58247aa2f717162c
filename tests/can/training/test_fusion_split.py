"""Fusions learn from some recordings and are chosen by others."""

import numpy as np
import pytest

from kdgat.can.data.pool import PooledStores
from kdgat.can.models.names import FusionKind
from kdgat.can.training.fusion_split import choose_kind, learned_recordings, learned_windows, recordings_of
from tests.canbus.features.planted_graphs import planted_columns

LABELS = np.repeat([0, 1], 1000).astype(np.int8)


def rates(**found: tuple[float, float]) -> dict[FusionKind, dict[str, float]]:
    return {kind: {"f1": f1, "false_alarm_rate": rate} for kind, (f1, rate) in found.items()}  # type: ignore[misc]


def test_recordings_are_numbered_on_over_the_stores() -> None:
    parts = [planted_columns(20), planted_columns(10, seed=1, num_recordings=3)]
    found = recordings_of(PooledStores(parts))
    assert found[:20].max() == 1
    assert set(found[20:]) == {2, 3, 4}


def test_no_recording_is_on_both_sides_and_both_have_windows_of_both_classes() -> None:
    generator = np.random.default_rng(0)
    recording = np.repeat(np.arange(12), generator.integers(20, 200, 12))
    labels = ((recording % 3 == 0) & (generator.random(recording.size) < 0.6)).astype(np.int8)
    numbers = learned_recordings(recording, labels)
    assert numbers is not None
    learns = learned_windows({"learned_recordings": numbers, "learned_block": None}, recording)
    assert not set(recording[learns]) & set(recording[~learns])
    for side in (learns, ~learns):
        assert 0.25 <= side.mean() <= 0.75
        assert np.count_nonzero(labels[side]) >= 0.25 * labels.sum()


@pytest.mark.parametrize(
    ("recording", "labels"),
    [([0] * 20, [0, 1] * 10), ([0] * 10 + [1] * 10, [0] * 10 + [1] * 10), ([0] * 10 + [1] * 10, [0] * 20)],
)
def test_too_few_recordings_are_not_split(recording: list[int], labels: list[int]) -> None:
    assert learned_recordings(np.array(recording), np.array(labels, np.int8)) is None


def test_weights_of_an_earlier_version_say_their_blocks_alone() -> None:
    np.testing.assert_array_equal(learned_windows({"learned_block": 2}, np.zeros(16, int)), np.arange(16) // 2 % 2 == 0)
    assert not learned_windows({"learned_block": None}, np.zeros(16, int)).any()


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        # The simplest that is about as good.
        (rates(weighted_average=(0.9447, 0.0096), mlp=(0.9460, 0.0100), dqn=(0.9431, 0.0096)), "weighted_average"),
        # Not at 2.4 times the false alarms.
        (rates(weighted_average=(0.90, 0.0096), mlp=(0.96, 0.0230), dqn=(0.95, 0.0096)), "dqn"),
        # Within the budget false alarms are none of its business.
        (rates(weighted_average=(0.90, 0.0), mlp=(0.96, 0.001), dqn=(0.95, 0.0)), "mlp"),
    ],
)
def test_a_fusion_is_chosen_within_a_budget_of_false_alarms(
    found: dict[FusionKind, dict[str, float]], chosen: FusionKind
) -> None:
    assert choose_kind(found, LABELS) == chosen
