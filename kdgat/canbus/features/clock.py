"""The arrival clock: whether each identifier comes when it usually does, too early, too late, or out of step.

A control unit sends most identifiers by a timer. One causal pass learns each identifier's own intervals and the phase
of its timer from arrivals that conform to what is known of it, so that an attack hardly teaches it anything:

* early: a message that comes sooner after the last conforming one than that identifier ever does is an extra one.
* overdue: an identifier that is waited for longer than it ever was is kept off the bus, or gone. One that has not come
  by the end of a window is reported for that window although it has no message in it.
* phase: a sender that takes over an identifier is out of step with the timer of the one it replaces (`timer`).

When nothing comes at all, the log pauses or the car rests (`bus_time`): no identifier is waited for, and no interval
across it counts. Nothing is trained and no identifier is known beforehand, so the clock is the same for every
vehicle. State never crosses a recording's border.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import UNCOUNTED, njit
from kdgat.canbus.features.bus_time import (
    NUM_PAUSE_STATE,
    RESUMED,
    RESUMED_AT,
    UNTIMED,
    end_silence,
    is_long_silence,
    resume,
    waited_since,
    wake,
)
from kdgat.canbus.features.intervals import (
    BEGINNING_S,
    ESTABLISHED_S,
    FIRST,
    GONE,
    GONE_S,
    IDENTIFIER,
    IS_REGULAR,
    LAST,
    LONG_S,
    LONGEST,
    MEDIAN,
    MISSED_PERIODS,
    MISSING,
    NUM_ARRIVAL_FEATURES,
    NUM_STATE,
    OVERDUE_MARGIN,
    RING,
    arrive,
    limited,
    novelty,
)
from kdgat.canbus.features.memory import Numbered, untouched, with_room
from kdgat.canbus.features.timer import NUM_TIMER_STATE


class KnownTimes(NamedTuple):
    """What the clock knows of I identifiers, by their numbers, and of the bus."""

    state: NDArray[np.float64]  # [I, NUM_STATE]
    timers: NDArray[np.float64]  # [I, NUM_TIMER_STATE]
    ring: NDArray[np.float32]  # [I, RING]
    regular: NDArray[np.int32]  # [I] numbers, ascending; only they are waited for
    num_regular: NDArray[np.int64]  # [1]
    losses: NDArray[np.float64]  # [2] identifiers of which single messages were lost, and the feature of their number
    bus: NDArray[np.float64]  # [NUM_PAUSE_STATE]


def new_times(num_ids: int) -> KnownTimes:
    return KnownTimes(
        untouched((num_ids, NUM_STATE)), untouched((num_ids, NUM_TIMER_STATE)), untouched((num_ids, RING), np.float32),
        untouched(num_ids, np.int32), np.zeros(1, np.int64), np.zeros(2), np.zeros(NUM_PAUSE_STATE),
    )  # fmt: skip


class ClockState:
    """Hold what the clock knows of a recording, and when that began."""

    def __init__(self) -> None:
        self.known = new_times(0)
        self.start = float("nan")

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is known."""
        return sum(array.nbytes for array in self.known)


