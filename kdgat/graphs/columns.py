"""Many small graphs as a handful of long arrays, one per column, instead of one object per graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Level = Literal["graph", "node", "edge"]


class ColumnsError(ValueError):
    """Columns that do not describe graphs; the text names the column, the value and the fix."""


@dataclass(frozen=True)
class Column:
    """Say what one column holds: its level (one row per graph, node or edge), type and number of dimensions."""

    name: str
    level: Level
    dtype: np.dtype[Any]
    num_dimensions: int = 1


NODE_PTR = "node_ptr"
EDGE_PTR = "edge_ptr"
X = "x"
EDGE_INDEX = "edge_index"
EDGE_ATTR = "edge_attr"

POINTERS = (Column(NODE_PTR, "graph", np.dtype(np.int64)), Column(EDGE_PTR, "graph", np.dtype(np.int64)))
# edge_index keeps PyG's [2, E]: its rows lie along the second axis, those of every other column along the first.
VALUES = (
    Column(X, "node", np.dtype(np.float32), 2),
    Column(EDGE_INDEX, "edge", np.dtype(np.int32), 2),
    Column(EDGE_ATTR, "edge", np.dtype(np.float32), 2),
    Column("y", "graph", np.dtype(np.int8)),
    Column("node_y", "node", np.dtype(np.int8)),
    Column("node_id", "node", np.dtype(np.int32)),
    Column("recording", "graph", np.dtype(np.int32)),
    Column("first_message", "graph", np.dtype(np.int64)),
    Column("start_time", "graph", np.dtype(np.float64)),
    Column("message_count", "graph", np.dtype(np.int32)),
    Column("attack_count", "graph", np.dtype(np.int32)),
)
COLUMNS = POINTERS + VALUES


def row_axis(name: str) -> int:
    """Return the axis of a column along which its rows lie."""
    return 1 if name == EDGE_INDEX else 0


def pointers(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return the [G+1] offsets of groups with the given [G] sizes."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def gather_rows(ptr: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the groups `indices`, in that order, of a column with offsets `ptr`."""
    counts = ptr[indices + 1] - ptr[indices]  # [B]
    new_ptr = pointers(counts)
    return np.arange(new_ptr[-1]) + np.repeat(ptr[indices] - new_ptr[:-1], counts)


