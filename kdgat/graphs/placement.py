"""Columns that lie on the GPU, where batches are gathered without the host and with nothing to send but indices.

A batch of small windows takes the host 210 operators for two stores; from columns on the device it is some twenty, and
the device has the same rows. What does not fit stays where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.graphs.batches import TensorColumns
from kdgat.graphs.columns import GraphColumns, pointers
from kdgat.graphs.packed_tensor import wrap
from kdgat.graphs.padding import Order
from kdgat.graphs.schema import Column

logger = logging.getLogger(__name__)

# Of the device's free memory: the rest is for weights, activations, and a validation split, which is placed after.
LARGEST_SHARE: Final = 1 / 3
CHUNK_ROWS: Final = 1 << 18  # unpacked and sent at once: what they take on the host is bounded


class _Arrays(Protocol):
    """Columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...


class Placed(NamedTuple):
    """Columns on a GPU, and the order in which batches have their graphs, where it is not that of the indices."""

    columns: TensorColumns
    order: Order | None = None

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return the batch of `indices`, on the GPU."""
        return self.columns.gather(indices if self.order is None else self.order(indices))


class ColumnStore:
    """One set of columns, of which batches are gathered: mapped memory until it is placed on a device."""

    def __init__(self, columns: GraphColumns) -> None:
        self._columns = columns
        self._tensors = TensorColumns.from_columns(columns)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return the batch of `indices`, on the device of the columns."""
        return self._tensors.gather(indices)

    def place_on(self, device: torch.device) -> None:
        """Gather on a device from now on, if it is a GPU with room for the columns."""
        if self._tensors.device != device:
            self._tensors = place_columns([self._columns], device) or self._tensors

    def placed(self) -> Placed | None:
        """Return the columns that lie on a GPU; None where they do not."""
        return Placed(self._tensors) if self._tensors.device.type == "cuda" else None


def place_columns(parts: Sequence[GraphColumns], device: torch.device) -> TensorColumns | None:
    """Copy columns of several stores to a GPU as one set; None if it is none, or they take too much of its memory.

    Packed rows are unpacked on the way: of them a batch would be many small operators, which cost more than memory.
    """
    columns = tuple(column for column in parts[0].schema.columns if column.in_batch)
    tensors = _place(parts, columns, device)
    if tensors is None:
        return None
    node_ptr = pointers(np.concatenate([part.node_counts for part in parts]))
    edge_ptr = pointers(np.concatenate([part.edge_counts for part in parts]))
    on_host = parts[0] if len(parts) == 1 else None
    return TensorColumns(wrap(node_ptr), wrap(edge_ptr), columns, {**tensors}, on_host)


def add_columns(placed: TensorColumns, arrays: Mapping[Column, NDArray[Any]]) -> TensorColumns | None:
    """Copy more columns of the same graphs to the GPU of others; None if they take too much of its memory."""
    tensors = _place([{column.name: array for column, array in arrays.items()}], tuple(arrays), placed.device)
    if tensors is None:
        return None
    return replace(placed, columns=(*placed.columns, *arrays), tensors={**placed.tensors, **tensors})


def _place(parts: Sequence[_Arrays], columns: Sequence[Column], device: torch.device) -> dict[str, Tensor] | None:
    """Copy columns of all parts to a GPU; None if it is none, or has no room for them."""
    if device.type != "cuda":
        return None
    needed = sum(_num_bytes(part[column.name]) for part in parts for column in columns)
    free, _ = torch.cuda.mem_get_info(device)
    if needed > LARGEST_SHARE * free:
        logger.info(
            "%.3g GB of graphs are more than a third of the GPU's free memory (%.3g GB): each batch is gathered by the "
            "host and sent",
            needed / 1e9,
            free / 1e9,
        )
        return None
    try:
        return {column.name: _joined(parts, column, device) for column in columns}
    except torch.OutOfMemoryError:  # another process was faster
        torch.cuda.empty_cache()
        logger.info("the GPU has no room left for the graphs: each batch is gathered by the host and sent")
        return None


def _num_bytes(array: NDArray[Any]) -> int:
    return int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize


def _joined(parts: Sequence[_Arrays], column: Column, device: torch.device) -> Tensor:
    """Return one column of all parts on the device."""
    first, axis = parts[0][column.name], column.row_axis
    shape = list(first.shape)
    shape[axis] = sum(part[column.name].shape[axis] for part in parts)
    placed = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, first.dtype)).dtype, device=device)
    start = 0
    for chunk in _chunks(parts, column):
        stop = start + chunk.shape[axis]
        placed.narrow(axis, start, stop - start).copy_(wrap(chunk))
        start = stop
    return placed


def _chunks(parts: Sequence[_Arrays], column: Column) -> Iterator[NDArray[Any]]:
    for part in parts:
        array = part[column.name]
        for start in range(0, array.shape[column.row_axis], CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            yield np.asarray(array[:, rows] if column.row_axis else array[rows])
