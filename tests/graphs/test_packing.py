"""Packed rows lose nothing, refuse what they would lose, and are unpacked alike by numpy, by torch and by slices."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.graphs import EDGE_ATTR, EDGE_INDEX, Column, GraphColumns, GraphStore, Schema, TensorColumns, write_store
from kdgat.graphs import packing as packing_module
from kdgat.graphs import spool as spool_module
from kdgat.graphs.packing import BLOCK_ROWS, PackedRows, Packing, pack
from kdgat.graphs.schema import X
from kdgat.graphs.store import StoreError
from tests.graphs.examples import EDGE_FEATURES, NODE_FEATURES, SCHEMA, random_columns

NUM_FEATURES = 11  # bits of more than one byte
PACKING = Packing(
    same_as=(0, 0, 2, 2, 4, 5, 6, 6, 6, 9, 10), rest=(0.0, 0.0, -4.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0)
)
NAMES = tuple(f"feature_{place}" for place in range(NUM_FEATURES))
PACKINGS = {"x": PACKING, "edge_attr": Packing((0, 0), (1.0, 0.0))}
PACKED = Schema(
    (
        X.stored_as("float16", packed=True),
        EDGE_INDEX.stored_as("int16"),
        EDGE_ATTR.stored_as("float16", packed=True),
        Column("pos", "node", "float32", 2, in_batch=True, narrow="float16"),
        Column("y", "graph", "int8", in_batch=True),
    )
)


def packed_graphs(seed: int, num_graphs: int, max_nodes: int = 6) -> GraphColumns:
    """Make graphs of half precision, many of whose features are what they usually are."""
    plain = random_columns(seed, num_graphs, max_nodes)
    random = np.random.default_rng(seed)
    x = usual_rows(random, plain.num_nodes)
    edge_attr = _halves(plain.edge_attr)
    edge_attr[random.random(len(edge_attr)) < 0.5, 0] = 1.0
    pos = _halves(random.standard_normal((plain.num_nodes, 2)))
    return GraphColumns(
        PACKED, node_ptr=plain.node_ptr, edge_ptr=plain.edge_ptr, x=x, edge_index=plain.edge_index,
        edge_attr=edge_attr, pos=pos, y=plain["y"],
    )  # fmt: skip


def usual_rows(random: np.random.Generator, num_rows: int) -> NDArray[np.float32]:
    rows = _halves(random.standard_normal((num_rows, NUM_FEATURES)) * 10.0 ** random.integers(-6, 4, NUM_FEATURES))
    rest = np.broadcast_to(np.array(PACKING.rest, np.float32), rows.shape)
    rows = np.where(random.random(rows.shape) < 0.4, rest, rows)
    return np.where(random.random(rows.shape) < 0.4, rows[:, np.array(PACKING.same_as)], rows)


def _halves(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    return rows.astype(np.float16).astype(np.float32)


def write(path: Path, chunks: object, **changes: object) -> GraphStore:
    names = {"node_features": NAMES, "edge_features": EDGE_FEATURES, "build": {}, "packings": PACKINGS}
    write_store(path, PACKED, chunks, **(names | changes))  # type: ignore[arg-type]
    return GraphStore.open(path, PACKED)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), num_graphs=st.integers(0, 12), cut=st.integers(1, 5))
def test_a_store_returns_what_was_written_whatever_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_graphs: int, cut: int
) -> None:
    graphs = packed_graphs(seed, num_graphs, max_nodes=40)
    folder = tmp_path_factory.mktemp("stores")
    store = write(folder / "whole.h5", graphs)
    store.verify()
    store.columns.validate()
    for column in PACKED.stored:
        np.testing.assert_array_equal(store.columns[column.name], graphs[column.name], err_msg=column.name)
    pieces = (graphs.select(range(start, min(start + cut, num_graphs))) for start in range(0, num_graphs, cut))
    write(folder / "pieces.h5", pieces)
    mapped = (GraphStore.open(folder / name).columns for name in ("whole.h5", "pieces.h5"))
    write(folder / "joined.h5", mapped)
    write(folder / "twice.h5", [graphs, graphs])
    assert (folder / "pieces.h5").read_bytes() == (folder / "whole.h5").read_bytes()
    assert (folder / "joined.h5").read_bytes() == (folder / "twice.h5").read_bytes()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), num_graphs=st.integers(1, 12), data=st.data())
def test_a_batch_of_a_store_is_that_of_the_graphs_themselves(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_graphs: int, data: st.DataObject
) -> None:
    """Bit for bit and in the same types: streams see the graphs, training sees the store."""
    graphs = packed_graphs(seed, num_graphs, max_nodes=40)
    columns = write(tmp_path_factory.mktemp("stores") / "a.h5", graphs).columns
    chosen = np.array(data.draw(st.lists(st.integers(0, num_graphs - 1), min_size=1, max_size=8)))
    found, expected = (TensorColumns.from_columns(one).gather(chosen) for one in (columns, graphs))
    assert set(found.keys()) == set(expected.keys())
    for name in ("x", "edge_index", "edge_attr", "pos", "y", "batch", "ptr"):
        assert found[name].dtype == expected[name].dtype, name
        assert torch.equal(found[name], expected[name]), name
    selected = columns.select(chosen)
    for column in PACKED.stored:
        assert selected[column.name].dtype == column.dtype, column.name
        np.testing.assert_array_equal(selected[column.name], graphs.select(chosen)[column.name])


def test_packed_rows_are_read_like_an_array(tmp_path: Path) -> None:
    graphs = packed_graphs(3, 60)
    rows = write(tmp_path / "a.h5", graphs).columns.x
    assert isinstance(rows, PackedRows)
    x = graphs.x
    assert (rows.shape, len(rows), rows.dtype) == (x.shape, len(x), x.dtype)
    assert len(rows) > 2 * BLOCK_ROWS
    chosen = np.random.default_rng(0).integers(0, len(x), 300)
    for key in (
        slice(5, 150),
        slice(None, None, 7),
        chosen,
        x[:, 0] > 0,
        7,
        -1,
        (slice(3, 9), 4),
        (chosen, slice(2, 5)),
        slice(150, 5, -3),
        slice(-4, 10**9),
        chosen - len(x),
        [],
        [[3, 4], [-5, 6]],
        np.uint8([4, 170]),
        (x[:, 0] > 0, 3),
        (-2, 10),
        (slice(None), [1, 7]),
        ...,
        (..., 2),
    ):
        np.testing.assert_array_equal(rows[key], x[key])
    np.testing.assert_array_equal(np.asarray(rows), x)
    np.testing.assert_array_equal(np.take(rows, chosen, axis=0), x[chosen])
    np.testing.assert_array_equal(np.take(rows, chosen - len(x), axis=0), x[chosen])
    with pytest.raises(ValueError, match="along axis 0"):
        np.take(rows, chosen, axis=1)
    assert rows.nbytes < x.nbytes / 2


def many_rows(num_rows: int) -> PackedRows:
    """Make rows at rest that take no memory."""
    return PackedRows(
        PACKING,
        np.broadcast_to(np.zeros(2, np.uint8), (num_rows, 2)),
        np.broadcast_to(np.int16(0), num_rows),
        np.broadcast_to(np.int64(0), -(-num_rows // BLOCK_ROWS)),
        np.zeros(0, np.float16),
    )


@pytest.mark.parametrize("key", [10, -11, [3, 10], np.ones(9, bool), np.ones(11, bool), True, [0.5], (10, 2)])
def test_rows_that_are_none_are_refused(key: object) -> None:
    """As an array refuses them: a mask of another length, as packed rows are not broadcast."""
    with pytest.raises(IndexError, match="packed rows: "):
        many_rows(10)[key]


@pytest.mark.parametrize("indices", [[10], [-11], [True]])
def test_rows_that_are_none_are_not_taken(indices: list[int]) -> None:
    with pytest.raises(IndexError, match="packed rows: "):
        np.take(many_rows(10), indices, axis=0)


@pytest.mark.parametrize("key", [5, -1, slice(10, 20), slice(None, None, 10**7), [3, 10**8 - 1]])
def test_reading_some_rows_takes_no_memory_of_all(key: object) -> None:
    rows = many_rows(10**8)
    tracemalloc.start()
    found = rows[key]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.reshape(-1, NUM_FEATURES)[0].tolist() == many_rows(1)[0].tolist()
    assert peak < 1_000_000


def test_reading_one_feature_takes_no_memory_of_all_features() -> None:
    num = 400_000
    rows = many_rows(num)
    tracemalloc.start()
    found = rows[:, 2]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.shape, set(found.tolist())) == ((num,), {-4.0})
    assert peak < 20 * num + 2_000_000  # places and one feature, and a few rows unpacked


def test_what_features_usually_are_takes_no_room() -> None:
    rest = np.tile(np.array(PACKING.rest, np.float32), (4, 1))
    rest[:, [1, 3, 7, 8]] = rest[:, [0, 2, 6, 6]]
    assert pack(rest, PACKING, "x").counts.tolist() == [0, 0, 0, 0]
    rest[1, 2] = 3.0  # and what is usually the same stays at -4
    assert pack(rest, PACKING, "x").counts.tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.1, "x: feature 4 holds 0.1, which is no float16: round it where it is made"),
        (70_000.0, "x: feature 4 holds 70000.0, which is no float16: it is beyond the largest"),
        (np.inf, "x: feature 4 holds NaN or infinity"),
        (np.nan, "x: feature 4 holds NaN or infinity"),
    ],
)
def test_a_value_that_the_file_would_change_is_refused(tmp_path: Path, value: float, message: str) -> None:
    graphs = packed_graphs(1, 5)
    graphs.x[2, 4] = value
    with pytest.raises(StoreError, match=message):
        write(tmp_path / "a.h5", graphs)
    assert not list(tmp_path.iterdir())


def test_an_id_beyond_its_narrow_type_is_refused(tmp_path: Path) -> None:
    """A graph of more nodes than int16 can count."""
    num = 40_000
    graphs = GraphColumns(
        PACKED,
        node_ptr=np.array([0, num]),
        edge_ptr=np.array([0, 1]),
        x=np.zeros((num, NUM_FEATURES), np.float32),
        edge_index=np.array([[0], [num - 1]], np.int32),
        edge_attr=np.zeros((1, 2), np.float32),
        pos=np.zeros((num, 2), np.float32),
        y=np.zeros(1, np.int8),
    )
    with pytest.raises(StoreError, match="edge_index: feature 0 holds 39999, which is no int16: state a wider type"):
        write(tmp_path / "a.h5", graphs)


def test_a_store_of_the_same_columns_as_they_are_computed_is_refused(tmp_path: Path) -> None:
    """As one is that was prepared before columns were packed."""
    plain = random_columns(1, 5)
    schema = Schema(tuple(column for column in SCHEMA.columns if column.indexes is None))
    columns = GraphColumns(schema, **{column.name: plain[column.name] for column in schema.stored})
    write_store(tmp_path / "a.h5", schema, columns, node_features=NODE_FEATURES, edge_features=EDGE_FEATURES, build={})
    expected = Schema((X.stored_as("float16", packed=True), *schema.columns[1:]))
    with pytest.raises(StoreError, match=r"x is stored as float32, expected float16, packed; prepare again"):
        GraphStore.open(tmp_path / "a.h5", expected)


def test_packing_of_another_number_of_features_than_are_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="x: packing of 11 features, but there are 3; give one for each"):
        write(tmp_path / "a.h5", packed_graphs(1, 5), node_features=NAMES[:3])
    with pytest.raises(StoreError, match="pos: packing is given, but the schema does not have it packed"):
        write(tmp_path / "a.h5", packed_graphs(1, 5), packings=PACKINGS | {"pos": Packing.at_zero(2)})


def test_a_store_is_read_by_its_own_packing_and_written_by_another(tmp_path: Path) -> None:
    """So what features usually are may change, and stores that were prepared before are read as ever."""
    graphs = packed_graphs(1, 20)
    packed = write(tmp_path / "a.h5", graphs)
    other = write(tmp_path / "b.h5", packed.columns, packings={})
    other.verify()
    np.testing.assert_array_equal(other.columns.x, graphs.x)
    assert len(other.columns.x.values) > len(packed.columns.x.values)


def test_packed_rows_are_packed_anew_in_pieces_for_a_file_of_another_packing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied as they are, they would be read by what features of the other file usually are."""
    graphs = packed_graphs(1, 60)
    packed = write(tmp_path / "a.h5", graphs)
    monkeypatch.setattr(spool_module, "_ROWS_AT_ONCE", 50)  # no multiple of a block
    monkeypatch.delattr(PackedRows, "__array__")  # never all rows at once
    others = (
        Packing(PACKING.same_as, tuple(value + 1.0 for value in PACKING.rest)),
        Packing((0, 1, 2, 3, 4, 4, 6, 7, 7, 9, 9), PACKING.rest),
    )
    for other in others:
        packings = PACKINGS | {"x": other}
        write(tmp_path / "b.h5", [packed.columns] * 2, packings=packings).verify()
        write(tmp_path / "c.h5", [graphs] * 2, packings=packings)
        assert (tmp_path / "b.h5").read_bytes() == (tmp_path / "c.h5").read_bytes()
        np.testing.assert_array_equal(GraphStore.open(tmp_path / "b.h5").columns.x[: len(graphs.x)], graphs.x)


