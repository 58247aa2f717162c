"""The queue of one user, asked for once for all who watch jobs, and seldom while nothing changes."""

import math
import threading
from typing import Final

from kdgat.cluster.clock import Clock
from kdgat.cluster.scheduler import GONE, UNKNOWN, JobStatus, QueuedJob, Scheduler, jobs_named

HURRY_S: Final = 1.0  # between two questions while somebody expects a change; never less
GROWTH: Final = 1.5  # of the pause, each time that nothing has changed
SLOWEST: Final = 6  # times the site's interval


class JobQueue:
    """What `squeue` says, for several threads; whoever looks when it is time asks, the others get the last answer."""

    def __init__(self, scheduler: Scheduler, interval_s: float, clock: Clock) -> None:
        self.scheduler = scheduler
        self._interval_s, self._clock = interval_s, clock
        self._lock = threading.Lock()
        self._jobs: dict[str, QueuedJob] = {}
        self._tried = self._asked = self._next = -math.inf  # the last question, the last that was answered, the next
        self._pause_s = self._hurry_s = min(HURRY_S, interval_s)

    def status(self, job_id: str, name: str, since: float) -> JobStatus:
        """State how a job stands: `GONE` where it is not listed any more, `UNKNOWN` without an answer `since` then."""
        if self._clock.monotonic() >= self._next and self._lock.acquire(blocking=False):
            try:
                self._ask()
            finally:
                self._lock.release()
        if self._asked <= since:
            return JobStatus(UNKNOWN)
        found = self._jobs.get(job_id)
        return found.status if found is not None and found.name == name else JobStatus(GONE)

    def named(self, name: str) -> list[str] | None:
        """Return the jobs of that name, as of now; None without an answer."""
        since = self._clock.monotonic() - self._hurry_s
        with self._lock:
            if self._asked < since:
                self._ask()
            return jobs_named(name, self._jobs) if self._asked >= since else None

    def hurry(self) -> None:
        """Ask soon, and often for a while: somebody knows of a change."""
        self._pause_s = self._hurry_s
        self._next = min(self._next, self._tried + self._hurry_s)

    def _ask(self) -> None:
        self._tried = self._clock.monotonic()
        jobs = self.scheduler.queue()
        if jobs is not None and jobs != self._jobs:
            self._pause_s = min(self._pause_s, self._interval_s)
        else:
            self._pause_s = min(self._pause_s * GROWTH, self._interval_s * SLOWEST)
        if jobs is not None:
            self._jobs, self._asked = jobs, self._tried
        self._next = self._clock.monotonic() + self._pause_s
