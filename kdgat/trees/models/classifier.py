"""A class or a number for a whole tree: an encoder, its nodes pooled, and a linear layer behind it.

The encoder may be GIN, the baseline that sees no geometry: who is joined to whom, and features of nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.graphs.columns import NODE_FEATURES
from kdgat.trees.models.encoder import TreeEncoder, pool
from kdgat.trees.models.message import two_layers
from kdgat.trees.models.paths import tree_edges
from kdgat.trees.sections import EncoderConfig, HeadConfig


class GinEncoder(nn.Module):
    """Embed nodes by their neighbours (Xu et al., "How Powerful are Graph Neural Networks?", ICLR 2019).

    As published with batch norm, and with the sum over all rounds: the last one alone is nearly the same for all nodes.
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Make as many rounds as reach as far as the encoder's paths of three edges do."""
        super().__init__()
        widths = [len(NODE_FEATURES), *[config.hidden] * (3 * config.interactions)]
        self.layers = nn.ModuleList(
            GINConv(two_layers(width, config.hidden, config.hidden), train_eps=True) for width in widths[:-1]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(config.hidden) for _ in self.layers)

    def forward(self, tree: TreeBatch) -> Tensor:
        """Return embeddings of nodes [N, H]."""
        state, edges = tree.x, tree_edges(tree)
        total = tree.x.new_zeros(())
        for layer, norm in zip(self.layers, self.norms, strict=True):
            state = norm(layer(state, edges)).relu()
            total = total + state
        return total / len(self.layers)


class TreePredictor(nn.Module):
    """Predict scores of classes, or one number, for each tree.

    Behind a pretrained encoder the last layer reads standardised embeddings: mean and deviation are those of the
    labelled trees as the encoder was when training began (`kdgat.trees.training.finetuning.start_head`).
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, encoder: EncoderConfig, head: HeadConfig, num_outputs: int, *, is_gin: bool = False) -> None:
        super().__init__()
        self.encoder = GinEncoder(encoder) if is_gin else TreeEncoder(encoder)
        self.is_gin = is_gin
        width = (2 if is_gin else 4) * encoder.hidden  # mean and deviation, of one embedding or of both
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))
        self.dropout = nn.Dropout(head.dropout)
        self.head = nn.Linear(width, num_outputs)

    def embed(self, tree: TreeBatch) -> Tensor:
        """Return the embeddings [B, W] of trees."""
        found = self.encoder(tree)
        return pool(found if self.is_gin else found.both, tree)

    def forward(self, tree: TreeBatch) -> Tensor:
        """Return scores [B, num_outputs]."""
        scores: Tensor = self.head(self.dropout((self.embed(tree) - self.mean) / self.deviation))
        return scores
