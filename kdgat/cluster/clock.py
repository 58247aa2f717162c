"""The time that passes while something is waited for; a test has a clock of its own, in which hours take no time."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    """What the module `time` offers to whoever waits."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


SYSTEM_CLOCK: Final[Clock] = time
