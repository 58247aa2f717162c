"""Attention over edges on an NVIDIA GPU by kernels of ours: results repeat bit for bit, forwards and backwards.

The library's operations read and write every edge's row of H * C numbers several times, and add them up by atomics in
whatever order the device comes to them. The kernels (`kdgat.can.models.triton_kernels`) add in the order of the edges,
and nothing per edge and channel goes through memory.

Nothing here imports triton before a GPU is used: machines without one do not have it.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

logger = logging.getLogger(__name__)

OLDEST_CAPABILITY: Final = (7, 0)  # Volta; Triton compiles for nothing older
# Numbers of a node's row, heads and channels rounded up to powers of two each: what a program has registers for.
LARGEST_TILE: Final = 8192
READ_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


class EdgesOnDevice(NamedTuple):
    """Edges of a batch sorted by target, arranged once for all layers; all shapes follow from those of the edges."""

    order: Tensor  # [E] from the given edges
    source: Tensor  # [E]
    target: Tensor  # [E], rising
    ptr: Tensor  # [N + 1] where the edges into each node begin
    by_source: Tensor  # [E] these edges in the order of their sources
    source_ptr: Tensor  # [N + 1] where those out of each node begin there

    def sort(self, values: Tensor | None) -> Tensor | None:
        """Bring values [E, ...] of the given edges into their order here."""
        return None if values is None else values.index_select(0, self.order)


def arrange_on_device(edge_index: Tensor, num_nodes: int) -> EdgesOnDevice:
    """Sort edges [2, E] between N nodes on their device.

    Edges that are sorted are sorted, too: to see that they are, the host would have to wait for the device. Nothing
    here waits, and no shape depends on a value, so that a CUDA graph can hold it.
    """
    # Half as many passes of a radix sort as 64 bits take. Stable: edges of one node keep their order.
    target, order = torch.sort(edge_index[1].to(torch.int32), stable=True)
    source = edge_index[0].index_select(0, order)
    ordered_source, by_source = torch.sort(source.to(torch.int32), stable=True)
    nodes = torch.arange(num_nodes + 1, dtype=torch.int32, device=edge_index.device)
    ptr, source_ptr = torch.searchsorted(target, nodes), torch.searchsorted(ordered_source, nodes)
    return EdgesOnDevice(order, source, target.to(torch.int64), ptr, by_source, source_ptr)


def is_usable(device: torch.device) -> bool:
    """Return whether the kernels run on a device; warns once where triton is installed and cannot be used.

    The first question about a device compiles a kernel for it and waits for the answer: Triton needs a C compiler and
    the headers of Python, which an image may lack, and a folder to write to.
    """
    if device.type != "cuda" or torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    return _runs_on(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _runs_on(index: int) -> bool:
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST_CAPABILITY:
        return False
    try:
        with torch.cuda.device(index):
            answer = torch.zeros(1, device=torch.device("cuda", index))
            _kernels().say_ready[(1,)](answer)
            answer.cpu()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever of compiler, linker, folder and driver fails: attention works without
        lines = str(error).strip().splitlines() or [""]
        logger.warning(
            "kernels of Triton cannot be used on GPU %d (%s: %s): attention is computed by torch's operations, slower, "
            "and its last bits differ from run to run",
            index,
            type(error).__name__,
            lines[0],
        )
        return False
    return True


@cache
def _kernels() -> ModuleType:
    from kdgat.can.models import triton_kernels

    return triton_kernels


def can_attend(values: Tensor, heads: int) -> bool:
    """Return whether the kernels take values [N, H * C]: their type, and a row that fits into registers."""
    head_tile, channel_tile = _tile(heads, values.shape[1] // heads)
    return values.dtype in READ_TYPES and head_tile * channel_tile <= LARGEST_TILE


def attend_triton(
    values: Tensor,
    of_source: Tensor,
    of_target: Tensor,
    of_edge: Tensor | None,
    edges: EdgesOnDevice,
    heads: int,
    slope: float,
) -> Tensor:
    """Sum values [N, H * C] over the edges into each node, weighted by the softmax of their scores, [N, H * C].

    An edge's score is leaky_relu(of_source + of_target + of_edge): [N, H] of its ends, [E, H] in the order of `edges`.
    Zero for a node without an edge. In the type of the values; under autocast in single precision, as a softmax is.
    """
    result: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        values, of_source, of_target, of_edge, edges, heads, slope
    )
    return result


class _Attention(torch.autograd.Function):
    """Softmax of scores over the edges into each node, and the sum of the values weighted by it."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        of_source: Tensor,
        of_target: Tensor,
        of_edge: Tensor | None,
        edges: EdgesOnDevice,
        heads: int,
        slope: float,
    ) -> Tensor:
        num_nodes, width = values.shape
        values, of_source, of_target = _with_rows(values), _with_rows(of_source), _with_rows(of_target)
        of_edge = None if of_edge is None else _with_rows(of_edge)
        is_mixed = torch.is_autocast_enabled(values.device.type)
        output = values.new_empty(num_nodes, width, dtype=torch.float32 if is_mixed else values.dtype)
        largest = values.new_empty(num_nodes, heads, dtype=torch.float32)
        total = torch.empty_like(largest)
        ctx.save_for_backward(values, of_source, of_target, of_edge, largest, total)
        ctx.edges, ctx.heads, ctx.slope = edges, heads, slope
        if num_nodes:  # a launch of no programs is an error
            with torch.cuda.device(values.get_device()):  # -1, no device, for what is interpreted
                _kernels().attend_forward[(num_nodes,)](
                    values,
                    of_source,
                    of_target,
                    of_edge,
                    edges.source,
                    edges.ptr,
                    output,
                    largest,
                    total,
                    values.stride(0),
                    of_source.stride(0),
                    of_target.stride(0),
                    0 if of_edge is None else of_edge.stride(0),
                    slope,
                    **_shape(heads, width // heads),
                )
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None, None]:
        values, of_source, of_target, of_edge, largest, total = ctx.saved_tensors
        edges, heads = ctx.edges, ctx.heads
        num_nodes, width = values.shape
        gradient = gradients[0].contiguous()
        gradient_of_values = torch.empty_like(values, memory_format=torch.contiguous_format)
        gradient_of_source = torch.empty_like(of_source, memory_format=torch.contiguous_format)
        gradient_of_target = torch.empty_like(of_target, memory_format=torch.contiguous_format)
        gradient_of_score = largest.new_empty(len(edges.source), heads)  # [E, H], in single precision
        attention = torch.empty_like(gradient_of_score)
        if num_nodes:
            shape = _shape(heads, width // heads)
            with torch.cuda.device(values.get_device()):  # -1, no device, for what is interpreted
                _kernels().attend_backward_by_target[(num_nodes,)](
                    values,
                    of_source,
                    of_target,
                    of_edge,
                    edges.source,
                    edges.ptr,
                    largest,
                    total,
                    gradient,
                    gradient_of_target,
                    gradient_of_score,
                    attention,
                    values.stride(0),
                    of_source.stride(0),
                    of_target.stride(0),
                    0 if of_edge is None else of_edge.stride(0),
                    ctx.slope,
                    **shape,
                )
                _kernels().attend_backward_by_source[(num_nodes,)](
                    gradient,
                    gradient_of_score,
                    attention,
                    edges.target,
                    edges.by_source,
                    edges.source_ptr,
                    gradient_of_values,
                    gradient_of_source,
                    **shape,
                )
        gradient_of_edge = None if of_edge is None else gradient_of_score.to(of_edge.dtype)
        return gradient_of_values, gradient_of_source, gradient_of_target, gradient_of_edge, None, None, None


def _with_rows(tensor: Tensor) -> Tensor:
    """Return a tensor [R, W] whose rows lie in one piece: itself, also where it is some columns of a wider one."""
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


def _tile(heads: int, channels: int) -> tuple[int, int]:
    """Return heads and channels rounded up to powers of two, which is all that Triton has tiles of."""
    return 1 << (heads - 1).bit_length(), 1 << (channels - 1).bit_length()


def _shape(heads: int, channels: int) -> dict[str, int]:
    """Return what a launch needs to know of heads and channels.

    Eight numbers to a thread: of the usual tile, 8 x 64, that is two warps. A multiprocessor holds at most 32 programs,
    so one warp each would fill half of its 64 places, by whose loads it hides the way to memory; more than two would
    share the same few loads, since a program has but two edges, and wait for each other at barriers.
    """
    head_tile, channel_tile = _tile(heads, channels)
    return {
        "HEADS": heads,
        "CHANNELS": channels,
        "HEAD_TILE": head_tile,
        "CHANNEL_TILE": channel_tile,
        "num_warps": min(max(head_tile * channel_tile // 256, 1), 16),
    }
