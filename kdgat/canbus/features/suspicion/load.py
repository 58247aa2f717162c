"""How full the bus is: identifiers that come too unevenly to be judged one by one are judged together."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.suspicion import habits as habit
from kdgat.canbus.features.suspicion.evidence import (
    EXCUSED,
    IS_ON,
    LOAD,
    LOAD_ACTIVE,
    LOAD_AT,
    LOAD_FRESH,
    LOAD_FULL,
    LOAD_LEARNS,
    LOAD_MOST,
    LOAD_SLICES,
    LOAD_WAITING,
    NUM_SLICES,
    START,
)

_SLICE_S: Final = 0.25  # NUM_SLICES of which are looked at together
_MANY, _STILL_MANY = 1.4, 1.2  # times the most messages that ever came, and in the last slice
_FEWEST = 50.0  # messages in which that shows
_EVEN_SHARE = 0.5  # of them are of identifiers that are judged one by one: nothing is said of all
_FREE_S, _WAKES_S = 8.0, 1.5  # from the beginning on, and since more of them came, what is learned counts at once
_NEWS_S, _CALMS = 30.0, 0.05  # of a fuller bus, which then is a state of the car; what a second without takes of it


@njit(cache=True)
def find_load(habits: NDArray[np.float64], bus: NDArray[np.float64], num_ids: int, now: float) -> Any:
    """Return, at the end of a slice in which the bus is fuller than ever, who came most often more; else -1.

    The same identifiers have to send it: that more of them come is a unit that wakes.
    """
    if now - bus[LOAD_AT] < _SLICE_S:
        return -1
    is_whole = now - bus[LOAD_AT] < 2.0 * _SLICE_S and now >= bus[EXCUSED]
    bus[LOAD_AT] = now
    bus[LOAD_SLICES] = bus[LOAD_SLICES] + 1.0 if is_whole else 0.0
    sent, sent_evenly, num_active, most, suspect = 0.0, 0.0, 0.0, 0.0, -1
    for one in range(num_ids):
        known = habits[one]
        came = known[habit.SEEN] - known[habit.SEEN_BEFORE]
        known[habit.SEEN_BEFORE] = known[habit.SEEN]
        if known[habit.SEEN] - came < habit.BELIEVED_AFTER or now - known[habit.FIRST] < 2.0 * habit.BELIEVED_S:
            continue
        num_active += known[habit.USUAL] < _SLICE_S and now - known[habit.LAST] < NUM_SLICES * _SLICE_S
        sent += came
        sent_evenly += came if habit.is_even(known) else 0.0
        if came > most:
            most, suspect = came, one
    bus[LOAD + np.int64(bus[LOAD_SLICES]) % NUM_SLICES] = sent
    if bus[LOAD_SLICES] < NUM_SLICES:
        return -1
    load = 0.0
    for place in range(NUM_SLICES):
        load += bus[LOAD + place]
    if num_active > bus[LOAD_ACTIVE] + 1.0:  # one alone does not fill a bus
        bus[LOAD_LEARNS] = now + _WAKES_S
    bus[LOAD_ACTIVE] = min(num_active, bus[LOAD_ACTIVE] + 1.0)
    if now < max(bus[LOAD_LEARNS], bus[START] + _FREE_S):
        bus[LOAD_MOST] = max(bus[LOAD_MOST], load)
    is_fuller = load > _MANY * bus[LOAD_MOST] >= _MANY * _FEWEST and sent_evenly < _EVEN_SHARE * sent
    bus[LOAD_FULL] = max(bus[LOAD_FULL] + (_SLICE_S if is_fuller else -_CALMS * _SLICE_S), 0.0)
    if bus[LOAD_FULL] > _NEWS_S:
        bus[LOAD_MOST], bus[LOAD_FULL] = max(bus[LOAD_MOST], load), 0.0
    if bus[IS_ON] == 0.0 and not is_fuller:
        bus[LOAD_FRESH] = max(bus[LOAD_FRESH], load)
    return suspect if is_fuller and NUM_SLICES * sent > _STILL_MANY * bus[LOAD_MOST] else -1


@njit(cache=True)
def commit_load(bus: NDArray[np.float64]) -> None:
    """Commit what has waited, and let what is fresh wait."""
    bus[LOAD_MOST] = max(bus[LOAD_MOST], bus[LOAD_WAITING])
    bus[LOAD_WAITING], bus[LOAD_FRESH] = bus[LOAD_FRESH], 0.0
