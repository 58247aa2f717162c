"""Tell whoever waits how far a phase of a stage is that is no training: preparing, scoring, making parts."""

import math
import time
from collections.abc import Callable
from typing import Final

from kdgat.stage.directory import RunDirectory

WRITE_INTERVAL_S: Final = 1.0


def phase_progress(directory: RunDirectory, phase: str) -> Callable[[int, int], None]:
    """Return a callback that writes the progress of something that is no training."""
    last_written = -math.inf

    def report(done: int, total: int) -> None:
        nonlocal last_written
        now = time.monotonic()
        if done == total or now - last_written >= WRITE_INTERVAL_S:
            last_written = now
            directory.write_progress({"phase": phase, "done": done, "total": total})

    return report
