"""A network of products and kernels says what the exported one says."""

from typing import Any

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.models.compiled import is_compilable
from kdgat.can.models.onnx_graph import attention_graph
from kdgat.can.models.runtime import Network, TrainedAttention
from kdgat.can.sections import AttentionConfig
from kdgat.canbus import windows_to_graphs
from kdgat.graphs import GraphColumns
from tests.can.detection.untrained import WINDOWS, drive, untrained

CONFIGS = {
    "large": AttentionConfig(hidden=6),
    "one layer of one narrow head": AttentionConfig(hidden=3, heads=1, layers=1, stem=3),
    "a stem as wide as layers": AttentionConfig(hidden=4, heads=2, layers=2, stem=8),
    "without edge features": AttentionConfig(hidden=4, heads=2, layers=2, edge_features=False),
    "several layers behind the mean": AttentionConfig(
        hidden=17, heads=2, layers=2, fc_layers=3, fc_hidden=5, pooling=("mean",), node_readout=()
    ),
    "the maximum before the mean": AttentionConfig(
        hidden=4, heads=2, layers=3, pooling=("max", "mean"), node_readout=("logsumexp",), clamp=1.0
    ),
}


@pytest.fixture(scope="module")
def graphs() -> GraphColumns:
    """Also with nodes that nothing leads into, as those that are only waited for."""
    return GraphColumns.concatenate(
        [windows_to_graphs(drive(attack), WINDOWS) for attack in ("fuzzing", "suppression")]
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_exported_network(graphs: GraphColumns, name: str) -> None:
    network = untrained(CONFIGS[name])
    assert is_compilable(network.description)
    exported = Network(attention_graph(network.weights, network.description, {}).SerializeToString()).score(graphs)
    compiled = Network(TrainedAttention(network.weights, network.description)).score(graphs)
    for ours, theirs in zip(compiled, exported, strict=True):
        assert ours.dtype == theirs.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.ptp(compiled[0]) > 1e-3, "windows are told apart"


@pytest.mark.parametrize("changed", [{"conv_type": "gatv2"}, {"activation": "gelu"}, {"id_embedding": 4}])
def test_other_networks_are_left_to_the_runtime(changed: dict[str, Any]) -> None:
    description = untrained(AttentionConfig(hidden=4, heads=2, layers=2)).description
    assert not is_compilable(description | {"model": description["model"] | changed})


@pytest.mark.parametrize("layer", ["convolutions.0.lin.weight", "norms.1.weight", "stem.0.bias"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_weights_that_are_no_numbers_give_no_scores(graphs: GraphColumns, layer: str, pooling: Any) -> None:
    network = untrained(AttentionConfig(hidden=4, heads=2, layers=2, pooling=(pooling,), node_readout=()))
    weights = network.weights
    weights[layer] = weights[layer].copy()
    weights[layer].flat[0] = np.nan
    with pytest.raises(UserError, match="no finite score"):
        Network(TrainedAttention(weights, network.description)).score(graphs)
