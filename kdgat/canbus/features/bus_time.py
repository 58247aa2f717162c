"""Time on the bus, from what a log says: a time stamp that is far off is not believed until the next one is, too.

One damaged line far ahead would make all that come after it late for ever, and a clock that was set back, or a log that
was begun anew, would stop time until it has caught up. Small steps back are those of loggers that write in batches, and
stay what they are.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

FAR_AHEAD_S: Final = 10.0  # after the latest message
FAR_BACK_S: Final = 1.0  # before it
UNTIMED: Final = 1  # nobody knows when this message came
RESUMED: Final = 2  # nobody knows how long before this message nothing was logged

# Columns of the state.
_LATEST, _OFFSET, _DOUBTED, _IS_DOUBTED, _HAS_BEGUN = range(5)


class BusTime(NamedTuple):
    """When M messages came."""

    time: NDArray[np.float64]  # [M] s; the time stamps themselves, unless some are not believed
    breaks: NDArray[np.int8]  # [M] 0, UNTIMED or RESUMED


class BusClock:
    """Turn the time stamps of a recording into time on the bus; pieces give what the whole does."""

    def __init__(self) -> None:
        self._state = np.zeros(5)

    def read(self, timestamp: NDArray[np.float64]) -> BusTime:
        """Return when the next messages [M] came."""
        time, breaks = timestamp.copy(), np.zeros(len(timestamp), np.int8)
        _read(timestamp, self._state, time, breaks)
        return BusTime(time, breaks)


@njit(cache=True, nogil=True)
def _read(timestamp: NDArray[np.float64], state: Any, time: NDArray[np.float64], breaks: NDArray[np.int8]) -> None:
    for message in range(len(timestamp)):
        stamp = timestamp[message]
        now = stamp + state[_OFFSET]
        if state[_HAS_BEGUN] == 0.0:
            state[_HAS_BEGUN], state[_LATEST] = 1.0, now
        latest = state[_LATEST]
        is_far = now > latest + FAR_AHEAD_S or now < latest - FAR_BACK_S
        if is_far and state[_IS_DOUBTED] != 0.0 and -FAR_BACK_S <= stamp - state[_DOUBTED] <= FAR_AHEAD_S:
            # The second one in a row that says so. Ahead it is a pause; back, time goes on from where it was.
            if now < latest:
                state[_OFFSET] = latest - stamp
                breaks[message] = RESUMED
                now = latest
            is_far = False
        if is_far:
            state[_IS_DOUBTED], state[_DOUBTED] = 1.0, stamp
            breaks[message] = UNTIMED
            now = latest
        else:
            state[_IS_DOUBTED] = 0.0
            state[_LATEST] = max(latest, now)
        if state[_OFFSET] != 0.0 or is_far:
            time[message] = now
