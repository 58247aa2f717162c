"""Time on the bus, from the time stamps of a log: one that is far off is not believed until the next one is, too.

One damaged line far ahead would make all that come after it late for ever, and a clock that was set back, or a log that
was begun anew, would stop time until it has caught up. Small steps back are those of loggers that write in batches, and
stay what they are.

When many identifiers that were in time fall silent at once, the whole bus pauses: the log was not written, or the car
stood still with its engine off. No single one is kept off the bus then.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

FAR_AHEAD_S: Final = 10.0  # after the latest message
FAR_BACK_S: Final = 1.0  # before it
UNTIMED: Final = 1  # it is not known when this message came
RESUMED: Final = 2  # it is not known how long before this message nothing was logged
_USUAL_GAPS = 10.0  # a silence that is no longer than so many usual gaps between messages is none
_GAP_MEMORY = 256.0  # gaps that the usual one is taken over
_FEWEST_LATE = 3  # identifiers that should have come meanwhile,
_LATE_SHARE = 0.5  # of those that were in time before
_LATE = 1.23  # longest usual intervals: an identifier that is silent for longer should have come

# Columns of the state of a clock.
_LATEST, _OFFSET, _DOUBTED, _IS_DOUBTED, _HAS_BEGUN = range(5)
# Columns of the state of the bus.
_LATEST_HEARD, _GAP, _NUM_GAPS, RESUMED_AT = range(4)
NUM_PAUSE_STATE: Final = 4


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
            # The second one in a row that agrees. Ahead it is a pause; back, time continues from where it was.
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


@njit(cache=True)
def is_long_silence(bus: NDArray[np.float64], now: float) -> bool:
    """Return whether nothing came for unusually long before a message; learn what is usual if not."""
    if bus[_NUM_GAPS] == 0.0:
        bus[_LATEST_HEARD], bus[_NUM_GAPS] = now, 1.0
        bus[RESUMED_AT] = -np.inf
        return False
    gap = now - bus[_LATEST_HEARD]
    if bus[_NUM_GAPS] > _GAP_MEMORY / 8.0 and gap > _USUAL_GAPS * bus[_GAP]:
        return True
    bus[_GAP] += (gap - bus[_GAP]) / min(bus[_NUM_GAPS], _GAP_MEMORY)
    bus[_NUM_GAPS] += 1.0
    bus[_LATEST_HEARD] = now
    return False


@njit(cache=True)
def end_silence(
    bus: NDArray[np.float64],
    now: float,
    last: NDArray[np.float64],
    longest: NDArray[np.float64],
    regular: NDArray[np.int32],
) -> None:
    """Decide whether the silence that a message ends was a pause of the bus, which resumes with that message then.

    Args:
        bus: [NUM_PAUSE_STATE].
        now: s, of the message.
        last: s [I], when each identifier came last.
        longest: s [I], its longest usual interval.
        regular: [R] which of them are regular.
    """
    were_in_time, are_late = 0, 0
    for place in regular:
        waited_since = max(last[place], bus[RESUMED_AT])
        if bus[_LATEST_HEARD] - waited_since <= _LATE * longest[place]:
            were_in_time += 1
            are_late += now - waited_since > _LATE * longest[place]
    if are_late >= _FEWEST_LATE and are_late >= _LATE_SHARE * were_in_time:
        bus[RESUMED_AT] = now
    bus[_LATEST_HEARD] = now
