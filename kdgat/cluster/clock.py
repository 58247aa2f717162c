"""Time while something is waited for: the begin of a job in the queue, the next sign of life of one that runs.

A test has a clock of its own, in which hours take no time.
"""

import time
from typing import Final, Protocol


class Clock(Protocol):
    """What the module `time` offers to whoever waits."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


SYSTEM_CLOCK: Final[Clock] = time
OWN_PAUSE_S: Final = 5.0  # between two looks; longer means that it was us who slept


class StartTimeout:
    """Count how often a job has waited for the time after which something is said about it."""

    def __init__(self, timeout_s: float, clock: Clock) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self._began = clock.monotonic()
        self._next = self._began + timeout_s

    def overdue_s(self) -> float:
        """Return how long the job has waited, once for each time that the timeout passes; else 0."""
        now = self._clock.monotonic()
        if now < self._next:
            return 0.0
        self._next = now + self._timeout_s
        return now - self._began


class Heartbeat:
    """Measure how long there was no sign of life while we were listening."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: object = None
        self._since = self._looked = clock.monotonic()

    def restart(self) -> None:
        """Begin to count anew."""
        self._since = self._clock.monotonic()

    def silence_s(self, sign: object) -> float:
        """Return the seconds since `sign` last changed; the time in which this process slept does not count."""
        now = self._clock.monotonic()
        if sign != self._last or now - self._looked > OWN_PAUSE_S:
            self._last, self._since = sign, now
        self._looked = now
        return now - self._since
