"""How long a training step takes and where, on the device and beside it on one core."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from kdgat.base import MIB
from kdgat.gpu.networks import NETWORKS
from kdgat.gpu.step import Stepper, make_stepper
from kdgat.training.device import products_of

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows

WARM_UP: Final = 5
SECONDS: Final = 1.0  # that each row may take to be timed
PROFILED: Final = 3
LARGEST_ON_CPU: Final = 128  # graphs: larger batches take too long on one core


def measure(device: str, rows: Rows) -> None:
    """Add a row for each network and size of batch; the largest networks in other precisions as well."""
    torch.set_num_threads(1)
    for name, network in NETWORKS.items():
        for size in network.batches:
            cpu_ms = _step_ms(make_stepper(name, "cpu", size)) if size <= LARGEST_ON_CPU else None
            rows.add(network=name, batch=size, precision="32-true", **measure_step(name, device, size), cpu_ms=cpu_ms)
    for precision in ("tf32", "bf16-mixed"):
        for name in ("GAT large", "VGAE large"):
            size = NETWORKS[name].batches[-1]
            with products_of(precision):
                rows.add(network=name, batch=size, precision=precision, **measure_step(name, device, size, precision))


def measure_step(name: str, device: str, size: int, precision: str = "32-true") -> dict[str, Any]:
    """Return what one network takes for a step of one size, in pieces."""
    stepper = make_stepper(name, device, size, precision=precision)
    step_ms = _step_ms(stepper)
    batch = stepper.batch(0)
    found: dict[str, Any] = {
        "graphs_s": 1e3 * size / step_ms,
        "step_ms": step_ms,
        "gather_ms": _median_ms(stepper.batch, stepper),
    }
    found["model_ms"] = _median_ms(lambda _: stepper.learn(batch), stepper)
    if device == "cuda":
        found |= _kernels(stepper, step_ms)
        found["memory_mib"] = torch.cuda.max_memory_allocated() // MIB
        torch.cuda.reset_peak_memory_stats()
    return found


def _step_ms(stepper: Stepper) -> float:
    stepper.train(WARM_UP)
    began, steps = time.perf_counter(), 0
    while steps < WARM_UP or time.perf_counter() - began < SECONDS:
        stepper.train(WARM_UP, first=WARM_UP + steps)  # without a wait between the steps, as in `fit`
        steps += WARM_UP
    return 1e3 * (time.perf_counter() - began) / steps


def _median_ms(work: Callable[[int], object], stepper: Stepper, times: int = 15) -> float:
    taken = []
    for place in range(times + 2):
        stepper.wait()
        began = time.perf_counter()
        work(place)
        stepper.wait()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken[2:])


def _kernels(stepper: Stepper, step_ms: float) -> dict[str, Any]:
    """Return how many kernels a step launches, their milliseconds, and the dearest ones."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        stepper.train(PROFILED)
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    kernels = [event for event in events if not event.name.startswith(("Mem", "Activity", "nccl"))]
    seconds: dict[str, float] = {}
    for event in kernels:
        seconds[event.name] = seconds.get(event.name, 0.0) + event.time_range.elapsed_us() / 1e6
    kernels_ms = 1e3 * sum(seconds.values()) / PROFILED
    dearest = sorted(seconds.items(), key=lambda pair: -pair[1])[:3]
    return {
        "launches": len(kernels) / PROFILED,
        "copies": (len(events) - len(kernels)) / PROFILED,
        "kernels_ms": kernels_ms,
        "busy": kernels_ms / step_ms,
        "dearest": "; ".join(f"{name[:60]} {1e3 * one / PROFILED:.2f} ms" for name, one in dearest),
    }
