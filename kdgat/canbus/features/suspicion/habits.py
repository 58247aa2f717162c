"""The habits of identifiers: in how little time so many intervals ever passed, and what else is usual of each.

An arrival curve (Thiele, Chakraborty, Naedele 2000) holds for timers, several periods, bursts, coarse stamps and
packets alike: it says of 1, 2, 4 .. 32 intervals in how little time they ever passed. Whatever is learned waits for
some seconds, and is committed only if nothing was suspicious meanwhile; the end of an alarm discards what waits. Once
an identifier is established a commit moves a value by very little, and what did not come again for minutes is
forgotten: habits recover in both directions, and nobody who is patient walks them far.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.features import popcount

NUM_SPANS: Final = 6  # of 1, 2, 4 .. 32 intervals
RING: Final = 64  # times that are remembered of an identifier, a power of two
COMMIT_S: Final = 2.0  # between two commits
CALM_S: Final = 1.0  # without suspicion before one
FREE_S: Final = 20.0  # of an identifier's life, in which it learns freely;
DRIFT: Final = 5e-6  # then, what a commit moves a span by at most: one percent an hour
FORGOTTEN_S: Final = 120.0  # what did not come again for this long, or twice, is forgotten
EVEN: Final = 0.9  # share of intervals near the usual one
BELIEVED_AFTER: Final = 24.0  # intervals,
BELIEVED_S: Final = 2.5  # and seconds, before an identifier's habits count
MOST_CARRIED: Final = 16  # bits by which a carry counts less
PAYLOADS_KNOWN: Final = 60.0  # intervals before it is known how many bits change
_GUILTY_S = 2.0
_SLOW_S, _NEWS_S = 0.11, 5.0  # identifiers with longer usual intervals are held guilty for so long at a time
NEAR, NEAR_S = 0.3, 0.0012  # an interval is near the usual one
_QUALITY_MEMORY, _MEDIAN_MEMORY = 128.0, 64.0
_FIRST_INTERVALS = 8.0  # whose mean is usual; from the first alone, which may be 0, the median would not come away

# Columns of what is known of an identifier.
(
    SEEN,
    FIRST,
    LAST,
    LEARNED,  # intervals that were usual
    USUAL,  # s, the usual interval: a slow median
    EVENNESS,  # share of intervals that are near it
    INTERVAL,  # the last one,
    INTERVAL_BEFORE,  # and that before
    RUN,  # intervals in a row that are alike,
    RUN_INTERVAL,  # so long,
    RUN_SINCE,  # since when
    LONGEST,  # interval that came twice,
    LONGEST_ONCE,  # and the longest of all
    LONGEST_FRESH,
    LONGEST_WAITING,
    LONGEST_NEXT,
    KEPT,  # times in the ring since it was emptied
    UNUSUAL,  # of the last intervals, whether some were short
    CALM_RUN,  # intervals in a row that were not
    LATE_SINCE,
    TIMES_LATE,
    MOST_BITS,  # that ever changed in each of four messages
    BITS_FRESH,
    BITS_WAITING,
    EVIDENCE,  # against it,
    EVIDENCE_AT,  # as of then
    IS_STRANGER,  # is itself a flood
    IS_OF_UNIT,  # has 29 bits, and the source address or the parameter group of what has come before (J1939)
    IS_OF_ATTACK,  # came first in an attack by random identifiers
    GUILTY_UNTIL,  # of messages too many,
    GUILTY_SINCE,  # without a pause
    FORGED_UNTIL,  # of payloads
    IS_UNTIMED,  # it is not known when the last message came
    MISSING,  # messages that did not come, and may all come at once,
    MISSING_SINCE,  # as of then
    LONGEST_BEFORE,  # what LONGEST_FRESH was before the interval in which they did not come
    STILL,  # messages in a row in which no counter counted
    NUM_BROKEN,  # counters of late, each of which counts less with every message
    SEEN_BEFORE,  # the last slice of time
    RATE,  # messages a second, of its first seconds
    STRETCH_SINCE,  # last time that so many messages had come,
    STRETCH,  # how long they took,
    IS_STEADY,  # and that those before took as long
    IS_BACK,  # the last value came back from far off
    IS_RECALLED,  # a profile knows it,
    IS_UNEVEN,  # and that it does not come evenly
    BITS,  # that changed in the last four messages: this column and the three that follow
) = range(47)
NUM_HABITS: Final = 50
# Rows of the arrival curves of an identifier.
COMMITTED, FRESH, WAITING, NEXT = range(4)


@njit(cache=True)
def begin(habits: NDArray[np.float64], curves: NDArray[np.float64], ring: NDArray[np.float64], now: float) -> None:
    """Begin to know an identifier with its first message."""
    habits[:] = 0.0
    habits[SEEN], habits[FIRST], habits[LAST], habits[KEPT], habits[EVENNESS] = 1.0, now, now, 1.0, 1.0
    curves[:] = np.inf
    ring[0] = now


@njit(cache=True)
def note_untimed(habits: NDArray[np.float64], ring: NDArray[np.float64], now: float) -> None:
    """Count a message whose time stamp is not believed: it came about now, and no interval is learned from that."""
    ring[np.int64(habits[KEPT]) & (RING - 1)] = now
    habits[KEPT] += 1.0
    habits[LAST], habits[IS_UNTIMED] = now, 1.0


@njit(cache=True)
def learn_usual(habits: NDArray[np.float64], interval: float) -> None:
    """Learn an interval that was not suspicious."""
    habits[LEARNED] += 1.0
    learned, usual = habits[LEARNED], habits[USUAL]
    near = 1.0 if abs(interval - usual) < NEAR * usual + NEAR_S else 0.0
    habits[EVENNESS] += (near - habits[EVENNESS]) / min(learned, _QUALITY_MEMORY)
    if learned <= _FIRST_INTERVALS:
        habits[USUAL] += (interval - usual) / learned
    else:
        habits[USUAL] += (max(min(interval, 2.0 * usual), 0.5 * usual) - usual) / min(learned, _MEDIAN_MEMORY)


@njit(cache=True)
def learn_times(
    habits: NDArray[np.float64], curves: NDArray[np.float64], ring: NDArray[np.float64], now: float, interval: float
) -> None:
    """Let the spans up to a message wait for a commit; `KEPT` counts the times before it."""
    kept = np.int64(habits[KEPT]) - 1
    for place in range(NUM_SPANS):
        steps = 1 << place
        if kept >= steps:
            curves[FRESH, place] = min(curves[FRESH, place], now - ring[(kept - steps) & (RING - 1)])
    habits[LONGEST_FRESH] = max(habits[LONGEST_FRESH], interval)


@njit(cache=True)
def believe_at_once(habits: NDArray[np.float64], curves: NDArray[np.float64]) -> None:
    """Let what waits count without a delay: in its first moments an identifier would be judged by nothing."""
    for place in range(NUM_SPANS):
        curves[COMMITTED, place] = min(curves[COMMITTED, place], curves[FRESH, place])
    habits[LONGEST] = habits[LONGEST_ONCE] = max(habits[LONGEST], habits[LONGEST_FRESH])


@njit(cache=True)
def adopt(habits: NDArray[np.float64], curves: NDArray[np.float64], ring: NDArray[np.float64], now: float) -> None:
    """Take a new period that is clean for a state of the car."""
    period = habits[RUN_INTERVAL]
    for place in range(NUM_SPANS):
        least = min(curves[COMMITTED, place], 0.8 * period * (1 << place))
        curves[COMMITTED, place] = curves[FRESH, place] = curves[WAITING, place] = least
    habits[USUAL] = period
    habits[KEPT], ring[0] = 1.0, now


@njit(cache=True)
def commit(habits: NDArray[np.float64], curves: NDArray[np.float64], num_ids: int, now: float) -> None:
    """Commit what has waited, and let what is fresh wait."""
    for one in range(num_ids):
        if habits[one, SEEN] < 2.0:
            continue
        is_free = now - habits[one, FIRST] < FREE_S
        is_recalled = habits[one, IS_RECALLED] != 0.0  # nobody makes it forget the shortest and the longest interval
        for place in range(NUM_SPANS):
            known, span = curves[one, COMMITTED, place], curves[one, WAITING, place]
            if not is_free and known < np.inf:
                span = max(span, known * (1.0 - DRIFT))
            if place > 0 or not is_recalled or known == np.inf:
                curves[one, COMMITTED, place] = min(known, span)
            curves[one, NEXT, place] = min(curves[one, NEXT, place], span)
            curves[one, WAITING, place], curves[one, FRESH, place] = curves[one, FRESH, place], np.inf
        longest = habits[one, LONGEST_WAITING]
        if not is_recalled or habits[one, LONGEST] == 0.0:
            again = min(longest, habits[one, LONGEST_ONCE])  # a message that is lost once is no habit
            habits[one, LONGEST] = max(habits[one, LONGEST], again)
            habits[one, LONGEST_ONCE] = max(habits[one, LONGEST_ONCE], longest)
        habits[one, LONGEST_NEXT] = max(habits[one, LONGEST_NEXT], longest)
        habits[one, MOST_BITS] = max(habits[one, MOST_BITS], habits[one, BITS_WAITING])
        habits[one, LONGEST_WAITING], habits[one, LONGEST_FRESH] = habits[one, LONGEST_FRESH], 0.0
        habits[one, BITS_WAITING], habits[one, BITS_FRESH] = habits[one, BITS_FRESH], 0.0


@njit(cache=True)
def forget(habits: NDArray[np.float64], curves: NDArray[np.float64], num_ids: int) -> None:
    """Keep of each identifier what came again since this was called last; what a profile knows stays."""
    for one in range(num_ids):
        if (
            habits[one, IS_RECALLED] == 0.0
            and habits[one, LONGEST_NEXT] > 0.0
            and curves[one, NEXT, NUM_SPANS - 1] < np.inf
        ):
            for place in range(NUM_SPANS):
                curves[one, COMMITTED, place], curves[one, NEXT, place] = curves[one, NEXT, place], np.inf
            habits[one, LONGEST], habits[one, LONGEST_NEXT] = habits[one, LONGEST_NEXT], 0.0
            habits[one, LONGEST_ONCE] = habits[one, LONGEST]


@njit(cache=True)
def roll_back(habits: NDArray[np.float64], curves: NDArray[np.float64], num_ids: int, since: float) -> None:
    """Discard what waits: nothing of an attack is kept. Whoever first came after `since` is one of its identifiers."""
    discard(habits, curves, num_ids)
    for one in range(num_ids):
        if habits[one, FIRST] > since:
            habits[one, IS_OF_ATTACK] = 1.0
        habits[one, KEPT] = habits[one, EVIDENCE] = 0.0


@njit(cache=True)
def discard(habits: NDArray[np.float64], curves: NDArray[np.float64], num_ids: int) -> None:
    """Discard what waits for a commit."""
    for one in range(num_ids):
        for place in range(NUM_SPANS):
            curves[one, FRESH, place] = curves[one, WAITING, place] = np.inf
        for column in (LONGEST_FRESH, LONGEST_WAITING, BITS_FRESH, BITS_WAITING):
            habits[one, column] = 0.0


@njit(cache=True)
def accuse(habits: NDArray[np.float64], now: float) -> bool:
    """Hold an identifier guilty of messages too many for some seconds; return whether that is still news.

    A slow one that goes on for long has begun to send by events, as units do that an attack has set off.
    """
    if habits[GUILTY_UNTIL] < now:
        habits[GUILTY_SINCE] = now
    habits[GUILTY_UNTIL] = now + _GUILTY_S
    return habits[USUAL] <= _SLOW_S or now - habits[GUILTY_SINCE] < _NEWS_S


@njit(cache=True, inline="always")
def is_believed(habits: NDArray[np.float64], now: float) -> Any:
    """Return whether an identifier has come often enough, and for long enough, to be judged by its habits."""
    return habits[LEARNED] >= BELIEVED_AFTER and now - habits[FIRST] > BELIEVED_S


@njit(cache=True, inline="always")
def is_even(habits: NDArray[np.float64]) -> Any:
    """Return whether most intervals of an identifier are near its usual one, in this log and in its profile."""
    return habits[EVENNESS] > EVEN and habits[IS_UNEVEN] == 0.0


@njit(cache=True)
def swapped(payload: Any) -> Any:
    """Return a little-endian word with its first byte as the highest."""
    word, other = np.uint64(payload), np.uint64(0)
    for _ in range(8):
        other = (other << np.uint64(8)) | (word & np.uint64(255))
        word >>= np.uint64(8)
    return other


@njit(cache=True)
def num_changed(difference: Any) -> Any:
    """Return in how many bits two payloads differ, given their exclusive or.

    Where a number carries, many of its bits change, and one of its Gray code: the fewest of the plain count and those
    of the Gray codes in both byte orders is taken, but hardly less than the plain one, as of one number that carries.
    """
    other, plain = swapped(difference), popcount(difference)
    gray = min(popcount(difference ^ (difference >> np.uint64(1))), popcount(other ^ (other >> np.uint64(1))))
    return max(min(plain, gray), plain - MOST_CARRIED)
