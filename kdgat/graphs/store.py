"""Graph store: the columns of one split in one HDF5 file, opened in constant time as a memory map."""

from __future__ import annotations

import hashlib
import json
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.schema import (
    EDGE_ATTR,
    EDGE_INDEX,
    EDGE_PTR,
    NODE_PTR,
    POINTERS,
    Column,
    ColumnsError,
    Schema,
    X,
)
from kdgat.stage.files import sync_to_disk, temporary_path

# Attributes of the file; the datasets are named like the columns (kdgat.graphs.schema).
FORMAT_KEY = "format"
SCHEMA_VERSION_KEY = "schema_version"  # of the file format; which columns there are is the next attribute
SCHEMA_KEY = "schema"
NODE_FEATURES_KEY = "node_features"
EDGE_FEATURES_KEY = "edge_features"
ATTRIBUTES_KEY = "attributes"
BUILD_KEY = "build"
CONTENT_HASH_KEY = "content_hash"

FORMAT = "kdgat graph store"
SCHEMA_VERSION = 2

_BLOCK_BYTES = 8 << 20
# Every column starts at a multiple of this in the file, as PyTorch and SIMD loads expect of an array.
_ALIGNMENT = 64


class StoreError(ValueError):
    """A graph store that cannot be written or read; the text names the file, the key and the fix."""


