"""What is usual of an identifier's intervals, and whether a message keeps to it: too early, too late, or out of step.

`kdgat.canbus.features.clock` judges by these rules, message by message, and reports who is waited for.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.timer import REST, follow, give_up

ARRIVAL_FEATURES: Final = (
    "early",  # log2 of the id's shortest usual interval over the time since its last conforming message
    "overdue",  # log2 of that time over its longest usual interval
    "overdue_novelty",  # share of the id's time before it first was overdue; 0 where it is not
    "missed",  # messages that should have come in its last periods and did not, over 4
    "phase",  # log2 of the distance from the id's timer over what is usual
    "phase_run",  # log2 of 1 + messages in a row that far off, over 8
    "phase_habit",  # log2 of 1 + how often it was that far off before, over 8
    "losses",  # log2 of 1 + identifiers of this recording of which single messages were lost before, over 4
    "regular",  # the id has a usual interval; without it all of the above are at rest
)
NUM_ARRIVAL_FEATURES: Final = len(ARRIVAL_FEATURES)
_EARLY, _OVERDUE, _OVERDUE_NOVELTY, _MISSED, _PHASE, _PHASE_RUN, _PHASE_HABIT, _LOSSES, _REGULAR = range(
    NUM_ARRIVAL_FEATURES
)

NEAR: Final = 8  # places from an end, up to which going there takes fewer counts than halving, of which there are 20
RING = 1024
_FEWEST = 30  # of them, before an id is called regular
_FEWEST_SLOW, _SLOW_S = 15, 0.08  # of longer ones
_LOWEST_QUANTILE, _HIGHEST_QUANTILE = 0.005, 0.995
_REFUSED_MARGIN = 0.2  # log2: earlier than that, a message does not conform
OVERDUE_MARGIN = 0.3  # log2: later than that, an identifier is called overdue
_ALONE_PERIODS = 8.0  # a message that is missing with none other around it was lost on the way
_PAUSE_APART_S = 1.0  # between two times that it was
_MOST_PAUSES = 8.0  # an identifier that pauses more often has a habit of it, and no longest interval,
_PAUSES_FORGOTTEN_S = 3600.0  # until they are forgotten by so much
_LONGEST_LEARNED = 1.5  # usual longest intervals; a longer one is no habit
_RELEARN_AFTER = 50  # refused messages in a row are a new habit,
_RELEARN_S = 120.0  # and so are seconds with some of them all the time,
_CALM_AFTER = 32.0  # never as many conforming ones between them
ESTABLISHED_S = 20.0
GONE = 5.0  # log2: silent for 32 periods, an id is gone, which is no news;
GONE_S = 30.0  # one that was there from the beginning, or for long, only after so many seconds, too
BEGINNING_S, LONG_S = 2.0, 60.0
_FASTEST_S = 2e-4  # no id is sent at shorter intervals; where they are, timestamps are too coarse to judge by
MISSED_PERIODS = 4.0  # time constant of `missed`

# Columns of the state of an id.
(
    _ANCHOR,
    LAST,
    FIRST,
    _SHORTEST,
    MEDIAN,
    LONGEST,
    IS_REGULAR,
    _REFUSED,
    _LEARNED,
    MISSING,
    _SEEN,
    _FIRST_OVERDUE,
    _CALM,
    _EARLY_SINCE,
    _LAST_OVERDUE,
    _PAUSES,
    IDENTIFIER,
    _SINGLE_SINCE,
    _HAS_LOST,
) = range(19)
NUM_STATE = 19


@njit(cache=True, inline="always")
def limited(value: float) -> float:
    return min(max(value, REST), 6.0)


@njit(cache=True, inline="always")
def _learn(known: NDArray[np.float64], ring: NDArray[np.float32], now: float, interval: float) -> None:
    """Remember a conforming interval; now and then learn anew what is usual."""
    count = np.int64(known[_LEARNED])
    ring[count % RING] = interval
    count += 1
    known[_LEARNED] = count
    if count >= RING:  # divided by what the compiler knows
        is_due = count % 400 == 0
    elif count >= 200:
        is_due = count % 50 == 0
    else:
        is_due = count % 5 == 0 and count >= (_FEWEST_SLOW if interval > _SLOW_S else _FEWEST)
    if not is_due:
        return
    last = min(int(count), RING) - 1
    middle, low, high = last // 2, int(_LOWEST_QUANTILE * last), int(np.ceil(_HIGHEST_QUANTILE * last))
    shortest, median, longest = ordered(ring[: last + 1], low, middle, high)
    known[MEDIAN] = median
    known[_SHORTEST] = max(shortest, 0.55 * median)
    known[LONGEST] = min(longest, 1.6 * median)
    is_even = longest < 1.8 * median and shortest > 0.4 * median and median > _FASTEST_S
    known[IS_REGULAR] = 1.0 if is_even and _pauses(known, now) <= _MOST_PAUSES else 0.0


@njit(cache=True)
def _pauses(known: NDArray[np.float64], now: float) -> float:
    """Return how often an identifier paused, as far as it is not forgotten."""
    return known[_PAUSES] * np.exp((known[_LAST_OVERDUE] - now) / _PAUSES_FORGOTTEN_S)


@njit(cache=True)
def novelty(known: NDArray[np.float64], now: float) -> float:
    """Return the share of an identifier's time before it first was overdue, as it is now."""
    if known[_FIRST_OVERDUE] == 0.0:
        return 1.0
    return (known[_FIRST_OVERDUE] - known[FIRST]) / (now - known[FIRST])


