"""What each model costs: its size, and how long it takes for a window, on the machine that evaluated it.

Times are never the same twice, so they stand in a file of their own and in no result that is compared.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import Field

from kdgat.base import Config, write_bytes_atomically
from kdgat.base.kept import read_kept
from kdgat.stage.provenance import processor_name

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Batch

    from kdgat.can.data.pool import PooledStores
    from kdgat.can.evaluation.detectors import DetectorSet

COSTS_FILE: Final = "costs.json"
MOST_SINGLE: Final = 300  # windows that are timed one by one
MOST_BATCHES: Final = 4
MOST_SECONDS: Final = 1.0  # of either, for a model
WARM_UP: Final = 3


class ModelCost(Config):
    """Size and speed of one model; a fusion's times include its members', its size does not."""

    num_parameters: int
    num_bytes: int = Field(description="of the file of weights")
    median_ms: float = Field(description="of one window by itself")
    percentile_99_ms: float
    windows_per_second: float = Field(description="in batches")


class Costs(Config):
    """What the models of one seed cost on one machine."""

    device: str
    seed: int
    num_threads: int = 1
    num_single: int = Field(description="windows that were to be timed one by one")
    batch_size: int
    models: dict[str, ModelCost]

    def write(self, path: Path) -> None:
        """Write atomically."""
        write_bytes_atomically(path, (self.model_dump_json(indent=2) + "\n").encode())

    @staticmethod
    def read(path: Path) -> Costs:
        """Read what `write` wrote."""
        return read_kept(
            Costs, path.read_bytes(), path, "remove the folder of the stage that wrote it, and train again"
        )


def measure_costs(detectors: DetectorSet, pool: PooledStores, seed: int) -> Costs | None:
    """Time every model on windows of a pool, on one thread; None where the pool has none.

    From the window's tensors, in memory, to its score: what it takes to make a window of messages is left out.
    """
    import torch  # which nobody needs who reads the file

    from kdgat.can.models.scoring import WINDOWS_PER_BATCH, stage_device
    from kdgat.training import one_thread

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
            import torch

            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
        if sum(seconds) > MOST_SECONDS:
            break
    return seconds


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return processor_name() or "an unknown processor"
