"""The networks that predict dual potentials, chosen by `model.kind`.

In: batches of bipartite graphs as neighbour lists. Out: one dual per row and column; `Predictor` is a trained network
as a function of cost matrices, `inference.py` the same arithmetic compiled for one CPU core. Read `dual.py` first, the
model that is trained by default; `dense.py`, `rows.py` and `sweeps.py` are for comparison.
"""

from __future__ import annotations

from torch import nn

from kdgat.lap.models.dense import DenseAttentionNetwork
from kdgat.lap.models.dual import DualNetwork
from kdgat.lap.models.rows import RowNetwork
from kdgat.lap.sections import ModelConfig


def make_model(config: ModelConfig) -> nn.Module:
    """Return a fresh network: called with NeighbourLists, it returns a list of Duals, the last its prediction."""
    if config.kind == "dual":
        return DualNetwork(config.dual)
    if config.kind == "dense":
        return DenseAttentionNetwork(config.dense)
    return RowNetwork(config.rows)
