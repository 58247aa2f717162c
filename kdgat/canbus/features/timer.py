"""The timer of an identifier: the phase and the period by which its sender sends it.

A sender that takes over an identifier keeps its period, but not the phase of the timer of the one that it replaces.
A sender that stays out of phase for long enough has a new timer; the one before is remembered, and followed again as
soon as messages keep to it again: its sender was silenced, and is back.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

REST: Final = -4.0  # of a feature where nothing is known; the lowest that a known one is

_MEMORY = 512.0  # messages that phase and period are fitted to
_GATE = 5.0  # usual distances from the timer
_NARROWEST, _LOOSEST = 0.02, 0.15  # of a period: the narrowest gate; with one beyond the loosest, an id has no phase
_EXCURSION = 3.0  # messages off in a row
_LEARNED = 20.0  # messages before the phase is judged
_PATIENCE = 0.5  # of the time for which a timer was followed, is how long one stays off until it is given up,
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 3.0, 30.0
_USUAL = 2.0  # usual distances, by which a message moves the timer at most

# Columns of the state of an id; those of the timer before follow those of the one that is followed.
_SLOT, _PERIOD, _COUNT, _SPREAD = range(4)
_BEFORE = 4
_OFF_COUNT, _OFF_SINCE, _EXCURSIONS, _BEGAN, _BACK_COUNT = range(8, 13)
NUM_TIMER_STATE: Final = 13


@njit(cache=True)
def give_up(timer: NDArray[np.float64]) -> None:
    """Follow a new timer from the next message on, and remember this one if it was known."""
    if timer[_COUNT] >= _LEARNED:
        for column in range(_BEFORE):
            timer[_BEFORE + column] = timer[column]
    timer[_COUNT] = 0.0


@njit(cache=True, inline="always")
def follow(
    timer: NDArray[np.float64], median: float, is_calm: bool, now: float, is_wanted: bool = True
) -> tuple[float, float, float]:
    """Follow an id's timer by one message.

    Phase and period are fitted by a growing-memory filter of second order, which is a line through the arrivals by
    least squares (Brookner 1998, table 1.3.1), until its memory is full.

    Args:
        timer: [NUM_TIMER_STATE] of the id; zero at first.
        median: s, the id's usual interval.
        is_calm: no extra message came lately; else it is not known which messages are the timer's.
        now: s.
        is_wanted: whether the distance is asked for; else it is given as REST.

    Returns log2 of the distance from the timer over the widest usual one, messages in a row that are further off, and
    how often it was so for three of them.
    """
    count = timer[_COUNT]
    if count == 0.0:
        timer[_SLOT], timer[_PERIOD], timer[_COUNT], timer[_SPREAD] = now, median, 1.0, 0.1 * median
        timer[_OFF_COUNT] = timer[_BACK_COUNT] = 0.0
        timer[_BEGAN] = now
        return REST, 0.0, 0.0
    period = timer[_PERIOD]
    steps = np.rint((now - timer[_SLOT]) / period)
    predicted = timer[_SLOT] + steps * period
    distance = now - predicted
    gate = max(_GATE * timer[_SPREAD], _NARROWEST * period)
    is_judged = count >= _LEARNED and gate < _LOOSEST * period
    phase = np.log2(abs(distance) / gate + 1e-3) if is_judged and is_wanted else REST
    habit = timer[_EXCURSIONS] if is_judged else 0.0
    is_off = abs(distance) > gate
    if (is_off or count < _LEARNED) and _is_back(timer, now):
        return phase, timer[_OFF_COUNT], habit
    if is_judged and is_off:
        if timer[_OFF_COUNT] == 0.0:
            timer[_OFF_SINCE] = now
        timer[_OFF_COUNT] += 1.0
        if timer[_OFF_COUNT] == _EXCURSION:
            timer[_EXCURSIONS] += 1.0
        # What was learned for a short time is given up sooner: it may have been the attacker's.
        patience_s = min(max(_PATIENCE * (timer[_OFF_SINCE] - timer[_BEGAN]), _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
        if now - timer[_OFF_SINCE] > patience_s and timer[_OFF_COUNT] > _LEARNED / 2.0:
            give_up(timer)
            return phase, 0.0, habit
        # Single delays are followed, but slowly; a sender that stays off does not move the timer.
        distance = 0.0 if timer[_OFF_COUNT] >= _EXCURSION else gate if distance > 0.0 else -gate
    else:
        timer[_OFF_COUNT] = 0.0
        if is_judged:
            timer[_BACK_COUNT] = 0.0
        usual = _USUAL * timer[_SPREAD]
        timer[_SPREAD] += (abs(distance) - timer[_SPREAD]) / min(count, 64.0)
        # A sender that takes over near the timer pulls it by no more than what is usual.
        distance = min(max(distance, -usual), usual)
    if not is_calm:
        timer[_SLOT] = predicted
    elif steps > 0.0:
        count = min(count + 1.0, _MEMORY)
        timer[_COUNT] = count
        timer[_SLOT] = predicted + 2.0 * (2.0 * count - 1.0) / (count * (count + 1.0)) * distance
        timer[_PERIOD] = period + 6.0 / (count * (count + 1.0)) * distance / steps
    return phase, timer[_OFF_COUNT], habit


@njit(cache=True)
def _is_back(timer: NDArray[np.float64], now: float) -> Any:
    """Return whether three messages in a row keep to the timer before, which is followed again then."""
    period = timer[_BEFORE + _PERIOD]
    if period == 0.0:
        return False
    slot = timer[_BEFORE + _SLOT] + np.rint((now - timer[_BEFORE + _SLOT]) / period) * period
    if abs(now - slot) > max(_GATE * timer[_BEFORE + _SPREAD], _NARROWEST * period):
        timer[_BACK_COUNT] = 0.0
        return False
    timer[_BACK_COUNT] += 1.0
    if timer[_BACK_COUNT] < _EXCURSION:
        return False
    for column in range(_BEFORE):
        timer[column], timer[_BEFORE + column] = timer[_BEFORE + column], timer[column]
    if timer[_BEFORE + _COUNT] < _LEARNED:
        timer[_BEFORE + _PERIOD] = 0.0
    timer[_SLOT] = slot
    timer[_OFF_COUNT] = timer[_BACK_COUNT] = 0.0
    timer[_BEGAN] = now - 2.0 * _MOST_PATIENCE_S
    return True