@dataclass(frozen=True, eq=False)
class GraphColumns:
    """Hold G graphs with N nodes and E edges in total, CSR style: graph g owns nodes node_ptr[g]:node_ptr[g+1].

    The arrays may be memory maps. `recording` indexes a list of recording names kept beside the columns, so columns
    that are concatenated must count in the same list.
    """

    node_ptr: NDArray[np.int64]  # [G+1]
    edge_ptr: NDArray[np.int64]  # [G+1]
    x: NDArray[np.float32]  # [N, F]
    edge_index: NDArray[np.int32]  # [2, E] source, destination; ids local to the graph; sorted by (destination, source)
    edge_attr: NDArray[np.float32]  # [E, D]
    y: NDArray[np.int8]  # [G] 1 = the window holds an attack
    node_y: NDArray[np.int8]  # [N] 1 = the node sent an injected message
    node_id: NDArray[np.int32]  # [N] arbitration id
    recording: NDArray[np.int32]  # [G]
    first_message: NDArray[np.int64]  # [G] row in the recording
    start_time: NDArray[np.float64]  # [G] s
    message_count: NDArray[np.int32]  # [G]
    attack_count: NDArray[np.int32]  # [G] injected messages

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

    @staticmethod
    def empty(num_node_features: int, num_edge_features: int) -> GraphColumns:
        """Return columns of no graph."""
        shapes = {X: (0, num_node_features), EDGE_INDEX: (2, 0), EDGE_ATTR: (0, num_edge_features)}
        arrays = {column.name: np.zeros(shapes.get(column.name, (0,)), column.dtype) for column in VALUES}
        return GraphColumns(node_ptr=np.zeros(1, np.int64), edge_ptr=np.zeros(1, np.int64), **arrays)

    @staticmethod
    def concatenate(parts: Sequence[GraphColumns]) -> GraphColumns:
        """Return the graphs of all parts, in order. Raises ColumnsError where there is no part or widths differ."""
        if not parts:
            raise ColumnsError("nothing to concatenate: 0 parts; use GraphColumns.empty(F, D) for columns of no graph")
        for name in (X, EDGE_ATTR):
            widths = {getattr(part, name).shape[1] for part in parts}
            if len(widths) > 1:
                raise ColumnsError(f"{name}: parts have {sorted(widths)} features; build them with one configuration")
        arrays = {
            column.name: np.concatenate([getattr(part, column.name) for part in parts], axis=row_axis(column.name))
            for column in VALUES
        }
        return GraphColumns(
            node_ptr=pointers(np.concatenate([part.node_counts for part in parts])),
            edge_ptr=pointers(np.concatenate([part.edge_counts for part in parts])),
            **arrays,
        )

    def select(self, indices: NDArray[Any] | Sequence[int]) -> GraphColumns:
        """Return copies of the graphs `indices` (repeats allowed), in that order. Raises ColumnsError beyond G."""
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)  # an empty list would be float64
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self.num_graphs):
            raise ColumnsError(
                f"indices: {int(chosen.min())}..{int(chosen.max())} asked for, 0..{self.num_graphs - 1} exist"
            )
        node_ptr, edge_ptr = np.asarray(self.node_ptr), np.asarray(self.edge_ptr)
        rows = {"graph": chosen, "node": gather_rows(node_ptr, chosen), "edge": gather_rows(edge_ptr, chosen)}
        arrays = {
            column.name: np.take(getattr(self, column.name), rows[column.level], axis=row_axis(column.name))
            for column in VALUES
        }
        return GraphColumns(
            node_ptr=pointers(self.node_counts[chosen]), edge_ptr=pointers(self.edge_counts[chosen]), **arrays
        )

    def sorted_edges(self) -> GraphColumns:
        """Return the same graphs with the edges of each sorted by (destination, source), ties in their old order."""
        graph = np.repeat(np.arange(self.num_graphs), self.edge_counts)  # [E]
        order = np.lexsort((self.edge_index[0], self.edge_index[1], graph))
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return GraphColumns(**{**arrays, EDGE_INDEX: self.edge_index[:, order], EDGE_ATTR: self.edge_attr[order]})

    def validate(self) -> None:
        """Check types, shapes, offsets, edge ends, edge order and finiteness; raise ColumnsError at the first fault."""
        for column in COLUMNS:
            array = getattr(self, column.name)
            if array.dtype != column.dtype:
                raise ColumnsError(f"{column.name}: type is {array.dtype}, expected {column.dtype}; convert it")
            if array.ndim != column.num_dimensions:
                raise ColumnsError(
                    f"{column.name}: shape is {array.shape}, expected {column.num_dimensions} dimensions"
                )
        if len(self.edge_ptr) != len(self.node_ptr) or not len(self.node_ptr):
            raise ColumnsError(f"edge_ptr: {len(self.edge_ptr)} offsets, node_ptr: {len(self.node_ptr)}; both need G+1")
        if self.edge_index.shape[0] != 2:
            raise ColumnsError(f"edge_index: shape is {self.edge_index.shape}, expected (2, E)")
        for name, ptr, count in ((NODE_PTR, self.node_ptr, self.num_nodes), (EDGE_PTR, self.edge_ptr, self.num_edges)):
            if ptr[0] != 0 or ptr[-1] != count or (np.diff(ptr) < 0).any():
                raise ColumnsError(f"{name}: runs from {ptr[0]} to {ptr[-1]}, expected to rise from 0 to {count}")
        num_rows = {"graph": self.num_graphs, "node": self.num_nodes, "edge": self.num_edges}
        for column in VALUES:
            found = getattr(self, column.name).shape[row_axis(column.name)]
            if found != num_rows[column.level]:
                raise ColumnsError(
                    f"{column.name}: {found} rows, expected {num_rows[column.level]}, one per {column.level}"
                )
        self._validate_edges()
        for name in (X, EDGE_ATTR):
            finite = np.isfinite(getattr(self, name)).all(axis=0)
            if not finite.all():
                raise ColumnsError(
                    f"{name}: feature {int(finite.argmin())} holds NaN or infinity; fix the feature builder"
                )

    def _validate_edges(self) -> None:
        graph = np.repeat(np.arange(self.num_graphs), self.edge_counts)  # [E]
        source, destination = self.edge_index.astype(np.int64)
        limit = self.node_counts[graph]
        outside = (source < 0) | (destination < 0) | (source >= limit) | (destination >= limit)
        if outside.any():
            edge = int(outside.argmax())
            raise ColumnsError(
                f"edge_index: edge {edge} joins {source[edge]} and {destination[edge]}, "
                f"but its graph {graph[edge]} has {limit[edge]} nodes; ids are local to the graph"
            )
        # Compared pair by pair, not through one packed key, which could overflow for graphs of many nodes.
        falls = (np.diff(destination) < 0) | ((np.diff(destination) == 0) & (np.diff(source) < 0))
        falls &= np.diff(graph) == 0
        if falls.any():
            raise ColumnsError(
                f"edge_index: graph {graph[int(falls.argmax())]} is not sorted by (destination, source); "
                "call sorted_edges() first"
            )
