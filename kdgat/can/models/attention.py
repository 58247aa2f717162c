"""Graph attention network with jumping knowledge: is this window attacked, and which identifier was injected?"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from kdgat.can.models.convolution import arrange, build_convolution
from kdgat.can.models.pooling import ByteDropout, graph_logsumexp, graph_max, norm_relu_dropout, pool_rows
from kdgat.can.models.standardise import Standardise
from kdgat.can.sections import AttentionConfig


class AttentionOutput(NamedTuple):
    """Hold what the network says about a batch of G windows with N nodes."""

    window_logit: Tensor  # [G]
    node_logit: Tensor  # [N]
    embedding: Tensor  # [G, P] pooled jumping knowledge


class GraphAttentionNetwork(nn.Module):
    """Score windows and nodes by L attention convolutions over the graph of consecutive identifiers.

    Velickovic et al. 2018 (GAT), Brody et al. 2022 (GATv2), Xu et al. 2018 (jumping knowledge, concatenation).
    """

    known_ids: Tensor

    def __init__(
        self, config: AttentionConfig, num_node_features: int, num_edge_features: int, known_ids: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.config = config
        self.standardise_nodes = Standardise(num_node_features, config.clamp)
        self.standardise_edges = Standardise(num_edge_features, config.clamp)
        self.activation = nn.ReLU() if config.activation == "relu" else nn.GELU()
        self.dropout = ByteDropout(config.dropout)

        self.register_buffer("known_ids", torch.tensor(sorted(set(known_ids)), dtype=torch.int64))
        self.id_rows = nn.Embedding(len(self.known_ids) + 1, config.id_embedding) if config.id_embedding else None

        width = config.hidden * config.heads
        self.stem = nn.Sequential(
            nn.Linear(num_node_features + config.id_embedding, config.stem), nn.LayerNorm(config.stem), self.activation
        )
        inputs = [config.stem] + [width] * (config.layers - 1)
        self.convolutions = nn.ModuleList(
            build_convolution(
                config.conv_type,
                size,
                config.hidden,
                config.heads,
                num_edge_features if config.edge_features else 0,
                config.attention_dropout,
            )
            for size in inputs
        )
        # A node keeps its own features beside its neighbours' message: the identity where the widths agree.
        self.skips = nn.ModuleList(
            nn.Identity() if size == width else nn.Linear(size, width, bias=False) for size in inputs
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in inputs)
        jumping = width * config.layers
        self.node_head = nn.Linear(jumping, 1)
        readout = jumping * len(config.pooling) + len(config.node_readout)
        hidden = config.fc_hidden or jumping
        layers: list[nn.Module] = []
        for _ in range(config.fc_layers - 1):
            layers += [nn.Linear(readout, hidden), self.activation, ByteDropout(config.dropout)]
            readout = hidden
        self.window_head = nn.Sequential(*layers, nn.Linear(readout, 1))

    def forward(self, batch: Batch) -> AttentionOutput:
        """Score the G windows and N nodes of a batch."""
        num_graphs = int(batch.num_graphs)
        x = self.standardise_nodes(batch.x)
        edges = self.standardise_edges(batch.edge_attr) if self.config.edge_features else None
        if self.id_rows is not None:
            x = torch.cat([x, self.id_rows(self._id_row(batch.node_id))], dim=1)
        x = self.stem(x)
        edge_index, edges = arrange(self.config.conv_type, batch.edge_index, edges, x)
        pooled: dict[Literal["mean", "max"], list[Tensor]] = {name: [] for name in self.config.pooling}
        node_logit: Tensor = self.node_head.bias
        width = self.config.heads * self.config.hidden
        for place, (convolution, skip, norm) in enumerate(zip(self.convolutions, self.skips, self.norms, strict=True)):
            x = self._activated(convolution(x, edge_index, edges).add_(skip(x)), norm)
            # Jumping knowledge concatenates what the layers say; each is read as it comes, without the copy of all.
            weight = self.node_head.weight[0, place * width : (place + 1) * width]
            node_logit = node_logit + x.float() @ weight
            for name, parts in pooled.items():
                parts.append(pool_rows(name, x, batch.batch, batch.ptr))
        embedding = torch.cat([part for parts in pooled.values() for part in parts], dim=1)
        of_nodes = [
            graph_max(node_logit, batch.batch, num_graphs)
            if name == "max"
            else graph_logsumexp(node_logit, batch.batch, batch.ptr)
            for name in self.config.node_readout
        ]
        window_logit = self.window_head(torch.cat([embedding, *(v.unsqueeze(1) for v in of_nodes)], dim=1)).squeeze(1)
        return AttentionOutput(window_logit.float(), node_logit, embedding)

    def _activated(self, x: Tensor, norm: nn.Module) -> Tensor:
        if self.config.activation == "relu" and isinstance(norm, nn.LayerNorm):
            return norm_relu_dropout(x, norm, self.config.dropout if self.training else 0.0)
        dropped: Tensor = self.dropout(self.activation(norm(x)))
        return dropped

    def _id_row(self, node_id: Tensor) -> Tensor:
        """Map arbitration ids [N] to embedding rows; row 0 is "unknown"."""
        if len(self.known_ids) == 0:
            return torch.zeros_like(node_id)
        place = torch.searchsorted(self.known_ids, node_id).clamp(max=len(self.known_ids) - 1)
        row = torch.where(self.known_ids[place] == node_id, place + 1, 0)
        if self.training and self.config.id_dropout > 0:
            row = row.masked_fill(torch.rand(row.shape, device=row.device) < self.config.id_dropout, 0)
        return row