@njit(cache=True, inline="always")
def arrive(
    known: NDArray[np.float64],
    timer: NDArray[np.float64],
    ring: NDArray[np.float32],
    now: float,
    resumed: float,
    losses: NDArray[np.float64],
    is_wanted: bool,
    out: NDArray[np.float32],
) -> None:
    """Judge one message against what is known of its identifier, and learn from it if it conforms."""
    if is_wanted:
        out[:] = 0.0
        out[_EARLY] = out[_OVERDUE] = out[_PHASE] = REST
    if known[_SEEN] == 0.0:
        known[FIRST] = known[_ANCHOR] = known[LAST] = now
        known[_SEEN], known[_CALM] = 1.0, _CALM_AFTER
        return
    known[_SEEN] += 1.0
    if known[LAST] < resumed:  # the first one after a pause of the bus, or it is not known when: no usual interval
        if known[_CALM] < _CALM_AFTER:
            known[_EARLY_SINCE] += now - known[LAST]
        known[_ANCHOR] = known[LAST] = now
        known[_SINGLE_SINCE] = known[MISSING] = 0.0
        if known[IS_REGULAR] != 0.0:
            if is_wanted:
                out[_REGULAR] = 1.0
                out[_LOSSES] = losses[1]
            if resumed != np.inf:  # else the timer goes on
                give_up(timer)
                follow(timer, known[MEDIAN], known[_CALM] >= _CALM_AFTER, now)
        return
    known[LAST] = max(now, known[LAST])
    interval = max(now - known[_ANCHOR], 1e-6)
    if known[IS_REGULAR] == 0.0:
        known[_ANCHOR] = now
        _learn(known, ring, now, interval)
        return
    phase, run, habit = follow(timer, known[MEDIAN], known[_CALM] >= _CALM_AFTER, now, is_wanted)
    # Logarithms are most of the time that this takes: of ratios below one nothing but their sign is asked for.
    earliness = known[_SHORTEST] / interval
    early = np.log2(earliness) if is_wanted or earliness > 1.0 else -1.0
    if is_wanted:
        out[_REGULAR] = 1.0
        out[_LOSSES] = losses[1]
        out[_PHASE] = limited(phase)
        out[_PHASE_RUN] = np.log2(1.0 + run) / 8.0 if run > 0.0 else 0.0
        out[_PHASE_HABIT] = np.log2(1.0 + habit) / 8.0 if habit > 0.0 else 0.0
        out[_EARLY] = limited(early)
        out[_MISSED] = known[MISSING] / 4.0
    if early > _REFUSED_MARGIN:
        known[_REFUSED] += 1.0
        if known[_CALM] >= _CALM_AFTER:
            known[_EARLY_SINCE] = now
        known[_CALM] = 0.0
        if known[_REFUSED] > _RELEARN_AFTER or now - known[_EARLY_SINCE] > _RELEARN_S:
            known[IS_REGULAR] = known[_LEARNED] = known[_REFUSED] = 0.0
            give_up(timer)
            known[_ANCHOR], known[_CALM] = now, _CALM_AFTER
        return
    known[_REFUSED] = 0.0
    known[_CALM] += 1.0
    known[_ANCHOR] = now
    lateness = interval / known[LONGEST]
    overdue = np.log2(lateness) if is_wanted or lateness > 1.0 else -1.0
    if is_wanted:
        out[_OVERDUE] = limited(overdue)
    if known[_SINGLE_SINCE] > 0.0 and now - known[_SINGLE_SINCE] > _ALONE_PERIODS * known[MEDIAN]:
        known[_SINGLE_SINCE] = 0.0
        if overdue <= OVERDUE_MARGIN and known[_HAS_LOST] == 0.0:
            known[_HAS_LOST] = 1.0
            losses[0] += 1.0
            losses[1] = np.log2(1.0 + losses[0]) / 4.0
    if overdue > OVERDUE_MARGIN:
        if is_wanted:
            out[_OVERDUE_NOVELTY] = novelty(known, now)
        is_alone = now - known[_LAST_OVERDUE] > _ALONE_PERIODS * known[MEDIAN]
        known[_SINGLE_SINCE] = now if is_alone and interval < 2.5 * known[MEDIAN] else 0.0
        if known[_FIRST_OVERDUE] == 0.0:
            known[_FIRST_OVERDUE] = now
        if now - known[_LAST_OVERDUE] > _PAUSE_APART_S:
            known[_PAUSES] = _pauses(known, now) + 1.0
        known[_LAST_OVERDUE] = now
        if known[_PAUSES] > _MOST_PAUSES:
            known[_PAUSES] = 2.0 * _MOST_PAUSES
            known[IS_REGULAR] = 0.0
            known[_ANCHOR] = now
            return
    periods = interval / known[MEDIAN]
    missing = known[MISSING]
    if missing != 0.0:
        missing *= np.exp(-periods / MISSED_PERIODS)
    if interval > 1.2 * known[LONGEST]:
        missing += min(np.rint(periods) - 1.0, 8.0)
    known[MISSING] = missing
    if is_wanted:
        out[_MISSED] = missing / 4.0
    if interval < _LONGEST_LEARNED * known[LONGEST]:
        _learn(known, ring, now, interval)


