"""Time while something is waited for: the begin of a job in the queue, the next sign of life of one that runs.

A test has a clock of its own, in which hours take no time.
"""

import math
import time
from collections.abc import Callable
from typing import Final, Protocol


class Clock(Protocol):
    """What the module `time` offers to whoever waits."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


SYSTEM_CLOCK: Final[Clock] = time
FIRST_PAUSE_S: Final = 1.0  # before what was not understood is asked again; doubled up to the longest
LONGEST_PAUSE_S: Final = 60.0
MOST_SAID: Final = 100  # texts; what prints others without end fills no disk
OWN_PAUSE_S: Final = 5.0  # between two looks; longer means that it was us who slept


class Patience:
    """Bear with what cannot be understood: each text is said once, and it is asked again after ever longer pauses."""

    def __init__(self, clock: Clock, say: Callable[[str], object]) -> None:
        self._clock, self._say = clock, say
        self._said: set[str] = set()
        self._pause_s, self._next = FIRST_PAUSE_S, -math.inf

    def is_due(self) -> bool:
        """Return whether it is time to ask again."""
        return self._clock.monotonic() >= self._next

    def bear(self, error: object) -> None:
        """Say what was not understood, unless that was said, and put off the next question."""
        text = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
        if text not in self._said and len(self._said) < MOST_SAID:
            self._said.add(text)
            self._say(text)
        self._next = self._clock.monotonic() + self._pause_s
        self._pause_s = min(2.0 * self._pause_s, LONGEST_PAUSE_S)

    def end(self) -> None:
        """Note that something was understood."""
        self._pause_s, self._next = FIRST_PAUSE_S, -math.inf


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
