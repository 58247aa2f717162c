"""What training steps take: bytes that autograd keeps, the peak of memory, seconds; for any family's module."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning import LightningModule
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch_geometric.data import Batch

from kdgat.base import UserError
from kdgat.stage.work import peak_kib
from kdgat.training.averages import Averages
from kdgat.training.config import TrainingConfig
from kdgat.training.device import make_fabric, products_of
from kdgat.training.optimization import Optimization

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StepMeasurement:
    """What training steps took in this process."""

    start_bytes: int  # memory of the process before the first step; 0 on a GPU
    peak_bytes: int  # of the process (CPU) or of the allocator (GPU)
    step_s: float  # seconds per step, median
    on_gpu: bool


@dataclass(frozen=True)
class Allocation:
    """Bytes of the tensors on the CPU that a function makes: at most at one time, and those that outlive it."""

    peak_bytes: int
    end_bytes: int


def measure_allocation(function: Callable[[], object]) -> Allocation:
    """Call a function and add up what torch allocates and frees on the CPU, which no other memory blurs."""
    profiler: Any = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _silent_stderr():
        profiler.start()
    try:
        function()
    finally:
        with _silent_stderr():
            profiler.stop()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    totals = list(itertools.accumulate(event.nbytes() for event in events))
    return Allocation(max(totals, default=0), totals[-1] if totals else 0)


def measure_training_step(module: LightningModule, make_batch: Callable[[], Batch], precision: str) -> tuple[int, int]:
    """Return the bytes that a step on the CPU keeps until its backward pass, and the most of it with all states."""
    # States of the optimizer stay from step to step: they are made before anything is counted.
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    losses: list[Any] = []

    def forwards() -> None:
        batch = make_batch()
        is_half = precision.endswith("-mixed")
        with Averages().listen(module), torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            losses.append(module.training_step(batch))

    def step() -> None:
        forwards()
        losses.pop().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    kept = measure_allocation(forwards).end_bytes
    losses.clear()
    weights = sum(parameter.nbytes for parameter in module.parameters())
    return kept, measure_allocation(step).peak_bytes + 3 * weights


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Send what C++ code prints to nowhere: torch 2.13 notes on the terminal that its profiler starts and stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        os.close(nowhere)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def measure_steps(
    module: LightningModule, batch: Batch, training: TrainingConfig, *, num_steps: int, num_parts: int = 1
) -> StepMeasurement:
    """Train `num_steps` steps on the device of `training`, each with `num_parts` times the same batch."""
    torch.set_num_threads(training.num_threads)
    fabric = make_fabric(training)
    on_gpu = fabric.device.type == "cuda"
    fabric.to_device(module)
    raw_optimizer = Optimization(module, training, fabric).optimizer
    _, optimizer = fabric.setup(module, raw_optimizer)
    start = 0 if on_gpu else current_bytes()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    with products_of(training.precision):
        for _ in range(num_steps):
            began = time.perf_counter()
            for _ in range(num_parts):
                on_device = fabric.to_device(batch)
                with Averages().listen(module), fabric.autocast():
                    loss = module.training_step(on_device)
                assert isinstance(loss, Tensor)
                fabric.backward(loss)
            optimizer.step()
            raw_optimizer.zero_grad(set_to_none=True)
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_bytes()
    step_s = statistics.median(seconds[1:] or seconds)  # the first one compiles and allocates
    return StepMeasurement(start, peak, step_s, on_gpu)


def run_alone(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call a function in a process of its own, whose peak of memory nothing else has raised, and return its answer.

    Raises:
        UserError: what went wrong there, or that it ended without a word, as when it is killed.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise UserError("the process that measured it was killed, as for lack of memory") from None
        except (RuntimeError, ValueError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
            raise UserError(f"{type(error).__name__}: {error}") from None


def current_bytes() -> int:
    """Return the memory of this process that is resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """Return the most memory of this process that was resident at a time; where that is unknown, too much at worst."""
    return (peak_kib() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
