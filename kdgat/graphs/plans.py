"""Which graphs go into which batch of an epoch: pure functions of (seed, epoch).

A position in training is thus two integers, epoch and batch: a resumed run computes the plan again and skips ahead.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdgat.base.errors import UserError

Plan = list[NDArray[np.int64]]
Oversized = Literal["warn", "error"]

logger = logging.getLogger(__name__)


def plan_by_graphs(indices: NDArray[Any], batch_size: int, seed: int, epoch: int, shuffle: bool = True) -> Plan:
    """Return batches of `batch_size` graphs, the last one perhaps smaller; every entry of `indices` appears once."""
    _require_positive("batch_size", batch_size)
    order = _order(np.asarray(indices, np.int64), _generator(seed, epoch), shuffle)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def plan_by_nodes(
    indices: NDArray[Any],
    sizes: NDArray[Any],
    max_nodes: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    *,
    max_graphs: int | None = None,
    oversized: Oversized = "warn",
    bucket_window: int | None = None,
) -> Plan:
    """Return batches of at most `max_nodes` nodes (and `max_graphs` graphs); every entry of `indices` appears once.

    `sizes` [G] are the node counts of the whole store (`columns.node_counts`), looked up by graph index. A graph above
    the budget forms a batch of its own with a warning, or raises UserError with oversized="error". `bucket_window`
    sorts each window of that many shuffled graphs by size, so that batches hold graphs of like size; the batches are
    then shuffled.
    """
    budget = (max_nodes, "max_nodes")
    return _plan_by_size(indices, sizes, budget, seed, epoch, shuffle, max_graphs, oversized, bucket_window)


def plan_by_edges(
    indices: NDArray[Any],
    sizes: NDArray[Any],
    max_edges: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    *,
    max_graphs: int | None = None,
    oversized: Oversized = "warn",
    bucket_window: int | None = None,
) -> Plan:
    """Return batches of at most `max_edges` edges; `sizes` are `columns.edge_counts`, all else as plan_by_nodes."""
    budget = (max_edges, "max_edges")
    return _plan_by_size(indices, sizes, budget, seed, epoch, shuffle, max_graphs, oversized, bucket_window)


def _plan_by_size(
    indices: NDArray[Any],
    sizes: NDArray[Any],
    budget: tuple[int, str],
    seed: int,
    epoch: int,
    shuffle: bool,
    max_graphs: int | None,
    oversized: Oversized,
    bucket_window: int | None,
) -> Plan:
    limit, name = budget
    _require_positive(name, limit)
    if max_graphs is not None:
        _require_positive("max_graphs", max_graphs)
    if bucket_window is not None:
        _require_positive("bucket_window", bucket_window)
    if oversized not in ("warn", "error"):
        raise UserError(f"oversized: {oversized!r} is neither 'warn' nor 'error'")
    indices = np.asarray(indices, np.int64)
    if len(indices) and (indices.min() < 0 or indices.max() >= len(sizes)):
        raise UserError(
            f"sizes: {len(sizes)} entries, but graph {indices.max()} is asked for; pass those of the whole store"
        )

    generator = _generator(seed, epoch)
    order = _order(indices, generator, shuffle)
    if bucket_window is not None:
        order = _sort_within_windows(order, sizes, bucket_window)
    ends = np.cumsum(sizes[order], dtype=np.int64)
    _report_oversized(order, sizes, limit, name, oversized)

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
    if shuffle and bucket_window is not None:
        plan = [plan[position] for position in generator.permutation(len(plan))]
    return plan


def _sort_within_windows(order: NDArray[np.int64], sizes: NDArray[Any], window: int) -> NDArray[np.int64]:
    return order[np.lexsort((sizes[order], np.arange(len(order)) // window))]


def _report_oversized(
    order: NDArray[np.int64], sizes: NDArray[Any], limit: int, name: str, oversized: Oversized
) -> None:
    above = order[sizes[order] > limit]
    if not len(above):
        return
    largest = int(above[sizes[above].argmax()])
    text = f"{name}: {len(above)} graphs are above {limit}, the largest is graph {largest} with {int(sizes[largest])}"
    if oversized == "error":
        raise UserError(f"{text}; raise {name} to at least that")
    logger.warning("%s; each forms a batch of its own", text)


def _generator(seed: int, epoch: int) -> np.random.Generator:
    if seed < 0 or epoch < 0:
        raise UserError(f"seed and epoch must not be negative: seed={seed}, epoch={epoch}")
    return np.random.default_rng([seed, epoch])


def _order(indices: NDArray[np.int64], generator: np.random.Generator, shuffle: bool) -> NDArray[np.int64]:
    return generator.permutation(indices) if shuffle else indices.copy()


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{name}: {value} is not a positive number")
