"""Which graphs go into which batch of an epoch: pure functions of (seed, epoch).

A position in training is thus two integers, epoch and batch: a resumed run computes the plan again and skips ahead.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError

Plan = list[NDArray[np.int64]]

logger = logging.getLogger(__name__)


def plan_by_graphs(indices: NDArray[Any], batch_size: int, seed: int, epoch: int, shuffle: bool = True) -> Plan:
    """Return batches of `batch_size` graphs, the last one perhaps smaller; every entry of `indices` appears once."""
    _require_positive("batch_size", batch_size)
    order = _order(np.asarray(indices, np.int64), _generator(seed, epoch), shuffle)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def plan_by_size(
    indices: NDArray[Any],
    sizes: NDArray[Any],
    limit: int,
    name: str,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    max_graphs: int | None = None,
) -> Plan:
    """Return batches whose sizes sum to `limit` at most; every entry of `indices` appears once.

    Args:
        indices: the graphs of the epoch.
        sizes: of all graphs of the store, [G], looked up by graph index: `columns.node_counts`, or its edges.
        limit: of a batch. A graph above it forms a batch of its own, with a warning.
        name: of the limit, which errors and the warning say.
        seed, epoch, shuffle: decide the order.
        max_graphs: of a batch, beside the limit.
    """
    _require_positive(name, limit)
    if max_graphs is not None:
        _require_positive("max_graphs", max_graphs)
    indices = np.asarray(indices, np.int64)
    if len(indices) and (indices.min() < 0 or indices.max() >= len(sizes)):
        raise UserError(
            f"sizes: {len(sizes)} entries, but graph {indices.max()} is asked for; pass those of the whole store"
        )

    order = _order(indices, _generator(seed, epoch), shuffle)
    ends = np.cumsum(sizes[order], dtype=np.int64)
    _warn_of_oversized(order, sizes, limit, name)

    plan: Plan = []
    start = 0
    while start < len(order):
        used = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, used + limit, side="right"))
        stop = max(stop, start + 1)  # a graph above the budget goes alone
        if max_graphs is not None:
            stop = min(stop, start + max_graphs)
        plan.append(order[start:stop])
        start = stop
    return plan


def _warn_of_oversized(order: NDArray[np.int64], sizes: NDArray[Any], limit: int, name: str) -> None:
    above = order[sizes[order] > limit]
    if not len(above):
        return
    largest = int(above[sizes[above].argmax()])
    logger.warning(
        "%s: %d graphs are above %d, the largest is graph %d with %d; each forms a batch of its own",
        name, len(above), limit, largest, int(sizes[largest]),
    )  # fmt: skip


def _generator(seed: int, epoch: int) -> np.random.Generator:
    if seed < 0 or epoch < 0:
        raise UserError(f"seed and epoch must not be negative: seed={seed}, epoch={epoch}")
    return np.random.default_rng([seed, epoch])


def _order(indices: NDArray[np.int64], generator: np.random.Generator, shuffle: bool) -> NDArray[np.int64]:
    return generator.permutation(indices) if shuffle else indices.copy()


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name}: {value} is not a positive number")
