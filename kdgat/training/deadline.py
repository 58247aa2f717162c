"""When the job ends, and how long before that a stage must have saved."""

import logging
import math
import os
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

SQUEUE_TIMEOUT_S: Final = 20
AGAIN_TIMEOUT_S: Final = 5  # of the time that is left to save
NO_END: Final = ("N/A", "NONE", "Unknown")  # of a job without limit
CLOCK_S: Final = 5.0  # that clocks may differ without a word
NUM_RECENT: Final = 8  # checkpoints that the margin is measured from: a filesystem that stalled once is forgotten
RESTORED_SHARE: Final = 0.25  # of the job's time: what another attempt's checkpoints may count for, at most


@dataclass
class Deadline:
    """End of the job in seconds since the epoch (inf: none) and the margin measured from this attempt's own times.

    What the attempts before have measured holds only until this one has written a checkpoint itself, and never keeps
    it from its first step: they may have run on another filesystem, or on a day when it stood still.

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
    step_s: float = 0.0  # longest recent step
    ask_end: Callable[[], float | None] = field(default=lambda: None, repr=False)  # again; None: it cannot be known
    _restored_s: float = field(default=0.0, init=False, repr=False)
    _checkpoints: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_RECENT), init=False, repr=False)
    _origin: str = field(default="given", repr=False)

    @classmethod
    def from_environment(cls, margin_floor_s: float = 20.0, environment: Mapping[str, str] = os.environ) -> "Deadline":
        """Read the end of the SLURM job from its environment, else from squeue; none outside of SLURM."""
        end_time, origin = find_end_time(environment)
        job, behind_s = environment.get("SLURM_JOB_ID"), clock_behind_s(environment)

        def ask_end() -> float | None:
            found = ask_squeue(job, AGAIN_TIMEOUT_S) if job else None
            return None if found is None else found - behind_s

        return cls(end_time=end_time - behind_s, margin_floor_s=margin_floor_s, ask_end=ask_end, _origin=origin)

    @property
    def checkpoint_s(self) -> float:
        """Return the longest of the recent checkpoints; before this attempt has written one, what was restored."""
        return max(self._checkpoints, default=self._restored_s)

    def observe_checkpoint(self, seconds: float) -> None:
        """Note how long a checkpoint took."""
        self._checkpoints.append(seconds)

    def typical_checkpoint_s(self) -> float:
        """Return the median of the recent checkpoints, for the next attempt; one that stalled says nothing to it."""
        return statistics.median(self._checkpoints) if self._checkpoints else self._restored_s

    def restore(self, typical_checkpoint_s: float) -> None:
        """Take over what an attempt before has measured, as far as this job's time goes."""
        self._restored_s = min(typical_checkpoint_s, RESTORED_SHARE * max(self.remaining_s, 0.0))

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

    @property
    def spare_s(self) -> float:
        """Seconds beyond another step and leaving; negative if there are too few for that."""
        return self.remaining_s - self.margin_s - self.step_s

    def reached(self) -> bool:
        """Return whether another step might not leave time to save; Slurm is asked again before that is said."""
        if self._is_short() and (found := self.ask_end()) is not None and found != self.end_time:
            logger.info("the end of the job was moved by %+.0f s", found - self.end_time)
            self.end_time, self._origin = found, "squeue"
        return self._is_short()

    def too_late_to_begin(self) -> bool:
        """Return whether there is no time to leave, whatever a step takes: the floor alone, and nothing restored."""
        return self.reached() and self.remaining_s < self.margin_floor_s

    def _is_short(self) -> bool:
        return self.spare_s < 0.0

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
    found = ask_squeue(job)
    if found is None:
        logger.warning("the end of SLURM job %s is unknown: only signals will pause this stage", job)
        return math.inf, "unknown"
    return found, "squeue"


def clock_behind_s(environment: Mapping[str, str]) -> float:
    """Return how far this node's clock is behind the controller's, which says when the job ends.

    No job's script begins before Slurm has started the job: where it did, by this clock, the clock is late.
    """
    try:
        start = float(environment["SLURM_JOB_START_TIME"])
        ticks = int(Path(f"/proc/{environment['SLURM_TASK_PID']}/stat").read_text().rpartition(")")[2].split()[19])
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, IndexError, KeyError, OSError, ValueError):  # another Slurm, or no Linux
        return 0.0
    behind_s = max(0.0, start - began)
    if behind_s > CLOCK_S:
        logger.warning("this node's clock is %.0f s behind Slurm's: the end of the job is so much sooner", behind_s)
    return behind_s


def ask_squeue(job: str, timeout_s: float = SQUEUE_TIMEOUT_S) -> float | None:
    """Ask when a job ends, which changes where it is suspended or somebody moves its limit; None without an answer."""
    # What a user set for himself, of times or of what is listed, could not be read.
    own = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    environment = {**own, "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%e"],
            capture_output=True,
            errors="replace",
            timeout=timeout_s,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("squeue does not say when job %s ends: %s", job, error)
        return None
    return parse_end_time(done.stdout)


def parse_end_time(text: str) -> float | None:
    """Parse squeue's %e: local time in ISO form, N/A for a job without limit; None if no line is either."""
    for line in map(str.strip, reversed(text.splitlines())):  # a site's wrapper may greet before it answers
        if line in NO_END:
            return math.inf
        with suppress(ValueError):
            return datetime.fromisoformat(line).timestamp()
    logger.warning("squeue gives %r as the end of the job, which says nothing", text.strip())
    return None
