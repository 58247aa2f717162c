"""How long something has been waited for: a job in the queue, a worker's first word, its next heartbeat."""

from typing import Final

from kdgat.cluster.clock import Clock
from kdgat.cluster.scheduler import JobStatus, Scheduler
from kdgat.cluster.site import Site

FIRST_QUESTION_S: Final = 1.0  # most jobs on a quiet cluster have begun by then
REPORT_TIMEOUT_S: Final = 300.0  # from the job's start to its worker's first word: imports from a busy filesystem
OWN_PAUSE_S: Final = 5.0  # between two looks; longer means that it was us who slept


class Queue:
    """Ask Slurm about a job that has no worker yet, seldom enough for a controller that serves a whole cluster."""

    def __init__(self, site: Site, scheduler: Scheduler, clock: Clock) -> None:
        self.site, self._scheduler, self._clock = site, scheduler, clock
        self._submitted = self._next_question = self._overdue_from = float("inf")
        self._running_since: float | None = None
        self._current: tuple[str, str] | None = None
        self._changed = False

    def begin(self) -> None:
        """Start the clock: the job is submitted."""
        self._submitted = self._clock.monotonic()
        self._next_question = self._submitted + min(FIRST_QUESTION_S, self.site.poll_interval_s)
        self._overdue_from = self._submitted + self.site.start_timeout_s

    def ask(self, job_id: str) -> JobStatus | None:
        """Return how the job stands; None while it is too early to ask again."""
        now = self._clock.monotonic()
        if now < self._next_question:
            return None
        self._next_question = now + self.site.poll_interval_s
        status = self._scheduler.status(job_id)
        current = (status.state, status.reason)
        self._changed, self._current = current != self._current, current
        if status.is_alive:
            self._running_since = self._running_since or now
        return status

    def has_changed(self) -> bool:
        """Tell whether the last answer differs from the one before."""
        return self._changed

    def is_silent(self) -> bool:
        """Tell whether the job runs, but its worker has not reported for too long."""
        return self._running_since is not None and self._clock.monotonic() - self._running_since > REPORT_TIMEOUT_S

    def overdue_s(self) -> float:
        """Return how long the job has waited, once for each time that the start timeout passes; else 0."""
        now = self._clock.monotonic()
        if now < self._overdue_from or self._running_since is not None:
            return 0.0
        self._overdue_from = now + self.site.start_timeout_s
        return now - self._submitted


class Heartbeat:
    """Measure how long a worker has been silent while we were listening."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_seen = 0.0
        self._since = self._looked = clock.monotonic()

    def restart(self) -> None:
        """Begin to count anew."""
        self._since = self._clock.monotonic()

    def silence_s(self, last_seen: float) -> float:
        """Return the seconds since `last_seen` last changed; the time in which this process slept does not count."""
        now = self._clock.monotonic()
        if last_seen != self._last_seen or now - self._looked > OWN_PAUSE_S:
            self._last_seen, self._since = last_seen, now
        self._looked = now
        return now - self._since
