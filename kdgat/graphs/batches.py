"""Mini-batches gathered from columns by index arithmetic, without an object or a Python step per graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data

from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.packed_tensor import PackedTensor, wrap
from kdgat.graphs.packing import PackedRows
from kdgat.graphs.schema import EDGE_INDEX, Column, Level

COMPUTED: Final = {"float32": torch.float32, "float64": torch.float64}


class StoredGraph(Data):
    """One graph of a store: a PyG Data whose `graph_index` is its row there."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Shift the edges alone: PyG would shift any attribute with 'index' in its name by the node count."""
        return super().__inc__(key, value, *args, **kwargs) if key == EDGE_INDEX.name else 0

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Join edges side by side, all else row by row, whatever its name."""
        return EDGE_INDEX.row_axis if key == EDGE_INDEX.name else 0


@dataclass(frozen=True, eq=False)
class OnHost:
    """Know sizes of the graphs of a batch without asking the device that the batch is on, which would wait for it."""

    columns: GraphColumns
    chosen: NDArray[np.int64]  # [B] its graphs

    @staticmethod
    def of(batch: Batch) -> OnHost:
        """Return what is known of a batch that was gathered from one set of columns."""
        known: OnHost = batch._on_host
        return known

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of one row per graph, [B]."""
        return np.asarray(self.columns[name][self.chosen])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the graphs of the batch alone."""
        return OnHost, (self.columns.select(self.chosen), np.arange(len(self.chosen)))


def places_of(chosen: Tensor, count: int) -> Tensor:
    """Return the places [count] where a mask is true; where the number is known, no GPU is asked for it."""
    found = torch.nonzero_static(chosen, size=count) if chosen.is_cuda else torch.nonzero(chosen)
    return found.squeeze(1)


def group_sizes(group: Tensor, num_groups: int) -> Tensor:
    """Return how often each group is named, [num_groups]: torch.bincount, which waits for a GPU twice."""
    return group.new_zeros(num_groups).index_add_(0, group, torch.ones_like(group))


@dataclass(frozen=True, eq=False)
class TensorColumns:
    """Hold the columns that models read as tensors on one device; offsets stay on the host (see `gather`)."""

    node_ptr: Tensor  # [G+1] int64, host
    edge_ptr: Tensor  # [G+1] int64, host
    columns: tuple[Column, ...]  # those that the schema marks `in_batch`
    tensors: dict[str, Tensor | PackedTensor]  # column -> its array, as stored
    on_host: GraphColumns | None = None  # the same graphs, where they are of one store

    @staticmethod
    def from_columns(columns: GraphColumns, device: str | torch.device = "cpu") -> TensorColumns:
        """Wrap columns as tensors: without a copy on the CPU, copied whole to any other device.

        On the CPU the tensors share memory with the columns, so memory-mapped columns stay on disk until they are read.
        They are for reading: PyTorch knows no read-only tensors, and writing into a mapped one kills the process.
        """
        read = tuple(column for column in columns.schema.columns if column.in_batch)
        tensors = {column.name: _tensor_of(columns[column.name]).to(device) for column in read}
        return TensorColumns(wrap(columns.node_ptr), wrap(columns.edge_ptr), read, tensors, columns)

    @property
    def num_graphs(self) -> int:
        """Return G."""
        return len(self.node_ptr) - 1

    @property
    def device(self) -> torch.device:
        """Return the device that holds the columns and on which batches appear."""
        return self.tensors[EDGE_INDEX.name].device

    @property
    def num_bytes(self) -> int:
        """Return the memory that the columns take on their device."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def gather(self, indices: Tensor | NDArray[Any]) -> Batch:
        """Return the graphs `indices` (repeats allowed) as a batch equal to Batch.from_data_list, on `device`.

        Attributes: each column that the schema marks `in_batch`, integers as int64, such as x [N, F] and edge_index
        [2, E], floats in the type that is computed with; graph_index [B] int64 (the indices), batch [N], ptr [B+1].
        to_data_list() works. Raises IndexError if an index is out of range.

        Sizes and offsets are computed on the host, where the plan lives too, so that a batch on a GPU costs two small
        uploads and no synchronisation. Edges stay sorted by destination: node ids rise from graph to graph.
        """
        chosen = torch.as_tensor(indices, dtype=torch.int64).cpu().reshape(-1)  # [B]
        if len(chosen) and (int(chosen.min()) < 0 or int(chosen.max()) >= self.num_graphs):
            raise IndexError(
                f"indices: {int(chosen.min())}..{int(chosen.max())} asked for, 0..{self.num_graphs - 1} exist"
            )
        node_counts, node_slices, node_shift = _group_offsets(self.node_ptr, chosen)
        edge_counts, edge_slices, edge_shift = _group_offsets(self.edge_ptr, chosen)
        num_nodes, num_edges = int(node_slices[-1]), int(edge_slices[-1])
        device = self.device

        # One upload for everything that is known per graph.
        node_counts, edge_counts, node_shift, edge_shift, node_starts, graph_index = (
            torch.stack([node_counts, edge_counts, node_shift, edge_shift, node_slices[:-1], chosen])
            .to(device, non_blocking=True)
            .unbind()
        )
        graphs = torch.arange(len(chosen), device=device)
        node_graph = torch.repeat_interleave(graphs, node_counts, output_size=num_nodes)  # [N]
        edge_graph = torch.repeat_interleave(graphs, edge_counts, output_size=num_edges)  # [E]
        node_rows = torch.arange(num_nodes, device=device) + node_shift[node_graph]
        edge_rows = torch.arange(num_edges, device=device) + edge_shift[edge_graph]

        batch = Batch(_base_cls=StoredGraph)
        rows = {"graph": graph_index, "node": node_rows, "edge": edge_rows}
        for column in self.columns:
            picked = self.tensors[column.name].index_select(column.row_axis, rows[column.level])
            if column.name == EDGE_INDEX.name:
                picked = picked + node_starts[edge_graph]  # int64
            batch[column.name] = picked.to(COMPUTED[column.dtype] if picked.is_floating_point() else torch.int64)
        batch.graph_index = graph_index
        batch.batch = node_graph
        batch.ptr = node_slices.to(device, non_blocking=True)

        # What Batch.from_data_list records, so that to_data_list() can take the batch apart again.
        per_graph, no_shift = torch.arange(len(chosen) + 1), torch.zeros(len(chosen), dtype=torch.int64)
        slices = {"node": node_slices, "edge": edge_slices, "graph": per_graph}
        levels: dict[str, Level] = {column.name: column.level for column in self.columns}
        levels["graph_index"] = "graph"
        batch._num_graphs = len(chosen)
        if self.on_host is not None:
            batch._on_host = OnHost(self.on_host, chosen.numpy())
        batch._slice_dict = {name: slices[level] for name, level in levels.items()}
        batch._inc_dict = {name: node_slices[:-1] if name == EDGE_INDEX.name else no_shift for name in levels}
        return batch


def _tensor_of(array: NDArray[Any] | PackedRows) -> Tensor | PackedTensor:
    return PackedTensor.of(array) if isinstance(array, PackedRows) else wrap(array)


def _group_offsets(ptr: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sizes [B], new offsets [B+1] and the shift [B] from a row of the batch to its row in the column."""
    starts = ptr[chosen]
    counts = ptr[chosen + 1] - starts
    slices = torch.zeros(len(chosen) + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=slices[1:])
    return counts, slices, starts - slices[:-1]
