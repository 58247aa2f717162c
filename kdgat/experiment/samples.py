"""Samples of one split in one file without pickle, and batches of them.

PyG graphs without a `collate` of their own are packed: each attribute of all graphs is one long tensor, and a batch is
gathered from it without an object per graph, with the attributes that PyG's `Batch` has. Other samples (tensors, lists
and dictionaries of them, graphs for a `collate`) are kept one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import default_collate
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import BaseStorage, NodeStorage

from kdgat.base import write_bytes_atomically
from kdgat.experiment.curriculum import Curriculum, CurriculumSource
from kdgat.experiment.declaration import ExperimentError
from kdgat.graphs.columns import gather_rows
from kdgat.training import BatchLimit, GraphSizes, GraphSource, TrainingConfig

HEADER: Final = "kdgat"  # one metadata key: equal samples shall be equal files
KINDS: Final = {"data": Data, "hetero": HeteroData}
Key = tuple[str, ...] | str | None  # of a storage: None for the only one, a type of nodes, or of edges


def write_samples(path: Path, samples: Sequence[Any], collate: Callable[[list[Any]], Any] | None) -> int:
    """Write all samples of a split and return how many there are.

    Raises:
        ExperimentError: naming the sample and attribute that cannot be kept.
    """
    items = [samples[place] for place in range(len(samples))]
    if not items:
        raise ExperimentError("no samples: let the data function return at least one for each split")
    is_graph = isinstance(items[0], Data | HeteroData)
    if is_graph and collate is None:
        header, tensors = _packed(items)
    else:
        tensors = {}
        trees = [
            _tree(item.to_dict() if is_graph else item, f"sample {place}", tensors) for place, item in enumerate(items)
        ]
        sizes = [[item.num_nodes or 0, item.num_edges] if is_graph else [1, 0] for item in items]
        tensors["sizes"] = torch.tensor(sizes)
        header = {"trees": trees, "kind": _kind(items[0]) if is_graph else ""}
    write_bytes_atomically(path, save(tensors, {HEADER: json.dumps(header, sort_keys=True)}))
    return len(items)


class Samples:
    """The samples of a file, as `GraphSource` gathers batches from them."""

    def __init__(self, path: Path, collate: Callable[[list[Any]], Any] | None = None) -> None:
        """Open a file of `write_samples`; its tensors are mapped, not read."""
        with safe_open(path, framework="pt") as file:
            self._header = json.loads(file.metadata()[HEADER])
            self._tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        self._collate = collate
        sizes = self._tensors["sizes"].numpy()
        self.sizes = GraphSizes(sizes[:, 0], sizes[:, 1])

    def __len__(self) -> int:
        return len(self.sizes.nodes)

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Return the batch of these samples."""
        if "trees" not in self._header:
            return self._gather_packed(torch.as_tensor(np.ascontiguousarray(indices)))
        items = [_restored(self._header["trees"][int(place)], self._tensors) for place in indices]
        if kind := self._header["kind"]:
            graphs = [KINDS[kind].from_dict(item) for item in items]
            return Batch.from_data_list(graphs) if self._collate is None else self._collate(graphs)
        return (self._collate or default_collate)(items)

    def place_on(self, device: torch.device) -> None:
        """Stay where they are: a batch is moved as a whole."""

    def placed(self) -> None:
        """Return None: nothing lies on a GPU."""

    def source(
        self, config: TrainingConfig, seed: int, *, shuffle: bool, curriculum: Curriculum | None = None
    ) -> GraphSource:
        """Return all samples, or those that a curriculum chooses, in batches as the configuration says."""
        given = (self, self.sizes, BatchLimit.of(config), seed)
        return GraphSource(*given, shuffle) if curriculum is None else CurriculumSource(curriculum, *given, False)

    def attribute(self, name: str) -> Tensor:
        """Return an attribute of the graphs as it is packed, all samples one after the other; KeyError names those."""
        columns = {column["name"]: place for place, column in enumerate(self._header.get("columns", ()))}
        if name not in columns:
            raise KeyError(f"{name!r} is no packed attribute: there are {', '.join(columns) or 'none'}")
        return self._tensors[f"{columns[name]}.values"]

    def _gather_packed(self, indices: Tensor) -> Batch:
        batch = Batch(_base_cls=KINDS[self._header["kind"]])
        for place, column in enumerate(self._header["columns"]):
            storage = _storage_of(batch, column["key"])
            if column["texts"] is not None:
                storage[column["name"]] = [column["texts"][int(index)] for index in indices]
                continue
            values, ends = self._tensors[f"{place}.values"], self._tensors[f"{place}.ends"]
            dimension, lengths = column["dimension"], (ends[1:] - ends[:-1])[indices]
            rows = torch.from_numpy(gather_rows(ends.numpy(), indices.numpy()))
            gathered = values.index_select(dimension, rows)
            if (steps := self._tensors.get(f"{place}.steps")) is not None:
                chosen = steps[indices].cumsum(0) - steps[indices]  # [graphs, ends of an edge]
                offsets = chosen.repeat_interleave(lengths, 0)
                gathered = gathered + (offsets.T if dimension else offsets.view(-1, *[1] * (gathered.dim() - 1)))
            storage[column["name"]] = gathered
        for place, key in enumerate(self._header["nodes"]):
            storage, counts = _storage_of(batch, key), self._tensors["nodes"][indices, place]
            storage["batch"] = torch.repeat_interleave(torch.arange(len(indices)), counts)
            storage["ptr"] = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
            if key in self._header["stated"]:
                storage["num_nodes"] = int(counts.sum())
        batch._num_graphs = len(indices)
        return batch


def _packed(graphs: Sequence[Data | HeteroData]) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
    return {"kind": _kind(first), "columns": columns, "nodes": nodes, "stated": stated}, tensors


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


def _kind(graph: Data | HeteroData) -> str:
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


def _tree(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """Return a sample as plain data whose tensors are numbers of those in `tensors`."""
    match value:
        case Tensor() if value.layout == torch.strided:
            tensors[str(len(tensors))] = value.contiguous().clone()
            return {"tensor": len(tensors) - 1}
        case np.ndarray():
            return _tree(torch.from_numpy(value), where, tensors)
        case Mapping() if all(isinstance(key, str | tuple) for key in value):
            return {"keys": [[key, _tree(one, f"{where}, {key}", tensors)] for key, one in value.items()]}
        case list() | tuple():
            parts = [_tree(one, f"{where}, {place}", tensors) for place, one in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": parts}
        case bool() | int() | float() | str() | None:
            return {"value": value}
    raise ExperimentError(
        f"{where} is a {type(value).__name__}, which no file without pickle holds: return tensors, numbers, texts, or "
        "lists and dictionaries of them"
    )


def _restored(tree: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    ((kind, content),) = tree.items()
    match kind:
        case "tensor":
            return tensors[str(content)]
        case "keys":
            return {tuple(k) if isinstance(k, list) else k: _restored(one, tensors) for k, one in content}
        case "list":
            return [_restored(one, tensors) for one in content]
        case "tuple":
            return tuple(_restored(one, tensors) for one in content)
    return content
