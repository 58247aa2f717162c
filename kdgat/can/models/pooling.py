"""Read-outs from nodes to windows, and dropout, in forms that are cheap on one CPU core.

`benchmarks/models.py` prints what each gains over the library's operation.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdgat.can.models.edges import sparse_rows


class _SegmentMax(torch.autograd.Function):
    """Maximum over the rows of each group, the gradient is shared evenly among equal maxima, as in `amax`.

    The backward pass of `scatter_reduce` goes through gather and scatter over an index as large as the input, which
    took a third of a training step.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Tensor, num_groups: int) -> Tensor:
        index = group.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
        largest = values.new_zeros(num_groups, *values.shape[1:])
        largest.scatter_reduce_(0, index, values, "amax", include_self=False)
        ctx.save_for_backward(values, group, largest)
        return largest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        values, group, largest = ctx.saved_tensors
        is_largest = (values == largest.index_select(0, group)).to(values.dtype)
        ties = torch.zeros_like(largest).index_add_(0, group, is_largest).clamp_(min=1.0)
        return is_largest.mul_((gradients[0] / ties).index_select(0, group)), None, None


def graph_max(values: Tensor, graph: Tensor, num_graphs: int) -> Tensor:
    """Return the largest value per graph, [G, ...], of node values [N, ...]; 0 for a graph without nodes."""
    result: Tensor = _SegmentMax.apply(values, graph, num_graphs)  # type: ignore[no-untyped-call]
    return result


def sum_in_order(values: Tensor, ptr: Tensor) -> Tensor:
    """Return the sum, [G, ...], of rows [N, ...] that lie behind one another, with offsets `ptr` [G + 1]."""
    return torch.segment_reduce(values, "sum", offsets=ptr, axis=0, unsafe=True, initial=0)


def _graph_sum(values: Tensor, graph: Tensor, ptr: Tensor) -> Tensor:
    """Return the sum per graph, [G, ...]; on a GPU row by row, where additions by atomics have no order."""
    if values.device.type == "cuda":
        return sum_in_order(values, ptr)
    return values.new_zeros(len(ptr) - 1, *values.shape[1:]).index_add(0, graph, values)


def graph_mean(values: Tensor, graph: Tensor, ptr: Tensor) -> Tensor:
    """Return the mean per graph, [G, ...], of node values [N, ...] with graph offsets `ptr` [G + 1]."""
    total = _graph_sum(values, graph, ptr)
    sizes = (ptr[1:] - ptr[:-1]).clamp(min=1).to(values.dtype)
    return total / sizes.view(-1, *[1] * (values.dim() - 1))


def pool_rows(how: Literal["mean", "max"], values: Tensor, graph: Tensor, ptr: Tensor) -> Tensor:
    """Return mean or maximum per graph, [G, W], of rows [N, W] that lie behind one another, with offsets `ptr` [G + 1].

    On a CPU as a product with a sparse matrix of ones, which remembers where a maximum was: among equal ones the first
    takes the gradient, and not an even share each. They are zeros behind a ReLU, which stops it.
    """
    if values.device.type != "cpu":
        return graph_mean(values, graph, ptr) if how == "mean" else graph_max(values, graph, len(ptr) - 1)
    ones = sparse_rows(ptr, torch.arange(len(values)), values.new_ones(len(values)), len(values))
    return torch.sparse.mm(ones, values, "mean" if how == "mean" else "amax")


def graph_logsumexp(values: Tensor, graph: Tensor, ptr: Tensor) -> Tensor:
    """Return the log of the sum of exponentials of node values [N] of each graph, [G], with offsets `ptr` [G + 1]."""
    largest = graph_max(values.detach(), graph, len(ptr) - 1)
    total = _graph_sum((values - largest.index_select(0, graph)).exp(), graph, ptr)
    return total.clamp(min=torch.finfo(values.dtype).tiny).log() + largest


class _NormReluDropout(torch.autograd.Function):
    """Layer norm, ReLU and dropout in one: the output alone says where the gradient passes.

    The scale of what dropout keeps is put into weight and bias of the norm, which ReLU lets through.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, steps: int) -> Tensor:
        scale = 256 / (256 - steps)
        scaled, shift = weight * scale, bias * scale
        output, mean, deviation = torch.native_layer_norm(x, weight.shape, scaled, shift, epsilon)
        output.relu_()
        if steps:
            torch.ops.aten.threshold_backward(output, random_bytes(x).to(x.dtype), steps - 0.5, grad_input=output)
        ctx.save_for_backward(x, output, mean, deviation, scaled, shift)
        ctx.scale = scale
        return output

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, output, mean, deviation, scaled, shift = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradients[0], output, 0.0)
        of_x, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            gradient, x, scaled.shape, mean, deviation, scaled, shift, (True, True, True)
        )
        return of_x, of_weight.mul_(ctx.scale), of_bias.mul_(ctx.scale), None, None


def norm_relu_dropout(x: Tensor, norm: nn.LayerNorm, rate: float) -> Tensor:
    """Normalise rows of x [N, W], keep what is positive, and drop of that at a rate that is rounded to 1/256."""
    steps = dropout_steps(rate)
    if x.device.type != "cpu" or steps == 256:
        return functional.dropout(functional.relu(norm(x)), rate)
    result: Tensor = _NormReluDropout.apply(x, norm.weight, norm.bias, norm.eps, steps)  # type: ignore[no-untyped-call]
    return result


def dropout_steps(rate: float) -> int:
    """Return how many of the 256 values of a byte mean that an element is dropped."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout rate {rate} is outside [0, 1)")
    return round(256 * rate)


def random_bytes(x: Tensor) -> Tensor:
    """Draw a byte for each element of x, eight at once."""
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.uint8)[: x.numel()].view(x.shape)


class ByteDropout(nn.Module):
    """Dropout that spends one random byte per element on the CPU; the rate is rounded to 1/256.

    `torch.dropout` draws each element by itself, which is slower than the matrix product beside it. On a GPU this is
    the ordinary dropout.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        dropout_steps(rate)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero elements at the rate, and scale the others up, in training only."""
        steps = dropout_steps(self.rate)
        if not self.training or steps == 0:
            return x
        if x.device.type != "cpu" or steps == 256:
            return functional.dropout(x, self.rate)
        return x * (random_bytes(x) >= steps).to(x.dtype).mul_(256 / (256 - steps))
