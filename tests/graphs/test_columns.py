import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.graphs import GraphColumns
from tests.graphs.examples import data_of, empty_columns, random_columns


def assert_equal(left: GraphColumns, right: GraphColumns) -> None:
    assert left.schema == right.schema
    for column in left.schema.stored:
        np.testing.assert_array_equal(left[column.name], right[column.name], err_msg=column.name)
        assert left[column.name].dtype == right[column.name].dtype


@given(seed=st.integers(0, 1000), num_graphs=st.integers(1, 8), data=st.data())
def test_select_equals_slicing_each_graph(seed, num_graphs, data):
    columns = random_columns(seed, num_graphs)
    indices = data.draw(st.lists(st.integers(0, num_graphs - 1), max_size=10))
    chosen = columns.select(indices)
    chosen.validate()
    assert chosen.num_graphs == len(indices)
    for position, index in enumerate(indices):
        found, expected = data_of(chosen, position), data_of(columns, index)
        assert all((found[key] == expected[key]).all() for key in expected.keys())  # noqa: SIM118
        assert chosen["start_time"][position] == columns["start_time"][index]


@given(seed=st.integers(0, 1000), num_graphs=st.integers(0, 9), cut=st.integers(0, 9))
def test_concatenation_undoes_a_cut(seed, num_graphs, cut):
    columns = random_columns(seed, num_graphs)
    cut = min(cut, num_graphs)
    parts = [columns.select(range(cut)), columns.select(range(cut, num_graphs))]
    assert_equal(GraphColumns.concatenate(parts), columns)


def test_empty_columns_are_valid_and_neutral_in_concatenation():
    empty, columns = empty_columns(3, 2), random_columns(1, 5)
    empty.validate()
    assert (empty.num_graphs, empty.num_nodes, empty.num_edges) == (0, 0, 0)
    assert_equal(GraphColumns.concatenate([empty, columns, empty]), columns)
    assert_equal(columns.select([]), empty)


def test_concatenation_refuses_nothing_and_unequal_features():
    with pytest.raises(UserError, match="0 parts"):
        GraphColumns.concatenate([])
    with pytest.raises(UserError, match=r"x: parts have \[3, 4\] features"):
        GraphColumns.concatenate([empty_columns(3, 2), empty_columns(4, 2)])


@pytest.mark.parametrize("index", [-1, 5])
def test_select_refuses_a_graph_that_does_not_exist(index):
    with pytest.raises(UserError, match=r"0\.\.4 exist"):
        random_columns(1, 5).select([index])


def two_triangles() -> GraphColumns:
    """Two graphs of 3 nodes and 3 edges."""
    return empty_columns(1, 1).replace(
        node_ptr=np.array([0, 3, 6]),
        edge_ptr=np.array([0, 3, 6]),
        x=np.zeros((6, 1), np.float32),
        edge_index=np.array([[2, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2]], np.int32),
        edge_attr=np.arange(6, dtype=np.float32)[:, None],
        y=np.zeros(2, np.int8),
        node_y=np.zeros(6, np.int8),
        node_id=np.arange(6, dtype=np.int32),
        recording=np.zeros(2, np.int32),
        first_message=np.zeros(2, np.int64),
        start_time=np.zeros(2),
    )


def test_sorted_edges_restores_the_order_within_each_graph_and_carries_attributes():
    columns = two_triangles()
    order = np.array([2, 0, 1, 5, 4, 3])
    shuffled = columns.replace(edge_index=columns.edge_index[:, order], edge_attr=columns.edge_attr[order])
    with pytest.raises(UserError, match="graph 0 is not sorted"):
        shuffled.validate()
    assert_equal(shuffled.sorted_edges(), columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(2)}, "y: type is float64, expected int8"),
        ({"x": np.zeros(6, np.float32)}, r"x: shape is \(6,\), expected \(nodes, features\)"),
        ({"y": np.zeros(3, np.int8)}, "y: 3 rows, expected 2, one per graph"),
        ({"node_id": np.zeros(5, np.int32)}, "node_id: 5 rows, expected 6, one per node"),
        ({"edge_attr": np.zeros((7, 1), np.float32)}, "edge_attr: 7 rows, expected 6, one per edge"),
        ({"node_ptr": np.array([0, 3, 5])}, "node_ptr: runs from 0 to 5, expected to rise from 0 to 6"),
        ({"edge_ptr": np.array([1, 3, 6])}, "edge_ptr: runs from 1"),
        ({"edge_ptr": np.array([0, 6])}, "both need G"),
        ({"edge_index": np.array([[2, 0, 1, 2, 0, 3], [0, 1, 2, 0, 1, 2]], np.int32)}, "edge 5 joins 3 and 2"),
        ({"edge_index": np.array([[2, 0, -1, 2, 0, 1], [0, 1, 2, 0, 1, 2]], np.int32)}, "edge 2 joins -1 and 2"),
        ({"edge_index": np.array([[2, 0, 1, 2, 2, 1], [0, 1, 2, 0, 2, 2]], np.int32)}, "graph 1 is not sorted"),
        ({"x": np.array([[0], [0], [np.nan], [0], [0], [0]], np.float32)}, "x: feature 0 holds NaN"),
    ],
)
def test_validate_names_the_column_at_fault(change, message):
    two_triangles().validate()
    with pytest.raises(UserError, match=message):
        two_triangles().replace(**change).validate()