def test_values_that_are_missing_in_the_file_are_found_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path, packed_graphs(1, 20))
    with h5py.File(path, "r+") as file:
        values = file["x_values"][:-1]
        del file["x_values"]
        file["x_values"] = values
    with pytest.raises(StoreError, match=r"column x has .* values, its rows .*; build the store again"):
        GraphStore.open(path)


def damage(path: Path, name: str, place: object, value: int) -> None:
    with h5py.File(path, "r+") as file:
        file[name][place] = value


def rehash(path: Path) -> None:
    """Write the content hash that the damaged arrays have: as a faulty writer would."""
    with pytest.raises(StoreError, match="the columns hash to") as caught:
        GraphStore.open(path).verify()
    with h5py.File(path, "r+") as file:
        file.attrs["content_hash"] = str(caught.value).split("hash to ")[1].split(";")[0]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 1, "x_block begins with 1, expected 0"),
        (0, -1, "x_block begins with -1, expected 0"),
        (1, -1, "x_block: block 0 has -1 values, expected 0 to 704"),
        (1, 705, "x_block: block 0 has 705 values, expected 0 to 704"),
        (1, -(2**63), r"x_block: block 0 has \S+ values"),
        (2, 2**40, r"x_block: block 1 has \S+ values"),
        (-1, 2**63 - 1, r"x_block: block \d has \S+ values"),
    ],
)
def test_places_of_blocks_that_cannot_be_are_found_when_a_store_is_opened(
    tmp_path: Path, place: int, value: int, message: str
) -> None:
    path = tmp_path / "a.h5"
    assert len(write(path, packed_graphs(1, 60)).columns.x) > 2 * BLOCK_ROWS
    damage(path, "x_block", place, value)
    with pytest.raises(StoreError, match=rf"a\.h5: column {message}.*; build the store again"):
        GraphStore.open(path)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("x_begin", 0, 3, "x_begin: the values of row 0 begin at 3, expected 0"),
        ("x_begin", 70, -5, "x_begin: the values of row 70 begin at .*, expected"),
        ("x_begin", 70, 32_000, "x_begin: the values of row 70 begin at .*, expected"),
        ("x_mask", (70, 1), 0xF8, "x_mask: row 70 sets a bit beyond its 11 features"),
        ("x_mask", (70, 1), 0x08, "x_mask: row 70 sets a bit beyond its 11 features"),
    ],
)
def test_rows_whose_places_are_not_what_their_bits_say_are_found_where_all_are_read(
    tmp_path: Path, name: str, place: object, value: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing_module, "_ROWS_CHECKED", 50)
    path = tmp_path / "a.h5"
    write(path, packed_graphs(1, 60)).verify()
    damage(path, name, place, value)
    rehash(path)
    store = GraphStore.open(path)
    store.columns.x[:]  # looks up nothing beyond the file
    with pytest.raises(StoreError, match=rf"a\.h5: column {message}.*; build the store again"):
        store.verify()
    with pytest.raises(UserError, match=message):
        store.columns.validate()


