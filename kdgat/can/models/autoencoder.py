"""Variational graph autoencoder: how unlike benign traffic is this window?"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.can.models.attention_triton import EdgesOnDevice
from kdgat.can.models.convolution import arrange, build_convolution, with_self_edges
from kdgat.can.models.edges import SortedEdges
from kdgat.can.models.masks import mask_of, masked_loss, masked_mean
from kdgat.can.models.pooling import graph_max, graph_mean, norm_relu_dropout
from kdgat.can.models.standardise import Standardise
from kdgat.can.sections import AutoencoderConfig

# Fibonacci hashing: multiplying by 2^32 / golden ratio spreads neighbouring identifiers over the buckets.
HASH_MULTIPLIER = 2_654_435_761


class AutoencoderOutput(NamedTuple):
    """Hold the reconstruction of a batch of G windows with N nodes."""

    latent_mean: Tensor  # [N, Z]
    latent_log_variance: Tensor  # [N, Z]
    latent: Tensor  # [N, Z]; the mean in evaluation, a sample in training
    target: Tensor  # [N, F] standardised features
    reconstruction: Tensor  # [N, F]


class AutoencoderLoss(NamedTuple):
    """Hold the terms of the loss; `total` is their weighted sum."""

    total: Tensor
    features: Tensor
    divergence: Tensor
    neighbourhood: Tensor
    identifier: Tensor


class GraphAutoencoder(nn.Module):
    """Encode every node by its neighbourhood, and rebuild its features.

    Kipf and Welling 2016 (VGAE). Sampling happens in training only: a score is a function of the window.
    """

    def __init__(self, config: AutoencoderConfig, num_node_features: int, num_edge_features: int) -> None:
        super().__init__()
        self.config = config
        self.standardise_nodes = Standardise(num_node_features, config.clamp)
        self.standardise_edges = Standardise(num_edge_features, config.clamp)
        *widths, num_latent = config.hidden_dims
        self.encoder = _Stack(config, num_node_features, tuple(widths), num_edge_features, finish=True)
        self.latent_mean = nn.Linear(widths[-1], num_latent)
        self.latent_log_variance = nn.Linear(widths[-1], num_latent)
        mirrored = (*reversed(widths[1:]), num_node_features) if len(widths) > 1 else (num_node_features,)
        self.decoder = _Stack(config, num_latent, mirrored, num_edge_features, finish=False)
        self.neighbour_source = nn.Linear(num_latent, num_latent)
        self.neighbour_target = nn.Linear(num_latent, num_latent)
        self.id_head = nn.Linear(num_latent, config.id_buckets) if config.id_buckets else None

    def forward(self, batch: Batch) -> AutoencoderOutput:
        """Reconstruct the node features of a batch."""
        target = self.standardise_nodes(batch.x)
        edges = self.standardise_edges(batch.edge_attr) if self.config.edge_features else None
        edge_index, edges = with_self_edges(batch.edge_index, edges, batch.x.shape[0])
        arranged, edges = arrange(self.config.conv_type, edge_index, edges, target)
        hidden = self.encoder(target, arranged, edges)
        mean = self.latent_mean(hidden).float()  # bfloat16 under autocast
        log_variance = self.latent_log_variance(hidden).float().clamp(-20.0, 20.0)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return AutoencoderOutput(mean, log_variance, latent, target, self.decoder(latent, arranged, edges).float())

    def loss(self, batch: Batch, output: AutoencoderOutput) -> AutoencoderLoss:
        """Return the weighted loss and its terms for one batch."""
        config = self.config
        zero = output.target.new_zeros(())
        is_node = mask_of(batch, "node")
        features = masked_loss(functional.mse_loss, output.reconstruction, output.target, is_node)
        mean, log_variance = output.latent_mean, output.latent_log_variance
        divergence = -0.5 * masked_mean(1 + log_variance - mean.square() - log_variance.exp(), is_node)
        neighbourhood = self._neighbourhood_loss(batch, output.latent) if config.neighbourhood_weight > 0 else zero
        identifier = zero
        if self.id_head is not None:
            bucket = hash_bucket(batch.node_id, config.id_buckets)
            identifier = masked_loss(functional.cross_entropy, self.id_head(output.latent), bucket, is_node)
        total = (
            features
            + config.kl_weight * divergence
            + config.neighbourhood_weight * neighbourhood
            + config.id_weight * identifier
        )
        return AutoencoderLoss(total, features, divergence, neighbourhood, identifier)

    def _neighbourhood_loss(self, batch: Batch, latent: Tensor) -> Tensor:
        """Tell real edges from pairs of nodes of the same window without one: O(edges), no target per identifier."""
        source, target = batch.edge_index
        first, size = batch.ptr[batch.batch[source]], (batch.ptr[1:] - batch.ptr[:-1])[batch.batch[source]]
        if self.training:
            draw = torch.rand(source.shape, device=source.device)
        else:  # the same pairs each time, so that two validations of the same weights agree
            draw = torch.frac(torch.arange(len(source), device=source.device) * 0.618033988749895)
        other = first + (draw * size).long().clamp(max=size - 1)
        num_nodes = latent.shape[0]
        keys = target * num_nodes + source  # sorted: edges are stored by target, then by source
        pairs = other * num_nodes + source
        place = torch.searchsorted(keys, pairs).clamp(max=len(keys) - 1)
        is_edge = mask_of(batch, "edge")
        is_absent = keys[place] != pairs
        if is_edge is not None:
            is_absent &= is_edge
        sources, targets = self.neighbour_source(latent), self.neighbour_target(latent)
        from_source = sources.index_select(0, source)
        positive = (from_source * targets.index_select(0, target)).sum(dim=1)
        negative = (from_source * targets.index_select(0, other)).sum(dim=1)
        missing = masked_mean(functional.softplus(negative), is_absent)
        return 0.5 * (masked_mean(functional.softplus(-positive), is_edge) + missing)


class _Stack(nn.Module):
    """Convolutions one after the other; `finish` puts norm, ReLU and dropout behind the last one too."""

    def __init__(
        self, config: AutoencoderConfig, num_inputs: int, widths: tuple[int, ...], num_edge_features: int, finish: bool
    ) -> None:
        super().__init__()
        width_of_edges = num_edge_features if config.edge_features else 0
        self.convolutions = nn.ModuleList()
        self.norms = nn.ModuleList()
        for place, width in enumerate(widths):
            is_last = place == len(widths) - 1
            heads = config.heads if place == 0 and (finish or not is_last) else 1
            self.convolutions.append(
                build_convolution(config.conv_type, num_inputs, width // heads, heads, width_of_edges)
            )
            if finish or not is_last:
                self.norms.append(nn.LayerNorm(width))
            num_inputs = width
        self.dropout = config.dropout

    def forward(self, x: Tensor, edge_index: Tensor | SortedEdges | EdgesOnDevice, edges: Tensor | None) -> Tensor:
        for place, convolution in enumerate(self.convolutions):
            x = convolution(x, edge_index, edges)
            if place < len(self.norms):
                norm = self.norms[place]
                assert isinstance(norm, nn.LayerNorm)
                x = norm_relu_dropout(x, norm, self.dropout if self.training else 0.0)
        return x


class ReconstructionError(NamedTuple):
    """Hold the error per node [N] and its mean and maximum per window [G]."""

    node: Tensor
    mean: Tensor
    maximum: Tensor


def reconstruction_error(batch: Batch, output: AutoencoderOutput) -> ReconstructionError:
    """Return mean squared errors over the standardised features."""
    node = (output.reconstruction - output.target).square().mean(dim=1)
    mean = graph_mean(node, batch.batch, batch.ptr)
    return ReconstructionError(node, mean, graph_max(node, batch.batch, int(batch.num_graphs)))


def hash_bucket(node_id: Tensor, num_buckets: int) -> Tensor:
    """Map arbitration ids to buckets by a fixed hash, so that an id never seen still has one."""
    return ((node_id * HASH_MULTIPLIER) % (1 << 32) * num_buckets) >> 32
