"""How full the bus is: identifiers that come too unevenly to be judged one by one are judged together."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.suspicion import habits as habit
from kdgat.canbus.features.suspicion.evidence import AT, NUM_SLICES

_SLICE_S: Final = 0.25  # NUM_SLICES of which are looked at together
_SPAN_S: Final = NUM_SLICES * _SLICE_S
_MANY, _STILL_MANY = 1.4, 1.2  # times the most messages that ever came, and in the last slice
_DRIFT = 1.2  # times what came in the free time, or its identifiers sent at first, that is learned later at most
_FEWEST = 50.0  # messages in which that shows
_EVEN_SHARE = 0.5  # of them are of identifiers that are judged one by one: nothing is said of all
_PAUSE_S, _FREE_S = 1.0, 8.0  # of the bus; from it and from the beginning on, what is learned counts at once
_NEWS_S, _CALMS = 30.0, 0.05  # of a fuller bus, which then is a state of the car; what a second without takes of it


@njit(cache=True)
def find_load(habits: NDArray[np.float64], bus: NDArray[np.float64], num_ids: int, now: float) -> Any:
    """Return, at the end of a slice in which the bus is fuller than ever, who sent most more than usual; else -1.

    Usual is the most that ever came, and what those who come now sent at first: who wakes adds that, and nothing that
    others send meanwhile.
    """
    if now - bus[AT.load_at] < _SLICE_S:
        return -1
    if now - bus[AT.load_at] > _PAUSE_S:
        bus[AT.load_free] = now + _FREE_S
    is_whole = now - bus[AT.load_at] < 2.0 * _SLICE_S and now >= bus[AT.excused]
    bus[AT.load_at] = now
    bus[AT.load_slices] = bus[AT.load_slices] + 1.0 if is_whole else 0.0
    sent, sent_evenly, expected, most, suspect = 0.0, 0.0, 0.0, 0.0, -1
    for one in range(num_ids):
        known = habits[one]
        came = known[habit.SEEN] - known[habit.SEEN_BEFORE]
        known[habit.SEEN_BEFORE] = known[habit.SEEN]
        age = now - known[habit.FIRST]
        if known[habit.SEEN] - came < habit.BELIEVED_AFTER or age < 2.0 * habit.BELIEVED_S:
            continue
        if known[habit.RATE] == 0.0:  # of what a profile knows, the usual one
            is_recalled = known[habit.IS_RECALLED] != 0.0
            known[habit.RATE] = 1.0 / max(known[habit.USUAL], 1e-3) if is_recalled else known[habit.SEEN] / age
        sent += came
        sent_evenly += came if habit.is_even(known) else 0.0
        expected += known[habit.RATE] if now - known[habit.LAST] < _SPAN_S else 0.0
        more = came - _SLICE_S * known[habit.RATE]
        if suspect < 0 or more > most:
            most, suspect = more, one
    bus[AT.load + np.int64(bus[AT.load_slices]) % NUM_SLICES] = sent
    if bus[AT.load_slices] < NUM_SLICES:
        return -1
    load = 0.0
    for place in range(NUM_SLICES):
        load += bus[AT.load + place]
    expected *= _SPAN_S
    if now < bus[AT.load_free]:
        bus[AT.load_most] = bus[AT.load_anchor] = max(bus[AT.load_most], load)
    usual = max(bus[AT.load_most], expected)
    is_more = load > _MANY * usual
    is_fuller = is_more and usual >= _FEWEST and sent_evenly < _EVEN_SHARE * sent
    bus[AT.load_full] = max(bus[AT.load_full] + (_SLICE_S if is_fuller else -_CALMS * _SLICE_S), 0.0)
    if bus[AT.load_full] > _NEWS_S:
        bus[AT.load_most], bus[AT.load_full] = load, 0.0
    # Slices that hold the end of an alarm are still in the sum for a while after it.
    if bus[AT.is_on] == 0.0 and not is_more and now - bus[AT.last_suspicion] > 1.5 * _SPAN_S:
        learned = min(load, _DRIFT * max(bus[AT.load_anchor], expected))
        bus[AT.load_fresh] = max(bus[AT.load_fresh], learned)
        bus[AT.load_next] = max(bus[AT.load_next], load)
    return suspect if is_fuller and NUM_SLICES * sent > _STILL_MANY * usual else -1


@njit(cache=True)
def commit_load(bus: NDArray[np.float64]) -> None:
    """Commit what has waited, and let what is fresh wait."""
    bus[AT.load_most] = max(bus[AT.load_most], bus[AT.load_waiting])
    bus[AT.load_waiting], bus[AT.load_fresh] = bus[AT.load_fresh], 0.0


@njit(cache=True)
def forget_load(bus: NDArray[np.float64]) -> None:
    """Keep what came again since this was called last, and at least what came in the free time."""
    bus[AT.load_most] = min(bus[AT.load_most], max(bus[AT.load_next], bus[AT.load_anchor]))
    bus[AT.load_next] = 0.0
