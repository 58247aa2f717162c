from pathlib import Path

import numpy as np
import pytest
import torch

from kdgat.base import UserError
from kdgat.can.data.pool import PooledStores
from kdgat.canbus.features import SCHEMA
from kdgat.graphs import GraphColumns, TensorColumns, write_store
from kdgat.graphs.packing import PackedRows
from tests.canbus.features.planted_graphs import planted_columns


def pool_of(*sizes: int) -> PooledStores:
    return PooledStores([planted_columns(size, seed=seed) for seed, size in enumerate(sizes)], ["train", "injected"])


def test_a_batch_from_two_stores_equals_one_from_their_concatenation() -> None:
    pool = pool_of(10, 7)
    whole = TensorColumns.from_columns(GraphColumns.concatenate(pool.parts))
    indices = np.array([12, 3, 0, 16, 9, 10])
    ours, theirs = pool.gather(indices), whole.gather(np.array([3, 0, 9, 12, 16, 10]))  # store by store
    for name in ("x", "edge_index", "edge_attr", "y", "node_y", "node_id", "batch", "ptr", "graph_index"):
        assert torch.equal(ours[name], theirs[name]), name
    assert ours.num_graphs == 6


def test_node_rows_find_the_nodes_of_a_window() -> None:
    pool = pool_of(10, 7)
    indices = np.array([16, 2])
    rows = pool.node_rows(indices)
    whole = GraphColumns.concatenate(pool.parts)
    np.testing.assert_array_equal(whole.x[rows], whole.select(indices).x)


def test_feature_chunks_hold_the_chosen_windows_only() -> None:
    pool = pool_of(10, 7)
    chosen = pool.labels == 0
    whole = GraphColumns.concatenate(pool.parts).select(np.flatnonzero(chosen))
    np.testing.assert_array_equal(np.concatenate(list(pool.feature_chunks("node", chosen))), whole.x)
    np.testing.assert_array_equal(np.concatenate(list(pool.feature_chunks("edge", chosen))), whole.edge_attr)


def test_feature_chunks_take_packed_rows_by_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = planted_columns(10)
    names = {
        "node_features": [f"node_{place}" for place in range(columns.x.shape[1])],
        "edge_features": [f"edge_{place}" for place in range(columns.edge_attr.shape[1])],
        "attributes": {column.indexes: list(range(100)) for column in SCHEMA.columns if column.indexes},
    }
    write_store(tmp_path / "a.h5", SCHEMA, columns, **names, build={})  # type: ignore[arg-type]
    pool = PooledStores.open({"train": tmp_path / "a.h5"})
    monkeypatch.delattr(PackedRows, "__getitem__")
    chosen = pool.labels == 0
    expected = columns.select(np.flatnonzero(chosen))
    np.testing.assert_array_equal(np.concatenate(list(pool.feature_chunks("node", chosen))), expected.x)
    np.testing.assert_array_equal(np.concatenate(list(pool.feature_chunks("edge", chosen))), expected.edge_attr)


def test_an_index_outside_of_the_pool_is_refused() -> None:
    with pytest.raises(IndexError, match="17"):
        pool_of(10, 7).gather(np.array([17]))


def test_stores_with_other_features_are_refused() -> None:
    narrow = planted_columns(3)
    narrow = narrow.replace(x=np.ascontiguousarray(narrow.x[:, :4]))
    with pytest.raises(UserError, match="different numbers"):
        PooledStores([planted_columns(3), narrow])


def test_a_store_that_is_absent_has_no_windows() -> None:
    pool = PooledStores([planted_columns(4)], ["train"])
    assert len(pool.indices_of("injected")) == 0
    assert pool.indices_of("train").tolist() == [0, 1, 2, 3]