class GraphStore:
    """Read one store; the arrays of `columns` are pages of the file, fetched when touched and shared by processes.

    Make one with `GraphStore.open(path)`. Pickling sends the path, so that a worker process maps the file itself.
    """

    def __init__(self, path: Path, columns: GraphColumns, attributes: dict[str, Any]) -> None:
        """Hold what `open` has read and checked."""
        self.path = path
        self.node_features: tuple[str, ...] = tuple(attributes[NODE_FEATURES_KEY])
        self.edge_features: tuple[str, ...] = tuple(attributes[EDGE_FEATURES_KEY])
        self.attributes: dict[str, Any] = attributes[ATTRIBUTES_KEY]
        self.build: dict[str, Any] = attributes[BUILD_KEY]
        self.content_hash: str = attributes[CONTENT_HASH_KEY]
        self._columns: GraphColumns | None = columns

    @classmethod
    def open(cls, path: Path | str, schema: Schema | None = None) -> GraphStore:
        """Open a store without reading its columns.

        Raises:
            StoreError: if the file is not a complete store, or not one of `schema`, where that is given.
        """
        path = Path(path)
        if not path.is_file():
            raise StoreError(f"{path}: no such file; build the store first, or correct the path")
        if not h5py.is_hdf5(path):
            raise StoreError(f"{path}: not an HDF5 file; give a store written by kdgat")
        try:
            # Without locking: file systems of clusters often refuse HDF5's locks, and a finished store never changes.
            with h5py.File(path, "r", locking=False) as file:
                attributes = _read_attributes(path, file)
                found: Schema = attributes[SCHEMA_KEY]
                if schema is not None and found != schema:
                    raise StoreError(f"{path}: {_difference(found, schema)}; prepare again")
                layout = [_read_layout(path, file, column) for column in found.stored]
        except (OSError, KeyError, RuntimeError) as error:  # what h5py raises, depending on the part that is damaged
            raise StoreError(f"{path}: damaged or truncated ({error}); copy or build it again") from error
        columns = _map_columns(path, found, layout)
        _check_sizes(path, columns, attributes)
        return cls(path, columns, attributes)

    @property
    def columns(self) -> GraphColumns:
        """Return the memory-mapped, read-only columns."""
        if self._columns is None:
            raise StoreError(f"{self.path}: closed; open the store again")
        return self._columns

    @property
    def num_graphs(self) -> int:
        """Return G."""
        return self.columns.num_graphs

    def verify(self) -> None:
        """Read the whole file from disk and compare its content hash; raise StoreError where they differ."""
        with h5py.File(self.path, "r", locking=False) as file:
            digest = hashlib.sha256()
            for column in self.columns.schema.stored:
                dataset = file[column.name]
                _hash_header(digest, column, dataset.shape)
                for _, where, _ in _blocks(column, dataset.shape):
                    digest.update(dataset[where].data.cast("B"))
        if digest.hexdigest() != self.content_hash:
            raise StoreError(
                f"{self.path}: {CONTENT_HASH_KEY} is {self.content_hash}, but the columns hash to "
                f"{digest.hexdigest()}; the content was damaged or edited: build it again"
            )

    def close(self) -> None:
        """Let go of the columns; the file is unmapped when the last array or tensor that views it is gone."""
        self._columns = None

    def __enter__(self) -> GraphStore:
        """Return the store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    def __reduce__(self) -> tuple[Callable[[Path], GraphStore], tuple[Path]]:
        """Pickle as a path to open."""
        return GraphStore.open, (self.path,)


def write_store(
    path: Path | str,
    schema: Schema,
    chunks: Iterable[GraphColumns] | GraphColumns,
    *,
    node_features: Sequence[str],
    edge_features: Sequence[str] = (),
    attributes: Mapping[str, Any] | None = None,
    build: dict[str, Any],
) -> None:
    """Write the graphs of all chunks to one store, replacing `path` only when the file is complete and on disk.

    Memory holds one chunk at a time: a contiguous dataset needs its final size, so the chunks are first spooled to
    nameless files beside the target, which vanish with the process. Equal content gives equal bytes.

    Args:
        path: the file.
        schema: the columns of every chunk; the file carries it.
        chunks: the graphs.
        node_features: names of the columns of x.
        edge_features: names of the columns of edge_attr, where the schema has it.
        attributes: what a family keeps beside its columns, as JSON; each list that a column indexes must be there.
        build: what the graphs were built with, as JSON.

    Raises:
        StoreError: naming the file and what is wrong; an error of the iterator passes. The old file stays in place.
    """
    path = Path(path)
    lists = dict(attributes or {})
    for key, names in ((NODE_FEATURES_KEY, node_features), (EDGE_FEATURES_KEY, edge_features)):
        if len(set(names)) != len(names):
            raise StoreError(f"{path}: {key}: a name appears twice in {list(names)}; names must be unique")
    if edge_features and EDGE_ATTR.name not in schema:
        raise StoreError(f"{path}: {EDGE_FEATURES_KEY}: {list(edge_features)}, but the schema has no edge_attr; add it")
    for column in schema.columns:
        if column.indexes is not None and not isinstance(lists.get(column.indexes), list | tuple):
            raise StoreError(f"{path}: {ATTRIBUTES_KEY}: {column.name} indexes the list {column.indexes!r}; give it")
    content = {
        SCHEMA_KEY: [asdict(column) for column in schema.columns],
        NODE_FEATURES_KEY: list(node_features),
        EDGE_FEATURES_KEY: list(edge_features),
    }
    try:
        encoded = {key: _encode(value) for key, value in content.items()}
        for key, value in ((ATTRIBUTES_KEY, lists), (BUILD_KEY, build)):
            encoded[key] = _encode(value)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path}: {key}: {error}; keep to finite numbers, strings, lists and dicts") from error
    if isinstance(chunks, GraphColumns):
        chunks = [chunks]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under the name of a temporary file: whoever owns the directory after a kill removes what is left of it.
    unfinished = temporary_path(path)
    widths = {X.name: len(node_features), EDGE_ATTR.name: len(edge_features)}
    with _Spool(path.parent, schema, widths, lists) as spool:
        for position, chunk in enumerate(chunks):
            try:
                spool.append(chunk)
            except ColumnsError as error:
                raise StoreError(f"{path}: chunk {position}: {error}") from error
        try:
            _write_file(unfinished, spool, encoded)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    sync_to_disk(path.parent)


class _Spool:
    """Raw files that grow with each chunk: one per column, for edge_index one of sources and one of destinations."""

    def __init__(self, directory: Path, schema: Schema, widths: Mapping[str, int], lists: Mapping[str, Any]) -> None:
        self.schema = schema
        self.num_rows = {"graph": 0, "node": 0, "edge": 0}
        self._widths = widths
        self._lists = lists
        self._stack = ExitStack()
        self.files: dict[str, list[BinaryIO]] = {
            column.name: [
                self._stack.enter_context(tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 - the stack closes it
                for _ in range(2 if column == EDGE_INDEX else 1)
            ]
            for column in schema.stored
        }
        for column in POINTERS:
            self.files[column.name][0].write(np.zeros(1, column.dtype).tobytes())

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def append(self, chunk: GraphColumns) -> None:
        """Check one chunk and append its rows. Raises ColumnsError."""
        if chunk.schema != self.schema:
            raise ColumnsError(_difference(chunk.schema, self.schema))
        chunk.validate()
        for column in self.schema.columns:
            array = chunk[column.name]
            if column.width is None and array.shape[1] != self._widths[column.name]:
                names = self._widths[column.name]
                raise ColumnsError(f"{column.name}: {array.shape[1]} features, but {names} feature names")
            if column.indexes is not None and array.size:
                known = len(self._lists[column.indexes])
                if not 0 <= array.min() <= array.max() < known:
                    raise ColumnsError(
                        f"{column.name}: {array.min()}..{array.max()}, but {known} {column.indexes} are named"
                    )
        self._write(NODE_PTR, 0, chunk.node_ptr[1:] + self.num_rows["node"])
        self._write(EDGE_PTR, 0, chunk.edge_ptr[1:] + self.num_rows["edge"])
        for column in self.schema.columns:
            array = chunk[column.name]
            for part, rows in enumerate(array if column == EDGE_INDEX else [array]):
                self._write(column, part, rows)
        self.num_rows["graph"] += chunk.num_graphs
        self.num_rows["node"] += chunk.num_nodes
        self.num_rows["edge"] += chunk.num_edges

    def shape(self, column: Column) -> tuple[int, ...]:
        """Return the shape of a column with all rows appended so far."""
        rows = self.num_rows[column.level] + (column in POINTERS)
        return column.shape(rows, self._widths.get(column.name, 0))

    def _write(self, column: Column, part: int, rows: NDArray[Any]) -> None:
        self.files[column.name][part].write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")


def _write_file(path: Path, spool: _Spool, attributes: dict[str, str]) -> None:
    digest = hashlib.sha256()
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_layout(h5py.h5d.CONTIGUOUS)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # so that each dataset has its place in the file at once
    early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    early.set_obj_track_times(False)  # the same graphs give the same bytes, whenever they are written
    # libver v110: older formats refuse attributes above 64 KB, which many recordings or build parameters can reach.
    with h5py.File(
        path, "w", libver=("v110", "v110"), locking=False, alignment_threshold=1, alignment_interval=_ALIGNMENT
    ) as file:
        for column in spool.schema.stored:
            dtype, shape = np.dtype(column.dtype), spool.shape(column)
            _hash_header(digest, column, shape)
            datatype = h5py.h5t.py_create(dtype)
            dataset = h5py.Dataset(
                h5py.h5d.create(file.id, column.name.encode(), datatype, h5py.h5s.create_simple(shape), dcpl=early)
            )
            for source in spool.files[column.name]:
                source.seek(0)
            for part, where, block_shape in _blocks(column, shape):
                data = spool.files[column.name][part].read(dtype.itemsize * int(np.prod(block_shape)))
                digest.update(data)
                dataset[where] = np.frombuffer(data, dtype).reshape(block_shape)
            for source in spool.files[column.name]:
                source.truncate(0)  # give the space back: spool and store together stay near the size of one
        file.attrs[FORMAT_KEY] = FORMAT
        file.attrs[SCHEMA_VERSION_KEY] = SCHEMA_VERSION
        for key, value in attributes.items():
            file.attrs[key] = value
        file.attrs[CONTENT_HASH_KEY] = digest.hexdigest()
    sync_to_disk(path)


def _hash_header(digest: Any, column: Column, shape: tuple[int, ...]) -> None:
    """Hash what gives a column's bytes their meaning, so that equal bytes of another shape hash differently."""
    sizes = tuple(int(size) for size in shape)
    digest.update(f"{column.name} {column.level} {np.dtype(column.dtype).str} {sizes}\n".encode())


