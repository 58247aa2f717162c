"""A sample of windows that shows what is rare, in the plane in which it differs most."""

from pathlib import Path

import numpy as np
import pytest

from kdgat.can.data.pool import PooledStores
from kdgat.can.evaluation import embeddings
from kdgat.can.evaluation.embeddings import map_embeddings, principal_plane, read_map, write_map
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.sections import AttentionConfig
from tests.canbus.features.planted_graphs import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, planted_columns

NAMES = [["first", "second"]]


def pools() -> list[PooledStores]:
    parts = [planted_columns(60, seed=seed, attack_share=0.3) for seed in range(3)]
    return [PooledStores(parts[:2], ["validation", "injected_validation"]), PooledStores(parts[2:], ["test-a"])]


def network() -> GraphAttentionNetwork:
    return GraphAttentionNetwork(AttentionConfig(hidden=4, heads=2), NUM_NODE_FEATURES, NUM_EDGE_FEATURES)


def test_every_window_of_a_small_run_is_mapped_with_its_provenance() -> None:
    found = map_embeddings("normal", network(), pools(), [NAMES * 2, NAMES], 0)
    assert found is not None
    assert found.point.shape == (180, 2)
    assert np.isfinite(found.point).all()
    assert found.is_virtual.tolist() == [False] * 60 + [True] * 60 + [False] * 60
    assert set(found.recording.tolist()) == {"first", "second"}
    labels = np.concatenate([pool.labels for pool in pools()])
    np.testing.assert_array_equal(found.kind > 0, labels == 1)


def test_a_sample_is_the_same_for_a_seed_and_keeps_rare_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MOST_MAPPED", 40)
    model = network()
    first, second = (map_embeddings("normal", model, pools(), [NAMES * 2, NAMES], 7) for _ in range(2))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.point, second.point)
    assert len(first.kind) == 40
    assert 15 <= np.count_nonzero(first.kind) <= 25, "as many of each recording and kind, not by their shares"


def test_the_plane_is_that_of_the_largest_variance() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(500, 6)) * [0.1, 5.0, 0.1, 2.0, 0.1, 0.1] + 100.0
    point, share = principal_plane(values.astype(np.float32))
    assert abs(np.corrcoef(point[:, 0], values[:, 1])[0, 1]) > 0.999
    assert abs(np.corrcoef(point[:, 1], values[:, 3])[0, 1]) > 0.99
    assert share[0] == pytest.approx(25 / 29, abs=0.05)
    assert share.sum() > 0.99


def test_windows_that_are_all_alike_have_no_variance_to_share() -> None:
    point, share = principal_plane(np.ones((5, 1), np.float32))
    assert not point.any()
    assert not share.any()


def test_a_map_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = map_embeddings("normal", network(), pools(), [NAMES * 2, NAMES], 0)
    assert found is not None
    write_map(tmp_path / "map.npz", found)
    again = read_map(tmp_path / "map.npz")
    assert again.model == "normal"
    np.testing.assert_array_equal(again.point, found.point)
    np.testing.assert_array_equal(again.recording, found.recording)
