import json
import os
import pickle
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from kdgat.graphs import CORE, GraphColumns, GraphStore, Schema, write_store
from kdgat.graphs import spool as spool_module
from kdgat.graphs.store import SCHEMA_VERSION_KEY, StoreError
from kdgat.stage import RunDirectory
from tests.graphs.examples import EDGE_FEATURES, NODE_FEATURES, RECORDINGS, SCHEMA, empty_columns, random_columns

BUILD = {"window": 100, "stride": 50, "features": ["count"]}


def write(path, chunks, **changes):
    names = {
        "node_features": NODE_FEATURES,
        "edge_features": EDGE_FEATURES,
        "attributes": {"recordings": RECORDINGS},
        "build": BUILD,
    }
    write_store(path, SCHEMA, chunks, **(names | changes))


def assert_holds(store: GraphStore, columns: GraphColumns) -> None:
    assert store.columns.schema == columns.schema
    for column in columns.schema.stored:
        found, expected = store.columns[column.name], columns[column.name]
        np.testing.assert_array_equal(found, expected, err_msg=column.name)
        assert found.dtype == expected.dtype
        assert found.ctypes.data % 64 == 0 or not found.size


def test_store_returns_what_was_written(tmp_path):
    columns = random_columns(1, 40)
    write(tmp_path / "deep" / "a.h5", columns)
    with GraphStore.open(tmp_path / "deep" / "a.h5") as store:
        assert_holds(store, columns)
        assert store.num_graphs == 40
        assert store.node_features == NODE_FEATURES
        assert store.edge_features == EDGE_FEATURES
        assert store.attributes == {"recordings": list(RECORDINGS)}
        assert store.build == BUILD
        store.verify()
        store.columns.validate()
    with pytest.raises(StoreError, match="closed"):
        _ = store.columns


