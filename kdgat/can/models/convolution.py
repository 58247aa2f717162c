"""Attention convolutions whose attention reads the edge features.

The same functions as PyG's GATConv and GATv2Conv; a test loads one's weights into the other. Written out because PyG
writes a generated Python file to the temporary folder for each process and subclass, which a killed process leaves
behind, and because both steps from edge features to GAT's attention are linear: they are folded into one small matrix
here, without the intermediate per edge and channel.

Without edge features (`num_edge_features` 0) they are the same layers without the terms of the edges.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdgat.can.models.attention_triton import EdgesOnDevice, arrange_on_device, attend_triton, can_attend, is_usable
from kdgat.can.models.edges import SortedEdges, attend, score_edges
from kdgat.can.sections import ConvolutionType

NEGATIVE_SLOPE = 0.2


class GraphAttention(nn.Module):
    """Multi-head attention over the edges into each node (Velickovic et al. 2018), with edge features.

    score(i <- j) = leaky_relu(a_src . W x_j + a_dst . W x_i + a_edge . U e_ij), normalised over the edges into i.
    """

    def __init__(self, num_inputs: int, channels: int, heads: int, num_edge_features: int, dropout: float) -> None:
        super().__init__()
        self.channels, self.heads, self.dropout = channels, heads, dropout
        self.lin = nn.Linear(num_inputs, heads * channels, bias=False)
        self.lin_edge = _edge_projection(num_edge_features, heads * channels)
        self.att_src = nn.Parameter(torch.empty(1, heads, channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, channels))
        self.att_edge = nn.Parameter(torch.empty(1, heads, channels)) if num_edge_features else None
        self.bias = nn.Parameter(torch.zeros(heads * channels))
        glorot(self.lin.weight)
        if self.lin_edge is not None:
            glorot(self.lin_edge.weight)
        glorot(self.att_src)
        glorot(self.att_dst)
        if self.att_edge is not None:
            glorot(self.att_edge)

    def forward(self, x: Tensor, edge_index: Tensor | SortedEdges | EdgesOnDevice, edges: Tensor | None) -> Tensor:
        """Return node features [N, heads * channels] from x [N, F], edge_index [2, E] and edges [E, D].

        The edges may be arranged before, once for all layers (`arrange`), and `edges` in that order. `edges` may be
        None for a layer without edge features alone: else ValueError.
        """
        check_edges(self.lin_edge, edges)
        # One product: values [N, H * C], and what source and target, [N, H] each, add to the score of an edge.
        ends = [self._folded(self.lin.weight, end) for end in (self.att_src, self.att_dst)]
        rows = torch.cat([self.lin.weight, *ends])
        sizes = [len(self.bias), self.heads, self.heads]
        values, of_source, of_target = torch.split(functional.linear(x, rows), sizes, dim=1)
        of_edge = None
        if self.lin_edge is not None and self.att_edge is not None and edges is not None:
            of_edge = functional.linear(edges, self._folded(self.lin_edge.weight, self.att_edge))  # [E, H]
        if isinstance(edge_index, EdgesOnDevice):
            if not self.drops_attention and can_attend(values, self.heads):
                found = attend_triton(values, of_source, of_target, of_edge, edge_index, self.heads, NEGATIVE_SLOPE)
                return found.add_(self.bias)
            # The kernels drop nothing, and have room for rows of a certain length.
            return self._by_scatter(values, of_source, of_target, of_edge, edge_index.source, edge_index.target)
        if x.device.type == "cpu" and not isinstance(edge_index, SortedEdges):
            edge_index = SortedEdges(edge_index, len(x))
            of_edge = edge_index.sort(of_edge)
        if isinstance(edge_index, SortedEdges):
            score = score_edges(of_source, of_target, edge_index)
            score = score if of_edge is None else score + of_edge
            kept = (
                functional.dropout(torch.ones_like(score, dtype=torch.float32), self.dropout)
                if self.drops_attention
                else None
            )
            return attend(values, score, edge_index, NEGATIVE_SLOPE, kept).add_(self.bias)
        source, target = edge_index
        return self._by_scatter(values, of_source, of_target, of_edge, source, target)

    def _by_scatter(
        self, values: Tensor, of_source: Tensor, of_target: Tensor, of_edge: Tensor | None, *ends: Tensor
    ) -> Tensor:
        """Return the output [N, H * C] by the library's operations, from values, scores and the ends [E] of edges."""
        source, target = ends
        score = of_source.index_select(0, source) + of_target.index_select(0, target)
        score = score if of_edge is None else score + of_edge
        attention = softmax_by_target(functional.leaky_relu(score, NEGATIVE_SLOPE), target, len(values))
        attention = functional.dropout(attention, self.dropout, self.training)
        return aggregate(values.index_select(0, source), attention, target, len(values)) + self.bias

    @property
    def drops_attention(self) -> bool:
        """Return whether attention is dropped now: in training, where a rate is configured."""
        return self.training and self.dropout > 0.0

    def _folded(self, weight: Tensor, attention: Tensor) -> Tensor:
        """Return [H, F], the product of a projection [H * C, F] and the attention vector [1, H, C] of each head."""
        return torch.einsum("hcf,hc->hf", weight.view(self.heads, self.channels, -1), attention[0])


