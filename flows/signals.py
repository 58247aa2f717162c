"""Ctrl-C and SIGTERM ask a flow to stop in order; a second one insists."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kdgat.cluster.child import StopRequest

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(stop: StopRequest, words: str) -> Iterator[None]:
    """Turn the first signal into a stop request and the second into a demand, while the context lasts.

    `words` tell a person what that means. Off the main thread Python installs no handlers; a flow that runs there is
    stopped through Prefect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if stop.is_set():
            stop.insist()
        else:
            print(f"\n{name}: {words}", file=sys.stderr)
            stop.set(name)

    previous = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
