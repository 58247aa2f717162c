"""Attention convolutions whose attention reads the edge features."""

from typing import Literal, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GATv2Conv
from torch_geometric.typing import OptTensor
from torch_geometric.utils import softmax

ConvolutionType = Literal["gat", "gatv2"]


class FoldedGATConv(GATConv):
    """GATConv that projects edge features straight to one attention term per head.

    `GATConv` maps every edge to heads x channels values and then contracts them with `att_edge`. Both steps are
    linear, so their product, a [D, heads] matrix, gives the same attention without the large intermediate.
    """

    def edge_update(
        self,
        alpha_j: Tensor,
        alpha_i: Tensor,
        edge_attr: Tensor,
        index: Tensor,
        ptr: OptTensor,  # PyG reads these annotations, and cannot read `Tensor | None`
        dim_size: Optional[int],  # noqa: UP045
    ) -> Tensor:
        """Return attention weights [E, heads] that sum to one over the edges into a node."""
        weight = self.lin_edge.weight.view(self.heads, self.out_channels, -1)  # [H, C, D]
        folded = (weight * self.att_edge.view(self.heads, self.out_channels, 1)).sum(dim=1)  # [H, D]
        alpha = alpha_j + alpha_i + edge_attr @ folded.t()
        alpha = functional.leaky_relu(alpha, self.negative_slope)
        alpha = softmax(alpha, index, ptr, dim_size)
        return functional.dropout(alpha, p=self.dropout, training=self.training)


def build_convolution(
    kind: ConvolutionType, num_inputs: int, channels: int, heads: int, num_edge_features: int, dropout: float = 0.0
) -> nn.Module:
    """Build a convolution from `num_inputs` to `channels * heads` features.

    Self loops are not added by the layer: a window's graph has its own self edges with features (an id that follows
    itself), which PyG would remove to put featureless ones in their place.
    """
    layer = FoldedGATConv if kind == "gat" else GATv2Conv
    return layer(
        num_inputs, channels, heads=heads, edge_dim=num_edge_features, dropout=dropout, add_self_loops=False, bias=True
    )


def with_self_edges(edge_index: Tensor, edge_attr: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Append one edge per node to itself, with zero features.

    Returns edge_index [2, E + N] and edge_attr [E + N, D]. Existing self edges keep their features beside the new one.
    """
    nodes = torch.arange(num_nodes, device=edge_index.device)
    loops = nodes.unsqueeze(0).expand(2, -1)
    features = edge_attr.new_zeros(num_nodes, edge_attr.shape[1])
    return torch.cat([edge_index, loops], dim=1), torch.cat([edge_attr, features])


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
