"""PyG graphs as a handful of long tensors, and batches gathered from them without an object per graph.

Each attribute of all graphs is one tensor; a batch has the attributes that PyG's `Batch` makes of the same graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import BaseStorage, NodeStorage

from kdgat.experiment.declaration import ExperimentError
from kdgat.graphs.columns import gather_rows, pointers

KINDS: Final = {"data": Data, "hetero": HeteroData}
Key = tuple[str, ...] | str | None  # of a storage: None for the only one, a type of nodes, or of edges


class PackedGraphs:
    """Batches of what `pack` has made of graphs."""

    def __init__(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._texts = [(one["key"], one["name"], one["texts"]) for one in header["columns"] if one["texts"] is not None]
        self._columns: list[_Column] = []
        # Of each graph's rows, once for all columns that have the same; None where each graph has one row.
        self._ends: list[NDArray[np.int64] | None] = []
        for place, one in enumerate(header["columns"]):
            if one["texts"] is None:
                group = self._group(tensors[f"{place}.ends"].numpy())
                values, steps = tensors[f"{place}.values"], tensors.get(f"{place}.steps")
                self._columns.append(_Column(one["key"], one["name"], group, one["dimension"], values, steps))
        self._nodes = [(key, key in header["stated"]) for key in header["nodes"]]
        self._counts = tensors["nodes"].numpy()  # [graphs, types of nodes]
        self._empty = Batch(_base_cls=KINDS[header["kind"]])  # is copied: making one takes long
        for key in (*(one["key"] for one in header["columns"]), *header["nodes"]):
            _storage_of(self._empty, key)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return the batch of these graphs."""
        batch = copy(self._empty)
        rows = [indices if ends is None else gather_rows(ends, indices) for ends in self._ends]
        for column in self._columns:
            values = column.gather(indices, rows[column.group], self._ends[column.group])
            _storage_of(batch, column.key)[column.name] = values
        for key, name, texts in self._texts:
            _storage_of(batch, key)[name] = [texts[index] for index in indices.tolist()]
        numbers = np.arange(len(indices))
        for place, (key, is_stated) in enumerate(self._nodes):
            storage, counts = _storage_of(batch, key), self._counts[indices, place]
            storage["batch"] = torch.from_numpy(numbers.repeat(counts))
            storage["ptr"] = torch.from_numpy(pointers(counts))
            if is_stated:
                storage["num_nodes"] = int(counts.sum())
        batch._num_graphs = len(indices)
        return batch

    def _group(self, found: NDArray[np.int64]) -> int:
        ends = None if np.array_equal(found, np.arange(len(found))) else found
        for group, others in enumerate(self._ends):
            if ends is others or (ends is not None and others is not None and np.array_equal(ends, others)):
                return group
        self._ends.append(ends)
        return len(self._ends) - 1


class _Column:
    """An attribute of all graphs.

    Args:
        key, name: of its storage, and in it.
        group: of columns whose graphs have as many rows.
        dimension: that graphs are joined along.
        values: of all graphs.
        steps: [graphs, 1 or ends of an edge]: how far a graph moves the indices of the next one, if any does.
    """

    def __init__(self, key: Key, name: str, group: int, dimension: int, values: Tensor, steps: Tensor | None) -> None:
        self.key, self.name, self.group = key, name, group
        self._dimension, self._shape, self._type = dimension, list(values.shape), values.dtype
        self._values, self._steps = _array(values), None if steps is None else steps.numpy()

    def gather(self, indices: NDArray[np.int64], rows: NDArray[np.int64], ends: NDArray[np.int64] | None) -> Tensor:
        """Return the values of these graphs, whose rows are these."""
        self._shape[self._dimension] = len(rows)
        # In memory of torch: products may depend in their last bits on where their factors begin.
        gathered = torch.empty(self._shape, dtype=self._type)
        array = _array(gathered)
        self._values.take(rows, self._dimension, array, "clip")  # "raise" copies once more
        if self._steps is not None:
            own = self._steps[indices]
            lengths = 1 if ends is None else ends[indices + 1] - ends[indices]
            offsets = (own.cumsum(0) - own).repeat(lengths, 0)
            by_row = array.swapaxes(0, self._dimension)
            by_row += offsets.reshape(*offsets.shape[: by_row.ndim], *[1] * (by_row.ndim - 2))
        return gathered


