"""The arrival clock: whether each identifier comes when it usually does, too early, too late, or out of step.

A control unit sends most identifiers by a timer. One causal pass learns each identifier's own intervals and the phase
of its timer from arrivals that conform to what is known of it, so that an attack hardly teaches it anything:

* early: a message that comes sooner after the last conforming one than that identifier ever does is an extra one.
* overdue: an identifier that is waited for longer than it ever was is kept off the bus, or gone. One that has not come
  by the end of a window is reported for that window although it has no message in it.
* phase: a sender that takes over an identifier is out of step with the timer of the one it replaces (`timer`).

When nothing comes at all, the log pauses or the car rests (`pause`): nobody is waited for, and no interval across it
counts. Nothing is trained and no identifier is known beforehand, so the clock is the same for every vehicle. State
never crosses a recording's border.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.can.windows.bus_time import RESUMED as IS_RESUMED
from kdgat.can.windows.bus_time import UNTIMED
from kdgat.can.windows.compilation import UNCOUNTED
from kdgat.can.windows.identifiers import IdentifierNumbers, Numbered, untouched
from kdgat.can.windows.order_statistics import ordered
from kdgat.can.windows.pause import NUM_PAUSE_STATE, RESUMED, end_silence, is_long_silence
from kdgat.can.windows.timer import NUM_TIMER_STATE, REST, follow, give_up
from kdgat.family.machine_code import njit

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
NONE: Final = -9.0  # no margin: nothing regular was early, or overdue

_RING = 1024
_FEWEST = 30  # of them, before an id is called regular
_FEWEST_SLOW, _SLOW_S = 15, 0.08  # of longer ones
_LOWEST_QUANTILE, _HIGHEST_QUANTILE = 0.005, 0.995
_REFUSED_MARGIN = 0.2  # log2: earlier than that, a message does not conform
_OVERDUE_MARGIN = 0.3  # log2: later than that, an identifier is called overdue
_ALONE_PERIODS = 8.0  # a message that is missing with none other around it was lost on the way
_PAUSE_APART_S = 1.0  # between two times that it was
_MOST_PAUSES = 8.0  # whoever pauses more often than that has a habit of it, and no longest interval,
_PAUSES_FORGOTTEN_S = 3600.0  # until they are forgotten by so much
_LONGEST_LEARNED = 1.5  # usual longest intervals; a longer one is no habit
_RELEARN_AFTER = 50  # refused messages in a row are a new habit,
_RELEARN_S = 120.0  # and so are seconds with some of them all the time,
_CALM_AFTER = 32.0  # never as many conforming ones between them
_ESTABLISHED_S = 20.0
_GONE = 5.0  # log2: silent for 32 periods, an id is gone, which is no news;
_GONE_S = 30.0  # one that was there from the beginning, or for long, only after so many seconds, too
_BEGINNING_S, _LONG_S = 2.0, 60.0
_FASTEST_S = 2e-4  # no id is sent at shorter intervals; where they are, timestamps are too coarse to judge by
_MISSED_PERIODS = 4.0  # time constant of `missed`

# Columns of the state of an id.
(
    _ANCHOR,
    _LAST,
    _FIRST,
    _SHORTEST,
    _MEDIAN,
    _LONGEST,
    _IS_REGULAR,
    _REFUSED,
    _LEARNED,
    _MISSING,
    _SEEN,
    _FIRST_OVERDUE,
    _CALM,
    _EARLY_SINCE,
    _LAST_OVERDUE,
    _PAUSES,
    _IDENTIFIER,
    _SINGLE_SINCE,
    _HAS_LOST,
) = range(19)
_NUM_STATE = 19


class ClockState:
    """Hold what the clock knows of each identifier of a recording, [I, ...], and when the recording began."""

    def __init__(self, num_ids: int = 0) -> None:
        self.state: NDArray[np.float64] = np.zeros((0, _NUM_STATE))
        self.timers: NDArray[np.float64] = np.zeros((0, NUM_TIMER_STATE))
        self.ring: NDArray[np.float32] = np.zeros((0, _RING), np.float32)
        self.regular: NDArray[np.int32] = np.zeros(0, np.int32)  # numbers, ascending; only they are waited for
        self.start = float("nan")
        self.losses = np.zeros(2)  # identifiers of which single messages were lost, and the feature that says so
        self.num_regular = np.zeros(1, np.int64)
        self.bus = np.zeros(NUM_PAUSE_STATE)
        self.grow(num_ids)

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is known."""
        return self.state.nbytes + self.timers.nbytes + self.ring.nbytes + self.regular.nbytes

    def grow(self, num_ids: int) -> None:
        """Make room for identifiers that are new: at once for all there can be, memory is taken as they come."""
        if num_ids > len(self.state):
            most = IdentifierNumbers.most
            self.state, self.timers = untouched((most, _NUM_STATE)), untouched((most, NUM_TIMER_STATE))
            self.ring, self.regular = untouched((most, _RING), np.float32), untouched(most, np.int32)


