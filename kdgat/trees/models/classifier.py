"""A class or a number for a whole tree: an encoder, its nodes pooled, and a small network behind it."""

from __future__ import annotations

from torch import Tensor, nn

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.encoder import TreeEncoder, pool
from kdgat.trees.models.gin import GinEncoder
from kdgat.trees.sections import EncoderConfig, HeadConfig


class TreePredictor(nn.Module):
    """Predict scores of classes, or one number, for each tree."""

    def __init__(self, encoder: EncoderConfig, head: HeadConfig, num_outputs: int, *, is_gin: bool = False) -> None:
        super().__init__()
        self.encoder = GinEncoder(encoder) if is_gin else TreeEncoder(encoder)
        self.is_gin = is_gin
        width = (2 if is_gin else 4) * encoder.hidden  # mean and deviation, of one embedding or of both
        self.head = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, head.hidden),
            nn.ReLU(),
            nn.Dropout(head.dropout),
            nn.Linear(head.hidden, num_outputs),
        )

    def forward(self, tree: TreeBatch) -> Tensor:
        """Return scores [B, num_outputs]."""
        found = self.encoder(tree)
        scores: Tensor = self.head(pool(found if self.is_gin else found.both, tree))
        return scores
