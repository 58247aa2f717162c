"""What speaks against one identifier, by its own habits, message by message."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.suspicion import habits as habit
from kdgat.canbus.features.suspicion.evidence import AT, NEED, Reason
from kdgat.canbus.features.suspicion.habits import COMMITTED, EVEN, NUM_SPANS, RING

_FACTORS = np.array([np.inf, np.inf, 1.8, 1.5, 1.25, 1.15])  # by which spans are too short, of an even identifier
_UNEVEN_FACTOR = 3.0
_SLACK_S = 0.003  # of jitter that every span is granted
_FEW_SLACK = 1.5  # times as much for 4 intervals
_EASE = 0.4  # of a factor for who is in alarm
_FORGED_S = 2.0
_FASTEST_S = 0.0018  # no car sends one identifier so fast for 32 messages
_STATE = 16.0  # intervals in a row that are alike: a new period of the car, which no irregular attacker meets by chance
_TIMER_KNOWN = 60.0  # intervals before one extra message counts
_FLUSHED_S = 0.5  # from a log's beginning, in which its recorder may deliver what has waited
_MOST_MISSING, _CREDIT_S = 32.0, 5.0  # messages that a sender's queue keeps, and that long from one delay to the next
_BITS, _BITS_SHARE = 7.0, 0.36  # that change in each of four messages: more than ever, and of all bits
_SHORT, _SHORT_KNOWN = 4.0, 75.0  # bytes of a payload in which fewer are many, and intervals before that is known


@njit(cache=True)
def judge_message(
    known: NDArray[np.float64],
    curve: NDArray[np.float64],
    times: NDArray[np.float64],
    bus: NDArray[np.float64],
    now: float,
    changed: Any,
    num_bytes: float,
) -> tuple[int, float]:
    """Judge a message by the habits of its identifier, and learn from it; return reason and weight of the evidence."""
    known[habit.SEEN] += 1.0
    interval = now - known[habit.LAST]
    believed = habit.is_believed(known, now)
    known[habit.LATE_SINCE] = 0.0
    has_paused = known[habit.LAST] < bus[AT.resumed_at]
    if has_paused:
        known[habit.KEPT] = 0.0
    has_interval = not has_paused and known[habit.IS_UNTIMED] == 0.0
    known[habit.IS_UNTIMED] = 0.0
    kept = np.int64(known[habit.KEPT])
    times[kept & (RING - 1)] = now
    known[habit.KEPT] += 1.0
    is_due = believed and has_interval and _is_due(known, times, kept, now, interval)
    run = known[habit.RUN_INTERVAL]
    if abs(interval - run) < 0.12 * run + min(0.0012, 0.1 * run):
        known[habit.RUN] += 1.0
    else:
        known[habit.RUN], known[habit.RUN_INTERVAL], known[habit.RUN_SINCE] = 0.0, interval, known[habit.LAST]
    is_flushed = known[habit.IS_RECALLED] != 0.0 and now - bus[AT.start] < _FLUSHED_S
    is_on, is_excused = bus[AT.is_on] != 0.0, now < bus[AT.excused] or is_flushed
    reason, weight, is_suspicious, is_extra = Reason.NOTHING, 0.0, False, False
    if believed and has_interval:
        usual, shortest = known[habit.USUAL], curve[COMMITTED, 0]
        is_extra = not is_due and shortest < np.inf and interval < 0.7 * shortest - 0.0005
        if _are_too_many(known, curve, times, kept, now, is_on):
            is_suspicious = True
            apart = 2.5 * max(usual, interval)
            is_clean = known[habit.RUN] >= 3.0 and now - known[habit.RUN_SINCE] <= apart
            if known[habit.RUN] >= _STATE and now - known[habit.RUN_SINCE] > 2.5 * usual and interval > 0.002:
                habit.adopt(known, curve, times, now)
            elif not is_excused and not is_clean:
                reason, weight = Reason.TOO_MANY, weight + 1.0
        if not is_excused and not is_due and _is_one_extra(known, curve, interval):
            is_suspicious = True
            reason, weight = Reason.EXTRA, weight + 2.0
    if is_on and is_extra and known[habit.GUILTY_UNTIL] > now and not is_excused:
        reason, weight = (Reason.TOO_MANY if reason == Reason.NOTHING else reason), weight + 1.0
    if reason != Reason.NOTHING and not habit.accuse(known, now):
        reason, weight = Reason.NOTHING, 0.0
    _keep_usual_times(known, curve, times, kept, now, interval, believed)
    bits = _note_bits(known, np.float64(habit.num_changed(changed)))
    if known[habit.LEARNED] >= habit.PAYLOADS_KNOWN and now - known[habit.FIRST] > habit.BELIEVED_S:
        weight_of_bits = _weigh_bits(known, bits, num_bytes, now, is_on)
        if weight_of_bits > 0.0:
            is_suspicious = True
            reason, weight = Reason.PAYLOAD, weight + weight_of_bits
            known[habit.FORGED_UNTIL] = now + _FORGED_S
    elif not is_on:
        known[habit.MOST_BITS] = max(known[habit.MOST_BITS], bits)
    if is_suspicious:
        bus[AT.last_suspicion] = now
    if not is_on and has_interval and not is_suspicious:
        if not is_due:
            if not is_extra:
                habit.learn_usual(known, interval)
            habit.learn_times(known, curve, times, now, interval)
        known[habit.BITS_FRESH] = max(known[habit.BITS_FRESH], bits)
    if not believed and not is_on:
        habit.believe_at_once(known, curve)
    known[habit.INTERVAL_BEFORE], known[habit.INTERVAL], known[habit.LAST] = known[habit.INTERVAL], interval, now
    return reason, weight


@njit(cache=True)
def _is_due(known: NDArray[np.float64], times: NDArray[np.float64], kept: Any, now: float, interval: float) -> bool:
    """Return whether a message waited in its sender's queue, which sends at once what it could not send before.

    As many messages are due as did not come, once in some seconds; the ring then has the times at which they were due.
    """
    usual = known[habit.USUAL]
    if interval > 1.5 * usual:
        is_rare = now - known[habit.MISSING_SINCE] > _CREDIT_S
        known[habit.MISSING] = min(interval / usual - 1.0, _MOST_MISSING) if is_rare and habit.is_even(known) else 0.0
        known[habit.MISSING_SINCE] = now if is_rare else known[habit.MISSING_SINCE]
        known[habit.LONGEST_BEFORE] = known[habit.LONGEST_FRESH]
        return False
    if known[habit.MISSING] < 0.5 or kept < 2:
        return False
    if interval > 0.7 * usual:
        known[habit.MISSING] *= 0.5
        return False
    known[habit.MISSING] -= 1.0 - interval / usual
    known[habit.LONGEST_FRESH] = known[habit.LONGEST_BEFORE]  # what waited was no longer away than ever
    newest, last = kept & (RING - 1), (kept - 1) & (RING - 1)
    times[last] = min(times[last], times[(kept - 2) & (RING - 1)] + usual)
    times[newest] = min(times[newest], times[last] + usual)
    return True


@njit(cache=True)
def _are_too_many(
    known: NDArray[np.float64],
    curve: NDArray[np.float64],
    times: NDArray[np.float64],
    kept: Any,
    now: float,
    is_on: bool,
) -> bool:
    """Return whether more messages came within a time than ever, the newest four of them, too."""
    is_even, usual = habit.is_even(known), known[habit.USUAL]
    for place in range(2 if is_even else 4, NUM_SPANS):
        steps = 1 << place
        if kept < steps or curve[COMMITTED, place] == np.inf:
            continue
        factor = _FACTORS[place] if is_even else _UNEVEN_FACTOR
        if is_on and known[habit.GUILTY_UNTIL] > now:
            factor = 1.0 + (factor - 1.0) * _EASE
        least = min(curve[COMMITTED, place], 0.97 * steps * usual)
        span = now - times[(kept - steps) & (RING - 1)]
        if least > factor * span + _SLACK_S * (1.0 if place > 2 else _FEW_SLACK):
            newest = now - times[(kept - 4) & (RING - 1)]
            if newest < 0.85 * min(curve[COMMITTED, 2], 3.9 * usual):
                return True
    return False


@njit(cache=True)
def _is_one_extra(known: NDArray[np.float64], curve: NDArray[np.float64], interval: float) -> Any:
    """Return whether a message came between two that keep the timer."""
    usual, before = known[habit.USUAL], known[habit.INTERVAL]
    return (
        habit.is_even(known)
        and known[habit.LEARNED] >= _TIMER_KNOWN
        and curve[COMMITTED, 0] > 0.75 * usual
        and known[habit.LONGEST] < 1.4 * usual
        and interval < 0.7 * usual
        and before < 0.7 * usual
        and abs(interval + before - usual) < 0.12 * usual + 0.0005
        and usual > 0.004
    )


@njit(cache=True)
def _keep_usual_times(
    known: NDArray[np.float64],
    curve: NDArray[np.float64],
    times: NDArray[np.float64],
    kept: Any,
    now: float,
    interval: float,
    believed: bool,
) -> None:
    """Let what came before be over after two usual intervals in a row."""
    if not believed or interval < 0.9 * curve[COMMITTED, 0]:
        known[habit.CALM_RUN] = 0.0
        known[habit.UNUSUAL] += 1.0
        return
    known[habit.CALM_RUN] += 1.0
    if known[habit.CALM_RUN] == 2.0 and kept > 3 and known[habit.UNUSUAL] > 0.0:
        before, last = times[(kept - 2) & (RING - 1)], times[(kept - 1) & (RING - 1)]
        times[0], times[1], times[2] = before, last, now
        known[habit.KEPT], known[habit.UNUSUAL] = 3.0, 0.0


@njit(cache=True)
def _note_bits(known: NDArray[np.float64], changed: float) -> float:
    """Note how many bits a message changed; return the fewest of the last four."""
    known[habit.BITS + (np.int64(known[habit.SEEN]) & 3)] = changed
    return min(min(known[habit.BITS], known[habit.BITS + 1]), min(known[habit.BITS + 2], known[habit.BITS + 3]))


@njit(cache=True)
def _weigh_bits(known: NDArray[np.float64], bits: float, num_bytes: float, now: float, is_on: bool) -> float:
    """Return what the bits that changed in the last four messages weigh."""
    if num_bytes < 1.0 or known[habit.EVENNESS] <= EVEN:
        return 0.0
    if num_bytes < _SHORT and known[habit.LEARNED] < _SHORT_KNOWN:
        return 0.0
    more = _BITS * min(num_bytes, _SHORT) / _SHORT
    many = _BITS_SHARE * 8.0 * num_bytes
    if bits >= max(known[habit.MOST_BITS] + more, many):
        return NEED if bits >= known[habit.MOST_BITS] + 2.0 * more else 1.5
    is_still = bits >= max(known[habit.MOST_BITS] + 0.5 * more, 0.8 * many)
    return 1.0 if is_on and known[habit.FORGED_UNTIL] > now and is_still else 0.0


@njit(cache=True)
def is_flood(
    known: NDArray[np.float64],
    curve: NDArray[np.float64],
    times: NDArray[np.float64],
    bus: NDArray[np.float64],
    now: float,
) -> Any:
    """Return whether the last 32 messages of an identifier came faster than any car sends one."""
    kept = np.int64(known[habit.KEPT])
    if kept <= 32 or now < bus[AT.excused]:
        return False
    span, known_span = now - times[(kept - 33) & (RING - 1)], curve[COMMITTED, NUM_SPANS - 1]
    is_known = known[habit.LEARNED] > 400.0 and now - known[habit.FIRST] > 10.0
    return span < 32.0 * _FASTEST_S and (
        known_span == np.inf or span < 0.6 * known_span or known[habit.IS_STRANGER] != 0.0 or not is_known
    )