def test_bits_of_no_feature_do_not_count() -> None:
    rows = many_rows(3)
    padded = PackedRows(PACKING, np.array([[0, 0xF8]] * 3, np.uint8), rows.begin, rows.block, rows.values)
    assert padded.counts().tolist() == [0, 0, 0]
    padded.check_blocks("x")
    full = PackedRows(Packing.at_zero(8), np.full((3, 1), 0xFF, np.uint8), rows.begin, rows.block, rows.values)
    assert full.counts().tolist() == [8, 8, 8]


@pytest.mark.parametrize(
    ("same_as", "rest", "message"),
    [
        ((0, 1), (0.0,), "2 places and 1 values"),
        ((), (), "0 places"),
        ((0, 2), (0.0, 0.0), "feature 1 is usually the same as 2"),
        ((1, 1, 0), (0.0,) * 3, "feature 2 is usually the same as 0, which must be .* usually at rest"),
        ((0,), (0.1,), "a value at rest is no float16"),
    ],
)
def test_packing_that_cannot_be_undone_is_refused(
    same_as: tuple[int, ...], rest: tuple[float, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Packing(same_as, rest)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("y", "graph", "int8", narrow="int32"), "int8 cannot be stored as int32"),
        (Column("y", "graph", "float32", narrow="int8"), "float32 cannot be stored as int8"),
        (Column("y", "graph", "int8", narrow="bool"), "narrow is 'bool'; give one of float16"),  # type: ignore[arg-type]
        (Column("y", "node", "float32", 1, packed=True), "not rows of float32 that are stored as"),
        (Column("x_mask", "graph", "int8"), "the name is taken"),
    ],
)
def test_storage_that_makes_no_sense_is_refused(column: Column, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Schema((*PACKED.columns[:3], column))
