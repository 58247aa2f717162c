"""Several graph stores as one: a window has a global index, and a batch may mix recorded and injected traffic."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch

from kdgat.base import UserError
from kdgat.canbus.features import SCHEMA
from kdgat.canbus.summary import VEHICLES
from kdgat.graphs import EDGE_INDEX, GraphColumns, GraphStore, Placed, TensorColumns, place_columns, pointers
from kdgat.graphs.columns import gather_rows
from kdgat.stage import RunDirectory, StageSpec, input_path

CHUNK_WINDOWS = 8192  # read at once where a whole store is passed through: it may be larger than memory


class PooledStores:
    """Address the windows of several column sets by one index, without copying them.

    Store s owns the global indices offsets[s]:offsets[s + 1], and its nodes the global node rows that follow those of
    the stores before it.
    """

    def __init__(
        self,
        parts: Sequence[GraphColumns],
        names: Sequence[str] | None = None,
        features: tuple[tuple[str, ...], tuple[str, ...]] | None = None,
        vehicles: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Hold column sets under `names`, with what is known of them: names of features, vehicles of recordings."""
        if not parts:
            raise UserError("a pool needs at least one store")
        widths = {(part.x.shape[1], part.edge_attr.shape[1]) for part in parts}
        if len(widths) > 1:
            raise UserError(
                f"stores have different numbers of (node, edge) features: {sorted(widths)}; build them alike"
            )
        self.parts = list(parts)
        self.names = list(names) if names is not None else [str(place) for place in range(len(parts))]
        self.features = features
        self._tensors = [TensorColumns.from_columns(part) for part in parts]
        self.offsets = pointers(np.array([part.num_graphs for part in parts]))  # [S + 1]
        self.node_counts = np.concatenate([part.node_counts for part in parts])  # [G]
        self.edge_counts = np.concatenate([part.edge_counts for part in parts])  # [G]
        self.labels = np.concatenate([np.asarray(part["y"]) for part in parts])  # [G]
        self.node_ptr = pointers(self.node_counts)  # [G + 1] over the whole pool
        self.vehicles = _vehicles(self.parts, vehicles or [()] * len(self.parts))  # [G]
        self._placed: TensorColumns | None = None

    @staticmethod
    def open(paths: dict[str, Path]) -> "PooledStores":
        """Map the stores of these names; UserError if they were built with different features."""
        stores = {name: GraphStore.open(path, SCHEMA) for name, path in paths.items()}
        features = {name: (store.node_features, store.edge_features) for name, store in stores.items()}
        first = next(iter(features))
        for name, found in features.items():
            if found != features[first]:
                raise UserError(
                    f"{paths[name]} and {paths[first]} have different features: build both with one version"
                )
        vehicles = [store.attributes.get(VEHICLES, ()) for store in stores.values()]
        return PooledStores([store.columns for store in stores.values()], list(stores), features[first], vehicles)

    @property
    def num_graphs(self) -> int:
        """Return the number of windows in all stores."""
        return int(self.offsets[-1])

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes in all stores."""
        return int(self.node_ptr[-1])

    @property
    def num_node_features(self) -> int:
        """Return F."""
        return int(self.parts[0].x.shape[1])

    @property
    def num_edge_features(self) -> int:
        """Return D."""
        return int(self.parts[0].edge_attr.shape[1])

    def indices_of(self, name: str) -> NDArray[np.int64]:
        """Return the global indices of one store; none for a store that is not in the pool."""
        if name not in self.names:
            return np.zeros(0, np.int64)
        place = self.names.index(name)
        return np.arange(self.offsets[place], self.offsets[place + 1])

    def node_rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the global node rows of windows `indices`, in that order."""
        return gather_rows(self.node_ptr, indices)

    def feature_chunks(
        self, level: Literal["node", "edge"], chosen: NDArray[np.bool_]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the feature rows of the windows marked in `chosen` [G], some windows at a time."""
        for place, part in enumerate(self.parts):
            mask = chosen[self.offsets[place] : self.offsets[place + 1]]
            ptr, features = (part.node_ptr, part.x) if level == "node" else (part.edge_ptr, part.edge_attr)
            for start in range(0, part.num_graphs, CHUNK_WINDOWS):
                stop = min(start + CHUNK_WINDOWS, part.num_graphs)
                rows = np.repeat(mask[start:stop], np.diff(ptr[start : stop + 1]))
                yield features.take(ptr[start] + np.flatnonzero(rows), axis=0)

    def place_on(self, device: torch.device) -> None:
        """Gather on a device from now on, if it is a GPU with room for all windows; batches stay the same."""
        if self._placed is None or self._placed.device != device:
            self._placed = place_columns(self.parts, device)

    def placed(self) -> Placed | None:
        """Return the windows that lie on a GPU; None where they do not."""
        return None if self._placed is None else Placed(self._placed, self.by_store)

    def by_store(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return windows as a batch has them: those of one store together, in their order."""
        indices = np.asarray(indices, np.int64)
        return indices[np.argsort(self._owners(indices), kind="stable")]

    def _owners(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.offsets, indices, side="right") - 1

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return the windows as one batch, `graph_index` global; those of one store stand together."""
        indices = np.asarray(indices, np.int64)
        if len(indices) and (indices.min() < 0 or indices.max() >= self.num_graphs):
            raise IndexError(f"indices: {indices.min()}..{indices.max()} asked for, 0..{self.num_graphs - 1} exist")
        if self._placed is not None:
            return self._placed.gather(self.by_store(indices))
        if len(self.parts) == 1:
            return self._tensors[0].gather(indices)
        owner = self._owners(indices)
        batches = []
        for place in np.unique(owner).tolist():
            offset = int(self.offsets[place])
            part = self._tensors[place].gather(indices[owner == place] - offset)
            part.graph_index = part.graph_index + offset
            batches.append(part)
        return batches[0] if len(batches) == 1 else _join(batches)


def _vehicles(parts: Sequence[GraphColumns], vehicles: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Number the vehicle of each window [G]; all of a store are of one where it does not say."""
    names = sorted({name for some in vehicles for name in some})
    numbers = [np.array([names.index(name) for name in some], np.int64) for some in vehicles]
    return np.concatenate(
        [
            own[np.asarray(part["recording"])] if len(own) else np.full(part.num_graphs, -1, np.int64)
            for part, own in zip(parts, numbers, strict=True)
        ]
    )


def _join(batches: list[Batch]) -> Batch:
    """Put batches behind one another."""
    node_shifts = np.cumsum([0] + [batch.x.shape[0] for batch in batches]).tolist()
    graph_shifts = np.cumsum([0] + [int(batch.num_graphs) for batch in batches]).tolist()
    # A batch is given to the model as it is: nobody takes it apart into graphs, so it carries no slices for that.
    joined = Batch()
    for column in (column for column in SCHEMA.columns if column.in_batch and column.name != EDGE_INDEX.name):
        joined[column.name] = torch.cat([batch[column.name] for batch in batches])
    joined.graph_index = torch.cat([batch.graph_index for batch in batches])
    joined.edge_index = torch.cat(
        [batch.edge_index + shift for batch, shift in zip(batches, node_shifts, strict=False)], dim=1
    )
    joined.batch = torch.cat([batch.batch + shift for batch, shift in zip(batches, graph_shifts, strict=False)])
    joined.ptr = torch.cat(
        [torch.zeros(1, dtype=torch.int64)]
        + [batch.ptr[1:] + shift for batch, shift in zip(batches, node_shifts, strict=False)]
    )
    joined._num_graphs = graph_shifts[-1]
    return joined


def open_pool(spec: StageSpec, directory: RunDirectory, required: str, optional: str) -> PooledStores:
    """Map a store of recorded windows and, where there is one with windows in it, its injected companion."""
    paths = {required: input_path(spec, directory, required)}
    if optional in spec.inputs:
        path = input_path(spec, directory, optional)
        if GraphStore.open(path, SCHEMA).num_graphs:
            paths[optional] = path
    return PooledStores.open(paths)
