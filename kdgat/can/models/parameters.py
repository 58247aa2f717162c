"""How many trainable parameters the models have, by closed formulas: a plan says it without building them."""

from itertools import pairwise
from typing import Final

from kdgat.can.config import CanConfig
from kdgat.can.sections import AttentionConfig, AutoencoderConfig, ConvolutionType
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES

SCALES: Final = ("large", "small")


def parameter_counts(config: CanConfig) -> dict[tuple[str, str], int]:
    """Count the parameters of each trained stage's model, by stage and scale."""
    sizes = (len(NODE_FEATURES), len(EDGE_FEATURES))
    counts: dict[tuple[str, str], int] = {}
    for scale in SCALES:
        autoencoder = autoencoder_parameters(getattr(config.autoencoder, scale), *sizes)
        attention = attention_parameters(getattr(config.gat, scale), *sizes)
        counts |= {(stage, scale): autoencoder for stage in ("autoencoder", "distill_autoencoder")}
        counts |= {(stage, scale): attention for stage in ("normal", "curriculum", "distill_gat")}
    return counts


def attention_parameters(
    config: AttentionConfig, num_node_features: int, num_edge_features: int, num_known_ids: int = 0
) -> int:
    """Count the parameters of a `GraphAttentionNetwork`; identifiers that training will find are none yet."""
    width = config.hidden * config.heads
    inputs = [config.stem] + [width] * (config.layers - 1)
    edges = num_edge_features if config.edge_features else 0
    jumping = width * config.layers
    readout = jumping * len(config.pooling) + len(config.node_readout)
    hidden = config.fc_hidden or jumping
    head = [readout] + [hidden] * (config.fc_layers - 1) + [1]
    return (
        (num_known_ids + 1) * config.id_embedding
        + _linear(num_node_features + config.id_embedding, config.stem)
        + _norm(config.stem)
        + sum(_convolution(config.conv_type, size, width, edges) + _norm(width) for size in inputs)
        + sum(size * width for size in inputs if size != width)  # skips
        + _linear(jumping, 1)
        + sum(_linear(size, following) for size, following in pairwise(head))
    )


def autoencoder_parameters(config: AutoencoderConfig, num_node_features: int, num_edge_features: int) -> int:
    """Count the parameters of a `GraphAutoencoder`."""
    *widths, latent = config.hidden_dims
    edges = num_edge_features if config.edge_features else 0
    encoder = (num_node_features, *widths)
    decoder = (latent, *reversed(widths[1:]), num_node_features)
    return (
        sum(_convolution(config.conv_type, *sizes, edges) for sizes in (*pairwise(encoder), *pairwise(decoder)))
        + sum(map(_norm, (*encoder[1:], *decoder[1:-1])))
        + 2 * _linear(widths[-1], latent)  # mean and log variance
        + 2 * _linear(latent, latent)  # of both ends of an edge
        + (_linear(latent, config.id_buckets) if config.id_buckets else 0)
    )


def _convolution(kind: ConvolutionType, num_inputs: int, width: int, num_edge_features: int) -> int:
    """Count for a convolution whose heads are `width` features together."""
    edges = num_edge_features * width
    if kind == "gat":
        of_edges = edges + width if num_edge_features else 0
        return num_inputs * width + of_edges + 3 * width  # attention of source and target, bias
    return 2 * _linear(num_inputs, width) + edges + 2 * width  # attention, bias


def _linear(num_inputs: int, num_outputs: int) -> int:
    return (num_inputs + 1) * num_outputs


def _norm(width: int) -> int:
    return 2 * width
