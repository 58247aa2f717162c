"""Graph store: the columns of one split in one HDF5 file, opened in constant time as a memory map."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, sync_to_disk
from kdgat.base.files import put_in_place, temporary_path
from kdgat.base.hdf5 import is_hdf5, open_hdf5
from kdgat.base.kept import refuse_newer
from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.datasets import POINTER, Dataset, array_of, count_blocks, datasets_of
from kdgat.graphs.packing import Packing
from kdgat.graphs.schema import EDGE_ATTR, EDGE_PTR, NODE_PTR, Column, Schema, X
from kdgat.graphs.spool import Spool, blocks_of, difference, hash_header

# Attributes of the file; the datasets are named like the columns (kdgat.graphs.schema).
FORMAT_KEY = "format"
SCHEMA_VERSION_KEY = "schema_version"  # of the file format; which columns there are is the next attribute
SCHEMA_KEY = "schema"
NODE_FEATURES_KEY = "node_features"
EDGE_FEATURES_KEY = "edge_features"
ATTRIBUTES_KEY = "attributes"
BUILD_KEY = "build"
PACKING_KEY = "packing"  # of packed columns, where there are some
CONTENT_HASH_KEY = "content_hash"

FORMAT = "kdgat graph store"
SCHEMA_VERSION = 2
# Where a column is narrow or packed, of which an older kdgat knows nothing; it can read all other stores.
STORAGE_SCHEMA_VERSION = 3
# Every column starts at a multiple of this in the file, as PyTorch and SIMD loads expect of an array.
_ALIGNMENT = 64


class StoreError(UserError):
    """A graph store that cannot be written or read; the text names the file, the key and the fix."""


class GraphStore:
    """Read one store; the arrays of `columns` are pages of the file, fetched when touched and shared by processes.

    Packed rows are unpacked where they are read. Make one with `GraphStore.open(path)`. Pickling sends the path, so
    that a worker process maps the file itself.
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
        self._datasets = datasets_of_file(columns.schema, attributes)

    @classmethod
    def open(cls, path: Path | str, schema: Schema | None = None) -> GraphStore:
        """Open a store without reading its columns.

        Raises:
            StoreError: if the file is not a complete store, or not one of `schema`, where that is given.
        """
        path = Path(path)
        columns, attributes = read_columns(path, schema)
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
        """Read the whole file from disk; raise StoreError where its content hash differs or packed rows do not fit."""
        with open_hdf5(self.path) as file:
            digest = hashlib.sha256()
            for stored in self._datasets:
                dataset = file[stored.name]
                hash_header(digest, stored, dataset.shape)
                for _, where, _ in blocks_of(stored, dataset.shape):
                    digest.update(dataset[where].data.cast("B"))
        if digest.hexdigest() != self.content_hash:
            raise StoreError(
                f"{self.path}: {CONTENT_HASH_KEY} is {self.content_hash}, but the columns hash to "
                f"{digest.hexdigest()}; the content was damaged or edited: build it again"
            )
        for column in self.columns.schema.columns:
            rows: Any = self.columns[column.name]
            if column.packed:
                try:
                    rows.check(column.name)
                except UserError as error:
                    raise StoreError(f"{self.path}: column {error}; build the store again") from error

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
    packings: Mapping[str, Packing] | None = None,
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
        packings: what the features of packed columns usually are, of any of them; those of others usually are 0.
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
        SCHEMA_KEY: [_described(column) for column in schema.columns],
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
    packings = complete_packings(path, schema, widths, packings or {})
    if packings:
        encoded[PACKING_KEY] = _encode({name: asdict(packing) for name, packing in packings.items()})
    with Spool(path.parent, schema, widths, lists, packings) as spool:
        for position, chunk in enumerate(chunks):
            try:
                spool.append(chunk)
            except UserError as error:
                raise StoreError(f"{path}: chunk {position}: {error}") from error
        try:
            _write_file(unfinished, spool, encoded)
            put_in_place(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    sync_to_disk(path.parent)


def _write_file(path: Path, spool: Spool, attributes: dict[str, str]) -> None:
    digest = hashlib.sha256()
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_layout(h5py.h5d.CONTIGUOUS)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # so that each dataset has its place in the file at once
    early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    early.set_obj_track_times(False)  # the same graphs give the same bytes, whenever they are written
    # libver v110: older formats refuse attributes above 64 KB, which many recordings or build parameters can reach.
    with open_hdf5(path, "w", libver=("v110", "v110"), alignment_threshold=1, alignment_interval=_ALIGNMENT) as file:
        for stored in spool.datasets:
            dtype, shape = np.dtype(stored.dtype), spool.shape(stored)
            hash_header(digest, stored, shape)
            datatype = h5py.h5t.py_create(dtype)
            dataset = h5py.Dataset(
                h5py.h5d.create(file.id, stored.name.encode(), datatype, h5py.h5s.create_simple(shape), dcpl=early)
            )
            for source in spool.files[stored.name]:
                source.seek(0)
            for part, where, block_shape in blocks_of(stored, shape):
                data = spool.files[stored.name][part].read(dtype.itemsize * int(np.prod(block_shape)))
                digest.update(data)
                dataset[where] = np.frombuffer(data, dtype).reshape(block_shape)
            for source in spool.files[stored.name]:
                source.truncate(0)  # give the space back: spool and store together stay near the size of one
        file.attrs[FORMAT_KEY] = FORMAT
        file.attrs[SCHEMA_VERSION_KEY] = version_of(spool.schema)
        for key, value in attributes.items():
            file.attrs[key] = value
        file.attrs[CONTENT_HASH_KEY] = digest.hexdigest()
    sync_to_disk(path)


def count_graphs(path: Path) -> int:
    """Return how many graphs a store holds, by its header alone; StoreError if it is none."""
    try:
        with open_hdf5(path) as file:
            return int(file[NODE_PTR.name].shape[0]) - 1
    except (OSError, KeyError) as error:
        raise StoreError(f"{path}: no store of graphs ({error}); build the store again") from error


def _described(column: Column) -> dict[str, Any]:
    """Return a column as JSON; what is stored as it is computed with says nothing about its storage."""
    told = asdict(column)
    return {key: value for key, value in told.items() if value or key not in ("narrow", "packed")}


def _encode(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def read_columns(path: Path, schema: Schema | None = None) -> tuple[GraphColumns, dict[str, Any]]:
    """Map the columns of a store without reading them, and return its attributes, too. Raises StoreError."""
    if not path.is_file():
        raise StoreError(f"{path}: no such file; build the store first, or correct the path")
    if not is_hdf5(path):
        raise StoreError(f"{path}: not an HDF5 file; give a store written by kdgat")
    try:
        with open_hdf5(path) as file:
            attributes = _read_attributes(path, file)
            found: Schema = attributes[SCHEMA_KEY]
            if schema is not None and found != schema:
                raise StoreError(f"{path}: {difference(found, schema)}; prepare again")
            datasets = datasets_of_file(found, attributes)
            packings = attributes[PACKING_KEY]
            if complete_packings(path, found, _widths(attributes), packings) != packings:
                raise StoreError(f"{path}: attribute {PACKING_KEY} is missing a column; build the store again")
            layout = [_read_layout(path, file, dataset) for dataset in datasets]
    except (OSError, KeyError, RuntimeError) as error:  # what h5py raises, depending on the part that is damaged
        raise StoreError(f"{path}: damaged or truncated ({error}); copy or build it again") from error
    return _map_columns(path, found, layout, packings), attributes


def version_of(schema: Schema) -> int:
    """Return the version of the file format that a store of these columns needs."""
    stored_otherwise = any(column.narrow or column.packed for column in schema.columns)
    return STORAGE_SCHEMA_VERSION if stored_otherwise else SCHEMA_VERSION


def _read_attributes(path: Path, file: h5py.File) -> dict[str, Any]:
    if file.attrs.get(FORMAT_KEY) != FORMAT:
        raise StoreError(f"{path}: {FORMAT_KEY}: not {FORMAT!r}, though HDF5; give a store written by kdgat")
    version = file.attrs.get(SCHEMA_VERSION_KEY)
    refuse_newer(file.attrs, path, StoreError, known=STORAGE_SCHEMA_VERSION)
    if version not in (SCHEMA_VERSION, STORAGE_SCHEMA_VERSION):
        raise StoreError(
            f"{path}: {SCHEMA_VERSION_KEY} is {version}, this kdgat reads {SCHEMA_VERSION} and "
            f"{STORAGE_SCHEMA_VERSION}; prepare again: remove the directory of the stage that wrote it, then give the "
            "command again"
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
        packings = json.loads(file.attrs.get(PACKING_KEY, "{}"))
        attributes[PACKING_KEY] = {
            name: Packing(tuple(told["same_as"]), tuple(told["rest"])) for name, told in packings.items()
        }
    except (TypeError, KeyError, AttributeError, ValueError) as error:  # ValueError: of JSON, or a UserError
        raise StoreError(f"{path}: attribute {PACKING_KEY}: {error}; build the store again") from error
    try:
        attributes[SCHEMA_KEY] = Schema(tuple(_column(told) for told in attributes[SCHEMA_KEY]))
    except (TypeError, UserError) as error:  # TypeError: keys that are missing
        raise StoreError(f"{path}: attribute {SCHEMA_KEY}: {error}; build the store again") from error
    return attributes


def _column(told: Mapping[str, Any]) -> Column:
    return Column(**{field.name: told[field.name] for field in fields(Column) if field.name in told})


def complete_packings(
    path: Path, schema: Schema, widths: Mapping[str, int], packings: Mapping[str, Packing]
) -> dict[str, Packing]:
    """Return the packing of each packed column; refuse one of another number of features than there are."""
    complete = {}
    for column in schema.columns:
        if not column.packed:
            if column.name in packings:
                raise StoreError(f"{path}: {column.name}: packing is given, but the schema does not have it packed")
            continue
        num = column.width or widths[column.name]
        packing = packings.get(column.name) or Packing.at_zero(num)
        if len(packing.rest) != num:
            raise StoreError(
                f"{path}: {column.name}: packing of {len(packing.rest)} features, but there are {num}; "
                "give one for each"
            )
        complete[column.name] = packing
    return complete


def datasets_of_file(schema: Schema, attributes: Mapping[str, Any]) -> list[Dataset]:
    """Return the arrays of a file of these attributes."""
    widths = _widths(attributes)
    return [dataset for column in schema.stored for dataset in datasets_of(column, widths.get(column.name, 0))]


def _widths(attributes: Mapping[str, Any]) -> dict[str, int]:
    return {X.name: len(attributes[NODE_FEATURES_KEY]), EDGE_ATTR.name: len(attributes[EDGE_FEATURES_KEY])}


def _read_layout(path: Path, file: h5py.File, stored: Dataset) -> tuple[Dataset, int | None, tuple[int, ...]]:
    """Return an array, its place in the file (None without rows) and its shape."""
    dataset = file.get(stored.name)
    if not isinstance(dataset, h5py.Dataset):
        raise StoreError(f"{path}: column {stored.name} is missing; build the store again")
    names = {X.name: NODE_FEATURES_KEY, EDGE_ATTR.name: EDGE_FEATURES_KEY}.get(stored.name)
    if names and dataset.dtype == stored.dtype and len(dataset.shape) == 2 and dataset.shape[1] != stored.width:
        raise StoreError(
            f"{path}: column {stored.name} has {dataset.shape[1]} features, {names} names {stored.width}; "
            "build the store again"
        )
    if dataset.dtype != stored.dtype or not stored.fits(dataset.shape):
        raise StoreError(
            f"{path}: column {stored.name} is {dataset.dtype} {dataset.shape}, "
            f"expected {stored.dtype} {stored.layout}; build the store again"
        )
    if dataset.chunks is not None:
        raise StoreError(f"{path}: column {stored.name} is chunked and cannot be mapped; write it with write_store")
    return stored, dataset.id.get_offset(), dataset.shape


def _map_columns(
    path: Path,
    schema: Schema,
    layout: Sequence[tuple[Dataset, int | None, tuple[int, ...]]],
    packings: Mapping[str, Packing],
) -> GraphColumns:
    with path.open("rb") as file:
        # Read-only: a copy-on-write map, which PyTorch would like better, counts as memory to be, and a kernel
        # may refuse it for a store larger than RAM, even with MAP_NORESERVE.
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays: dict[str, NDArray[Any]] = {}
    for stored, offset, shape in layout:
        dtype = np.dtype(stored.dtype)
        num_bytes = dtype.itemsize * int(np.prod(shape))
        if not num_bytes:
            arrays[stored.name] = np.empty(shape, dtype)
            continue
        if offset is None or offset + num_bytes > len(pages):
            raise StoreError(
                f"{path}: truncated: column {stored.name} needs {num_bytes} bytes from {offset}, the file has "
                f"{len(pages)}; copy or build it again"
            )
        arrays[stored.name] = np.frombuffer(pages, dtype, num_bytes // dtype.itemsize, offset).reshape(shape)
    _check_rows(path, schema, [stored for stored, _, _ in layout], arrays)
    columns: dict[str, Any] = {
        column.name: array_of(column, packings.get(column.name), arrays.__getitem__) for column in schema.stored
    }
    for column in schema.columns:
        if column.packed:
            try:
                columns[column.name].check_blocks(column.name)
            except UserError as error:
                raise StoreError(f"{path}: column {error}; build the store again") from error
    return GraphColumns(schema, **columns)


def _check_rows(path: Path, schema: Schema, datasets: Sequence[Dataset], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Compare the number of rows of every array with the offsets; touches two pages per offset column."""
    node_ptr, edge_ptr = arrays[NODE_PTR.name], arrays[EDGE_PTR.name]
    if not len(node_ptr):
        raise StoreError(f"{path}: column {NODE_PTR.name} has no entry, expected G+1; build the store again")
    num_rows = {
        POINTER: len(node_ptr),
        "graph": len(node_ptr) - 1,
        "node": int(node_ptr[-1]),
        "edge": int(edge_ptr[-1]) if len(edge_ptr) else 0,
    }
    for column in schema.columns:
        if column.packed:
            num_rows[f"{column.name}_block"] = count_blocks(num_rows[column.level])
    for stored in datasets:
        found = arrays[stored.name].shape[stored.row_axis]
        expected = num_rows.get(stored.counted, found)  # that of the values is told by the rows
        if found != expected:
            raise StoreError(
                f"{path}: column {stored.name} has {found} rows, expected {expected} ({stored.level}s); build it again"
            )
