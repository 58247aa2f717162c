"""Families state their columns: regression targets, positions, graphs without labels or edge features."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from kdgat.base import UserError
from kdgat.graphs import (
    CORE,
    EDGE_ATTR,
    EDGE_INDEX,
    Column,
    GraphColumns,
    GraphStore,
    Schema,
    TensorColumns,
    pointers,
    write_store,
)
from kdgat.graphs.schema import X
from kdgat.graphs.store import StoreError

TREES = Schema(
    (
        *CORE,
        Column("pos", "node", "float32", 3, in_batch=True),
        Column("target", "graph", "float32", 2, in_batch=True),
        Column("node_target", "node", "float64", 4, in_batch=True),
        Column("edge_length", "edge", "float32", in_batch=True),
        Column("node_index", "node", "uint8", in_batch=True),  # PyG takes a name with "index" in it for ids of nodes
        Column("species", "graph", "int32", indexes="species_names"),
    )
)
UNLABELLED = Schema((*CORE, EDGE_ATTR))
PLAIN = Schema(CORE)


def trees(num_graphs: int, seed: int = 0) -> GraphColumns:
    """Make random trees: each node but the first hangs below an earlier one."""
    generator = np.random.default_rng(seed)
    node_counts = generator.integers(1, 7, num_graphs)
    num_nodes = int(node_counts.sum())
    edges = [(parent, child) for size in node_counts for child in range(1, size) for parent in [(child - 1) // 2]]
    edge_index = np.array(edges, np.int32).reshape(-1, 2).T
    return GraphColumns(
        TREES,
        node_ptr=pointers(node_counts),
        edge_ptr=pointers(node_counts - 1),
        x=generator.normal(size=(num_nodes, 1)).astype(np.float32),
        edge_index=np.ascontiguousarray(edge_index),
        pos=generator.normal(size=(num_nodes, 3)).astype(np.float32),
        target=generator.normal(size=(num_graphs, 2)).astype(np.float32),
        node_target=generator.normal(size=(num_nodes, 4)),
        edge_length=generator.random(edge_index.shape[1]).astype(np.float32),
        node_index=generator.integers(0, 256, num_nodes).astype(np.uint8),
        species=generator.integers(0, 2, num_graphs).astype(np.int32),
    )


def tree_of(columns: GraphColumns, graph: int) -> Data:
    """Cut one tree out by plain slicing."""
    nodes, edges = (slice(*ptr[graph : graph + 2].tolist()) for ptr in (columns.node_ptr, columns.edge_ptr))
    return Data(
        x=torch.tensor(columns.x[nodes]),
        edge_index=torch.tensor(columns.edge_index[:, edges], dtype=torch.int64),
        pos=torch.tensor(columns["pos"][nodes]),
        target=torch.tensor(columns["target"][graph : graph + 1]),
        node_target=torch.tensor(columns["node_target"][nodes]),
        edge_length=torch.tensor(columns["edge_length"][edges]),
        node_index=torch.tensor(columns["node_index"][nodes], dtype=torch.int64),
    )


def assert_same(found: Data, expected: Data) -> None:
    for key in expected.keys():  # noqa: SIM118
        assert found[key].dtype == expected[key].dtype, key
        assert torch.equal(found[key], expected[key]), key


def test_trees_with_targets_and_positions_are_stored_mapped_and_batched(tmp_path: Path) -> None:
    columns = trees(30)
    names = {"species_names": ["oak", "ash"], "crs": "EPSG:25832"}
    write_store(
        tmp_path / "trees.h5",
        TREES,
        (columns.select(range(start, start + 10)) for start in (0, 10, 20)),
        node_features=["radius"],
        attributes=names,
        build={"family": "trees"},
    )
    store = GraphStore.open(tmp_path / "trees.h5", TREES)
    store.verify()
    store.columns.validate()
    assert (store.columns.schema, store.attributes, store.edge_features) == (TREES, names, ())
    for column in TREES.stored:
        np.testing.assert_array_equal(store.columns[column.name], columns[column.name], err_msg=column.name)
        assert not store.columns[column.name].flags.writeable  # a map of the file

    chosen = [7, 0, 29, 7]
    batch = TensorColumns.from_columns(store.columns).gather(np.array(chosen))
    graphs = [tree_of(columns, graph) for graph in chosen]
    ptr = pointers(np.array([graph.num_nodes for graph in graphs]))
    for key in ("x", "pos", "target", "node_target", "edge_length", "node_index"):
        assert torch.equal(batch[key], torch.cat([graph[key] for graph in graphs])), key
    shifted = [graph.edge_index + int(shift) for graph, shift in zip(graphs, ptr, strict=False)]
    assert torch.equal(batch.edge_index, torch.cat(shifted, dim=1))
    assert (batch.target.shape, batch.node_target.dtype) == ((4, 2), torch.float64)
    assert set(batch.keys()) == set(graphs[0].keys()) | {"graph_index", "batch", "ptr"}  # no edge_attr, no species
    parts = batch.to_data_list()
    for found, expected in zip(parts, graphs, strict=True):
        assert_same(found, expected)
    assert_same(Batch.from_data_list(parts), batch)


def test_unlabelled_graphs_are_stored_and_batched(tmp_path: Path) -> None:
    for schema, edge_features in ((UNLABELLED, ["length"]), (PLAIN, [])):
        whole = trees(12)
        own = {"edge_attr": whole["edge_length"][:, None]} if EDGE_ATTR.name in schema else {}
        core = {name: whole[name] for name in ("node_ptr", "edge_ptr", "x", "edge_index")}
        columns = GraphColumns(schema, **core, **own)
        path = tmp_path / f"{len(edge_features)}.h5"
        write_store(path, schema, columns, node_features=["radius"], edge_features=edge_features, build={})
        batch = TensorColumns.from_columns(GraphStore.open(path).columns).gather(np.array([3, 11]))
        assert set(batch.keys()) == {"x", "edge_index", *own, "graph_index", "batch", "ptr"}
        assert (batch.num_graphs, batch.num_edges) == (2, int(columns.edge_counts[[3, 11]].sum()))


def test_sorting_edges_carries_every_column_of_edges() -> None:
    columns = trees(5)
    order = np.concatenate([np.arange(*columns.edge_ptr[graph : graph + 2])[::-1] for graph in range(5)]).astype(int)
    turned = columns.replace(edge_index=columns.edge_index[:, order], edge_length=columns["edge_length"][order])
    np.testing.assert_array_equal(turned.sorted_edges()["edge_length"], columns["edge_length"])


def test_a_target_of_another_width_or_without_a_number_is_refused(tmp_path: Path) -> None:
    columns = trees(4)
    columns.validate()
    with pytest.raises(UserError, match=r"target: shape is \(4, 3\), expected \(graphs, 2\)"):
        columns.replace(target=np.zeros((4, 3), np.float32)).validate()
    for name, message in (("target", "target: feature 0 holds NaN"), ("edge_length", "edge_length: row 0 holds NaN")):
        with pytest.raises(UserError, match=message):
            columns.replace(**{name: np.full_like(columns[name], np.nan)}).validate()
    columns = columns.replace(species=np.array([0, 1, 0, 1], np.int32))
    names = {"species_names": ["oak"]}
    with pytest.raises(StoreError, match=r"chunk 0: species: 0\.\.1, but 1 species_names are named"):
        write_store(tmp_path / "a.h5", TREES, columns, node_features=["radius"], attributes=names, build={})


def test_names_that_are_no_column_are_refused() -> None:
    columns = trees(2)
    with pytest.raises(UserError, match="y: no such column; there are node_ptr, edge_ptr, x, edge_index, pos"):
        columns["y"]
    with pytest.raises(UserError, match="edge_attr: no such column"):
        _ = columns.edge_attr
    with pytest.raises(UserError, match="y: not in the schema, which has node_ptr"):
        columns.replace(y=np.zeros(2))
    with pytest.raises(UserError, match="edge_ptr, x: missing; give one array for each"):
        GraphColumns(PLAIN, node_ptr=columns.node_ptr, edge_index=columns.edge_index)
    with pytest.raises(UserError, match="different schemas"):
        GraphColumns.concatenate([columns, GraphColumns.empty(PLAIN, num_node_features=1)])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((X,), "edge_index: is None, must be Column"),
        ((X, EDGE_INDEX, Column("edge_attr", "edge", "float64", None)), "edge_attr: is .*float64.*, must be .*float32"),
        ((*CORE, Column("y", "graph", "int8"), Column("y", "node", "int8")), "y: the name is taken"),
        ((*CORE, Column("batch", "node", "int64")), "batch: the name is taken"),
        ((*CORE, Column("my label", "graph", "int8")), "'my label': no name of an attribute"),
        ((*CORE, Column("y", "tree", "int8")), "y: level is 'tree'; give one of graph, node, edge"),  # type: ignore[arg-type]
        ((*CORE, Column("y", "graph", "bool")), "y: dtype is 'bool'; give one of float32"),  # type: ignore[arg-type]
        ((*CORE, Column("y", "graph", "int8", None)), "y: width is None, which x and edge_attr alone"),
        ((*CORE, Column("y", "graph", "int8", -1)), "y: width is -1"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(columns: tuple[Column, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Schema(columns)
