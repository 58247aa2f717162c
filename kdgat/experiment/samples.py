"""Samples of one split in one file without pickle, and batches of them.

PyG graphs without a `collate` of their own are packed (`packed.py`). Other samples (tensors, lists and dictionaries of
them, graphs for a `collate`) are kept one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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

from kdgat.base import write_bytes_atomically
from kdgat.experiment.curriculum import Curriculum, CurriculumSource
from kdgat.experiment.declaration import ExperimentError
from kdgat.experiment.packed import KINDS, PackedGraphs, kind_of, pack
from kdgat.training import BatchLimit, GraphSizes, GraphSource, TrainingConfig

HEADER: Final = "kdgat"  # one metadata key: equal samples shall be equal files


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
        header, tensors = pack(items)
    else:
        tensors = {}
        trees = [
            _tree(item.to_dict() if is_graph else item, f"sample {place}", tensors) for place, item in enumerate(items)
        ]
        sizes = [[item.num_nodes or 0, item.num_edges] if is_graph else [1, 0] for item in items]
        tensors["sizes"] = torch.tensor(sizes)
        header = {"trees": trees, "kind": kind_of(items[0]) if is_graph else ""}
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
        self._packed = None if "trees" in self._header else PackedGraphs(self._header, self._tensors)
        if self._packed is not None and collate is not None:
            raise ExperimentError(f"{path} was written for batches of PyG's, and the experiment has a `collate`")
        self._graphs: dict[int, Data | HeteroData] = {}  # restored when they are first needed
        sizes = self._tensors["sizes"].numpy()
        self.sizes = GraphSizes(sizes[:, 0], sizes[:, 1])

    def __len__(self) -> int:
        return len(self.sizes.nodes)

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Return the batch of these samples."""
        if self._packed is not None:
            return self._packed.gather(indices)
        collate = self._collate or (Batch.from_data_list if self._header["kind"] else default_collate)
        return collate([self._sample(place) for place in indices.tolist()])

    def _sample(self, place: int) -> Any:
        """Return a sample; a `collate` or a step may change it, and the next epoch shall meet it as it was."""
        kind = self._header["kind"]
        if not kind:
            return _restored(self._header["trees"][place], self._tensors)
        if place not in self._graphs:
            self._graphs[place] = KINDS[kind].from_dict(_restored(self._header["trees"][place], self._tensors))
        return self._graphs[place].clone()

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
            return tensors[str(content)].clone()
        case "keys":
            return {tuple(k) if isinstance(k, list) else k: _restored(one, tensors) for k, one in content}
        case "list":
            return [_restored(one, tensors) for one in content]
        case "tuple":
            return tuple(_restored(one, tensors) for one in content)
    return content
