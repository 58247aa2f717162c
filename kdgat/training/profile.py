"""Where the time of a few training steps goes: phases in seconds, the dearest operators, a trace of torch's profiler.

In the run directory: `profile/FIT.json` for the report, and `FIT.pt.trace.json.gz`, which https://ui.perfetto.dev,
chrome://tracing and TensorBoard open. Profiling computes nothing else than training does; it only takes longer.
"""

from __future__ import annotations

import gzip
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kdgat.base.files import make_folder, to_json, write_snapshot
from kdgat.stage import RunDirectory

logger = logging.getLogger(__name__)

LOADING: Final = "loading"
PHASES: Final = (LOADING, "transfer", "forward", "backward", "optimizer")
SKIPPED_STEPS: Final = 2  # in which memory is fetched and kernels are chosen
MOST_OPERATORS: Final = 20
UNNAMED: Final = "training"  # the fit of a stage that has one
_NOT_COUNTED: Final = nullcontext()


class Profile:
    """Profile some steps of a fit, once; of all others only the time is noted in which they wait for their data."""

    def __init__(self, directory: RunDirectory, name: str, steps: int, device: torch.device) -> None:
        """Profile `steps` steps; 0 for none."""
        self.folder, self.name = directory.profile_path, name or UNNAMED
        self.steps, self.device = steps, device
        self._work = directory.work
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._seen = 0
        self._profiler: profile | None = None
        self._began_s = 0.0

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count what is done inside as one of `PHASES`."""
        # Loading always: a model that waits for its data wastes its GPU.
        return self._counted(name) if self._profiler is not None or name == LOADING else _NOT_COUNTED

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        if self._profiler is None:
            began_s = time.perf_counter()
            yield
            self._work.loading_s += time.perf_counter() - began_s
            return
        began_s = self._now()
        with record_function(name):
            yield
        self.seconds[name] += self._now() - began_s

    def start_step(self) -> None:
        """Note that a training step begins."""
        if self.steps and self._profiler is None and self._seen == SKIPPED_STEPS:
            activities = [ProfilerActivity.CPU]
            if self.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profiler = profile(activities=activities, profile_memory=True)
            self._profiler.start()
            self._began_s = self._now()

    def end_step(self) -> None:
        """Note that it has ended; after the last one that is profiled, write what was found."""
        self._seen += 1
        if self._profiler is not None and self._seen == SKIPPED_STEPS + self.steps:
            self.close()

    def close(self) -> None:
        """Write what was found, also of fewer steps than were asked for."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        total_s, steps = self._now() - self._began_s, self._seen - SKIPPED_STEPS
        profiler.stop()
        self.steps = 0  # once in each process
        if steps < 1:
            return
        content = {
            "fit": self.name,
            "steps": steps,
            "seconds": total_s,
            "phases": self.seconds,
            "operators": _operators(profiler, self.device),
        }
        if make_folder(self.folder):  # a full disk ends no stage for want of its profile
            self._write_trace(profiler, self.folder / f"{self.name}.pt.trace.json.gz")
            write_snapshot(self.folder / f"{self.name}.json", to_json(content), durable=False)
        shares = ", ".join(f"{name} {seconds / total_s:.0%}" for name, seconds in self.seconds.items())
        logger.info("profile of %d steps, %.3g s each: %s; %s", steps, total_s / steps, shares, self.folder)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what was begun belongs to the phase that began it
        return time.perf_counter()

    @staticmethod
    def _write_trace(profiler: profile, path: Path) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="kdgat-profile-", ignore_cleanup_errors=True) as folder:
                trace = Path(folder) / "trace.json"
                profiler.export_chrome_trace(str(trace))
                content = gzip.compress(trace.read_bytes())
        except OSError as error:
            logger.warning("%s is not written: %s", path, error)
            return
        write_snapshot(path, content, durable=False)


def _operators(profiler: profile, device: torch.device) -> list[dict[str, Any]]:
    """List the operators that took most time of their own: name, calls, seconds, bytes that they allocated."""
    on_gpu = device.type == "cuda"
    found = [
        {
            "name": event.key,
            "calls": event.count,
            "seconds": (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6,
            "bytes": max(event.self_device_memory_usage if on_gpu else event.self_cpu_memory_usage, 0),
        }
        for event in profiler.key_averages()
        if event.key not in PHASES
    ]
    return sorted(found, key=lambda one: -float(one["seconds"]))[:MOST_OPERATORS]