class GraphAttentionV2(nn.Module):
    """Multi-head attention with the nonlinearity before the attention vector (Brody et al. 2022), with edge features.

    score(i <- j) = a . leaky_relu(W_l x_j + b_l + W_r x_i + b_r + U e_ij), normalised over the edges into i.
    """

    def __init__(self, num_inputs: int, channels: int, heads: int, num_edge_features: int, dropout: float) -> None:
        super().__init__()
        self.channels, self.heads, self.dropout = channels, heads, dropout
        self.lin_l = nn.Linear(num_inputs, heads * channels)
        self.lin_r = nn.Linear(num_inputs, heads * channels)
        self.lin_edge = _edge_projection(num_edge_features, heads * channels)
        self.att = nn.Parameter(torch.empty(1, heads, channels))
        self.bias = nn.Parameter(torch.zeros(heads * channels))
        glorot(self.lin_l.weight)
        glorot(self.lin_r.weight)
        if self.lin_edge is not None:
            glorot(self.lin_edge.weight)
        glorot(self.att)
        nn.init.zeros_(self.lin_l.bias)
        nn.init.zeros_(self.lin_r.bias)

    def forward(self, x: Tensor, edge_index: Tensor, edges: Tensor | None) -> Tensor:
        """Return node features [N, heads * channels] from x [N, F], edge_index [2, E] and edges [E, D].

        `edges` may be None for a layer without edge features alone: else ValueError.
        """
        check_edges(self.lin_edge, edges)
        source, target = edge_index
        of_source = self.lin_l(x).index_select(0, source)  # [E, H * C]
        mixed = of_source + self.lin_r(x).index_select(0, target)
        if self.lin_edge is not None and edges is not None:
            mixed = mixed + self.lin_edge(edges)
        mixed = functional.leaky_relu(mixed, NEGATIVE_SLOPE).view(-1, self.heads, self.channels)
        score = (mixed * self.att).sum(dim=2)  # [E, H]
        attention = softmax_by_target(score, target, len(x))
        attention = functional.dropout(attention, self.dropout, self.training)
        return aggregate(of_source, attention, target, len(x)) + self.bias


def check_edges(projection: nn.Module | None, edges: Tensor | None) -> None:
    """Refuse to compute another function than the layer's, the one without the term of the edges."""
    if projection is not None and edges is None:
        raise ValueError("this layer has weights for edge features and was given none: pass edges [E, D]")


def softmax_by_target(score: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Normalise scores [E, H] over the edges into each node."""
    with torch.no_grad():  # only against overflow: the result does not depend on it
        index = target.unsqueeze(1).expand_as(score)
        largest = score.new_zeros(num_nodes, score.shape[1])
        largest.scatter_reduce_(0, index, score, "amax", include_self=False)
    weight = (score - largest.index_select(0, target)).exp()
    total = weight.new_zeros(num_nodes, weight.shape[1]).index_add(0, target, weight)
    return weight / (total + 1e-16).index_select(0, target)


def aggregate(values: Tensor, attention: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """Sum values [E, H * C] weighted by attention [E, H] over the edges into each node, [N, H * C]."""
    heads = attention.shape[1]
    shape = (len(values), heads, values.shape[1] // heads)
    weighted = (values.view(shape) * attention.unsqueeze(2)).view(values.shape)
    return weighted.new_zeros(num_nodes, weighted.shape[1]).index_add(0, target, weighted)


def _edge_projection(num_edge_features: int, width: int) -> nn.Linear | None:
    return nn.Linear(num_edge_features, width, bias=False) if num_edge_features else None


def glorot(tensor: Tensor) -> None:
    """Fill a tensor as PyG does: uniform within +-sqrt(6 / (rows + columns))."""
    limit = math.sqrt(6.0 / (tensor.shape[-2] + tensor.shape[-1]))
    nn.init.uniform_(tensor, -limit, limit)


def build_convolution(
    kind: ConvolutionType,
    num_inputs: int,
    channels: int,
    heads: int,
    num_edge_features: int,
    dropout: float = 0.0,
) -> GraphAttention | GraphAttentionV2:
    """Build a convolution from `num_inputs` to `channels * heads` features; none of an edge for `num_edge_features` 0.

    Self loops are not added by the layer: a window's graph has its own self edges with features (an id that follows
    itself), which PyG would remove to put featureless ones in their place.
    """
    if kind == "gat":
        return GraphAttention(num_inputs, channels, heads, num_edge_features, dropout)
    return GraphAttentionV2(num_inputs, channels, heads, num_edge_features, dropout)


def arrange(
    kind: ConvolutionType, edge_index: Tensor, edges: Tensor | None, x: Tensor
) -> tuple[Tensor | SortedEdges | EdgesOnDevice, Tensor | None]:
    """Return edges [2, E] between nodes x [N, F] and their features [E, D] as all layers of a kind will want them."""
    if kind == "gat" and x.device.type == "cpu":
        arranged = SortedEdges(edge_index, len(x))
        return arranged, arranged.sort(edges)
    if kind == "gat" and is_usable(x.device):
        on_device = arrange_on_device(edge_index, len(x))
        return on_device, on_device.sort(edges)
    return edge_index, edges


def with_self_edges(edge_index: Tensor, edge_attr: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Append one edge per node to itself, with zero features.

    Returns edge_index [2, E + N] and edge_attr [E + N, D], or None for None. Existing self edges keep their features
    beside the new one.
    """
    nodes = torch.arange(num_nodes, device=edge_index.device)
    loops = nodes.unsqueeze(0).expand(2, -1)
    appended = torch.cat([edge_index, loops], dim=1)
    if edge_attr is None:
        return appended, None
    return appended, torch.cat([edge_attr, edge_attr.new_zeros(num_nodes, edge_attr.shape[1])])


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
