"""Some seconds of a stage on this machine, in a directory that is thrown away: what a step takes here."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kdgat.base import UserError
from kdgat.cluster.attempts import AttemptRecord
from kdgat.cluster.child import StopRequest, run_child
from kdgat.cluster.ending import EndKind
from kdgat.cluster.resources import Resources
from kdgat.cluster.usage import CPU, Usage, usage_of
from kdgat.stage import Failed, RunDirectory, StageSpec
from kdgat.stage.provenance import GPUS_VARIABLE

START_S: Final = 600.0  # for libraries, hashes of inputs and the first steps


def calibrate(
    spec: StageSpec, asked: Resources, *, seconds: float, on_line: Callable[[str], None] = lambda _: None
) -> Usage:
    """Train a stage for some seconds and return what it took, as an attempt of a run of its own.

    Args:
        spec: of the stage, with inputs that are there.
        asked: what its job asks for; the processor has as many cores, more or less.
        seconds: of training, the start of the process not among them.
        on_line: gets what the process prints.

    Raises:
        UserError: if it trains several times, fails, ends without a training step, or has no GPU though its job
            asks for one.
    """
    if len(spec.config.get("fits") or ()) > 1 or len(spec.config.get("label_fractions") or ()) > 1:
        raise UserError(
            f"{spec.stage} trains several times, of which some seconds show the first alone: estimate it from attempts"
        )
    with tempfile.TemporaryDirectory(prefix="kdgat-calibration-", ignore_cleanup_errors=True) as folder:
        directory = RunDirectory(Path(folder) / "stage").create(spec)
        stop = _StopAfter(directory, seconds)
        given = {GPUS_VARIABLE: str(asked.gpus)} if asked.gpus else {}
        end = run_child(directory, stop=stop, environment=given, on_line=on_line, on_progress=stop.look)
        work = directory.read_work()
        if isinstance(end.outcome, Failed):
            where = f"; its job asks for {asked.describe()}: calibrate where such a job runs" if asked.gpus else ""
            raise UserError(f"{spec.stage} fails here: {end.outcome.evidence}{where}")
        if work is None or work.done < 1:
            said = " | ".join(end.last_lines) or "it printed nothing"
            raise UserError(
                f"{spec.stage} did no training step in {START_S:.0f} s: only stages that train can be "
                f"calibrated ({said})"
            )
        if (work.device != CPU) != (asked.gpus > 0):
            raise UserError(
                f"{spec.stage} was tried on {work.device}, its job asks for {asked.gpus} GPUs: calibrate where such a "
                f"job runs, or say what it shall ask for (-O resources.{spec.stage}.gpus={int(work.device != CPU)})"
            )
        record = AttemptRecord(
            number=1, resources=asked, ended=time.time(), end=EndKind.PAUSED, peak_memory_mib=end.peak_memory_mib
        )
        return usage_of(record, work, spec, "calibration")


class _StopAfter(StopRequest):
    """Ask a stage to leave after some seconds of training, or when it has not begun to train in time."""

    def __init__(self, directory: RunDirectory, seconds: float) -> None:
        super().__init__()
        self._directory, self._seconds = directory, seconds
        self._began = time.monotonic()
        self._first_step: float | None = None

    def look(self, progress: dict[str, Any]) -> None:
        """Look at what the stage has noted; called when its progress is another one."""
        work = self._directory.read_work()
        if work is not None and work.done and self._first_step is None:
            self._first_step = time.monotonic()

    def is_set(self) -> bool:
        """Return whether it is time."""
        now = time.monotonic()
        if self._first_step is not None and now - self._first_step >= self._seconds:
            self.set("calibrated")
        elif self._first_step is None and now - self._began >= START_S:
            self.set("no step was done in time")
        return super().is_set()
