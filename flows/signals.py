"""Ctrl-C, SIGTERM and a lost terminal ask a flow to stop in order; a second signal insists, a third ends it."""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from kdgat.cluster.child import StopRequest
from kdgat.cluster.site import Site

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OUTPUTS = (1, 2)  # file descriptors


@contextmanager
def stop_on_signals(stop: StopRequest, explanation: str) -> Iterator[None]:
    """Turn the first signal into a stop request and the second into a demand; a third ends the process at once.

    A stop that came from elsewhere, as a cancellation in Prefect, is no signal: a worker sends the first one after it.
    `explanation` is what a person reads after the first. SIGHUP counts unless it is ignored, as it is under nohup.
    Off the main thread Python installs no handlers; a flow that runs there is stopped through Prefect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    terminals = [descriptor for descriptor in OUTPUTS if os.isatty(descriptor)]

    def handle(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        _leave_lost(terminals)
        if stop.insisted:
            # Something does not come to its end. What this process started saves and leaves when it misses it.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif seen:
            print(f"\n{name}: at once; once more ends this command, whatever it waits for", file=sys.stderr)
            stop.insist()
        else:
            seen.append(number)
            print(f"\n{name}: {explanation}", file=sys.stderr)
            stop.set(name)

    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = [number for number in STOP_SIGNALS if number != signal.SIGHUP or hangs_up]
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def what_stops(site: Site) -> str:
    """State what a stop means on a site."""
    if site.scheduler == "slurm":
        return "the jobs are asked for their checkpoints, then cancelled; once more to cancel them at once"
    return "the stages write their checkpoints and stop; once more to kill them"


def _leave_lost(terminals: Iterable[int]) -> None:
    """Write to nowhere from now on instead of to a terminal that is gone, where each line would be an error."""
    for descriptor in terminals:
        if not os.isatty(descriptor):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
