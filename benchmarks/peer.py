"""The networks of the published system (KD-GAT) as it builds them: PyG's GATConv, its batches, checkpointed gradients.

Large scale: three convolutions of 8 heads of 48 channels with jumping knowledge; an autoencoder 480-240-48 that also
rebuilds identifiers and neighbourhoods. Windows are random, of the size of real ones.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, JumpingKnowledge, global_mean_pool

NUM_IDS, NUM_CONTINUOUS = 2049, 10


class PeerAttention(nn.Module):
    """Its attention network."""

    def __init__(self, has_checkpoints: bool = True) -> None:
        super().__init__()
        self.has_checkpoints = has_checkpoints
        self.embedding = nn.Embedding(NUM_IDS, 16)
        self.convolutions = nn.ModuleList(GATConv(size, 48, heads=8) for size in (16 + NUM_CONTINUOUS, 384, 384))
        self.jumping = JumpingKnowledge("cat")
        self.head = nn.Linear(3 * 384, 2)

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits [G, 2] of both classes."""
        x = torch.cat([self.embedding(batch.x[:, 0].long()), batch.x[:, 1:]], dim=1)
        layers = []
        for convolution in self.convolutions:
            x = functional.dropout(_convolve(convolution, x, batch, self).relu(), 0.2, self.training)
            layers.append(x)
        logits: Tensor = self.head(global_mean_pool(self.jumping(layers), batch.batch))
        return logits

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross entropy."""
        return functional.cross_entropy(self(batch), batch.y)


class PeerAutoencoder(nn.Module):
    """Its autoencoder."""

    def __init__(self, has_checkpoints: bool = True) -> None:
        super().__init__()
        self.has_checkpoints = has_checkpoints
        self.embedding, self.dropout = nn.Embedding(NUM_IDS, 32), nn.Dropout(0.15)
        self.encoder = nn.ModuleList([GATConv(32 + NUM_CONTINUOUS, 120, heads=4), GATConv(480, 240)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(480), nn.BatchNorm1d(240), nn.BatchNorm1d(240)])
        self.mean, self.log_variance = nn.Linear(240, 48), nn.Linear(240, 48)
        self.decoder = nn.ModuleList([GATConv(48, 60, heads=4), GATConv(240, NUM_CONTINUOUS)])
        self.identifier = nn.Linear(48, NUM_IDS)
        hidden = [nn.Linear(48, 48), nn.ReLU(), nn.Dropout(0.15)]
        self.neighbours = nn.Sequential(*hidden, nn.Linear(48, 48), nn.ReLU(), nn.Dropout(0.15), nn.Linear(48, NUM_IDS))

    def loss(self, batch: Batch) -> Tensor:
        """Return the weighted sum of its four terms."""
        ids = batch.x[:, 0].long()
        x = torch.cat([self.embedding(ids), batch.x[:, 1:]], dim=1)
        for convolution, norm in zip(self.encoder, self.norms[:2], strict=True):
            x = self.dropout(norm(_convolve(convolution, x, batch, self)).relu())
        mean, log_variance = self.mean(x), self.log_variance(x).clamp(-20, 20)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        y = self.dropout(self.norms[2](_convolve(self.decoder[0], latent, batch, self)).relu())
        y = _convolve(self.decoder[1], y, batch, self).sigmoid()
        target = torch.zeros(len(ids), NUM_IDS)
        target[batch.edge_index[0], ids[batch.edge_index[1]]] = 1.0
        return (
            functional.mse_loss(y, batch.x[:, 1:])
            + 0.1 * functional.cross_entropy(self.identifier(latent), ids)
            + 0.05 * functional.binary_cross_entropy_with_logits(self.neighbours(latent), target)
            - 0.005 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        )


def _convolve(convolution: nn.Module, x: Tensor, batch: Batch, model: PeerAttention | PeerAutoencoder) -> Tensor:
    if model.has_checkpoints and model.training:
        result: Tensor = checkpoint(convolution, x, batch.edge_index, use_reentrant=False)
        return result
    plain: Tensor = convolution(x, batch.edge_index)
    return plain


def peer_batches(num_graphs: int, num_nodes: int, num_edges: int, batch_size: int) -> Iterator[Batch]:
    """Yield batches for ever, as its loader makes them."""
    generator = np.random.default_rng(0)
    graphs = []
    for _ in range(num_graphs):
        keys = np.sort(generator.choice(num_nodes**2, num_edges, replace=False))
        x = generator.random((num_nodes, 1 + NUM_CONTINUOUS), dtype=np.float32)
        x[:, 0] = generator.integers(0, NUM_IDS, num_nodes)
        edges = torch.from_numpy(np.stack([keys % num_nodes, keys // num_nodes]))
        graphs.append(Data(x=torch.from_numpy(x), edge_index=edges, y=torch.tensor([int(generator.random() < 0.4)])))
    loader = DataLoader(graphs, batch_size=batch_size, shuffle=True)
    while True:
        yield from loader


def peer_step(model: PeerAttention | PeerAutoencoder, batches: Iterator[Batch]) -> Callable[[int], object]:
    """Return one step of its training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    model.train()

    def step(_place: int) -> None:
        batch = next(batches)
        optimizer.zero_grad()
        model.loss(batch).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
