"""Small graphs in columns, a source of them whose batches follow a limit, and modules whose memory is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_mean_pool

from kdgat.graphs import CORE, ColumnStore, GraphColumns, Schema, pointers
from kdgat.training import BatchLimit, GraphSizes, GraphSource, TrainingConfig

SCHEMA = Schema(CORE)
NODE_FEATURES = ("first", "second", "third", "fourth")


def ring_columns(node_counts: NDArray[np.int64]) -> GraphColumns:
    """Make rings of these numbers of nodes, each with an edge to the next."""
    generator = np.random.default_rng(0)
    total = int(node_counts.sum())
    first = np.repeat(np.cumsum(node_counts) - node_counts, node_counts)
    place = np.arange(total) - first
    return GraphColumns(
        SCHEMA,
        node_ptr=pointers(node_counts),
        edge_ptr=pointers(node_counts),
        x=generator.standard_normal((total, len(NODE_FEATURES)), dtype=np.float32),
        edge_index=np.stack([(place - 1) % np.repeat(node_counts, node_counts), place]).astype(np.int32),
    )


class RingSource(GraphSource):
    """All graphs in every epoch, or, as a curriculum, more of them from epoch to epoch up to `peak`, then fewer."""

    def __init__(self, columns: GraphColumns, config: TrainingConfig, shuffle: bool = True, peak: int = -1) -> None:
        sizes = GraphSizes(columns.node_counts, columns.edge_counts)
        super().__init__(ColumnStore(columns), sizes, BatchLimit.of(config), 3, shuffle)
        self.peak = peak

    def largest_epoch(self) -> int:
        return max(self.peak, 0)

    def epoch_graphs(self, epoch: int) -> NDArray[np.int64]:
        return self.chosen if self.peak < 0 else self.chosen[: len(self.chosen) // (1 + abs(epoch - self.peak))]


class Staircase(LightningModule):
    """A module whose step takes 40 MiB for each 1,024 graphs that have begun, and nothing else to speak of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Batch) -> Tensor:
        torch.empty(-(-int(batch.num_graphs) // 1024) * (40 << 20), dtype=torch.uint8)  # nothing touches its pages
        return (self.weight - 1.0).square().sum()

    def validation_step(self, batch: Batch) -> None:
        self.log("validation_loss", self.weight.detach().sum())


class StepsTaken:
    """What a test asks a module about, and no checkpoint holds."""

    def __init__(self) -> None:
        self.graphs: list[NDArray[np.int64]] = []


class RingClassifier(LightningModule):
    """A network with everything that a step changes: weights, running statistics, a counter, random numbers."""

    calls: Tensor

    @property
    def measured(self) -> list[NDArray[np.int64]]:
        """Return the graphs of each training step of this process, those of a search among them."""
        return self._steps.graphs

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.first = GCNConv(len(NODE_FEATURES), hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.second = GCNConv(hidden, hidden)
        self.head = nn.Linear(hidden, 1)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self._steps = StepsTaken()

    def forward(self, batch: Batch) -> Tensor:
        x = self.norm(self.first(batch.x, batch.edge_index)).relu()
        x = self.second(nn.functional.dropout(x, 0.1, self.training), batch.edge_index).relu()
        return self.head(global_mean_pool(x, batch.batch))[:, 0]

    def loss(self, batch: Batch) -> Tensor:
        target = global_mean_pool(batch.x, batch.batch).sum(1)
        return nn.functional.mse_loss(self(batch), target)

    def training_step(self, batch: Batch) -> Tensor:
        self.calls += 1
        self._steps.graphs.append(batch.graph_index.numpy().copy())
        return self.loss(batch) * (1.0 + 0.01 * float(np.random.rand()))

    def validation_step(self, batch: Batch) -> None:
        self.log("validation_loss", self.loss(batch))


def make_config(**changes: Any) -> TrainingConfig:
    """Return settings of a short search on the CPU."""
    given: dict[str, Any] = {
        "max_epochs": 1, "batch_size": 8, "patience": None, "accelerator": "cpu", "batch_size_mode": "tuner",
        "memory_budget": "64M", "checkpoint_interval_s": 3600,
    }  # fmt: skip
    return TrainingConfig(**{**given, **changes})
