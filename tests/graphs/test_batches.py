import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from kdgat.graphs import GraphStore, OnHost, TensorColumns, group_sizes, places_of, write_store
from tests.graphs.examples import (
    EDGE_FEATURES,
    NODE_FEATURES,
    RECORDINGS,
    SCHEMA,
    data_of,
    empty_columns,
    random_columns,
)


def assert_same(found: Data, expected: Data) -> None:
    for key in expected.keys():  # noqa: SIM118
        assert found[key].dtype == expected[key].dtype, key
        assert torch.equal(found[key], expected[key]), key


@given(seed=st.integers(0, 1000), num_graphs=st.integers(1, 8), data=st.data())
def test_gather_equals_batch_from_data_list(seed, num_graphs, data):
    columns = random_columns(seed, num_graphs)
    indices = data.draw(st.lists(st.integers(0, num_graphs - 1), min_size=1, max_size=10))
    graphs = [data_of(columns, index) for index in indices]
    expected = Batch.from_data_list(graphs)

    batch = TensorColumns.from_columns(columns).gather(torch.tensor(indices))

    assert isinstance(batch, Batch)
    assert set(batch.keys()) == set(expected.keys()) | {"graph_index"}
    assert_same(batch, expected)
    assert batch.graph_index.tolist() == indices
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (
        expected.num_graphs,
        expected.num_nodes,
        expected.num_edges,
    )
    for key in ("x", "edge_index", "edge_attr", "y", "node_y", "node_id"):
        assert torch.equal(batch._slice_dict[key], expected._slice_dict[key]), key
        assert batch._inc_dict[key].tolist() == expected._inc_dict[key].tolist(), key
    for graph, found in zip(graphs, batch.to_data_list(), strict=True):
        assert_same(found, graph)


@given(seed=st.integers(0, 1000), num_graphs=st.integers(1, 8))
def test_batch_edges_are_sorted_by_destination_then_source(seed, num_graphs):
    batch = TensorColumns.from_columns(random_columns(seed, num_graphs)).gather(np.arange(num_graphs))
    source, destination = batch.edge_index.numpy()
    np.testing.assert_array_equal(np.lexsort((source, destination)), np.arange(batch.num_edges))


def test_graph_index_survives_taking_a_batch_apart_and_putting_it_together():
    batch = TensorColumns.from_columns(random_columns(3, 6)).gather(np.array([5, 0, 2]))
    again = Batch.from_data_list(batch.to_data_list())
    assert_same(again, batch)
    assert again.graph_index.tolist() == [5, 0, 2]


def test_batch_survives_pickling():
    batch = TensorColumns.from_columns(random_columns(3, 6)).gather(np.array([5, 0, 2]))
    again = pickle.loads(pickle.dumps(batch))
    assert_same(again, batch)
    assert_same(again[1], batch[1])
    assert OnHost.of(again)["recording"].tolist() == OnHost.of(batch)["recording"].tolist()


def test_the_host_knows_the_graphs_of_a_batch_and_pickles_no_others():
    columns = random_columns(3, 400)
    batch = TensorColumns.from_columns(columns).gather(np.array([5, 0, 2, 5]))
    assert OnHost.of(batch)["start_time"].tolist() == columns["start_time"][[5, 0, 2, 5]].tolist()
    assert len(pickle.dumps(OnHost.of(batch))) < columns.x.nbytes


@given(st.lists(st.integers(0, 5), max_size=20))
def test_places_and_sizes_of_groups_are_those_that_torch_counts(numbers):
    group = torch.tensor(numbers, dtype=torch.int64)
    assert torch.equal(group_sizes(group, 7), torch.bincount(group, minlength=7))
    assert (
        places_of(group > 2, sum(number > 2 for number in numbers)).tolist() == (group > 2).nonzero().flatten().tolist()
    )


def test_gather_of_no_graph_is_an_empty_batch():
    for columns in (random_columns(3, 6), empty_columns(3, 2)):
        batch = TensorColumns.from_columns(columns).gather(torch.tensor([], dtype=torch.int64))
        assert batch.num_graphs == 0
        assert batch.x.shape == (0, 3)
        assert batch.edge_index.shape == (2, 0)
        assert batch.ptr.tolist() == [0]


@pytest.mark.parametrize("index", [-1, 6])
def test_gather_refuses_a_graph_that_does_not_exist(index):
    with pytest.raises(IndexError, match=r"0\.\.5 exist"):
        TensorColumns.from_columns(random_columns(3, 6)).gather(np.array([0, index]))


def test_mapped_columns_are_wrapped_without_copy_or_warning(tmp_path):
    columns = random_columns(4, 20)
    write_store(
        tmp_path / "a.h5",
        SCHEMA,
        columns,
        node_features=NODE_FEATURES,
        edge_features=EDGE_FEATURES,
        attributes={"recordings": RECORDINGS},
        build={},
    )
    with GraphStore.open(tmp_path / "a.h5") as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = TensorColumns.from_columns(store.columns)
        assert tensors.tensors["x"].data_ptr() == store.columns.x.ctypes.data
        assert tensors.tensors["edge_index"].data_ptr() == store.columns.edge_index.ctypes.data
    batch = tensors.gather(np.arange(20))  # the map outlives close() while tensors view it
    assert_same(batch, TensorColumns.from_columns(columns).gather(np.arange(20)))


def test_changing_a_batch_leaves_the_columns_alone():
    tensors = TensorColumns.from_columns(random_columns(5, 4))
    before = tensors.gather(np.arange(4))
    tensors.gather(np.arange(4)).x.zero_()
    assert_same(tensors.gather(np.arange(4)), before)


def test_num_bytes_counts_the_columns_on_the_device():
    columns = random_columns(5, 4)
    tensors = TensorColumns.from_columns(columns)
    num_node_bytes = columns.num_nodes * (3 * 4 + 1 + 4)
    assert tensors.num_bytes == num_node_bytes + columns.num_edges * (2 * 4 + 2 * 4) + columns.num_graphs


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_resident_columns_give_the_same_batch_on_every_device_there_is(device):
    columns = random_columns(6, 30)
    indices = np.array([29, 3, 3, 0])
    batch = TensorColumns.from_columns(columns, device).gather(indices)
    assert batch.x.device.type == device
    assert batch.ptr.device.type == device
    assert_same(batch.cpu(), TensorColumns.from_columns(columns).gather(indices))
    for found, index in zip(batch.to_data_list(), indices, strict=True):
        assert_same(found.cpu(), data_of(columns, index))