def _blocks(column: Column, shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, ...], tuple[int, ...]]]:
    """Cut a column into row-major blocks: yield part (row of edge_index, else 0), place and shape of each."""
    axis = column.row_axis
    row_shape = shape[axis + 1 :]
    row_bytes = np.dtype(column.dtype).itemsize * int(np.prod(row_shape))
    if not row_bytes:
        return
    step = max(1, _BLOCK_BYTES // row_bytes)
    for part in range(shape[0] if axis else 1):
        for start in range(0, shape[axis], step):
            stop = min(start + step, shape[axis])
            place = slice(start, stop)
            yield part, (part, place) if axis else (place,), (stop - start, *row_shape)


def count_graphs(path: Path) -> int:
    """Return how many graphs a store holds, by its header alone; StoreError if it is none."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return int(file[NODE_PTR.name].shape[0]) - 1
    except (OSError, KeyError) as error:
        raise StoreError(f"{path}: no store of graphs ({error}); build the store again") from error


def _read_attributes(path: Path, file: h5py.File) -> dict[str, Any]:
    if file.attrs.get(FORMAT_KEY) != FORMAT:
        raise StoreError(f"{path}: {FORMAT_KEY}: not {FORMAT!r}, though HDF5; give a store written by kdgat")
    version = file.attrs.get(SCHEMA_VERSION_KEY)
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}: {SCHEMA_VERSION_KEY} is {version}, this kdgat reads {SCHEMA_VERSION}; prepare again: "
            "remove the directory of the stage that wrote it, then give the command again"
        )
    attributes: dict[str, Any] = {}
    for key in (SCHEMA_KEY, NODE_FEATURES_KEY, EDGE_FEATURES_KEY, ATTRIBUTES_KEY, BUILD_KEY, CONTENT_HASH_KEY):
        if key not in file.attrs:
            raise StoreError(f"{path}: attribute {key} is missing; build the store again")
        try:
            attributes[key] = file.attrs[key] if key == CONTENT_HASH_KEY else json.loads(file.attrs[key])
        except (TypeError, json.JSONDecodeError) as error:
            raise StoreError(f"{path}: attribute {key} is no JSON ({error}); build the store again") from error
    try:
        attributes[SCHEMA_KEY] = Schema(tuple(Column(**column) for column in attributes[SCHEMA_KEY]))
    except (TypeError, ColumnsError) as error:  # TypeError: keys that a column does not have
        raise StoreError(f"{path}: attribute {SCHEMA_KEY}: {error}; build the store again") from error
    return attributes


def _encode(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _difference(found: Schema, expected: Schema) -> str:
    """State how two different schemas differ, by the first column that is not the same."""
    for name in (*expected.by_name, *found.by_name):
        if found.by_name.get(name) != expected.by_name.get(name):
            return f"column {name} is {found.by_name.get(name)}, expected {expected.by_name.get(name)}"
    return f"columns are in the order {', '.join(found.by_name)}, expected {', '.join(expected.by_name)}"


def _read_layout(path: Path, file: h5py.File, column: Column) -> tuple[Column, int | None, tuple[int, ...]]:
    """Return a column, its place in the file (None without rows) and its shape."""
    dataset = file.get(column.name)
    if not isinstance(dataset, h5py.Dataset):
        raise StoreError(f"{path}: column {column.name} is missing; build the store again")
    if dataset.dtype != column.dtype or not column.fits(dataset.shape):
        raise StoreError(
            f"{path}: column {column.name} is {dataset.dtype} {dataset.shape}, "
            f"expected {column.dtype} {column.layout}; build the store again"
        )
    if dataset.chunks is not None:
        raise StoreError(f"{path}: column {column.name} is chunked and cannot be mapped; write it with write_store")
    return column, dataset.id.get_offset(), dataset.shape


def _map_columns(
    path: Path, schema: Schema, layout: Sequence[tuple[Column, int | None, tuple[int, ...]]]
) -> GraphColumns:
    with path.open("rb") as file:
        # Read-only: a copy-on-write map, which PyTorch would like better, counts as memory to be, and a kernel
        # may refuse it for a store larger than RAM, even with MAP_NORESERVE.
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays: dict[str, NDArray[Any]] = {}
    for column, offset, shape in layout:
        dtype = np.dtype(column.dtype)
        num_bytes = dtype.itemsize * int(np.prod(shape))
        if not num_bytes:
            arrays[column.name] = np.empty(shape, dtype)
            continue
        if offset is None or offset + num_bytes > len(pages):
            raise StoreError(
                f"{path}: truncated: column {column.name} needs {num_bytes} bytes from {offset}, the file has "
                f"{len(pages)}; copy or build it again"
            )
        arrays[column.name] = np.frombuffer(pages, dtype, num_bytes // dtype.itemsize, offset).reshape(shape)
    return GraphColumns(schema, **arrays)


def _check_sizes(path: Path, columns: GraphColumns, attributes: dict[str, Any]) -> None:
    """Compare the number of rows of every column with the offsets; touches two pages per offset column."""
    if not len(columns.node_ptr):
        raise StoreError(f"{path}: column {NODE_PTR.name} has no entry, expected G+1; build the store again")
    num_rows = {
        "graph": columns.num_graphs,
        "node": int(columns.node_ptr[-1]),
        "edge": int(columns.edge_ptr[-1]) if len(columns.edge_ptr) else 0,
    }
    widths = {X.name: NODE_FEATURES_KEY, EDGE_ATTR.name: EDGE_FEATURES_KEY}
    for column in columns.schema.stored:
        array = columns[column.name]
        found = array.shape[column.row_axis]
        expected = num_rows[column.level] + (column in POINTERS)
        if found != expected:
            raise StoreError(
                f"{path}: column {column.name} has {found} rows, expected {expected} ({column.level}s); build it again"
            )
        if column.width is None and array.shape[1] != len(attributes[widths[column.name]]):
            key = widths[column.name]
            raise StoreError(
                f"{path}: column {column.name} has {array.shape[1]} features, {key} names {len(attributes[key])}; "
                "build the store again"
            )
