"""Batches of fixed shapes, gathered by the device alone: what can be recorded as one CUDA graph.

A batch of B graphs gets one graph more, which holds what is left of a fixed number of nodes and edges. Nothing here
asks the device for a size, so the host never waits for it: a step costs the copy of B indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.graphs.batches import COMPUTED, StoredGraph, TensorColumns
from kdgat.graphs.schema import EDGE_INDEX

Order = Callable[[NDArray[np.int64]], NDArray[np.int64]]  # of the graphs of a batch, as it has them

GRANULE: Final = 64  # what numbers of nodes and edges are rounded up to, at least


class Capacity(NamedTuple):
    """Fixed sizes of a padded batch; the graph of padding is not counted, its nodes and edges are."""

    graphs: int
    nodes: int
    edges: int

    @staticmethod
    def of(columns: TensorColumns, batches: Iterable[NDArray[np.int64]]) -> Capacity:
        """Return what the largest of some batches needs, with a node of padding at least."""
        node_counts = (columns.node_ptr[1:] - columns.node_ptr[:-1]).numpy()
        edge_counts = (columns.edge_ptr[1:] - columns.edge_ptr[:-1]).numpy()
        sizes = [(len(one), node_counts[one].sum(), edge_counts[one].sum()) for one in batches]
        graphs, nodes, edges = (int(max(column)) for column in zip(*sizes, strict=True))
        return Capacity(_rounded(graphs, 1), _rounded(nodes + 1, GRANULE), _rounded(edges, GRANULE))


def _rounded(number: int, least: int) -> int:
    """Round up by a sixteenth, or to a multiple of `least`, so that few sizes are different from epoch to epoch."""
    granule = max(least, 1 << (number // 16).bit_length() >> 1)
    return -(-number // granule) * granule


class StaticGather:
    """Gather graphs into a padded batch of fixed shapes, by a few launches on the device that holds the columns.

    The batch is that of `TensorColumns.gather`, with rows of zeros behind. `is_graph` [B + 1], `is_node` [N] and
    `is_edge` [E] are true for what is no padding.
    """

    def __init__(self, columns: TensorColumns, capacity: Capacity, order: Order | None = None) -> None:
        """Keep columns and their offsets on the device; the last offset twice: one more index means "no graph".

        `order` brings the indices of a batch into the order of its graphs.
        """
        device = columns.device
        self._order = order
        self.columns, self.capacity = columns, capacity
        self.nothing = columns.num_graphs  # the index of a graph without nodes, to fill a smaller batch with
        self._node_ptr = torch.cat([columns.node_ptr, columns.node_ptr[-1:]]).to(device)  # [G + 2]
        self._edge_ptr = torch.cat([columns.edge_ptr, columns.edge_ptr[-1:]]).to(device)
        self._nodes = torch.arange(capacity.nodes, device=device)  # [N]
        self._edges = torch.arange(capacity.edges, device=device)  # [E]
        self.indices = torch.full((capacity.graphs,), self.nothing, device=device)  # [B] what is gathered next
        # Copied from there without a wait. Two: the host may fill one while the device still reads the other.
        is_pinned = device.type == "cuda"
        self._staged = [torch.empty(capacity.graphs, dtype=torch.int64, pin_memory=is_pinned) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)] if is_pinned else []  # type: ignore[no-untyped-call]
        self._turn = 0

    def choose(self, indices: NDArray[np.int64]) -> None:
        """Copy the indices [up to B] of the next batch to the device: all that a captured step needs of the host."""
        indices = indices if self._order is None else self._order(indices)
        staged = self._staged[self._turn]
        if self._copied:
            self._copied[self._turn].synchronize()  # of the batch before the last one: long over
        staged[: len(indices)] = torch.from_numpy(indices)
        staged[len(indices) :] = self.nothing
        self.indices.copy_(staged, non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
        self._turn = 1 - self._turn

    def __call__(self) -> Batch:
        """Return the graphs `indices` as a padded batch."""
        chosen, columns, capacity = self.indices, self.columns, self.capacity
        node_graph, node_rows, node_ends = _rows(self._node_ptr, chosen, self._nodes)
        edge_graph, edge_rows, edge_ends = _rows(self._edge_ptr, chosen, self._edges)
        is_graph = functional.pad(chosen != self.nothing, (0, 1))
        is_node, is_edge = self._nodes < node_ends[-1], self._edges < edge_ends[-1]
        starts = functional.pad(node_ends, (1, 0))  # [B + 1] first node of each graph, the one of padding included

        batch = Batch(_base_cls=StoredGraph)
        graph_rows = functional.pad(chosen.clamp(max=columns.num_graphs - 1), (0, 1))
        rows = {"graph": graph_rows, "node": node_rows, "edge": edge_rows}
        kept = {"graph": is_graph, "node": is_node, "edge": is_edge}
        for column in columns.columns:
            picked = columns.tensors[column.name].index_select(column.row_axis, rows[column.level])
            picked = picked.to(COMPUTED[column.dtype] if picked.is_floating_point() else torch.int64)
            if column.name == EDGE_INDEX.name:
                padding = padding_edges(self._edges, node_ends[-1], edge_ends[-1], capacity)
                batch.edge_index = torch.where(is_edge, picked + starts[edge_graph], padding)
            else:
                mask = kept[column.level]
                batch[column.name] = picked.masked_fill_(~mask.view(-1, *[1] * (picked.dim() - 1)), 0)
        batch.graph_index = chosen
        batch.batch = node_graph
        batch.ptr = torch.cat([starts, starts.new_full((1,), capacity.nodes)])
        batch.is_graph, batch.is_node, batch.is_edge = is_graph, is_node, is_edge
        batch._num_graphs = capacity.graphs + 1
        return batch


def _rows(ptr: Tensor, chosen: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return graph [N] and row [N] of each place of a batch, and where its graphs end [B]; B and row 0 for padding."""
    starts = ptr[chosen]
    counts = ptr[chosen + 1] - starts
    ends = counts.cumsum(0)
    graph = torch.searchsorted(ends, places, right=True)
    shift = functional.pad(starts - ends + counts, (0, 1))  # [B + 1] from a row of the batch to its row in the column
    return graph, torch.where(places < ends[-1], places + shift[graph], 0), ends


def padding_edges(places: Tensor, num_nodes: Tensor | int, num_edges: Tensor | int, capacity: Capacity) -> Tensor:
    """Return the nodes [E] that edges of padding go from and to: spread over the nodes of padding, rising.

    All at one node would queue up there, both for atomic additions and for a kernel that walks through a node's edges.
    """
    num_free = torch.as_tensor(capacity.edges - num_edges, device=places.device).clamp(min=1)
    node: Tensor = num_nodes + (places - num_edges) * (capacity.nodes - num_nodes) // num_free
    return node
