"""Progress of training: progress.json, a bar on a terminal, plain log lines elsewhere."""

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tqdm import tqdm

from kdgat.base import MIB
from kdgat.stage import RunDirectory
from kdgat.stage.work import FitWork
from kdgat.training.deadline import Deadline

logger = logging.getLogger(__name__)

WRITE_INTERVAL_S = 1.0
LOG_INTERVAL_S = 30.0
NUM_EPOCHS: Final = 5  # the last ones, that the next are expected to be like
LEAST_STEPS: Final = 3  # that tell a rate; the first one of a process compiles


class Progress:
    """Rate-limited reports of one fit."""

    def __init__(
        self,
        directory: RunDirectory,
        name: str,
        max_epochs: int,
        deadline: Deadline,
        clock: Callable[[], float] = time.monotonic,
        *,
        may_end_early: bool = False,
    ) -> None:
        self.directory = directory
        self.name = name
        self.max_epochs = max_epochs
        self.deadline = deadline
        self.resumed = ""  # where this process went on: for whoever watches
        self._clock = clock
        self._may_end_early = may_end_early
        fits = directory.used_spec.config.get("fits") if directory.used_spec is not None else None
        self._has_more_fits = any(fit.get("name") == name for fit in (fits or [])[:-1])
        self._job_s = deadline.spare_s  # of a job, for training
        self._epoch_s_per_step: deque[float] = deque(maxlen=NUM_EPOCHS)  # with validation and checkpoints
        self._epoch = self._first_step = self._step = self._num_steps = 0
        self._epoch_began_s = self._first_step_s = self._last_step_s = 0.0
        self._began_s: float | None = None  # with the first epoch of this process
        self._work = FitWork()
        self._bar: tqdm[None] | None = None
        self._show_bar = sys.stderr.isatty() and not directory.quiet
        self._num_graphs = 0
        self._since = self._last_logged = time.monotonic()
        self._last_written = -math.inf  # the first step is reported at once: whoever watches sees that training goes on

    def start_epoch(self, epoch: int, step: int, num_steps: int) -> None:
        """Open the bar of an epoch."""
        now = self._clock()
        if self._began_s is None:
            self._began_s = now
            self.directory.work.begin_fit(self.name)
        if self._num_steps and self._first_step == 0:  # the epoch before, from its beginning
            self._epoch_s_per_step.append((now - self._epoch_began_s) / self._num_steps)
        self._epoch, self._first_step, self._step, self._num_steps = epoch, step, step, num_steps
        self._epoch_began_s = now
        self._work.left = (self.max_epochs - epoch) * num_steps - step
        if self._show_bar:
            label = f"{self.name + ' ' if self.name else ''}epoch {epoch + 1}/{self.max_epochs}"
            self._bar = tqdm(total=num_steps, initial=step, desc=label, unit="step", leave=False, dynamic_ncols=True)

    def due(self) -> bool:
        """Return whether a report should be written; asked each step, so that the loss is fetched only then."""
        return time.monotonic() - self._last_written >= WRITE_INTERVAL_S

    def count(self, num_graphs: int) -> None:
        """Count one training step."""
        self._num_graphs += num_graphs
        self._step += 1
        self._last_step_s = self._clock()
        if self._work.done == 0:
            self._first_step_s = self._last_step_s
        self._work.done += 1
        self._work.left = max(self._work.left - 1, 0)
        if self._bar is not None:
            self._bar.update()

    def report(self, *, epoch: int, step: int, num_steps: int, phase: str, loss: float | None) -> None:
        """Write progress.json, and from time to time a log line."""
        now = time.monotonic()
        rate = self._num_graphs / max(now - self._since, 1e-9)
        self._num_graphs, self._since, self._last_written = 0, now, now
        memory = gpu_memory()
        remaining_s = None if math.isinf(self.deadline.end_time) else round(self.deadline.remaining_s, 1)
        self.directory.write_progress(
            {
                "fit": self.name,
                "phase": phase,
                "epoch": epoch,
                "max_epochs": self.max_epochs,
                "step": step,
                "num_steps": num_steps,
                "loss": loss,
                "graphs_per_s": round(rate, 1),
                "seconds_to_deadline": remaining_s,
                "checkpoint_s": round(self.deadline.checkpoint_s, 4),
                **self._time_left(),
                "unix_time": round(time.time(), 3),
                **({"resumed": self.resumed} if self.resumed else {}),
                **memory,
            }
        )
        self._note_work(memory, now=self._work.done <= 1)  # an attempt that is killed early has done something, too
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4g}, {rate:.0f} graphs/s" if loss is not None else phase)
        elif now - self._last_logged >= LOG_INTERVAL_S:
            self._last_logged = now
            text = "" if loss is None else f", loss {loss:.5g}"
            logger.info("%s epoch %d step %d/%d%s, %.0f graphs/s", phase, epoch, step, num_steps, text, rate)

    def _time_left(self) -> dict[str, float | bool]:
        """Return the seconds that epoch and stage still take, by the last epochs, or by the steps of the first one."""
        steps = self._work.done - 1
        rates = list(self._epoch_s_per_step)
        is_rough = not rates  # what validation takes is not known yet
        if is_rough:
            if steps < LEAST_STEPS:
                return {}
            rates = [(self._last_step_s - self._first_step_s) / steps]
        spent = self._clock() - self._epoch_began_s
        of_epoch = [
            rate * (self._num_steps - self._step)
            if is_rough or self._first_step
            else max(rate * self._num_steps - spent, 0.0)
            for rate in (min(rates), max(rates))
        ]
        rest = (self.max_epochs - self._epoch - 1) * self._num_steps
        low, high = (now + rate * rest for now, rate in zip(of_epoch, (min(rates), max(rates)), strict=True))
        found: dict[str, float | bool] = {
            "epoch_left_s": round(of_epoch[1], 1),
            "left_low_s": round(low, 1),
            "left_high_s": round(high, 1),
            "may_end_early": self._may_end_early,
            "more_follows": is_rough or self._has_more_fits,
        }
        if math.isfinite(self._job_s) and self._job_s > 0:  # jobs beside this one
            spare = self.deadline.spare_s
            found["jobs_low"], found["jobs_high"] = (max(0, math.ceil((s - spare) / self._job_s)) for s in (low, high))
        return found

    def end_epoch(self) -> None:
        """Close the bar of an epoch."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def end(self, *, is_done: bool) -> None:
        """Close the bar, and write what the fit has done; of one that is done no step is left."""
        self.end_epoch()
        if is_done:
            self._work.left = 0
        self._note_work(gpu_memory(), now=True)

    def _note_work(self, memory: dict[str, int], *, now: bool) -> None:
        if self._began_s is None:
            return
        work = self.directory.work
        self._work.seconds = self._clock() - self._began_s
        work.fits[self.name] = self._work
        work.checkpoint_s = max(work.checkpoint_s, self.deadline.checkpoint_s)
        if memory:
            work.gpu_mib = max(work.gpu_mib, memory["gpu_peak_bytes"] // MIB)
            work.gpu_reserved_mib = max(work.gpu_reserved_mib, memory["gpu_reserved_bytes"] // MIB)
            free = memory["gpu_free_bytes"] // MIB
            work.gpu_free_mib = free if work.gpu_free_mib is None else min(work.gpu_free_mib, free)
        self.directory.write_work(now=now)


def gpu_memory() -> dict[str, int]:
    """Return bytes that tensors take and took at most, that torch holds for them, and that are free of the GPU in use.

    Nothing where none is.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    free, _ = torch.cuda.mem_get_info()
    return {
        "gpu_allocated_bytes": torch.cuda.memory_allocated(),
        "gpu_peak_bytes": torch.cuda.max_memory_allocated(),
        "gpu_reserved_bytes": torch.cuda.memory_reserved(),
        "gpu_free_bytes": free,
    }