def test_streamed_chunks_give_the_same_bytes_as_one_piece(tmp_path, monkeypatch):
    columns = random_columns(1, 40)
    write(tmp_path / "whole.h5", columns)
    monkeypatch.setattr(spool_module, "_BLOCK_BYTES", 64)  # many blocks per column
    write(tmp_path / "parts.h5", (columns.select(range(start, min(start + 7, 40))) for start in range(0, 40, 7)))
    assert (tmp_path / "parts.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    GraphStore.open(tmp_path / "parts.h5").verify()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["parts.h5", "whole.h5"]


def test_content_hash_depends_on_the_columns_and_not_on_build_parameters(tmp_path):
    columns = random_columns(1, 10)
    changed = columns.replace(y=1 - columns["y"])
    write(tmp_path / "a.h5", columns)
    write(tmp_path / "b.h5", columns, build={})
    write(tmp_path / "c.h5", changed)
    a, b, c = (GraphStore.open(tmp_path / name).content_hash for name in ("a.h5", "b.h5", "c.h5"))
    assert a == b != c
    assert len(a) == 64


@pytest.mark.parametrize("chunks", [[], [empty_columns(3, 2)], empty_columns(3, 2)])
def test_store_of_no_graph(tmp_path, chunks):
    write(tmp_path / "a.h5", chunks)
    store = GraphStore.open(tmp_path / "a.h5")
    store.verify()
    assert_holds(store, empty_columns(3, 2))


@pytest.mark.parametrize(("max_nodes", "max_edges"), [(3, 0), (0, 0)])
def test_store_of_graphs_without_edges_or_nodes(tmp_path, max_nodes, max_edges):
    columns = random_columns(1, 5, max_nodes, max_edges)
    write(tmp_path / "a.h5", [columns, columns.select([])])
    store = GraphStore.open(tmp_path / "a.h5")
    store.verify()
    assert_holds(store, columns)


def test_names_beyond_the_attribute_limit_of_old_hdf5_are_kept(tmp_path):
    recordings = [f"recording {'x' * 200} {number}" for number in range(1000)]
    write(tmp_path / "a.h5", random_columns(1, 3), attributes={"recordings": recordings}, build={"note": "é" * 100_000})
    store = GraphStore.open(tmp_path / "a.h5")
    assert store.attributes["recordings"] == recordings
    assert store.build["note"] == "é" * 100_000


def test_memory_of_writing_does_not_grow_with_the_number_of_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "_BLOCK_BYTES", 1 << 16)
    chunk = random_columns(1, 3000)

    def peak_bytes(num_chunks):
        tracemalloc.start()
        write(tmp_path / "a.h5", (chunk.select(range(3000)) for _ in range(num_chunks)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(1)  # first-use allocations of h5py
    assert peak_bytes(24) < 1.2 * peak_bytes(3)
    assert GraphStore.open(tmp_path / "a.h5").num_graphs == 3 * 3000


def test_mapped_columns_refuse_to_be_written(tmp_path):
    write(tmp_path / "a.h5", random_columns(1, 10))
    with pytest.raises(ValueError, match="read-only"):
        GraphStore.open(tmp_path / "a.h5").columns.x[:] = 7


def test_pickled_store_opens_the_file_again(tmp_path):
    columns = random_columns(1, 10)
    write(tmp_path / "a.h5", columns)
    pickled = pickle.dumps(GraphStore.open(tmp_path / "a.h5"))
    assert len(pickled) < 500
    assert_holds(pickle.loads(pickled), columns)


def test_opening_reads_no_column_and_verify_finds_one_changed_byte(tmp_path):
    path = tmp_path / "a.h5"
    write(path, random_columns(1, 10))
    with h5py.File(path) as file:
        offset = file["x"].id.get_offset()
    with path.open("r+b") as file:
        file.seek(offset + 3)
        byte = file.read(1)[0]
        file.seek(offset + 3)
        file.write(bytes([byte ^ 1]))
    store = GraphStore.open(path)
    with pytest.raises(StoreError, match=r"a\.h5: content_hash is .* build it again"):
        store.verify()


def test_store_larger_than_memory_opens(tmp_path):
    """A sparse file of twice the memory stands in for a big store: mapping it must reserve nothing."""
    num_nodes = 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 12
    write(tmp_path / "a.h5", empty_columns(3, 2))
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    graph = {"node_ptr": (2,), "edge_ptr": (2,), "x": (num_nodes, 3), "node_y": (num_nodes,), "node_id": (num_nodes,)}
    graph |= {column.name: (1,) for column in SCHEMA.columns if column.level == "graph"}
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        for name, shape in graph.items():
            datatype = file[name].id.get_type()
            del file[name]
            h5py.h5d.create(file.id, name.encode(), datatype, h5py.h5s.create_simple(shape), dcpl=layout)
        file["node_ptr"][:] = [0, num_nodes]
        file["edge_ptr"][:] = 0
    store = GraphStore.open(tmp_path / "a.h5")
    assert store.columns.num_nodes == num_nodes
    assert store.columns.x[-1].tolist() == [0, 0, 0]


def failing_chunks(columns):
    yield columns
    raise RuntimeError("reader broke")


def test_failed_write_keeps_the_old_store_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "a.h5"
    columns = random_columns(1, 10)
    write(path, columns)
    with pytest.raises(RuntimeError, match="reader broke"):
        write(path, failing_chunks(random_columns(2, 10)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.h5"]
    assert_holds(GraphStore.open(path), columns)


KILLED_WRITER = """
import os, signal, sys
from tests.graphs.examples import random_columns
from tests.graphs.test_store import write

def chunks():
    yield random_columns(2, 10)
    os.kill(os.getpid(), signal.SIGKILL)

write(sys.argv[1], chunks())
"""


# The first fsync is that of the complete file, which has no name of its own yet.
KILLED_BEFORE_THE_RENAME = """
import os, signal, sys
from tests.graphs.examples import random_columns
from tests.graphs.test_store import write

os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
write(sys.argv[1], random_columns(5, 100))
"""


@pytest.mark.parametrize("code", [KILLED_WRITER, KILLED_BEFORE_THE_RENAME])
@pytest.mark.processes
def test_killed_write_keeps_the_old_store_and_the_next_owner_cleans_up(tmp_path, code):
    path = tmp_path / "a.h5"
    columns = random_columns(1, 10)
    write(path, columns)
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    with RunDirectory(tmp_path).lock():
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.h5", "owner.json", "owner.lock"]
    store = GraphStore.open(path)
    store.verify()
    assert_holds(store, columns)


def test_open_store_survives_its_replacement(tmp_path):
    path = tmp_path / "a.h5"
    old, new = random_columns(1, 10), random_columns(2, 20)
    write(path, old)
    store = GraphStore.open(path)
    write(path, new)
    assert_holds(store, old)
    assert_holds(GraphStore.open(path), new)


def test_rows_that_do_not_fit_are_refused_with_file_and_chunk(tmp_path):
    path = tmp_path / "a.h5"
    good = random_columns(1, 10)
    with pytest.raises(StoreError, match=r"a\.h5: chunk 1: x: 4 features, but 3 feature names"):
        write(path, [good, empty_columns(4, 2)])
    with pytest.raises(StoreError, match=r"chunk 0: recording: .*1 recordings are named"):
        write(path, good, attributes={"recordings": ["one"]})
    with pytest.raises(StoreError, match="chunk 0: x: feature 0 holds NaN"):
        write(path, good.replace(x=np.full_like(good.x, np.nan)))
    with pytest.raises(StoreError, match="build: Object of type PosixPath is not JSON serializable"):
        write(path, good, build={"root": tmp_path})
    with pytest.raises(StoreError, match="attributes: recording indexes the list 'recordings'; give it"):
        write(path, good, attributes={})
    with pytest.raises(StoreError, match="attributes: Object of type PosixPath"):
        write(path, good, attributes={"recordings": ["a", "b"], "root": tmp_path})
    with pytest.raises(StoreError, match=r"chunk 0: column edge_attr is None, expected Column\(name='edge_attr'"):
        write(path, GraphColumns.empty(Schema(CORE), num_node_features=3))
    with pytest.raises(StoreError, match="node_features: a name appears twice"):
        write(path, good, node_features=["a", "b", "a"])
    assert list(tmp_path.iterdir()) == []


def drop(name):
    def damage(file):
        del file[name]

    return damage


def put(name, value, **options):
    def damage(file):
        del file[name]
        file.create_dataset(name, data=value, **options)

    return damage


def set_attribute(name, value):
    def damage(file):
        file.attrs[name] = value

    return damage


def drop_attribute(name):
    def damage(file):
        del file.attrs[name]

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (set_attribute(SCHEMA_VERSION_KEY, 1), "schema_version is 1, this kdgat reads 2 and 3; prepare again"),
        (set_attribute(SCHEMA_VERSION_KEY, "new"), "schema_version is new, this kdgat reads 2 and 3; prepare again"),
        (set_attribute(SCHEMA_VERSION_KEY, 4), "written by a newer kdgat .schema_version is 4, .* update kdgat"),
        (set_attribute("format", "other"), "format: not 'kdgat graph store'"),
        (drop_attribute("attributes"), "attribute attributes is missing"),
        (drop_attribute("schema"), "attribute schema is missing"),
        (set_attribute("schema", "[]"), "attribute schema: x: is None, must be Column"),
        (set_attribute("schema", '[{"name": "x", "level": "tree"}]'), "attribute schema: .*missing .*'dtype'"),
        (set_attribute("schema", '[{"title": "x"}]'), "attribute schema: .*missing .*'name'"),
        (set_attribute("build", "{"), "attribute build is no JSON"),
        (set_attribute("node_features", '["a"]'), "x has 3 features, node_features names 1"),
        (drop("edge_attr"), "column edge_attr is missing"),
        (put("y", np.zeros(10, np.int64)), r"column y is int64 \(10,\), expected int8 \(graphs,\)"),
        (put("y", np.zeros(9, np.int8)), "column y has 9 rows, expected 10"),
        (put("y", np.zeros(10, np.int8), chunks=(5,)), "column y is chunked"),
        (put("edge_ptr", np.zeros(4, np.int64)), "column edge_ptr has 4 rows, expected 11"),
        (put("node_ptr", np.zeros(0, np.int64)), "column node_ptr has no entry"),
        (put("node_id", np.zeros(3, np.int32)), "column node_id has 3 rows"),
        (put("edge_index", np.zeros((3, 0), np.int32)), r"edge_index is int32 \(3, 0\), expected int32 \(2, edges\)"),
    ],
)
def test_open_names_what_is_wrong(tmp_path, damage, message):
    path = tmp_path / "a.h5"
    write(path, random_columns(1, 10))
    GraphStore.open(path)
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(StoreError, match=message) as caught:
        GraphStore.open(path)
    assert str(path) in str(caught.value)


def write_version_1(path: Path) -> None:
    """Write a store as the format was before it carried its schema: with one list of columns for everybody."""
    columns = {
        "node_ptr": np.array([0, 2]), "edge_ptr": np.array([0, 1]), "x": np.zeros((2, 3), np.float32),
        "edge_index": np.array([[0], [1]], np.int32), "edge_attr": np.zeros((1, 2), np.float32),
        "y": np.zeros(1, np.int8), "node_y": np.zeros(2, np.int8), "node_id": np.zeros(2, np.int32),
        "recording": np.zeros(1, np.int32), "first_message": np.zeros(1, np.int64), "start_time": np.zeros(1),
        "message_count": np.zeros(1, np.int32), "attack_count": np.zeros(1, np.int32),
    }  # fmt: skip
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        for name, array in columns.items():
            file.create_dataset(name, data=array)
        file.attrs["format"] = "kdgat graph store"
        file.attrs["schema_version"] = 1
        file.attrs["node_features"] = json.dumps(NODE_FEATURES)
        file.attrs["edge_features"] = json.dumps(EDGE_FEATURES)
        file.attrs["recordings"] = json.dumps(RECORDINGS)
        file.attrs["build"] = json.dumps(BUILD)
        file.attrs["content_hash"] = "0" * 64


def test_a_store_of_the_old_format_is_refused_and_says_prepare_again(tmp_path):
    write_version_1(tmp_path / "train.h5")
    with pytest.raises(StoreError, match=r"train\.h5: schema_version is 1, this kdgat reads 2 and 3; prepare again"):
        GraphStore.open(tmp_path / "train.h5")


def test_only_a_store_of_narrow_columns_has_the_version_that_knows_them(tmp_path):
    """Whose refusal by an older kdgat names the version; that can read all others."""
    narrow = Schema(
        tuple(column.stored_as("int16") if column.name == "edge_index" else column for column in SCHEMA.columns)
    )
    columns = random_columns(1, 3)
    for name, schema, version in (("plain.h5", SCHEMA, 2), ("narrow.h5", narrow, 3)):
        arrays = {column.name: columns[column.name] for column in schema.stored}
        write_store(
            tmp_path / name, schema, GraphColumns(schema, **arrays), node_features=NODE_FEATURES,
            edge_features=EDGE_FEATURES, attributes={"recordings": RECORDINGS}, build=BUILD,
        )  # fmt: skip
        with h5py.File(tmp_path / name, "r+") as file:
            assert file.attrs[SCHEMA_VERSION_KEY] == version
            file.attrs[SCHEMA_VERSION_KEY] = 2  # as narrow columns were written before
        assert GraphStore.open(tmp_path / name, schema).num_graphs == 3


def test_a_store_of_another_schema_is_refused_by_the_first_column_that_differs(tmp_path):
    write(tmp_path / "a.h5", random_columns(1, 3))
    assert GraphStore.open(tmp_path / "a.h5", SCHEMA).num_graphs == 3
    for other, message in (
        (Schema(SCHEMA.columns[:-1]), r"column start_time is Column\(.*\), expected None"),
        (
            Schema((*CORE, *SCHEMA.columns[:1:-1])),
            "columns are in the order x, .*, expected x, edge_index, start",
        ),
    ):
        with pytest.raises(StoreError, match=rf"a\.h5: {message}.*; prepare again"):
            GraphStore.open(tmp_path / "a.h5", other)


def test_open_refuses_what_is_no_store(tmp_path):
    with pytest.raises(StoreError, match="no such file"):
        GraphStore.open(tmp_path / "missing.h5")
    (tmp_path / "text.h5").write_text("not a store")
    with pytest.raises(StoreError, match="not an HDF5 file"):
        GraphStore.open(tmp_path / "text.h5")
    h5py.File(tmp_path / "other.h5", "w").close()
    with pytest.raises(StoreError, match="format: not"):
        GraphStore.open(tmp_path / "other.h5")


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.9, 0.999])
def test_truncated_file_is_refused(tmp_path, fraction):
    path = tmp_path / "a.h5"
    write(path, random_columns(1, 400))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(StoreError, match="truncated"):
        GraphStore.open(path)