def _array(tensor: Tensor) -> NDArray[Any]:
    """Return the memory of a tensor; of a type that numpy lacks as integers of its size."""
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy()


def pack(graphs: Sequence[Data | HeteroData]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return how graphs are packed, as plain data, and their tensors; ExperimentError names what cannot be."""
    first = graphs[0]
    columns: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    shape = _shape_of(first)
    for place, graph in enumerate(graphs):
        if _shape_of(graph) != shape:
            different = sorted(set(map(str, shape)) ^ set(map(str, _shape_of(graph))))
            raise ExperimentError(f"sample {place} has other attributes than sample 0 ({', '.join(different)})")
    stated = [key for key, name in shape if name == "num_nodes"]  # which PyG adds up
    for key, name in [one for one in shape if one[1] != "num_nodes"]:
        values = [_storage_of(graph, key)[name] for graph in graphs]
        column: dict[str, Any] = {"key": key, "name": name, "texts": None, "dimension": 0}
        if all(isinstance(value, str) for value in values):
            column["texts"] = values
        else:
            _pack(graphs, key, name, values, column, tensors, len(columns))
        columns.append(column)
    nodes = [key for key, storage in _storages(first) if isinstance(storage, NodeStorage)]
    counts = [[_storage_of(graph, key).num_nodes or 0 for key in nodes] for graph in graphs]
    tensors["nodes"] = torch.tensor(counts, dtype=torch.int64)
    tensors["sizes"] = torch.tensor([[sum(own), graph.num_edges] for own, graph in zip(counts, graphs, strict=True)])
    return {"kind": kind_of(first), "columns": columns, "nodes": nodes, "stated": stated}, tensors


def _pack(
    graphs: Sequence[Any], key: Key, name: str, values: list[Any], column: dict[str, Any], tensors: dict[str, Tensor],
    place: int,
) -> None:  # fmt: skip
    """Join an attribute of all graphs, and keep where each one's ends, and by how much the next one's indices move."""
    parts = []
    for number, value in enumerate(values):
        if isinstance(value, bool | int | float):
            value = torch.tensor([value])
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            raise ExperimentError(
                f"sample {number}: {name} is a {type(value).__name__}, of which no batch is made: keep it as a tensor"
            )
        storage = _storage_of(graphs[number], key)
        dimension = graphs[number].__cat_dim__(name, value, storage)
        if dimension is None or value.dim() == 0:
            value, dimension = value.unsqueeze(0), 0
        parts.append(value)
        column["dimension"] = dimension % value.dim()
    if len(others := {(part.dtype, part.dim()) for part in parts}) > 1:
        raise ExperimentError(f"{name} has several types or dimensions ({others}): give all samples the same")
    try:
        tensors[f"{place}.values"] = torch.cat(parts, column["dimension"]).contiguous()
    except RuntimeError as error:
        raise ExperimentError(f"{name} cannot be joined over samples: {error}") from error
    lengths = torch.tensor([part.shape[column["dimension"]] for part in parts])
    tensors[f"{place}.ends"] = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    steps = [
        torch.as_tensor(graph.__inc__(name, value, _storage_of(graph, key))).reshape(-1)
        for graph, value in zip(graphs, values, strict=True)
    ]
    if any(bool(step.any()) for step in steps):
        tensors[f"{place}.steps"] = torch.stack(steps)


def kind_of(graph: Data | HeteroData) -> str:
    """Return the name of a graph's class in `KINDS`."""
    return "hetero" if isinstance(graph, HeteroData) else "data"


def _storages(graph: Data | HeteroData) -> Iterator[tuple[Key, BaseStorage]]:
    for storage in graph.stores:
        yield storage._key, storage


def _storage_of(graph: Any, key: Any) -> Any:
    if key is None:
        return graph._global_store if isinstance(graph, HeteroData) else graph._store
    return graph[tuple(key) if isinstance(key, list) else key]


def _shape_of(graph: Data | HeteroData) -> list[tuple[Key, str]]:
    return [(key, name) for key, storage in _storages(graph) for name in sorted(storage.keys())]
