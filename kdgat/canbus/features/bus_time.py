"""Time on the bus, from the time stamps of a log: one that is off is not believed until several in a row agree.

Single time stamps of a log may be anything: 0 of what the logger itself has sent, or those of a controller whose clock
differs. They move nothing. A recorder's clock that is set back, or a log that was begun anew, would stop time until it
has caught up: time goes on from where it was. A clock that is set ahead cannot be told from a pause of the log, and is
one. Small steps back are those of loggers that write in batches, and stay what they are.

When many identifiers that were in time fall silent at once, the whole bus pauses: the log was not written, or the car
stood still with its engine off. No single one is kept off the bus then. Units do not wake all at once: one that has
not come since is waited for only when those that have come show that it is late.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

AGREEING: Final = 8  # messages in a row that change what is believed; minorities and runs of a few never do
LEAST_TOLERANCE_S: Final = 0.1  # to either side of the latest message: no bus with regular messages rests for longer,
_LONGEST_GAPS = 5.0  # unless its longest usual gap is more than a fifth of that
_MOST_BACK_S = 1.0  # however slow the bus is
_BEGINNING = 32.0  # gaps from which on it is known what is usual; until then, a slow bus is believed to be slow:
_FIRST_GAP_S = 10.0  # the first gap may be as long,
_MORE = 10.0  # and others so many times as long as all before
_SLOWEST_S = 60.0  # the longest usual gap that is learned
_CLOCK_SET_S = 7 * 86400.0  # no log pauses for a week: its clock was set
UNTIMED: Final = 1  # it is not known when this message came
RESUMED: Final = 2  # it is not known how long before this message nothing was logged
_USUAL_GAPS = 10.0  # a silence that is no longer than so many usual gaps between messages is none
_GAP_MEMORY = 256.0  # gaps that the usual one, and the longest, are taken over
_FEWEST_LATE = 3  # identifiers that should have come meanwhile,
_LATE_SHARE = 0.5  # of those that were in time before
_LATE = 1.23  # longest usual intervals: an identifier that is silent for longer should have come
LONGEST_GRACE_S: Final = 2.0  # after a pause, until those that have not come since are waited for; it is over before
_WAKING = 8.0  # times as long as half of the regular identifiers took to come: the others follow, or do not

# Columns of the state of a clock: what is believed, and what is doubted.
_HAS_BEGUN, _BEGIN, _LATEST, _OFFSET, _STAMP, _LONGEST_GAP, _NUM_GAPS = range(7)
_DOUBTED, _FIRST_DOUBTED, _COUNT, _DOUBTED_GAP, _PAUSED = range(7, 12)
_NUM_CLOCK_STATE = 12
# Columns of the state of the bus.
_LATEST_HEARD, _GAP, _NUM_BUS_GAPS, RESUMED_AT, _GRACE_SINCE, _WAITED_FROM, _NUM_WOKEN = range(7)
NUM_PAUSE_STATE: Final = 7


class BusTime(NamedTuple):
    """When M messages came."""

    time: NDArray[np.float64]  # [M] s on the bus; the time stamps themselves, unless some are not believed
    log_time: NDArray[np.float64]  # [M] s on the log's clock; for a time stamp that is not believed, the last that was
    awake: NDArray[np.float64]  # [M] s on the bus without pauses of the log, for habits
    breaks: NDArray[np.int8]  # [M] 0, UNTIMED or RESUMED


class BusClock:
    """Turn the time stamps of a recording into time on the bus; pieces give what the whole does."""

    def __init__(self) -> None:
        self._state = np.zeros(_NUM_CLOCK_STATE)

    def read(self, timestamp: NDArray[np.float64]) -> BusTime:
        """Return when the next messages [M] came."""
        read = BusTime(timestamp.copy(), timestamp.copy(), timestamp.copy(), np.zeros(len(timestamp), np.int8))
        _read(timestamp, self._state, *read)
        return read


@njit(cache=True, nogil=True)
def _read(
    timestamp: NDArray[np.float64],
    clock: Any,
    time: NDArray[np.float64],
    log_time: NDArray[np.float64],
    awake: NDArray[np.float64],
    breaks: NDArray[np.int8],
) -> None:
    for message in range(len(timestamp)):
        stamp = timestamp[message]
        now = stamp + clock[_OFFSET]
        if clock[_HAS_BEGUN] == 0.0:
            clock[_HAS_BEGUN], clock[_BEGIN], clock[_LATEST], clock[_STAMP] = 1.0, now, now, stamp
        gap = now - clock[_LATEST]
        tolerance = max(_LONGEST_GAPS * clock[_LONGEST_GAP], LEAST_TOLERANCE_S)
        ahead = tolerance
        if clock[_NUM_GAPS] < _BEGINNING:
            ahead = max(ahead, _MORE * (clock[_LATEST] - clock[_BEGIN]) if clock[_NUM_GAPS] > 1.0 else _FIRST_GAP_S)
        back = min(tolerance, _MOST_BACK_S)
        # A gap that is unusual is learned in part: the first time stamp ahead must not make the next one usual.
        learned = max(clock[_LONGEST_GAP] * (1.0 - 1.0 / _GAP_MEMORY), min(gap, 0.5 * tolerance))
        if -back <= gap <= ahead:
            clock[_LONGEST_GAP] = learned
            clock[_NUM_GAPS] += 1.0
        elif not _is_confirmed(clock, stamp, back, ahead):
            breaks[message] = UNTIMED
            time[message], log_time[message] = clock[_LATEST], clock[_STAMP]
            awake[message] = clock[_LATEST] - clock[_PAUSED]
            continue
        else:
            if gap < 0.0 or gap > _CLOCK_SET_S or clock[_NUM_GAPS] < AGREEING:
                # Time goes on from where it was: the first that was doubted came then.
                clock[_OFFSET] = clock[_LATEST] - clock[_FIRST_DOUBTED]
                now = stamp + clock[_OFFSET]
                breaks[message] = RESUMED
            else:
                clock[_PAUSED] += max(clock[_FIRST_DOUBTED] + clock[_OFFSET] - clock[_LATEST], 0.0)
            clock[_LONGEST_GAP] = max(learned, min(clock[_DOUBTED_GAP], _SLOWEST_S))
        clock[_COUNT] = 0.0
        if now >= clock[_LATEST]:
            clock[_LATEST], clock[_STAMP] = now, stamp
        if clock[_OFFSET] != 0.0:
            time[message] = now
        if clock[_OFFSET] != 0.0 or clock[_PAUSED] != 0.0:
            awake[message] = now - clock[_PAUSED]


@njit(cache=True)
def _is_confirmed(clock: Any, stamp: float, back: float, ahead: float) -> bool:
    """Return whether a time stamp that is off is the last of as many as it takes, in order and with none between."""
    gap = stamp - clock[_DOUBTED]
    if clock[_COUNT] == 0.0 or gap < -back:
        clock[_COUNT], clock[_DOUBTED], clock[_FIRST_DOUBTED], clock[_DOUBTED_GAP] = 1.0, stamp, stamp, 0.0
        return False
    clock[_COUNT] += 1.0
    if clock[_COUNT] > 2.0:  # the first one may be from one that is off to one that is not
        clock[_DOUBTED_GAP] = max(clock[_DOUBTED_GAP], gap)
    if gap > ahead:  # a slow bus; or it began with another one that is off
        clock[_FIRST_DOUBTED] = stamp
    clock[_DOUBTED] = max(clock[_DOUBTED], stamp)
    return bool(clock[_COUNT] >= AGREEING)


@njit(cache=True)
def is_long_silence(bus: NDArray[np.float64], now: float) -> bool:
    """Return whether nothing came for unusually long before a message; learn what is usual if not."""
    if bus[_NUM_BUS_GAPS] == 0.0:
        bus[_LATEST_HEARD], bus[_NUM_BUS_GAPS] = now, 1.0
        bus[RESUMED_AT] = bus[_GRACE_SINCE] = bus[_WAITED_FROM] = -np.inf
        return False
    gap = now - bus[_LATEST_HEARD]
    if bus[_NUM_BUS_GAPS] > _GAP_MEMORY / 8.0 and gap > _USUAL_GAPS * bus[_GAP]:
        return True
    bus[_GAP] += (gap - bus[_GAP]) / min(bus[_NUM_BUS_GAPS], _GAP_MEMORY)
    bus[_NUM_BUS_GAPS] += 1.0
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
    heard = bus[_LATEST_HEARD]
    for place in regular:
        since = waited_since(bus, last[place])
        if since <= heard <= since + _LATE * longest[place]:
            were_in_time += 1
            are_late += now - since > _LATE * longest[place]
    if are_late >= _FEWEST_LATE and are_late >= _LATE_SHARE * were_in_time:
        resume(bus, now, now - heard)
    bus[_LATEST_HEARD] = now


@njit(cache=True)
def resume(bus: NDArray[np.float64], now: float, pause_s: float) -> None:
    """Let the bus resume with a message after a pause; units need no longer to wake than they have slept."""
    bus[RESUMED_AT] = bus[_LATEST_HEARD] = now
    if now >= bus[_WAITED_FROM]:  # else units are waking
        bus[_GRACE_SINCE], bus[_NUM_WOKEN] = now, 0.0
        bus[_WAITED_FROM] = now + min(pause_s, LONGEST_GRACE_S)


@njit(cache=True, inline="always")
def wake(bus: NDArray[np.float64], now: float, last: float, num_regular: int) -> None:
    """Take notice of a message of a regular identifier; the first ones after a pause say how long units take."""
    if last < bus[_GRACE_SINCE]:
        bus[_NUM_WOKEN] += 1.0
        if 2.0 * bus[_NUM_WOKEN] >= num_regular:
            since = bus[_GRACE_SINCE]
            bus[_WAITED_FROM] = min(bus[_WAITED_FROM], since + _WAKING * (now - since))


@njit(cache=True, inline="always")
def waited_since(bus: NDArray[np.float64], last: float) -> Any:
    """Return since when an identifier is waited for that came last at this time."""
    return last if last >= bus[RESUMED_AT] else bus[_WAITED_FROM]
