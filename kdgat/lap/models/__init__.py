"""The networks that predict dual potentials, chosen by `model.kind`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from kdgat.lap.models.dense import DenseAttentionConfig, DenseAttentionNetwork
from kdgat.lap.models.dual import DualNetwork, DualNetworkConfig
from kdgat.lap.models.rows import RowNetwork, RowNetworkConfig
from kdgat.stage.configuration import Config

ModelKind = Literal["dual", "dense", "rows"]


class ModelConfig(Config):
    """Choose a network; only the section of its kind is read."""

    kind: ModelKind = Field("dual", description="dual = ours; dense and rows = the kinds it is compared with")
    dual: DualNetworkConfig = DualNetworkConfig()
    dense: DenseAttentionConfig = DenseAttentionConfig()
    rows: RowNetworkConfig = RowNetworkConfig()


def make_model(config: ModelConfig) -> nn.Module:
    """Return a fresh network: called with NeighbourLists, it returns a list of Duals, the last its prediction."""
    if config.kind == "dual":
        return DualNetwork(config.dual)
    if config.kind == "dense":
        return DenseAttentionNetwork(config.dense)
    return RowNetwork(config.rows)
