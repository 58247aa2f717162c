import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kdgat.graphs import TensorColumns
from kdgat.graphs.padding import GRANULE, Capacity, StaticGather
from tests.canbus.features.planted_graphs import planted_columns

CHOSEN = np.array([3, 17, 3, 8, 20])


@pytest.fixture(scope="module")
def columns() -> TensorColumns:
    return TensorColumns.from_columns(planted_columns(24))


def gather(columns: TensorColumns, indices: NDArray[np.int64], capacity: Capacity):
    static = StaticGather(columns, capacity)
    static.choose(indices)
    return static()


def test_a_padded_batch_begins_with_the_plain_one(columns: TensorColumns) -> None:
    plain = columns.gather(CHOSEN)
    padded = gather(columns, CHOSEN, Capacity.of(columns, [np.arange(7)]))
    for name, count in (("x", plain.num_nodes), ("node_y", plain.num_nodes), ("edge_attr", plain.num_edges), ("y", 5)):
        assert torch.equal(padded[name][:count], plain[name]), name
        assert not padded[name][count:].any(), name
    assert torch.equal(padded.edge_index[:, : plain.num_edges], plain.edge_index)
    assert torch.equal(padded.batch[: plain.num_nodes], plain.batch)
    assert torch.equal(padded.ptr[:6], plain.ptr)
    assert padded.ptr[-1] == len(padded.x)
    counts = [int(mask.sum()) for mask in (padded.is_graph, padded.is_node, padded.is_edge)]
    assert counts == [5, plain.num_nodes, plain.num_edges]


def test_edges_of_padding_rise_and_join_nodes_of_padding_alone(columns: TensorColumns) -> None:
    padded = gather(columns, CHOSEN, Capacity.of(columns, [np.arange(7)]))
    source, target = padded.edge_index
    assert (target.diff() >= 0).all()
    assert (source[~padded.is_edge] >= padded.is_node.sum()).all()
    assert target.max() < len(padded.x)


def test_all_batches_of_a_plan_have_the_shapes_of_its_largest(columns: TensorColumns) -> None:
    plan = [np.arange(6), np.arange(6, 12), np.array([23])]
    capacity = Capacity.of(columns, plan)
    assert capacity.nodes % GRANULE == capacity.edges % GRANULE == 0
    static = StaticGather(columns, capacity)
    shapes = []
    for indices in plan:
        static.choose(indices)
        batch = static()
        shapes.append({name: tuple(batch[name].shape) for name in ("x", "edge_index", "y", "ptr", "is_edge")})
        assert int(batch.is_graph.sum()) == len(indices)
    assert shapes[0] == shapes[1] == shapes[2]


def test_batches_of_nearly_as_many_graphs_have_one_capacity(columns: TensorColumns) -> None:
    found = {Capacity.of(columns, [np.zeros(number, np.int64)]).graphs for number in range(97, 101)}
    assert found == {100}
    assert Capacity.of(columns, [np.zeros(128, np.int64)]).graphs == 128, "the usual size is not rounded"
