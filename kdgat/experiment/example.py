"""An experiment to begin with: which molecule-like graph has how much charge. `kdgat check` and `train` take this file.

Put your own LightningModule in the place of `Net` and your own graphs in the place of `data`.
"""

import torch
from lightning import LightningModule
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool
from torch_geometric.nn.models import GIN

from kdgat.experiment import Experiment, Stage


class Net(LightningModule):
    """Sum up what a GIN sees of each node. Arguments with plain values are keys: -O model.hidden=128."""

    def __init__(self, hidden: int = 32, depth: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = GIN(4, hidden, depth, dropout=dropout)
        self.head = torch.nn.Linear(hidden, 1)

    def error(self, batch: Data) -> torch.Tensor:
        """Return the mean squared error of a batch."""
        pooled = global_add_pool(self.encoder(batch.x, batch.edge_index), batch.batch)
        return torch.nn.functional.mse_loss(self.head(pooled).squeeze(1), batch.y)

    def training_step(self, batch: Data) -> torch.Tensor:
        """Return the loss; the best epoch is chosen by what `validation_step` logs (training.monitor)."""
        loss = self.error(batch)
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: Data) -> None:
        """Log what the best epoch is chosen by."""
        self.log("validation_loss", self.error(batch))

    def test_step(self, batch: Data) -> None:
        """Log what stands in the results."""
        self.log("test_error", self.error(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer; without this method AdamW and the schedule of the section `training` are used."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def data(graphs: int = 600, largest: int = 24) -> tuple[list[Data], list[Data], list[Data]]:
    """Return train, validation and test. An argument `root: Path` would receive what --root names."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(graphs):
        size = int(torch.randint(4, largest + 1, (1,), generator=generator))
        x = torch.randn(size, 4, generator=generator)
        ring = torch.stack([torch.arange(size), torch.arange(size).roll(-1)])
        found.append(Data(x=x, edge_index=torch.cat([ring, ring.flip(0)], 1), y=(x[:, 0] * x[:, 1]).sum().view(1)))
    return found[: graphs * 8 // 10], found[graphs * 8 // 10 : graphs * 9 // 10], found[graphs * 9 // 10 :]


# One stage would do: Experiment(Net, data). Each stage begins with the best weights of the one before it.
experiment = Experiment(
    Net,
    data,
    stages=[Stage("small", data={"largest": 10}), Stage("large", training={"max_epochs": 5})],
    training={"max_epochs": 10, "batch_size": 32},
)