class Arrivals(NamedTuple):
    """What the clock says of M messages and of the windows that end among them."""

    features: NDArray[np.float32]  # [M, NUM_ARRIVAL_FEATURES]
    waiting_window: NDArray[np.int64]  # [W] window at whose end a regular identifier is overdue
    waiting_number: NDArray[np.int32]  # [W] its number
    waiting_id: NDArray[np.uint32]  # [W] the identifier
    waiting: NDArray[np.float32]  # [W, 5] overdue, its novelty, missed, log2 of its usual interval in seconds, losses


def arrivals(
    timestamp: NDArray[np.float64],
    identifier: NDArray[np.uint32],
    numbered: Numbered,
    stops: NDArray[np.int64],
    state: ClockState | None = None,
    breaks: NDArray[np.int8] | None = None,
    wanted: NDArray[np.bool_] | None = None,
    out: NDArray[np.float32] | None = None,
) -> Arrivals:
    """Judge when each message came, in one causal pass.

    Args:
        timestamp: seconds [M].
        identifier: [M].
        numbered: the same by number.
        stops: the message after each window's last one [G], ascending, as row of these messages.
        state: what is known from messages before these; changed in place. Default: nothing.
        breaks: of BusTime [M]; default: none.
        wanted: messages to be described [M], by default all; of the others nothing is said, they are remembered only.
        out: where the features are written to [M, NUM_ARRIVAL_FEATURES]; default: somewhere new.
    """
    num_ids = numbered.num_numbers
    state = ClockState(num_ids) if state is None else state
    state.grow(num_ids)
    if len(timestamp) and np.isnan(state.start):
        state.start = float(timestamp[0])
    features = np.empty((len(timestamp), NUM_ARRIVAL_FEATURES), np.float32) if out is None else out
    wanted = np.ones(len(timestamp), bool) if wanted is None else wanted
    breaks = np.zeros(len(timestamp), np.int8) if breaks is None else breaks
    window, number, waited_for, waiting = _pass(
        timestamp, identifier, numbered.number, numbered.is_new, stops, state.start, state.state, state.timers,
        state.ring, state.losses, state.regular, state.num_regular, state.bus, breaks, wanted, features,
    )  # fmt: skip
    return Arrivals(features, window, number, waited_for, waiting)


@njit(cache=True, inline="always")
def _limited(value: float) -> float:
    return min(max(value, REST), 6.0)


