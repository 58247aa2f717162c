"""An experiment in a file of its own, in a folder of the test."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

SOURCE = '''
"""Sums of features of small rings."""

import torch
from lightning import LightningModule
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.nn.models import GIN

from kdgat.experiment import Experiment, Stage


class Net(LightningModule):
    def __init__(self, hidden: int = 8, depth: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.encoder = GIN(3, hidden, depth, dropout=dropout)
        self.head = torch.nn.Linear(hidden, 1)

    def error(self, batch: Data) -> torch.Tensor:
        pooled = global_add_pool(self.encoder(batch.x, batch.edge_index), batch.batch)
        return torch.nn.functional.mse_loss(self.head(pooled).squeeze(1), batch.y)

    def training_step(self, batch: Data) -> torch.Tensor:
        loss = self.error(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Data) -> None:
        self.log("val_loss", self.error(batch))

    def test_step(self, batch: Data) -> None:
        self.log("test_error", self.error(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def ring(size: int, generator: torch.Generator) -> Data:
    x = torch.randn(size, 3, generator=generator)
    edges = torch.stack([torch.arange(size), torch.arange(size).roll(-1)])
    return Data(x=x, edge_index=edges, y=x.sum().view(1))


def data(graphs: int = 24, largest: int = 6) -> tuple[list[Data], list[Data], list[Data]]:
    generator = torch.Generator().manual_seed(1)
    rings = [ring(3 + place % largest, generator) for place in range(graphs)]
    return rings[: graphs // 2], rings[graphs // 2 : graphs * 3 // 4], rings[graphs * 3 // 4 :]


experiment = Experiment(
    Net,
    data,
    stages=[
        Stage("small", data={"largest": 3}),
        Stage("large", training={"max_epochs": 3}, frozen=["encoder.convs.0.*"]),
    ],
    training={"monitor": "val_loss", "max_epochs": 2, "batch_size": 4},
)
'''


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rings.py"
    path.write_text(SOURCE)
    return path


def rings(number: int) -> list[Data]:
    """Return rings of 3, 4, 5 ... nodes."""
    return [
        Data(x=torch.ones(size, 2), edge_index=torch.stack([torch.arange(size), torch.arange(size).roll(1)]))
        for size in range(3, number + 3)
    ]
