"""When the job ends, and how long before that a stage must have saved."""

import logging
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

logger = logging.getLogger(__name__)

SQUEUE_TIMEOUT_S = 20


@dataclass
class Deadline:
    """End of the job in seconds since the epoch (inf: none) and the margin measured from this run's own times.

    >>> deadline = Deadline(end_time=100.0, margin_floor_s=20.0, clock=lambda: 70.0)
    >>> deadline.remaining_s, deadline.reached()
    (30.0, False)
    >>> deadline.observe_checkpoint(6.0)  # saving takes twice that, to be safe
    >>> deadline.margin_s, deadline.reached()
    (32.0, True)
    """

    end_time: float = math.inf
    margin_floor_s: float = 20.0
    clock: Callable[[], float] = time.time
    checkpoint_s: float = 0.0  # longest checkpoint so far
    step_s: float = 0.0  # longest recent step
    _origin: str = field(default="given", repr=False)

    @classmethod
    def from_environment(cls, margin_floor_s: float = 20.0, environment: Mapping[str, str] = os.environ) -> "Deadline":
        """Read the end of the SLURM job from its environment, else from squeue; none outside of SLURM."""
        end_time, origin = find_end_time(environment)
        return cls(end_time=end_time, margin_floor_s=margin_floor_s, _origin=origin)

    def observe_checkpoint(self, seconds: float) -> None:
        """Note how long a checkpoint took."""
        self.checkpoint_s = max(self.checkpoint_s, seconds)

    def observe_step(self, seconds: float) -> None:
        """Note how long a step took; a single slow one (compilation, cold cache) fades within some hundred steps."""
        self.step_s = max(seconds, self.step_s * 0.99)

    @property
    def remaining_s(self) -> float:
        """Seconds until the job ends."""
        return self.end_time - self.clock()

    @property
    def margin_s(self) -> float:
        """Seconds that leaving takes: twice the longest checkpoint, and a floor for everything unmeasured."""
        return self.margin_floor_s + 2.0 * self.checkpoint_s

    def reached(self) -> bool:
        """Return whether another step might not leave time to save."""
        return self.remaining_s < self.margin_s + self.step_s

    def describe(self) -> str:
        """Say in numbers why there is no time for another step."""
        return (
            f"{max(self.remaining_s, 0.0):.1f} s remain before the job ends ({self._origin}), needed are "
            f"{self.margin_s:.1f} s to save and leave (checkpoint {self.checkpoint_s:.2f} s) "
            f"+ {self.step_s:.2f} s for a step"
        )


def find_end_time(environment: Mapping[str, str]) -> tuple[float, str]:
    """Return the end of the SLURM job as (seconds since the epoch, where it was found)."""
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return math.inf, "no SLURM job"
    if text := environment.get("SLURM_JOB_END_TIME"):
        try:
            return float(text), "SLURM_JOB_END_TIME"
        except ValueError:
            logger.warning("SLURM_JOB_END_TIME=%r is no number: asking squeue", text)
    try:
        done = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%e"],
            capture_output=True,
            text=True,
            timeout=SQUEUE_TIMEOUT_S,
            check=True,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},  # a user's own format could not be read
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the end of SLURM job %s is unknown (%s): only signals will pause this stage", job, error)
        return math.inf, "unknown"
    return parse_end_time(done.stdout), "squeue"


def parse_end_time(text: str) -> float:
    """Parse squeue's %e: local time in ISO form, N/A for a job without limit."""
    try:
        return datetime.fromisoformat(text.split()[0]).timestamp()
    except (IndexError, ValueError):
        logger.warning("squeue gives %r as the end of the job: only signals will pause this stage", text.strip())
        return math.inf
