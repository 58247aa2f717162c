"""Compare the kernels, in Triton's interpreter, with the library's operations, in a process of its own.

The interpreter is chosen by an environment variable when triton is imported. Ends with an AssertionError otherwise.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kdgat.can.models.attention_triton import EdgesOnDevice, arrange_on_device, attend_triton
from kdgat.can.models.convolution import (
    NEGATIVE_SLOPE,
    GraphAttention,
    aggregate,
    softmax_by_target,
    with_self_edges,
)

# Nodes, edges, heads, channels: the last node has no edge, and there are no edges, no nodes, odd sizes.
SIZES = ((9, 25, 3, 5), (4, 0, 2, 3), (0, 0, 2, 3), (6, 9, 1, 1), (5, 7, 8, 48), (5, 12, 2, 33))


def by_scatter(inputs: list[Tensor], edge_index: Tensor, num_nodes: int) -> Tensor:
    source, target = edge_index
    values, of_source, of_target, *rest = inputs
    score = of_source[source] + of_target[target]
    score = score + rest[0] if rest else score
    attention = softmax_by_target(functional.leaky_relu(score, NEGATIVE_SLOPE), target, num_nodes)
    return aggregate(values[source], attention, target, num_nodes)


def compare(num_nodes: int, num_edges: int, heads: int, channels: int, has_edges: bool, kind: torch.dtype) -> None:
    edge_index = torch.randint(0, max(num_nodes - 1, 1), (2, num_edges))
    edges = arrange_on_device(edge_index, num_nodes)
    # Columns of one product, as the layer has them: rows are longer than what is read of them.
    product = torch.randn(num_nodes, heads * (channels + 2)).to(kind)
    inputs = [one.requires_grad_() for one in product.split([heads * channels, heads, heads], dim=1)]
    if has_edges:
        inputs.append(torch.randn(num_edges, heads).to(kind).requires_grad_())
    of_edge = edges.sort(inputs[3]) if has_edges else None
    found = attend_triton(*inputs[:3], of_edge, edges, heads, NEGATIVE_SLOPE)
    assert found.dtype == kind
    again = attend_triton(*inputs[:3], of_edge, edges, heads, NEGATIVE_SLOPE)
    assert torch.equal(found, again)
    expected = by_scatter([one.float() for one in inputs], edge_index, num_nodes)
    weight = torch.randn_like(expected)
    ours = torch.autograd.grad((found * weight).sum(), inputs)
    theirs = torch.autograd.grad((expected * weight).sum(), inputs)
    tolerance = 1e-5 if kind == torch.float32 else 5e-2
    for one, other in zip((found, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=tolerance, atol=tolerance)


def compare_layer() -> None:
    """Compare the whole layer with what it is on a CPU, with edges that are out of order."""
    x = torch.randn(7, 6)
    edge_index, edges = with_self_edges(torch.randint(0, 7, (2, 20)), torch.randn(20, 4), 7)
    for rate in (0.0, 1.0):  # what is all dropped, on the other path, does not depend on the draw
        layer = GraphAttention(6, 5, 3, 4, rate)
        arranged = arrange_on_device(edge_index, 7)
        assert isinstance(arranged, EdgesOnDevice)
        results = [layer(x, edge_index, edges), layer(x, arranged, arranged.sort(edges))]
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        grads = [torch.autograd.grad(one.square().sum(), list(layer.parameters())) for one in results]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for size in SIZES:
        compare(*size, has_edges=True, kind=torch.float32)
    compare(*SIZES[0], has_edges=False, kind=torch.float32)
    compare(*SIZES[0], has_edges=True, kind=torch.float16)
    compare(*SIZES[0], has_edges=True, kind=torch.bfloat16)
    compare_layer()
