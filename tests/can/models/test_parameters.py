"""The closed formulas count what the real models have, whatever their configuration."""

import pytest

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.models.convolution import count_parameters
from kdgat.can.models.parameters import SCALES, attention_parameters, autoencoder_parameters, parameter_counts
from kdgat.can.sections import AttentionConfig, AutoencoderConfig
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES
from tests.can.small_runs import make_config

SIZES = (13, 5)


@pytest.mark.parametrize("preset", ["quick", "full", "tutorial"])
def test_a_plan_counts_the_parameters_of_its_models(preset: str) -> None:
    config = make_config(preset, data={"dataset": "synthetic", "data_root": "data"})
    sizes = (len(NODE_FEATURES), len(EDGE_FEATURES))
    counts = parameter_counts(config)
    for scale in SCALES:
        autoencoder = count_parameters(GraphAutoencoder(getattr(config.autoencoder, scale), *sizes))
        attention = count_parameters(GraphAttentionNetwork(getattr(config.gat, scale), *sizes))
        assert counts["autoencoder", scale] == counts["distill_autoencoder", scale] == autoencoder
        assert counts["normal", scale] == counts["curriculum", scale] == counts["distill_gat", scale] == attention


@pytest.mark.parametrize(
    "config",
    [
        AutoencoderConfig(hidden_dims=(8, 3), heads=2),
        AutoencoderConfig(hidden_dims=(16, 8, 4, 2), heads=4),
        AutoencoderConfig(hidden_dims=(16, 8, 4), conv_type="gatv2", id_buckets=32),
        AutoencoderConfig(hidden_dims=(16, 8, 4), edge_features=False),
        AutoencoderConfig(hidden_dims=(16, 8, 4), edge_features=False, conv_type="gatv2"),
    ],
)
def test_the_formula_of_the_autoencoder(config: AutoencoderConfig) -> None:
    assert autoencoder_parameters(config, *SIZES) == count_parameters(GraphAutoencoder(config, *SIZES))


@pytest.mark.parametrize(
    "config",
    [
        AttentionConfig(hidden=4, heads=2, layers=1),
        AttentionConfig(hidden=4, heads=2, layers=3, stem=8),  # the first skip is the identity, too
        AttentionConfig(hidden=4, heads=2, stem=5, fc_layers=3, fc_hidden=7),
        AttentionConfig(hidden=4, heads=2, fc_layers=2, conv_type="gatv2", edge_features=False),
        AttentionConfig(hidden=4, heads=2, pooling=("max",), node_readout=(), id_embedding=6),
        AttentionConfig(hidden=4, heads=2, edge_features=False),
    ],
)
def test_the_formula_of_the_attention_network(config: AttentionConfig) -> None:
    assert attention_parameters(config, *SIZES) == count_parameters(GraphAttentionNetwork(config, *SIZES))
    known_ids = [5, 7, 11]
    model = GraphAttentionNetwork(config, *SIZES, known_ids)
    assert attention_parameters(config, *SIZES, len(known_ids)) == count_parameters(model)
