"""Means over what is no padding, in batches of `kdgat.graphs.padding`."""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor
from torch_geometric.data import Batch


def mask_of(batch: Batch, level: Literal["graph", "node", "edge"]) -> Tensor | None:
    """Return which graphs [B + 1], nodes [N] or edges [E] of a batch are no padding; None where it has none."""
    mask: Tensor | None = getattr(batch, f"is_{level}", None)
    return mask


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of rows [R, ...], of those that a mask [R] keeps where there is one; 0 if it keeps none."""
    if mask is None:
        return values.mean()
    width = values.numel() // max(len(values), 1)
    weight = mask.to(values.dtype)
    total = (values * weight.view(-1, *[1] * (values.dim() - 1))).sum()
    return total / (weight.sum() * width).clamp(min=1.0)


def masked_loss(
    function: Callable[..., Tensor], output: Tensor, target: Tensor, mask: Tensor | None, **options: Any
) -> Tensor:
    """Return the mean of a loss function of torch, of the rows that `mask` keeps where there is one."""
    if mask is None:  # the library's own sum: its last bits are those of all earlier trainings
        return function(output, target, **options)
    return masked_mean(function(output, target, reduction="none", **options), mask)
