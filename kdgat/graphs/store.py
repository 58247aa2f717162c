"""Graph store: the columns of one split in one HDF5 file, opened in constant time as a memory map."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kdgat.base import UserError, sync_to_disk
from kdgat.base.files import put_in_place, temporary_path
from kdgat.base.hdf5 import open_hdf5
from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.packing import Packing
from kdgat.graphs.reading import (
    ATTRIBUTES_KEY,
    BUILD_KEY,
    CONTENT_HASH_KEY,
    EDGE_FEATURES_KEY,
    FORMAT,
    FORMAT_KEY,
    NODE_FEATURES_KEY,
    PACKING_KEY,
    SCHEMA_KEY,
    SCHEMA_VERSION_KEY,
    complete_packings,
    datasets_of_file,
    read_columns,
    version_of,
)
from kdgat.graphs.reading import StoreError as StoreError
from kdgat.graphs.schema import EDGE_ATTR, NODE_PTR, Column, Schema, X
from kdgat.graphs.spool import Spool, blocks_of, hash_header

# Every column starts at a multiple of this in the file, as PyTorch and SIMD loads expect of an array.
_ALIGNMENT = 64


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
