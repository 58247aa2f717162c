"""A class or a number for a whole tree: an encoder, its nodes pooled, and a linear layer behind it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.encoder import TreeEncoder, pool
from kdgat.trees.models.gin import GinEncoder
from kdgat.trees.sections import EncoderConfig, HeadConfig


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
