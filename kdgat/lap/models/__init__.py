"""The network that predicts dual potentials.

In: batches of bipartite graphs as neighbour lists. Out: one dual per row and column; `Predictor` is a trained network
as a function of cost matrices, `inference.py` the same arithmetic compiled for one CPU core. Read `dual.py` first.
"""

from __future__ import annotations

from torch import nn

from kdgat.lap.models.dual import DualNetwork
from kdgat.lap.sections import ModelConfig


def make_model(config: ModelConfig) -> nn.Module:
    """Return a fresh network: called with NeighbourLists, it returns a list of Duals, the last its prediction."""
    return DualNetwork(config.dual)
