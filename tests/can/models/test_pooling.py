import math

import pytest
import torch
from torch_geometric.nn import global_max_pool, global_mean_pool

from kdgat.can.models.pooling import ByteDropout, graph_logsumexp, graph_max, graph_mean, sum_in_order

GRAPH = torch.tensor([0, 0, 0, 1, 1, 3])
PTR = torch.tensor([0, 3, 5, 5, 6])


def test_maximum_and_its_gradient_equal_the_library() -> None:
    values = torch.randn(6, 4)
    values[1] = values[0]  # equal maxima share the gradient
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    weight = torch.randn(4, 4)
    (graph_max(ours, GRAPH, 4) * weight).sum().backward()
    (global_max_pool(theirs, GRAPH, 4) * weight).sum().backward()
    torch.testing.assert_close(graph_max(values, GRAPH, 4), global_max_pool(values, GRAPH, 4))
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_mean_equals_the_library() -> None:
    values = torch.randn(6, 4)
    torch.testing.assert_close(graph_mean(values, GRAPH, PTR), global_mean_pool(values, GRAPH, 4))


def test_logsumexp_neither_overflows_nor_mixes_windows() -> None:
    values, graph = torch.tensor([100.0, 101.0, -3.0]), torch.tensor([0, 0, 1])
    expected = torch.tensor([101 + math.log1p(math.exp(-1)), -3.0])
    torch.testing.assert_close(graph_logsumexp(values, graph, torch.tensor([0, 2, 3])), expected)


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5])
def test_dropout_keeps_the_expected_share_and_the_mean(rate: float) -> None:
    torch.manual_seed(0)
    layer = ByteDropout(rate)
    out = layer(torch.ones(1000, 1001))
    assert abs((out == 0).float().mean().item() - rate) < 0.004
    assert abs(out.mean().item() - 1) < 0.005
    assert torch.equal(layer.eval()(torch.ones(5)), torch.ones(5))


def test_dropout_follows_the_seed() -> None:
    layer = ByteDropout(0.3)
    torch.manual_seed(7)
    first = layer(torch.ones(33))
    torch.manual_seed(7)
    assert torch.equal(first, layer(torch.ones(33)))


def test_sums_in_order_are_those_of_graphs_with_their_gradients_also_of_empty_ones():
    values = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    ptr, graph = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 0, 2, 2, 2])
    found, expected = sum_in_order(values, ptr), torch.zeros(3, 3, dtype=torch.float64).index_add(0, graph, values)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(3, 3, dtype=torch.float64)
    gradients = [torch.autograd.grad((one * weight).sum(), values)[0] for one in (found, expected)]
    torch.testing.assert_close(*gradients)