@njit(cache=True, inline="always")
def _learn(known: NDArray[np.float64], ring: NDArray[np.float32], now: float, interval: float) -> None:
    """Remember a conforming interval; now and then learn anew what is usual."""
    count = np.int64(known[_LEARNED])
    ring[count % _RING] = interval
    count += 1
    known[_LEARNED] = count
    if count >= _RING:  # divided by what the compiler knows
        is_due = count % 400 == 0
    elif count >= 200:
        is_due = count % 50 == 0
    else:
        is_due = count % 5 == 0 and count >= (_FEWEST_SLOW if interval > _SLOW_S else _FEWEST)
    if not is_due:
        return
    last = min(int(count), _RING) - 1
    middle, low, high = last // 2, int(_LOWEST_QUANTILE * last), int(np.ceil(_HIGHEST_QUANTILE * last))
    shortest, median, longest = ordered(ring[: last + 1], low, middle, high)
    known[_MEDIAN] = median
    known[_SHORTEST] = max(shortest, 0.55 * median)
    known[_LONGEST] = min(longest, 1.6 * median)
    is_even = longest < 1.8 * median and shortest > 0.4 * median and median > _FASTEST_S
    known[_IS_REGULAR] = 1.0 if is_even and _pauses(known, now) <= _MOST_PAUSES else 0.0


@njit(cache=True)
def _pauses(known: NDArray[np.float64], now: float) -> float:
    """Return how often an identifier paused, as far as it is not forgotten."""
    return known[_PAUSES] * np.exp((known[_LAST_OVERDUE] - now) / _PAUSES_FORGOTTEN_S)


@njit(cache=True)
def _novelty(known: NDArray[np.float64], now: float) -> float:
    """Return the share of an identifier's time before it first was overdue, as it is now."""
    if known[_FIRST_OVERDUE] == 0.0:
        return 1.0
    return (known[_FIRST_OVERDUE] - known[_FIRST]) / (now - known[_FIRST])


