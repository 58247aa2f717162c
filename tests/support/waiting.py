"""Wait for what another process does."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
TIMEOUT_S = 600.0  # a machine twenty times as slow as the one that this was written on; whoever succeeds waits less


def wait_until(
    condition: Callable[[], Found],
    what: str,
    *,
    timeout_s: float = TIMEOUT_S,
    interval_s: float = 0.05,
    log: Callable[[], str] = str,
) -> Found:
    """Ask until the answer is true, and return it; fail after `timeout_s` with what was waited for and the log."""
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"waited in vain for: {what}\n{log()}"
        time.sleep(interval_s)
    return found


def when(
    condition: Callable[[], object], action: Callable[[], object], timeout_s: float = TIMEOUT_S
) -> threading.Thread:
    """Act in another thread once a condition holds, or once the time is over; the caller's assertions then fail."""

    def wait() -> None:
        give_up_at = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < give_up_at:
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
