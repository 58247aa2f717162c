"""Attention over sorted edges, beside the same sums by gather and scatter."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kdgat.can.models.convolution import NEGATIVE_SLOPE, aggregate, softmax_by_target
from kdgat.can.models.edges import SortedEdges, attend, score_edges
from kdgat.can.models.pooling import graph_max, graph_mean, norm_relu_dropout, pool_rows

NUM_NODES, HEADS, CHANNELS = 9, 3, 4


def random_edges(num_edges: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, NUM_NODES - 1, (2, num_edges), generator=generator)  # the last node has none


def by_scatter(values: Tensor, ends: tuple[Tensor, Tensor], of_edge: Tensor, edge_index: Tensor) -> Tensor:
    source, target = edge_index
    score = ends[0].index_select(0, source) + ends[1].index_select(0, target) + of_edge
    attention = softmax_by_target(functional.leaky_relu(score, NEGATIVE_SLOPE), target, len(values))
    return aggregate(values.index_select(0, source), attention, target, len(values))


@pytest.mark.parametrize("num_edges", [0, 1, 25])
def test_sums_and_gradients_are_those_of_gather_and_scatter(num_edges: int) -> None:
    torch.manual_seed(1)
    edge_index = random_edges(num_edges)
    inputs = [torch.randn(NUM_NODES, HEADS * CHANNELS), torch.randn(NUM_NODES, HEADS), torch.randn(NUM_NODES, HEADS)]
    inputs = [one.requires_grad_() for one in (*inputs, torch.randn(num_edges, HEADS))]
    values, of_source, of_target, of_edge = inputs
    edges = SortedEdges(edge_index, NUM_NODES)
    sorted_edge = edges.sort(of_edge)
    assert sorted_edge is not None
    found = attend(values, score_edges(of_source, of_target, edges) + sorted_edge, edges, NEGATIVE_SLOPE)
    expected = by_scatter(values, (of_source, of_target), of_edge, edge_index)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_sums_repeat_bit_for_bit_on_two_threads() -> None:
    torch.manual_seed(2)
    edges = SortedEdges(random_edges(200), NUM_NODES)
    values, score = torch.randn(NUM_NODES, HEADS * CHANNELS), torch.randn(200, HEADS)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(attend(values, score, edges, NEGATIVE_SLOPE))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_norm_with_relu_and_dropout_has_the_gradient_of_its_parts() -> None:
    torch.manual_seed(3)
    norm, x = torch.nn.LayerNorm(8), torch.randn(64, 8, requires_grad=True)
    dropped = norm_relu_dropout(x, norm, 0.25)
    kept = (dropped > 0).detach()
    expected = functional.relu(norm(x)) * kept / 0.75
    torch.testing.assert_close(dropped, expected)
    inputs = [x, norm.weight, norm.bias]
    for ours, theirs in zip(
        torch.autograd.grad(dropped.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    assert 0.2 < 1 - kept.sum() / (norm(x) > 0).sum() < 0.3


def test_pooled_rows_are_means_and_maxima_of_graphs() -> None:
    torch.manual_seed(4)
    ptr = torch.tensor([0, 3, 4, 9])
    graph = torch.repeat_interleave(torch.arange(3), ptr.diff())
    values = torch.randn(9, 5, requires_grad=True)
    for how, expected in (("mean", graph_mean(values, graph, ptr)), ("max", graph_max(values, graph, 3))):
        found = pool_rows(how, values, graph, ptr)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(found)
        torch.testing.assert_close(
            torch.autograd.grad((found * weight).sum(), values), torch.autograd.grad((expected * weight).sum(), values)
        )


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    values, score = torch.randn(NUM_NODES, HEADS * CHANNELS), torch.randn(5, HEADS)
    inputs = (values.requires_grad_(), score.requires_grad_())
    edges = SortedEdges(random_edges(5), NUM_NODES)
    found = torch.autograd.grad(attend(*inputs, edges, NEGATIVE_SLOPE).square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        found[0].sum().backward()
