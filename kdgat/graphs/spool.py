"""Where the rows of a store wait until all are there: nameless files, one for each array of the store's file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.datasets import POINTER, Dataset, count_blocks, datasets_of
from kdgat.graphs.packing import BLOCK_ROWS, Packed, PackedRows, Packing, narrowed, pack
from kdgat.graphs.schema import EDGE_INDEX, EDGE_PTR, NODE_PTR, POINTERS, Column, Schema

_BLOCK_BYTES = 8 << 20
_ROWS_AT_ONCE = 1 << 16  # that are packed anew, so that a store larger than memory can be


class Spool:
    """Raw files that grow with each chunk: one per array, for edge_index one of sources and one of destinations."""

    def __init__(
        self,
        directory: Path,
        schema: Schema,
        widths: Mapping[str, int],
        lists: Mapping[str, Any],
        packings: Mapping[str, Packing],
    ) -> None:
        """Open files in the directory where the store will be.

        `widths` are those of the columns that leave open how many features they have; `lists` are what columns index.
        """
        self.schema = schema
        self.num_rows = {POINTER: 1, "graph": 0, "node": 0, "edge": 0}
        self.datasets = [
            dataset for column in schema.stored for dataset in datasets_of(column, widths.get(column.name, 0))
        ]
        self._widths = widths
        self._lists = lists
        self._packings = packings
        self._block: dict[str, int] = {}  # where the values of a packed column's last block begin
        self._stack = ExitStack()
        self.files: dict[str, list[BinaryIO]] = {
            dataset.name: [
                self._stack.enter_context(tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 - the stack closes it
                for _ in range(2 if dataset.row_axis else 1)
            ]
            for dataset in self.datasets
        }
        for column in schema.columns:
            if column.packed:
                self.num_rows |= {f"{column.name}_block": 0, f"{column.name}_values": 0}
        for column in POINTERS:
            self.files[column.name][0].write(np.zeros(1, column.dtype).tobytes())

    def __enter__(self) -> Spool:
        """Return the spool itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files, which then are gone."""
        self._stack.close()

    def append(self, chunk: GraphColumns) -> None:
        """Check one chunk and append its rows. Raises UserError."""
        if chunk.schema != self.schema:
            raise UserError(difference(chunk.schema, self.schema))
        chunk.validate()
        for column in self.schema.columns:
            array = chunk[column.name]
            if column.width is None and array.shape[1] != self._widths[column.name]:
                names = self._widths[column.name]
                raise UserError(f"{column.name}: {array.shape[1]} features, but {names} feature names")
            if column.indexes is not None and array.size:
                known = len(self._lists[column.indexes])
                if not 0 <= array.min() <= array.max() < known:
                    raise UserError(
                        f"{column.name}: {array.min()}..{array.max()}, but {known} {column.indexes} are named"
                    )
        self._write(NODE_PTR.name, 0, chunk.node_ptr[1:] + self.num_rows["node"])
        self._write(EDGE_PTR.name, 0, chunk.edge_ptr[1:] + self.num_rows["edge"])
        for column in self.schema.columns:
            array = chunk[column.name]
            if column.packed:
                self._append_packed(column, array)
                continue
            if array.dtype != column.file_dtype:
                array = narrowed(array, column.file_dtype, column.name)
            for part, rows in enumerate(array if column.name == EDGE_INDEX.name else [array]):
                self._write(column.name, part, rows)
        self.num_rows[POINTER] += chunk.num_graphs
        self.num_rows["graph"] += chunk.num_graphs
        self.num_rows["node"] += chunk.num_nodes
        self.num_rows["edge"] += chunk.num_edges

    def _append_packed(self, column: Column, array: NDArray[Any] | PackedRows) -> None:
        name = column.name
        packing = self._packings[name]
        first = self.num_rows[column.level]
        if not isinstance(array, PackedRows):
            self._append_parts(name, first, pack(array, packing, name))
        elif array.packing == packing:  # as they are in the file that they come from
            self._append_parts(name, first, Packed(array.mask, array.counts(), array.values))
        else:  # what they keep is read by the packing of this file, which takes other values to be usual
            for start in range(0, len(array), _ROWS_AT_ONCE):
                rows = array[start : start + _ROWS_AT_ONCE]
                self._append_parts(name, first + start, pack(rows, packing, name))

    def _append_parts(self, name: str, first: int, packed: Packed) -> None:
        """Append packed rows of a column, which has `first` rows before them."""
        mask, counts, values = packed
        rows = first + np.arange(len(mask))  # of the column on the whole
        begin = self.num_rows[f"{name}_values"] + np.cumsum(counts) - counts
        blocks = begin[rows % BLOCK_ROWS == 0]
        before = np.concatenate([[self._block.get(name, 0)], blocks])
        begin -= before[rows // BLOCK_ROWS - (self.num_rows[f"{name}_block"] - 1)]
        self._block[name] = int(before[-1])
        for part, written in (("mask", mask), ("begin", begin.astype(np.int16)), ("block", blocks), ("values", values)):
            self._write(f"{name}_{part}", 0, written)
        self.num_rows[f"{name}_block"] = count_blocks(first + len(mask))
        self.num_rows[f"{name}_values"] += len(values)

    def shape(self, dataset: Dataset) -> tuple[int, ...]:
        """Return the shape of an array with all rows appended so far."""
        return dataset.shape(self.num_rows[dataset.counted])

    def _write(self, name: str, part: int, rows: NDArray[Any]) -> None:
        self.files[name][part].write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")


def hash_header(digest: Any, dataset: Dataset, shape: tuple[int, ...]) -> None:
    """Hash what gives an array's bytes their meaning, so that equal bytes of another shape hash differently."""
    sizes = tuple(int(size) for size in shape)
    digest.update(f"{dataset.name} {dataset.level} {np.dtype(dataset.dtype).str} {sizes}\n".encode())


def blocks_of(dataset: Dataset, shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, ...], tuple[int, ...]]]:
    """Cut an array into row-major blocks: yield part (row of edge_index, else 0), place and shape of each."""
    axis = dataset.row_axis
    row_shape = shape[axis + 1 :]
    row_bytes = np.dtype(dataset.dtype).itemsize * int(np.prod(row_shape))
    if not row_bytes:
        return
    step = max(1, _BLOCK_BYTES // row_bytes)
    for part in range(shape[0] if axis else 1):
        for start in range(0, shape[axis], step):
            stop = min(start + step, shape[axis])
            place = slice(start, stop)
            yield part, (part, place) if axis else (place,), (stop - start, *row_shape)


def difference(found: Schema, expected: Schema) -> str:
    """State how two different schemas differ, by the first column that is not the same."""
    for name in (*expected.by_name, *found.by_name):
        one, other = found.by_name.get(name), expected.by_name.get(name)
        if one != other:
            if one is not None and other is not None and one.without_storage == other.without_storage:
                return f"column {name} is stored as {_storage(one)}, expected {_storage(other)}"
            return f"column {name} is {one}, expected {other}"
    return f"columns are in the order {', '.join(found.by_name)}, expected {', '.join(expected.by_name)}"


def _storage(column: Column) -> str:
    return f"{column.file_dtype}, packed" if column.packed else column.file_dtype
