"""Whether two trainings from one seed end with the same bits, and what it costs to make sure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from torch import Tensor

from kdgat.gpu.networks import NETWORKS
from kdgat.gpu.step import make_stepper
from kdgat.training.random_state import repeatable

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows

STEPS: Final = 50
WARM_UP: Final = 5


def compare(device: str, rows: Rows) -> None:
    """Add for each network how two trainings differ, with and without `deterministic`, and a step's time."""
    for name in NETWORKS:
        row: dict[str, object] = {"network": name}
        for label, deterministic in (("as it is", False), ("deterministic", True)):
            with repeatable(1, deterministic, strict=False):
                first, step_ms = _train(name, device)
                second, _ = _train(name, device)
            row[f"difference, {label}"] = float((first - second).abs().max())
            row[f"step, {label}, ms"] = step_ms
        rows.add(**row)


def _train(name: str, device: str) -> tuple[Tensor, float]:
    stepper = make_stepper(name, device)
    stepper.train(WARM_UP)
    began = time.perf_counter()
    stepper.train(STEPS - WARM_UP, first=WARM_UP)
    step_ms = 1e3 * (time.perf_counter() - began) / (STEPS - WARM_UP)
    return stepper.flat(), step_ms
