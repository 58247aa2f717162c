"""What `kdgat.can.models.triton_kernels` computes, by torch's operations: there is no compiler for a pretended device.

That the kernels themselves compute this is shown by Triton's interpreter (tests/can/models/test_attention_triton.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Launcher = Callable[..., None]


class Kernel:
    """A function that is launched as a kernel of Triton is: `kernel[grid](...)`."""

    def __init__(self, function: Launcher, on_launch: Callable[[str, Callable[[], None]], None]) -> None:
        self.function, self.on_launch = function, on_launch

    def __getitem__(self, grid: tuple[int, ...]) -> Launcher:
        """Return what computes, whatever the grid."""
        return self

    def __call__(self, *arguments: Any, **shape: int) -> None:
        """Compute in the memory behind the arguments."""
        given = [getattr(argument, "inner", argument) for argument in arguments]
        with torch.no_grad():
            self.function(*given, **shape)
        self.on_launch(self.function.__name__, lambda: self.function(*given, **shape))


class Kernels:
    """The module of kernels."""

    def __init__(self, on_launch: Callable[[str, Callable[[], None]], None]) -> None:
        for function in (say_ready, attend_forward, attend_backward_by_target, attend_backward_by_source):
            setattr(self, function.__name__, Kernel(function, on_launch))


def say_ready(answer: Tensor) -> None:
    """Answer."""
    answer.fill_(1)


def attend_forward(
    values: Tensor,
    of_source: Tensor,
    of_target: Tensor,
    of_edge: Tensor | None,
    source: Tensor,
    ptr: Tensor,
    output: Tensor,
    largest: Tensor,
    total: Tensor,
    *strides_and_slope: float,
    **shape: int,
) -> None:
    """Write output [N, H * C], and of each node's scores the largest [N, H] and the sum of exponentials [N, H]."""
    target = _rows(ptr)
    score = _leaky(_scores(of_source, of_target, of_edge, source, target), strides_and_slope[-1])
    largest.fill_(-torch.inf).scatter_reduce_(0, target[:, None].expand_as(score), score, "amax")
    exponentials = torch.exp(score - largest[target])
    total.zero_().index_add_(0, target, exponentials)
    weighted = values[source].view(len(source), largest.shape[1], -1) * (exponentials / total[target])[:, :, None]
    output.zero_().index_add_(0, target, weighted.flatten(1).to(output.dtype))


def attend_backward_by_target(
    values: Tensor,
    of_source: Tensor,
    of_target: Tensor,
    of_edge: Tensor | None,
    source: Tensor,
    ptr: Tensor,
    largest: Tensor,
    total: Tensor,
    gradient: Tensor,
    gradient_of_target: Tensor,
    gradient_of_score: Tensor,
    attention: Tensor,
    *strides_and_slope: float,
    **shape: int,
) -> None:
    """Write attention [E, H], the gradient of scores [E, H], and their sum over the edges into each node [N, H]."""
    target, heads, slope = _rows(ptr), largest.shape[1], strides_and_slope[-1]
    raw = _scores(of_source, of_target, of_edge, source, target)
    attention.copy_(torch.exp(_leaky(raw, slope) - largest[target]) / total[target])
    by_edge = (gradient[target] * values[source]).view(len(source), heads, -1).sum(2)
    mean = torch.zeros_like(largest).index_add_(0, target, attention * by_edge)
    gradient_of_score.copy_(attention * (by_edge - mean[target]) * torch.where(raw > 0, 1.0, slope))
    gradient_of_target.zero_().index_add_(0, target, gradient_of_score.to(gradient_of_target.dtype))


def attend_backward_by_source(
    gradient: Tensor,
    gradient_of_score: Tensor,
    attention: Tensor,
    target: Tensor,
    by_source: Tensor,
    source_ptr: Tensor,
    gradient_of_values: Tensor,
    gradient_of_source: Tensor,
    **shape: int,
) -> None:
    """Write the gradients of values [N, H * C] and of the scores of sources [N, H]."""
    source, heads = _rows(source_ptr), attention.shape[1]
    weighted = gradient[target[by_source]].view(len(source), heads, -1) * attention[by_source][:, :, None]
    gradient_of_values.zero_().index_add_(0, source, weighted.flatten(1).to(gradient_of_values.dtype))
    of_score = gradient_of_score[by_source].to(gradient_of_source.dtype)
    gradient_of_source.zero_().index_add_(0, source, of_score)


def _rows(ptr: Tensor) -> Tensor:
    """Return of each edge the node whose range in `ptr` [N + 1] it is in, [E]."""
    return torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())


def _scores(of_source: Tensor, of_target: Tensor, of_edge: Tensor | None, source: Tensor, target: Tensor) -> Tensor:
    score = (of_source[source] + of_target[target]).float()
    return score if of_edge is None else score + of_edge


def _leaky(score: Tensor, slope: float) -> Tensor:
    return torch.nn.functional.leaky_relu(score, slope)
