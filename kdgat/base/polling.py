"""Waiting for what nobody reports: by asking, again and again, for a limited time."""

import time
from collections.abc import Callable
from typing import Final

POLL_S: Final = 0.1


def wait_until(condition: Callable[[], bool], limit_s: float, poll_s: float = POLL_S) -> bool:
    """Ask every `poll_s` seconds until the answer is true, and once more after `limit_s`; return the last answer.

    >>> wait_until(lambda: False, limit_s=0.0)
    False
    """
    give_up_at = time.monotonic() + limit_s
    while not condition():
        remaining_s = give_up_at - time.monotonic()
        if remaining_s <= 0:
            return False
        time.sleep(min(remaining_s, poll_s))
    return True
