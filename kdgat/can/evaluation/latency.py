"""Measure what each model costs on the machine that evaluates: its size, and how long it takes for a window."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch_geometric.data import Batch

from kdgat.can.data.pool import PooledStores
from kdgat.can.evaluation.costs import Costs, ModelCost
from kdgat.can.evaluation.detectors import DetectorSet
from kdgat.can.models.scoring import WINDOWS_PER_BATCH, stage_device
from kdgat.stage.provenance import processor_name
from kdgat.training import one_thread

MOST_SINGLE: Final = 300  # windows that are timed one by one
MOST_BATCHES: Final = 4
MOST_SECONDS: Final = 1.0  # of either, for a model
WARM_UP: Final = 3


def measure_costs(detectors: DetectorSet, pool: PooledStores, seed: int) -> Costs | None:
    """Time every model on windows of a pool, on one thread; None where the pool has none.

    From the window's tensors, in memory, to its score: what it takes to make a window of messages is left out.
    """
    if not pool.num_graphs:
        return None
    device = stage_device()
    size = min(WINDOWS_PER_BATCH[device.type], pool.num_graphs)
    spread = np.linspace(0, pool.num_graphs - 1, min(MOST_SINGLE, pool.num_graphs)).astype(np.int64)
    single = [pool.gather(np.array([window])) for window in spread.tolist()]
    starts = range(0, pool.num_graphs - size + 1, size)[:MOST_BATCHES]
    batches = [pool.gather(np.arange(start, start + size)) for start in starts]
    models = {}
    with one_thread(), torch.inference_mode():
        for name in detectors.trained:
            run = detectors.forward(name, device)
            alone, together = _seconds(run, single, device), _seconds(run, batches, device)
            models[name] = ModelCost(
                num_parameters=detectors.num_parameters(name),
                num_bytes=detectors.num_bytes(name),
                median_ms=1000.0 * float(np.median(alone)),
                percentile_99_ms=1000.0 * float(np.percentile(alone, 99)),
                windows_per_second=size / float(np.median(together)),
            )
    return Costs(device=_device_name(device), seed=seed, num_single=len(single), batch_size=size, models=models)


def _seconds(run: Callable[[Batch], object], batches: list[Batch], device: torch.device) -> list[float]:
    """Return how long each batch took, after a few that do not count; no more than fit the time."""
    for batch in batches[:WARM_UP]:
        run(copy.copy(batch).to(device))
    seconds: list[float] = []
    for batch in batches:
        begin = time.perf_counter()
        run(copy.copy(batch).to(device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
        if sum(seconds) > MOST_SECONDS:
            break
    return seconds


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name() or "an unknown processor"