class Arrivals(NamedTuple):
    """What the clock finds of M messages and of the windows that end among them."""

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
        wanted: messages to be described [M], by default all; the others are remembered only.
        out: where the features are written to [M, NUM_ARRIVAL_FEATURES]; default: somewhere new.
    """
    state = ClockState() if state is None else state
    state.known = with_room(state.known, numbered.num_numbers, new_times)
    if len(timestamp) and np.isnan(state.start):
        state.start = float(timestamp[0])
    features = np.empty((len(timestamp), NUM_ARRIVAL_FEATURES), np.float32) if out is None else out
    wanted = np.ones(len(timestamp), bool) if wanted is None else wanted
    breaks = np.zeros(len(timestamp), np.int8) if breaks is None else breaks
    window, number, waited_for, waiting = _pass(
        timestamp, identifier, numbered, stops, state.start, state.known, breaks, wanted, features
    )
    return Arrivals(features, window, number, waited_for, waiting)


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
    numbered: Numbered,
    times: KnownTimes,
    breaks: NDArray[np.int8],
    wanted: NDArray[np.bool_],
    features: NDArray[np.float32],
) -> None:
    """Judge the messages from `first` to before `stop`."""
    state, timers, num_regular, bus = times.state, times.timers, times.num_regular, times.bus
    for message in range(first, stop):
        now = timestamp[message]
        index = numbered.number[message]
        was_regular = state[index, IS_REGULAR] != 0.0
        if numbered.is_new[message]:
            state[index] = 0.0  # of an identifier that lost its number
            timers[index] = 0.0
            state[index, IDENTIFIER] = identifiers[message]
        is_untimed = breaks[message] == UNTIMED
        if breaks[message] == RESUMED:
            resume(bus, now, np.inf)
        elif not is_untimed and is_long_silence(bus, now):
            end_silence(bus, now, state[:, LAST], state[:, LONGEST], times.regular[: num_regular[0]])
        if was_regular:
            wake(bus, now, state[index, LAST], num_regular[0])
        resumed = np.inf if is_untimed else bus[RESUMED_AT]
        arrive(
            state[index], timers[index], times.ring[index], now, resumed, times.losses, wanted[message],
            features[message],
        )  # fmt: skip
        is_regular = state[index, IS_REGULAR] != 0.0
        if is_regular != was_regular:
            _list_regular(index, is_regular, times.regular, num_regular)


@njit(cache=True, nogil=True)
def _pass(
    timestamp: NDArray[np.float64],
    identifiers: NDArray[np.uint32],
    numbered: Numbered,
    stops: NDArray[np.int64],
    start: float,
    times: KnownTimes,
    breaks: NDArray[np.int8],
    wanted: NDArray[np.bool_],
    features: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint32], NDArray[np.float32]]:
    """Judge every message and, at the end of each window, every identifier that is waited for."""
    state = times.state
    room = 64
    num_waiting = 0
    window = np.empty(room, np.int64)
    number = np.empty(room, np.int32)
    waited_for = np.empty(room, np.uint32)
    waiting = np.empty((room, 5), np.float32)
    judged: Any = np.int64(0)  # not 0 alone: the pass would be compiled once more for that literal
    for following in range(len(stops) + 1):
        stop = stops[following] if following < len(stops) else len(timestamp)
        _judge(judged, stop, timestamp, identifiers, numbered, times, breaks, wanted, features)
        judged = stop
        if following == len(stops):
            break
        now = timestamp[stop - 1]
        established_s = min(0.5 * (now - start), ESTABLISHED_S)
        for place in range(times.num_regular[0]):
            other = times.regular[place]
            # Element by element: references to a row would be counted, for every identifier in every window.
            if now - state[other, FIRST] <= established_s:
                continue
            silent = now - waited_since(times.bus, state[other, LAST])
            if silent <= state[other, LONGEST]:
                continue
            known: Any = state[other]
            overdue = np.log2(silent / known[LONGEST])
            is_lasting = known[FIRST] - start < BEGINNING_S or known[LAST] - known[FIRST] > LONG_S
            if overdue >= GONE and (silent > GONE_S or not is_lasting):
                continue
            if num_waiting == room:
                room *= 2
                window = _doubled(window)
                number = _doubled(number)
                waited_for = _doubled(waited_for)
                waiting = _doubled_rows(waiting)
            periods = silent / known[MEDIAN]
            missed = known[MISSING] * np.exp(-periods / MISSED_PERIODS) + min(np.floor(periods), 8.0)
            window[num_waiting] = following
            number[num_waiting] = other
            waited_for[num_waiting] = np.uint32(known[IDENTIFIER])
            waiting[num_waiting, 0] = limited(overdue)
            waiting[num_waiting, 1] = novelty(known, now) if overdue > OVERDUE_MARGIN else 0.0
            waiting[num_waiting, 2] = missed / 4.0
            waiting[num_waiting, 3] = np.log2(known[MEDIAN])
            waiting[num_waiting, 4] = times.losses[1]
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