@njit(cache=True, inline="always")
def _arrive(
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
        known[_FIRST] = known[_ANCHOR] = known[_LAST] = now
        known[_SEEN], known[_CALM] = 1.0, _CALM_AFTER
        return
    known[_SEEN] += 1.0
    if known[_LAST] < resumed:  # the first one after a pause of the bus: the interval is nobody's
        if known[_CALM] < _CALM_AFTER:
            known[_EARLY_SINCE] += now - known[_LAST]
        known[_ANCHOR] = known[_LAST] = now
        known[_SINGLE_SINCE] = known[_MISSING] = 0.0
        if known[_IS_REGULAR] != 0.0:
            if is_wanted:
                out[_REGULAR] = 1.0
                out[_LOSSES] = losses[1]
            give_up(timer)
            follow(timer, known[_MEDIAN], known[_CALM] >= _CALM_AFTER, now)
        return
    known[_LAST] = max(now, known[_LAST])
    interval = max(now - known[_ANCHOR], 1e-6)
    if known[_IS_REGULAR] == 0.0:
        known[_ANCHOR] = now
        _learn(known, ring, now, interval)
        return
    phase, run, habit = follow(timer, known[_MEDIAN], known[_CALM] >= _CALM_AFTER, now, is_wanted)
    # Logarithms are most of the time that this takes: of ratios below one nothing but their sign is asked for.
    earliness = known[_SHORTEST] / interval
    early = np.log2(earliness) if is_wanted or earliness > 1.0 else -1.0
    if is_wanted:
        out[_REGULAR] = 1.0
        out[_LOSSES] = losses[1]
        out[_PHASE] = _limited(phase)
        out[_PHASE_RUN] = np.log2(1.0 + run) / 8.0 if run > 0.0 else 0.0
        out[_PHASE_HABIT] = np.log2(1.0 + habit) / 8.0 if habit > 0.0 else 0.0
        out[_EARLY] = _limited(early)
        out[_MISSED] = known[_MISSING] / 4.0
    if early > _REFUSED_MARGIN:
        known[_REFUSED] += 1.0
        if known[_CALM] >= _CALM_AFTER:
            known[_EARLY_SINCE] = now
        known[_CALM] = 0.0
        if known[_REFUSED] > _RELEARN_AFTER or now - known[_EARLY_SINCE] > _RELEARN_S:
            known[_IS_REGULAR] = known[_LEARNED] = known[_REFUSED] = 0.0
            give_up(timer)
            known[_ANCHOR], known[_CALM] = now, _CALM_AFTER
        return
    known[_REFUSED] = 0.0
    known[_CALM] += 1.0
    known[_ANCHOR] = now
    lateness = interval / known[_LONGEST]
    overdue = np.log2(lateness) if is_wanted or lateness > 1.0 else -1.0
    if is_wanted:
        out[_OVERDUE] = _limited(overdue)
    if known[_SINGLE_SINCE] > 0.0 and now - known[_SINGLE_SINCE] > _ALONE_PERIODS * known[_MEDIAN]:
        known[_SINGLE_SINCE] = 0.0
        if overdue <= _OVERDUE_MARGIN and known[_HAS_LOST] == 0.0:
            known[_HAS_LOST] = 1.0
            losses[0] += 1.0
            losses[1] = np.log2(1.0 + losses[0]) / 4.0
    if overdue > _OVERDUE_MARGIN:
        if is_wanted:
            out[_OVERDUE_NOVELTY] = _novelty(known, now)
        is_alone = now - known[_LAST_OVERDUE] > _ALONE_PERIODS * known[_MEDIAN]
        known[_SINGLE_SINCE] = now if is_alone and interval < 2.5 * known[_MEDIAN] else 0.0
        if known[_FIRST_OVERDUE] == 0.0:
            known[_FIRST_OVERDUE] = now
        if now - known[_LAST_OVERDUE] > _PAUSE_APART_S:
            known[_PAUSES] = _pauses(known, now) + 1.0
        known[_LAST_OVERDUE] = now
        if known[_PAUSES] > _MOST_PAUSES:
            known[_PAUSES] = 2.0 * _MOST_PAUSES
            known[_IS_REGULAR] = 0.0
            known[_ANCHOR] = now
            return
    periods = interval / known[_MEDIAN]
    missing = known[_MISSING]
    if missing != 0.0:
        missing *= np.exp(-periods / _MISSED_PERIODS)
    if interval > 1.2 * known[_LONGEST]:
        missing += min(np.rint(periods) - 1.0, 8.0)
    known[_MISSING] = missing
    if is_wanted:
        out[_MISSED] = missing / 4.0
    if interval < _LONGEST_LEARNED * known[_LONGEST]:
        _learn(known, ring, now, interval)


@njit(cache=True)
def _list_regular(number: int, is_regular: bool, regular: NDArray[np.int32], num_regular: NDArray[np.int64]) -> None:
    """Put an identifier that became regular into the list of those, or take one out that is so no longer."""
    size = num_regular[0]
    place = np.searchsorted(regular[:size], number)
    if is_regular:
        for later in range(size, place, -1):
            regular[later] = regular[later - 1]
        regular[place] = number
        num_regular[0] = size + 1
    else:
        for later in range(place, size - 1):
            regular[later] = regular[later + 1]
        num_regular[0] = size - 1


@njit(cache=True, nogil=True, **UNCOUNTED)
def _judge(
    first: int,
    stop: int,
    timestamp: NDArray[np.float64],
    identifiers: NDArray[np.uint32],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    state: NDArray[np.float64],
    timers: NDArray[np.float64],
    ring: NDArray[np.float32],
    losses: NDArray[np.float64],
    regular: NDArray[np.int32],
    num_regular: NDArray[np.int64],
    bus: NDArray[np.float64],
    breaks: NDArray[np.int8],
    wanted: NDArray[np.bool_],
    features: NDArray[np.float32],
) -> None:
    """Judge the messages from `first` to before `stop`."""
    for message in range(first, stop):
        now = timestamp[message]
        index = numbers[message]
        was_regular = state[index, _IS_REGULAR] != 0.0
        if is_new[message]:
            state[index] = 0.0  # of an identifier that lost its number
            timers[index] = 0.0
            state[index, _IDENTIFIER] = identifiers[message]
        if is_long_silence(bus, now):
            end_silence(bus, now, state[:, _LAST], state[:, _LONGEST], regular[: num_regular[0]])
        if breaks[message] == IS_RESUMED:
            bus[RESUMED] = now
        resumed = np.inf if breaks[message] == UNTIMED else bus[RESUMED]
        _arrive(state[index], timers[index], ring[index], now, resumed, losses, wanted[message], features[message])
        is_regular = state[index, _IS_REGULAR] != 0.0
        if is_regular != was_regular:
            _list_regular(index, is_regular, regular, num_regular)


@njit(cache=True, nogil=True)
def _pass(
    timestamp: NDArray[np.float64],
    identifiers: NDArray[np.uint32],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    stops: NDArray[np.int64],
    start: float,
    state: NDArray[np.float64],
    timers: NDArray[np.float64],
    ring: NDArray[np.float32],
    losses: NDArray[np.float64],
    regular: NDArray[np.int32],
    num_regular: NDArray[np.int64],
    bus: NDArray[np.float64],
    breaks: NDArray[np.int8],
    wanted: NDArray[np.bool_],
    features: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint32], NDArray[np.float32]]:
    """Judge every message and, at the end of each window, every identifier that is waited for."""
    room = 64
    num_waiting = 0
    window = np.empty(room, np.int64)
    number = np.empty(room, np.int32)
    waited_for = np.empty(room, np.uint32)
    waiting = np.empty((room, 5), np.float32)
    judged: Any = np.int64(0)  # not 0 alone: the pass would be compiled once more for that literal
    for following in range(len(stops) + 1):
        stop = stops[following] if following < len(stops) else len(timestamp)
        _judge(
            judged, stop, timestamp, identifiers, numbers, is_new, state, timers, ring, losses, regular, num_regular,
            bus, breaks, wanted, features,
        )  # fmt: skip
        judged = stop
        if following == len(stops):
            break
        now = timestamp[stop - 1]
        established_s = min(0.5 * (now - start), _ESTABLISHED_S)
        for place in range(num_regular[0]):
            other = regular[place]
            # Element by element: references to a row would be counted, for every identifier in every window.
            if now - state[other, _FIRST] <= established_s:
                continue
            silent = now - max(state[other, _LAST], bus[RESUMED])
            if silent <= state[other, _LONGEST]:
                continue
            known: Any = state[other]
            overdue = np.log2(silent / known[_LONGEST])
            is_lasting = known[_FIRST] - start < _BEGINNING_S or known[_LAST] - known[_FIRST] > _LONG_S
            if overdue >= _GONE and (silent > _GONE_S or not is_lasting):
                continue
            if num_waiting == room:
                room *= 2
                window = _doubled(window)
                number = _doubled(number)
                waited_for = _doubled(waited_for)
                waiting = _doubled_rows(waiting)
            periods = silent / known[_MEDIAN]
            missed = known[_MISSING] * np.exp(-periods / _MISSED_PERIODS) + min(np.floor(periods), 8.0)
            window[num_waiting] = following
            number[num_waiting] = other
            waited_for[num_waiting] = np.uint32(known[_IDENTIFIER])
            waiting[num_waiting, 0] = _limited(overdue)
            waiting[num_waiting, 1] = _novelty(known, now) if overdue > _OVERDUE_MARGIN else 0.0
            waiting[num_waiting, 2] = missed / 4.0
            waiting[num_waiting, 3] = np.log2(known[_MEDIAN])
            waiting[num_waiting, 4] = losses[1]
            num_waiting += 1
    return (
        window[:num_waiting].copy(),
        number[:num_waiting].copy(),
        waited_for[:num_waiting].copy(),
        waiting[:num_waiting].copy(),
    )


@njit(cache=True)
def _doubled(values: Any) -> Any:
    grown = np.empty(2 * len(values), values.dtype)
    for place in range(len(values)):
        grown[place] = values[place]
    return grown


@njit(cache=True)
def _doubled_rows(values: Any) -> Any:
    grown = np.empty((2 * values.shape[0], values.shape[1]), values.dtype)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            grown[row, column] = values[row, column]
    return grown
