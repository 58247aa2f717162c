"""What the file of a store says and where its columns are in it: its attributes and arrays, checked and mapped."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.base.hdf5 import is_hdf5, open_hdf5
from kdgat.base.kept import refuse_newer
from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.datasets import POINTER, Dataset, array_of, count_blocks, datasets_of
from kdgat.graphs.packing import Packing
from kdgat.graphs.schema import EDGE_ATTR, EDGE_PTR, NODE_PTR, Column, Schema, X
from kdgat.graphs.spool import difference

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


class StoreError(UserError):
    """A graph store that cannot be written or read; the text names the file, the key and the fix."""


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