@njit(cache=True)
def ordered(values: NDArray[np.float32], low: int, middle: int, high: int) -> tuple[float, float, float]:
    """Return the values that sorting would bring to three ascending places; all are positive.

    They are found by counting, which moves none and has no branch that the processor cannot predict. Positive floats
    have the order of their bits, read as integers: a value is found by halving the range that it is in, or near an end
    by going from one value to the next.
    """
    bits = values.view(np.int32)
    least, most = bits[0], bits[0]
    for place in range(len(bits)):
        least = min(least, bits[place])
        most = max(most, bits[place])
    median = _at_place(bits, middle, least, most)
    from_end = len(bits) - 1 - high
    shortest = _from_least(bits, low, least) if low < NEAR else _at_place(bits, low, least, median)
    longest = _from_most(bits, from_end, most) if from_end < NEAR else _at_place(bits, high, median, most)
    return _value(shortest), _value(median), _value(longest)


@njit(cache=True, inline="always")
def _value(bits: Any) -> Any:
    return np.float64(np.int32(bits).view(np.float32))


@njit(cache=True)
def _at_place(bits: NDArray[np.int32], place: int, least: Any, most: Any) -> Any:
    """Return what sorting would bring to a place, which is in this range."""
    least, most = np.int64(least), np.int64(most)
    while least < most:
        between = (least + most) >> 1
        border = np.int32(between)
        count = np.int32(0)  # narrow, so that as many as possible are counted at once
        for other in range(len(bits)):
            count = np.int32(count + np.int32(bits[other] <= border))
        if count > place:
            most = between
        else:
            least = between + 1
    return least


@njit(cache=True)
def _from_least(bits: NDArray[np.int32], place: int, value: Any) -> Any:
    """Return what sorting would bring to a place, from the least value on."""
    value = np.int32(value)
    while True:
        count, following = np.int32(0), np.int32(0x7FFFFFFF)
        for other in range(len(bits)):
            count = np.int32(count + np.int32(bits[other] <= value))
            following = min(following, bits[other] if bits[other] > value else np.int32(0x7FFFFFFF))
        if count > place:
            return np.int64(value)
        value = following


@njit(cache=True)
def _from_most(bits: NDArray[np.int32], place: int, value: Any) -> Any:
    """Return what sorting would bring to a place, counted from the end, from the largest value on."""
    value = np.int32(value)
    while True:
        count, following = np.int32(0), np.int32(0)
        for other in range(len(bits)):
            count = np.int32(count + np.int32(bits[other] >= value))
            following = max(following, bits[other] if bits[other] < value else np.int32(0))
        if count > place:
            return np.int64(value)
        value = following
