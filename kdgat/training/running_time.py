"""Seconds in which this process ran: while a job is suspended, or a virtual machine moves, no step takes time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

BEAT_S: Final = 0.5
PAUSE_S: Final = 3.0  # between two looks at the clock: longer, and a thread that only sleeps in between did not run


class RunningTime:
    """A clock that stands still while the process does.

    A thread looks at it every `BEAT_S`. Where it could not for long, and the process used next to no processor time,
    the process was stopped. A main thread that waits for a slow filesystem does not keep the thread from looking: that
    time counts. One that computes for long without letting other threads run uses processor time: that counts too.

    >>> now, used = iter([0.0, 10.0]), iter([0.0, 0.1])
    >>> running_time = RunningTime(lambda: next(now), lambda: next(used))
    >>> running_time()
    0.5
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, processor_time: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._processor_time = clock, processor_time
        self._lock = threading.Lock()
        self._looked_at, self._used = self._began_at, _ = clock(), processor_time()
        self.stopped_s = 0.0

    def __call__(self) -> float:
        """Return the seconds since the start in which the process ran."""
        with self._lock:  # whoever looks first after a pause, thread or trainer, notices it
            now, used = self._clock(), self._processor_time()
            passed = now - self._looked_at
            if passed > PAUSE_S and used - self._used < passed / 2:
                self.stopped_s += passed - BEAT_S
            self._looked_at, self._used = now, used
            return now - self._began_at - self.stopped_s

    @contextmanager
    def watched(self) -> Iterator["RunningTime"]:
        """Look at the clock all the while."""
        end = threading.Event()

        def beat() -> None:
            while not end.wait(BEAT_S):
                self()

        thread = threading.Thread(target=beat, name="running-time", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            end.set()
            thread.join()
