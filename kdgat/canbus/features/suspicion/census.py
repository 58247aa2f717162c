"""What a look at all identifiers shows: many that come once, one that is new and fast, one that alone is silent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.suspicion import habits as habit
from kdgat.canbus.features.suspicion.evidence import AT, NEED, Reason
from kdgat.canbus.features.suspicion.habits import RING

_FRESH_S = 0.03  # in which another one has come
_ONCE = 14  # identifiers that came once or twice and not again,
_ABSENT_S = 0.5  # or of an earlier attack, after so long,
_LOOKS = 3.0  # in a row that find so many
_NEW_S = 0.015  # usual interval of a new identifier that came alone
_LATE, _AGAIN, _LATE_S = 5.0, 1.25, 0.25  # times the longest interval that came twice, and once; seconds at least
_LATE_AGE_S = 5.0  # of an identifier before it is waited for
_LATE_END_S = 5.0  # then it is gone
_EVENLY_LATE, _FAST_S = 1.6, 0.025  # longest interval over the usual one, or that one itself


@njit(cache=True)
def look_at_all(
    habits: NDArray[np.float64], ring: NDArray[np.float64], bus: NDArray[np.float64], num_ids: int, now: float
) -> tuple[int, int, float]:
    """Look at all identifiers: who came once and not again, who is new and fast, who alone is silent."""
    is_on, resumed = bus[AT.is_on] != 0.0, bus[AT.resumed_at]
    num_once, stranger, newest, num_late, late, num_later, is_fresh = 0, -1, -1, 0, -1, 0, False
    for one in range(num_ids):
        known = habits[one]
        seen, first, last = known[habit.SEEN], known[habit.FIRST], known[habit.LAST]
        if seen == 0.0:
            continue
        age, silent = now - first, now - last
        came_once = 0.1 < age < 0.4 and seen <= 2.0 and known[habit.IS_OF_UNIT] == 0.0
        was_absent = known[habit.RUN] == 0.0 and known[habit.INTERVAL] > _ABSENT_S
        came_again = known[habit.IS_OF_ATTACK] != 0.0 and silent < 0.3 and was_absent
        comes_again = came_again or (is_on and bus[AT.is_fuzzed] != 0.0 and _comes_at_random(known, bus, now))
        if came_once or comes_again:
            num_once, stranger = num_once + 1, one
        is_fresh = is_fresh or (silent < _FRESH_S and (seen <= 2.0 or comes_again))
        is_young = age < _LATE_END_S + 1.0 and first - bus[AT.start] > 5.0 and first - resumed > 2.0
        if is_young and seen >= 16.0 and silent < 0.04:
            newest = one
        if known[habit.IS_STRANGER] != 0.0 or known[habit.LEARNED] < 60.0:
            continue
        if last < resumed and known[habit.LATE_SINCE] == 0.0:
            continue
        longest = known[habit.LONGEST]
        if longest <= 0.0 or last - first < _LATE_AGE_S or silent > _LATE_END_S + 5.0 or known[habit.TIMES_LATE] > 3.0:
            continue
        num_later += silent > 1.5 * longest + 0.02
        evenly = longest < max(_EVENLY_LATE * known[habit.USUAL], _FAST_S)
        if evenly and silent > max(_LATE * longest, _AGAIN * known[habit.LONGEST_ONCE], _LATE_S):
            if known[habit.LATE_SINCE] == 0.0:
                known[habit.LATE_SINCE] = now
                known[habit.TIMES_LATE] += 1.0
            if now - known[habit.LATE_SINCE] < _LATE_END_S:
                num_late, late = num_late + 1, one
    reason, suspect, weight = Reason.NOTHING, -1, 0.0
    if num_once >= _ONCE and is_fresh and now - bus[AT.start] > 3.0 and now - resumed > 2.0:
        bus[AT.num_strange] += 1.0
        reason, suspect, weight = Reason.STRANGERS, stranger, NEED if bus[AT.num_strange] >= _LOOKS else 0.0
        bus[AT.last_suspicion] = now
        if bus[AT.is_fuzzed] == 0.0:
            bus[AT.is_fuzzed], bus[AT.fuzzed_since] = 1.0, now - 1.0
    else:
        bus[AT.num_strange] = 0.0
        if not is_on:  # it was a single look, and no attack
            bus[AT.is_fuzzed] = 0.0
    if newest >= 0 and _came_alone(habits, newest, num_ids) and habits[newest, habit.KEPT] > 16.0:
        kept = np.int64(habits[newest, habit.KEPT]) - 1
        if ring[newest, kept & (RING - 1)] - ring[newest, (kept - 16) & (RING - 1)] < 16.0 * _NEW_S:
            reason, suspect, weight = Reason.NEW, newest, weight + NEED
            habits[newest, habit.IS_STRANGER] = 1.0
    if num_late == 1 and num_later == 1:  # several that fall silent together are a unit that sleeps
        reason, suspect, weight = Reason.SILENT, late, weight + NEED
    return reason, suspect, weight


@njit(cache=True)
def _comes_at_random(known: NDArray[np.float64], bus: NDArray[np.float64], now: float) -> Any:
    """Return whether an identifier that first came in an attack by random ones comes at no usual interval."""
    seen, interval, before = known[habit.SEEN], known[habit.INTERVAL], known[habit.INTERVAL_BEFORE]
    return (
        seen > 2.0
        and now - known[habit.FIRST] > 0.3 * seen
        and now - known[habit.LAST] < 0.3
        and known[habit.FIRST] > bus[AT.fuzzed_since]
        and abs(interval - before) > 0.3 * max(interval, before)
    )


@njit(cache=True)
def _came_alone(habits: NDArray[np.float64], newest: int, num_ids: int) -> bool:
    first = habits[newest, habit.FIRST]
    for one in range(num_ids):
        if one != newest and habits[one, habit.SEEN] > 0.0 and abs(habits[one, habit.FIRST] - first) < 1.0:
            return False
    return True
