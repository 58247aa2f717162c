"""What a batch may hold at most, and what graphs weigh: what sources plan by, and what a fit may search for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kdgat.graphs.plans import Plan, plan_by_graphs, plan_by_size
from kdgat.training import EpochSource, TrainingConfig

Unit = Literal["graphs", "nodes", "edges", "paths"]

SIZE_KEYS: Final[dict[str, str]] = {"graphs": "batch_size", "nodes": "max_nodes", "edges": "max_edges"}


@dataclass(frozen=True)
class GraphSizes:
    """Nodes, edges and, where a model reads them in place of edges, paths of each graph; arrays [G]."""

    nodes: NDArray[Any]
    edges: NDArray[Any]
    paths: NDArray[Any] | None = None

    def of(self, unit: Unit) -> NDArray[Any]:
        """Return how much of a batch's limit each graph takes, [G]."""
        match unit:
            case "graphs":
                return np.ones(len(self.nodes), np.int64)
            case "nodes":
                return self.nodes
            case "edges":
                return self.edges
            case "paths":
                assert self.paths is not None, "only sources of paths have a limit of them"
                return self.paths

    @property
    def elements(self) -> NDArray[np.int64]:
        """Return what the memory of a step goes by, [G]: nodes, and edges or paths."""
        return np.asarray(self.nodes, np.int64) + (self.edges if self.paths is None else self.paths)


@dataclass
class BatchLimit:
    """What a batch holds at most.

    A source plans by it whenever it is asked for an epoch, so that batches follow where a fit sets another `size`.
    """

    unit: Unit
    size: int
    max_graphs: int | None = None  # of a batch that is filled with paths

    @classmethod
    def of(cls, training: TrainingConfig) -> BatchLimit:
        """Return the limit that a configuration gives: by number of graphs, nodes or edges."""
        size: int = getattr(training, SIZE_KEYS[training.batch_by])
        return cls(training.batch_by, size)

    def plan(self, indices: NDArray[Any], sizes: GraphSizes, seed: int, epoch: int, shuffle: bool) -> Plan:
        """Cut graphs into batches: a pure function of its arguments and the limit as it is now."""
        if self.unit == "graphs":
            return plan_by_graphs(indices, self.size, seed, epoch, shuffle)
        weights, name = sizes.of(self.unit), f"max_{self.unit}"
        return plan_by_size(indices, weights, self.size, name, seed, epoch, shuffle, self.max_graphs)


@runtime_checkable
class LimitedSource(EpochSource, Protocol):
    """A source whose batches follow a limit: what a search for the batch size needs to know beside the plans."""

    @property
    def limit(self) -> BatchLimit:
        """Return the limit that the source plans by, to be changed before training begins."""
        ...

    @property
    def graph_sizes(self) -> GraphSizes:
        """Return the sizes of all graphs, which plans have indices into."""
        ...

    def graphs(self) -> NDArray[np.int64]:
        """Return every graph that some epoch may bring, each once."""
        ...

    def largest_epoch(self) -> int:
        """Return the epoch with the most graphs."""
        ...
