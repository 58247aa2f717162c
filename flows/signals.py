"""Ctrl-C asks a flow to stop in order; a second signal insists, a third ends it.

SIGTERM and a lost terminal are nobody's wish to stop training: the machine is shut down, a connection broke. The flow
leaves, and jobs go on without it, unless the site wants otherwise or the flow run is cancelled in Prefect.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from kdgat.cluster import Site, StopRequest

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OUTPUTS = (1, 2)  # file descriptors
DETACHES = "the jobs go on, and the same command watches them again; Ctrl-C to cancel them"


@contextmanager
def stop_on_signals(stop: StopRequest, site: Site, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn the first signal into a stop request and the second into a demand; a third ends the process at once.

    A stop that came from elsewhere, as a cancellation in Prefect, is no signal: a worker sends the first one after it.
    SIGHUP counts unless it is ignored, as it is under nohup. Off the main thread Python installs no handlers; a flow
    that runs there is stopped through Prefect.

    Args:
        stop: what is asked.
        site: where the stages run: whether jobs go on without this process.
        is_cancelled: tells a cancellation from any other reason for a SIGTERM; called in a thread of its own.
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
        elif seen and (number == signal.SIGINT or not jobs_go_on(site)):
            _say(f"\n{name}: at once; once more ends this command, whatever it waits for")
            stop.insist()
        elif not seen:  # a terminal that is lost, or a machine that goes down, says it more than once
            seen.append(number)
            if number == signal.SIGINT or not jobs_go_on(site):
                _say(f"\n{name}: {_what_stops(site)}")
                stop.set(name)
                return
            _say(f"\n{name}: {DETACHES}")
            # Not here: a handler may run in the middle of whatever talks to the API.
            threading.Thread(target=_leave_or_stop, args=(stop, name, is_cancelled), daemon=True).start()

    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = [number for number in STOP_SIGNALS if number != signal.SIGHUP or hangs_up]
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def jobs_go_on(site: Site) -> bool:
    """Return whether the jobs of a site go on without the process that watches them."""
    return site.scheduler == "slurm" and site.on_lost_flow == "detach"


def leave(stop: StopRequest, site: Site, reason: str) -> None:
    """Ask to leave jobs alone where they go on without this process, and to stop them elsewhere."""
    stop.detach(reason) if jobs_go_on(site) else stop.set(reason)


def _leave_or_stop(stop: StopRequest, name: str, is_cancelled: Callable[[], bool]) -> None:
    try:
        cancelled = is_cancelled()
    except Exception as error:  # an API that is gone as well
        print(f"{name}: nobody says whether the run is cancelled: {error}", file=sys.stderr)
        cancelled = False
    if cancelled:
        stop.set("a cancellation in Prefect")
    else:
        stop.detach(name)


def _say(line: str) -> None:
    """Write past Python's stream: a handler may run in the middle of a write, where `print` is refused."""
    if hasattr(sys.stderr, "rich_proxied_file"):  # bars are drawn there: a line past them would freeze them
        threading.Thread(target=print, args=(line.lstrip(),), kwargs={"file": sys.stderr}, daemon=True).start()
        return
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{line}\n".encode())


def _what_stops(site: Site) -> str:
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
