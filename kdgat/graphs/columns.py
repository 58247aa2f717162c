"""Many small graphs as a handful of long arrays, one per column, instead of one object per graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.graphs.packing import PackedRows
from kdgat.graphs.schema import EDGE_ATTR, EDGE_INDEX, EDGE_PTR, NODE_PTR, Schema, X


def pointers(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return the [G+1] offsets of groups with the given [G] sizes."""
    found = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, dtype=np.int64, out=found[1:])
    return found


def gather_rows(ptr: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the groups `indices`, in that order, of a column with offsets `ptr`."""
    starts = ptr[indices]
    counts = ptr[indices + 1] - starts  # [B]
    rows = np.arange(counts.sum())
    rows += (starts + counts - counts.cumsum()).repeat(counts)
    return rows


class GraphColumns:
    """Hold G graphs with N nodes and E edges in total, CSR style: graph g owns nodes node_ptr[g]:node_ptr[g+1].

    Which columns there are is said by `schema`; what all graphs have are attributes, and `columns["y"]` is any column.
    The arrays may be those of a file: memory maps, in a column's narrow type, or packed rows, which are unpacked where
    they are read. A column that indexes a list counts in one kept beside the columns, so columns that are concatenated
    must count in the same list. Edges are sorted by (destination, source) within their graph.
    """

    def __init__(self, schema: Schema, /, **arrays: NDArray[Any]) -> None:
        """Hold one array for each column of a schema and for both offsets; `validate` looks at what is in them.

        Raises:
            UserError: if an array is missing, or is of no column.
        """
        names = [column.name for column in schema.stored]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise UserError(f"{', '.join(missing)}: missing; give one array for each of {', '.join(names)}")
        unknown = [name for name in arrays if name not in names]
        if unknown:
            raise UserError(f"{', '.join(unknown)}: not in the schema, which has {', '.join(names)}")
        self.schema = schema
        self._arrays = {name: arrays[name] for name in names}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column. Raises UserError where the schema has none of this name."""
        if name not in self._arrays:
            raise UserError(f"{name}: no such column; there are {', '.join(self._arrays)}")
        return self._arrays[name]

    @property
    def node_ptr(self) -> NDArray[np.int64]:
        """Return the offsets [G+1] of the graphs' nodes."""
        return self._arrays[NODE_PTR.name]

    @property
    def edge_ptr(self) -> NDArray[np.int64]:
        """Return the offsets [G+1] of the graphs' edges."""
        return self._arrays[EDGE_PTR.name]

    @property
    def x(self) -> NDArray[np.float32]:
        """Return the features [N, F] of the nodes."""
        return self._arrays[X.name]

    @property
    def edge_index(self) -> NDArray[np.int32]:
        """Return source and destination [2, E] of the edges; ids are local to the graph."""
        return self._arrays[EDGE_INDEX.name]

    @property
    def edge_attr(self) -> NDArray[np.float32]:
        """Return the features [E, D] of the edges. Raises UserError where edges have none."""
        return self[EDGE_ATTR.name]

    @property
    def num_graphs(self) -> int:
        """Return G."""
        return len(self.node_ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Return N, over all graphs."""
        return len(self.x)

    @property
    def num_edges(self) -> int:
        """Return E, over all graphs."""
        return int(self.edge_index.shape[1])

    @property
    def node_counts(self) -> NDArray[np.int64]:
        """Return the number of nodes of each graph, [G]."""
        return np.diff(self.node_ptr)

    @property
    def edge_counts(self) -> NDArray[np.int64]:
        """Return the number of edges of each graph, [G]."""
        return np.diff(self.edge_ptr)

    def replace(self, **arrays: NDArray[Any]) -> GraphColumns:
        """Return the same columns but for these. Raises UserError for one that the schema does not have."""
        return GraphColumns(self.schema, **{**self._arrays, **arrays})

    @staticmethod
    def empty(schema: Schema, *, num_node_features: int, num_edge_features: int = 0) -> GraphColumns:
        """Return columns of no graph."""
        widths = {X.name: num_node_features, EDGE_ATTR.name: num_edge_features}
        arrays = {
            column.name: np.zeros(column.shape(0, widths.get(column.name, 0)), column.dtype)
            for column in schema.columns
        }
        return GraphColumns(schema, node_ptr=np.zeros(1, np.int64), edge_ptr=np.zeros(1, np.int64), **arrays)

    @staticmethod
    def concatenate(parts: Sequence[GraphColumns]) -> GraphColumns:
        """Return the graphs of all parts, in order. Raises UserError where there is no part or parts differ."""
        if not parts:
            raise UserError("nothing to concatenate: 0 parts; use GraphColumns.empty(...) for columns of no graph")
        schema = parts[0].schema
        for part in parts:
            if part.schema != schema:
                raise UserError(f"parts have different schemas: {schema} and {part.schema}; build them alike")
        for column in schema.columns:
            widths = {part[column.name].shape[1] for part in parts} if column.width is None else set()
            if len(widths) > 1:
                raise UserError(
                    f"{column.name}: parts have {sorted(widths)} features; build them with one configuration"
                )
        arrays = {
            column.name: np.concatenate([part[column.name] for part in parts], axis=column.row_axis, dtype=column.dtype)
            for column in schema.columns
        }
        return GraphColumns(
            schema,
            node_ptr=pointers(np.concatenate([part.node_counts for part in parts])),
            edge_ptr=pointers(np.concatenate([part.edge_counts for part in parts])),
            **arrays,
        )

    def select(self, indices: NDArray[Any] | Sequence[int]) -> GraphColumns:
        """Return copies of the graphs `indices` (repeats allowed), in that order. Raises UserError beyond G."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)  # an empty list would be float64
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self.num_graphs):
            raise UserError(
                f"indices: {int(chosen.min())}..{int(chosen.max())} asked for, 0..{self.num_graphs - 1} exist"
            )
        node_ptr, edge_ptr = np.asarray(self.node_ptr), np.asarray(self.edge_ptr)
        rows = {"graph": chosen, "node": gather_rows(node_ptr, chosen), "edge": gather_rows(edge_ptr, chosen)}
        arrays = {
            column.name: np.take(self[column.name], rows[column.level], axis=column.row_axis).astype(
                column.dtype, copy=False
            )
            for column in self.schema.columns
        }
        return GraphColumns(
            self.schema,
            node_ptr=pointers(self.node_counts[chosen]),
            edge_ptr=pointers(self.edge_counts[chosen]),
            **arrays,
        )

    def sorted_edges(self) -> GraphColumns:
        """Return the same graphs with the edges of each sorted by (destination, source), ties in their old order."""
        graph = np.repeat(np.arange(self.num_graphs), self.edge_counts)  # [E]
        order = np.lexsort((self.edge_index[0], self.edge_index[1], graph))
        return self.replace(
            **{
                column.name: np.take(self[column.name], order, axis=column.row_axis)
                for column in self.schema.columns
                if column.level == "edge"
            }
        )

    def validate(self) -> None:
        """Check types, shapes, offsets, edge ends, edge order and finiteness; raise UserError at the first fault."""
        for column in self.schema.stored:
            array = self[column.name]
            if array.dtype not in (column.dtype, column.file_dtype):
                raise UserError(f"{column.name}: type is {array.dtype}, expected {column.dtype}; convert it")
            if not column.fits(array.shape):
                raise UserError(f"{column.name}: shape is {array.shape}, expected {column.layout}")
        if len(self.edge_ptr) != len(self.node_ptr) or not len(self.node_ptr):
            raise UserError(f"edge_ptr: {len(self.edge_ptr)} offsets, node_ptr: {len(self.node_ptr)}; both need G+1")
        for name, ptr, count in (
            (NODE_PTR.name, self.node_ptr, self.num_nodes),
            (EDGE_PTR.name, self.edge_ptr, self.num_edges),
        ):
            if ptr[0] != 0 or ptr[-1] != count or (np.diff(ptr) < 0).any():
                raise UserError(f"{name}: runs from {ptr[0]} to {ptr[-1]}, expected to rise from 0 to {count}")
        num_rows = {"graph": self.num_graphs, "node": self.num_nodes, "edge": self.num_edges}
        for column in self.schema.columns:
            array = self[column.name]
            found = array.shape[column.row_axis]
            if found != num_rows[column.level]:
                raise UserError(
                    f"{column.name}: {found} rows, expected {num_rows[column.level]}, one per {column.level}"
                )
            if isinstance(array, PackedRows):
                array.check(column.name)
        self._validate_edges()
        self._validate_numbers()

    def _validate_edges(self) -> None:
        graph = np.repeat(np.arange(self.num_graphs), self.edge_counts)  # [E]
        source, destination = self.edge_index.astype(np.int64)
        limit = self.node_counts[graph]
        outside = (source < 0) | (destination < 0) | (source >= limit) | (destination >= limit)
        if outside.any():
            edge = int(outside.argmax())
            raise UserError(
                f"edge_index: edge {edge} joins {source[edge]} and {destination[edge]}, "
                f"but its graph {graph[edge]} has {limit[edge]} nodes; ids are local to the graph"
            )
        # Compared pair by pair, not through one packed key, which could overflow for graphs of many nodes.
        falls = (np.diff(destination) < 0) | ((np.diff(destination) == 0) & (np.diff(source) < 0))
        falls &= np.diff(graph) == 0
        if falls.any():
            raise UserError(
                f"edge_index: graph {graph[int(falls.argmax())]} is not sorted by (destination, source); "
                "call sorted_edges() first"
            )

    def _validate_numbers(self) -> None:
        """Refuse NaN and infinity in what models read."""
        for column in self.schema.columns:
            array = self[column.name]
            if not column.in_batch or array.dtype.kind != "f" or _is_finite(array):
                continue
            array = np.asarray(array)
            row, *feature = np.argwhere(~np.isfinite(array))[0].tolist()
            place = f"feature {feature[0]}" if feature else f"row {row}"
            raise UserError(f"{column.name}: {place} holds NaN or infinity; fix the feature builder")


def _is_finite(array: NDArray[Any] | PackedRows) -> bool:
    return array.is_finite() if isinstance(array, PackedRows) else bool(np.isfinite(array).all())
