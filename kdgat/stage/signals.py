"""SIGTERM, SIGUSR1 and SIGINT ask a stage to write a checkpoint and leave."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kdgat.stage.errors import StopRequested

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopFlag:
    """Remember the first stop signal; raise it at once where no loop has promised to look."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self.has_interrupted = False  # StopRequested was raised, whatever became of it on its way
        self._watchers = 0

    def __bool__(self) -> bool:
        return self.signal_name is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Serve as signal handler."""
        name = signal.Signals(number).name
        if self.signal_name is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # the person at the keyboard insists
        self.signal_name = self.signal_name or name
        if self._watchers == 0:
            self.has_interrupted = True
            raise StopRequested(name)

    def hand_on(self) -> None:
        """Send the signal that came to whoever handles it now; an outer `stop_signals` has it already."""
        if self.signal_name is not None and _active is not self:
            signal.raise_signal(signal.Signals[self.signal_name])

    @contextmanager
    def watched(self) -> Iterator["StopFlag"]:
        """Promise to look at the flag often: signals only set it meanwhile."""
        self._watchers += 1
        try:
            yield self
        finally:
            self._watchers -= 1

    @contextmanager
    def interrupting(self) -> Iterator["StopFlag"]:
        """Let signals raise StopRequested inside the context, even within an outer `watched`; at once if one came."""
        watchers, self._watchers = self._watchers, 0
        try:
            if self.signal_name is not None:
                raise StopRequested(self.signal_name)
            yield self
        finally:
            self._watchers = watchers


_active: StopFlag | None = None


@contextmanager
def stop_signals() -> Iterator[StopFlag]:
    """Catch the stop signals, and promise to look at the flag; inside an outer `stop_signals` this is the outer flag.

    Off the main thread Python installs no handlers: the flag then stays unset and the deadline alone pauses a stage.
    """
    global _active
    if _active is not None:
        with _active.watched():
            yield _active
        return
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        logger.warning("not on the main thread: stop signals are not caught")
        yield flag
        return
    with flag.watched():  # before the first handler: a signal at that moment is looked at, too
        previous = {number: signal.signal(number, flag.handle) for number in STOP_SIGNALS}
        _active = flag
        try:
            yield flag
        finally:
            _active = None
            for number, handler in previous.items():
                signal.signal(number, handler)
