"""What speaks against an identifier, message by message, and when it is enough for an alarm: no training, no profile.

Evidence against an identifier adds up, halves with time, and becomes an alarm at a threshold:

* more messages within a time than ever (`kdgat.canbus.features.habits`), by a factor; where an identifier is not even,
  by a larger one, over 16 intervals and more;
* one extra message between two that keep the timer;
* almost all bits change in each of four messages, which never happened before;
* 32 messages faster than any car sends one identifier, also before anything was learned;
* many identifiers that come once and not again;
* an identifier with an even timer that alone falls silent; it is no news after some seconds;
* a new identifier that comes alone and is fast at once; no news after some seconds.

A new period that is clean (the old timer does not come in between) is a state of the car. An alarm ends .3 s
after its last evidence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features import habits as habit
from kdgat.canbus.features.bus_time import RESUMED, UNTIMED
from kdgat.canbus.features.features import popcount
from kdgat.canbus.features.habits import COMMITTED, NUM_SPANS, RING
from kdgat.canbus.features.memory import IdentifierNumbers, Numbered, untouched

NOTHING, TOO_MANY, EXTRA, PAYLOAD, FAST, STRANGERS, SILENT, NEW = range(8)  # reasons

_FACTORS = np.array([np.inf, np.inf, 1.8, 1.5, 1.25, 1.15])  # by which spans are too short, of an even identifier
_UNEVEN_FACTOR = 3.0
_EVEN = 0.9  # share of intervals near the usual one
_SLACK_S = 0.003  # of jitter that every span is granted
_FEW_SLACK = 1.5  # times as much for 4 intervals
_NEED, _NEED_OF_TIMES = 3.0, 5.0  # evidence for an alarm; one event may bring some messages too many
_HALF_S, _HALF_INTERVALS = 0.5, 4.0  # in which evidence halves
_EASE = 0.4  # of a factor for who is in alarm
_HOLD_S = 0.3  # an alarm outlives its last evidence
_FORGED_S = 2.0
_FASTEST_S = 0.0018  # no car sends one identifier so fast for 32 messages
_SCAN_S = 0.02  # between two looks at all identifiers
_ONCE = 14  # identifiers that came once or twice and not again,
_ABSENT_S = 0.5  # or of an earlier attack, after so long
_NEW_S = 0.015  # usual interval of a new identifier that came alone
_LATE, _LATE_S = 5.0, 0.25  # times the longest interval, seconds at least
_LATE_AGE_S = 5.0  # of an identifier before it is waited for
_LATE_END_S = 5.0  # then it is gone
_EVENLY_LATE = 1.6  # longest interval over the usual one
_TIMER_KNOWN = 60.0  # intervals before one extra message counts
_BITS, _BITS_SHARE = 7.0, 0.36  # that change in each of four messages: more than ever, and of all bits
_STALL_S, _STALL_GAPS, _SHORT_STALL_S = 0.1, 8.0, 0.004

# Columns of the state of the bus.
(
    _HAS_BEGUN,
    _NOW,
    _START,
    _SLICE,
    _USUAL_GAP,
    _NUM_GAPS,
    _EXCUSED,
    _RESUMED_AT,
    _IS_ON,
    _LAST_EVIDENCE,
    _LAST_SUSPICION,
    _GENERATION,
    _NEXT_SCAN,
    _IS_FUZZED,
    _FUZZED_SINCE,
    _NUM_STRANGE,  # looks in a row that found many identifiers that came once: no single one adds up
) = range(16)
_NUM_BUS = 16


class Suspicions(NamedTuple):
    """What speaks against M messages."""

    is_alarm: NDArray[np.bool_]  # [M] there is, or was .3 s ago, evidence enough
    reason: NDArray[np.int8]  # [M] of the newest evidence that this message brought: NOTHING, TOO_MANY, ..
    suspect: NDArray[np.uint32]  # [M] the identifier that it speaks against, if there is a reason


def nothing_suspicious(num_messages: int) -> Suspicions:
    """Return that nothing speaks against so many messages."""
    return Suspicions(
        np.zeros(num_messages, np.bool_), np.zeros(num_messages, np.int8), np.zeros(num_messages, np.uint32)
    )


class WindowSuspicions(NamedTuple):
    """What speaks against G windows."""

    is_alarm: NDArray[np.bool_]  # [G] some message of it is
    reason: NDArray[np.int8]  # [G] of its newest evidence; NOTHING where all of it came before
    suspect: NDArray[np.uint32]  # [G] the identifier that it speaks against, if there is a reason

    @staticmethod
    def none() -> WindowSuspicions:
        """Return what speaks against no windows."""
        return WindowSuspicions(*nothing_suspicious(0))

    @staticmethod
    def of(
        is_alarm: NDArray[np.bool_],
        reason: NDArray[np.int8],
        suspect: NDArray[np.uint32],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> WindowSuspicions:
        """Return what speaks against windows of messages [M], given as rows from which and up to which they are [G]."""
        if not len(starts):
            return WindowSuspicions.none()
        before = np.concatenate([[0], np.cumsum(is_alarm)])
        rows = np.where(reason != NOTHING, np.arange(len(reason)), -1)
        newest = np.maximum.accumulate(rows)[stops - 1]
        has_reason = newest >= starts
        newest = np.where(has_reason, newest, 0)
        return WindowSuspicions(
            before[stops] > before[starts],
            np.where(has_reason, reason[newest], NOTHING).astype(np.int8),
            np.where(has_reason, suspect[newest], 0).astype(np.uint32),
        )


class SuspicionState:
    """Hold the habits of a recording's identifiers, and the evidence against them; pieces give what the whole does."""

    def __init__(self) -> None:
        self._habits: NDArray[np.float64] = np.zeros((0, habit.NUM_HABITS))
        self._curves: NDArray[np.float64] = np.zeros((0, 4, NUM_SPANS))
        self._ring: NDArray[np.float64] = np.zeros((0, RING))
        self._payload: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._identifier: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._bus = np.zeros(_NUM_BUS)

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is known."""
        known = (self._habits, self._curves, self._ring, self._payload, self._identifier)
        return sum(array.nbytes for array in known)

    def count_judged(self) -> tuple[int, int]:
        """Count the identifiers that come evenly and often enough to be judged, and those that come often enough."""
        seen = self._habits[:, habit.SEEN] > habit.BELIEVED_AFTER
        is_even = (self._habits[:, habit.LEARNED] >= habit.BELIEVED_AFTER) & (self._habits[:, habit.EVENNESS] > _EVEN)
        return int((seen & is_even).sum()), int(seen.sum())

    def judge(
        self,
        time: NDArray[np.float64],
        identifier: NDArray[np.uint32],
        numbered: Numbered,
        payload: NDArray[np.uint64],
        length: NDArray[np.uint8],
        breaks: NDArray[np.int8],
    ) -> Suspicions:
        """Judge the next M messages, in one causal pass.

        Arguments: seconds on the bus, which never fall [M], identifiers [M], the same by number [M], payload as
        little-endian words [M], bytes of it [M], and the breaks of BusTime [M].
        """
        if numbered.num_numbers > len(self._habits):
            most = IdentifierNumbers.most
            self._habits, self._ring = untouched((most, habit.NUM_HABITS)), untouched((most, RING))
            self._curves, self._payload = untouched((most, 4, NUM_SPANS)), untouched(most, np.uint64)
            self._identifier = untouched(most, np.uint32)
        found = nothing_suspicious(len(time))
        _judge(
            time, identifier, numbered.number, numbered.is_new, payload, length, breaks, numbered.num_numbers,
            self._habits, self._curves, self._ring, self._payload, self._identifier, self._bus, *found,
        )  # fmt: skip
        return found


@njit(cache=True, nogil=True)
def _judge(
    time: NDArray[np.float64],
    identifiers: NDArray[np.uint32],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    payload: NDArray[np.uint64],
    length: NDArray[np.uint8],
    breaks: NDArray[np.int8],
    num_ids: int,
    habits: NDArray[np.float64],
    curves: NDArray[np.float64],
    ring: NDArray[np.float64],
    payloads: NDArray[np.uint64],
    identifier_of: NDArray[np.uint32],
    bus: NDArray[np.float64],
    is_alarm: NDArray[np.bool_],
    reasons: NDArray[np.int8],
    suspects: NDArray[np.uint32],
) -> None:
    for message in range(len(time)):
        number = numbers[message]
        identifier_of[number] = identifiers[message]
        known, curve, times, now = habits[number], curves[number], ring[number], time[message]
        if breaks[message] == UNTIMED:
            if is_new[message]:
                habit.begin(known, curve, times, now)
            else:
                habit.note_untimed(known, times, now)
            payloads[number] = payload[message]
            is_alarm[message] = bus[_IS_ON] != 0.0
            continue
        if bus[_HAS_BEGUN] == 0.0:
            bus[:] = -1e9
            bus[_HAS_BEGUN], bus[_IS_ON], bus[_IS_FUZZED], bus[_NUM_GAPS], bus[_USUAL_GAP] = 1.0, 0.0, 0.0, 0.0, 0.0
            bus[_NUM_STRANGE] = 0.0
            bus[_NOW] = bus[_START] = bus[_SLICE] = bus[_GENERATION] = now
            bus[_NEXT_SCAN] = now + _SCAN_S
        _heed_stall(bus, now, breaks[message] == RESUMED)
        bus[_NOW] = now
        reason, suspect, weight = NOTHING, number, 0.0
        if is_new[message]:
            habit.begin(known, curve, times, now)
        else:
            reason, weight = _judge_message(
                known, curve, times, bus, now, payload[message] ^ payloads[number], float(length[message])
            )
        payloads[number] = payload[message]
        if _is_flood(known, curve, times, bus, now):
            reason, weight = FAST, weight + 1.0
            bus[_LAST_SUSPICION] = now
            if bus[_IS_ON] != 0.0:
                known[habit.IS_STRANGER] = 1.0
        if now >= bus[_NEXT_SCAN]:
            bus[_NEXT_SCAN] = now + _SCAN_S
            found, scanned, weight_of_scan = _scan(habits, ring, bus, num_ids, now)
            if found != NOTHING:
                reason, weight = found, weight + weight_of_scan
                suspect = scanned
        if weight > 0.0:
            reasons[message], suspects[message] = reason, identifier_of[suspect]
            _weigh(habits[suspect], bus, now, reason, weight)
        if bus[_IS_ON] != 0.0 and now - bus[_LAST_EVIDENCE] > _HOLD_S:
            habit.roll_back(habits, curves, num_ids, bus[_FUZZED_SINCE] if bus[_IS_FUZZED] != 0.0 else np.inf)
            bus[_IS_ON] = bus[_IS_FUZZED] = 0.0
            bus[_SLICE] = now
        is_alarm[message] = bus[_IS_ON] != 0.0
        if bus[_IS_ON] == 0.0 and now - bus[_SLICE] > habit.COMMIT_S:
            if now - bus[_LAST_SUSPICION] > habit.CALM_S:
                habit.commit(habits, curves, num_ids, now)
            bus[_SLICE] = now
            if now - bus[_GENERATION] > habit.FORGOTTEN_S:
                bus[_GENERATION] = now
                habit.forget(habits, curves, num_ids)


@njit(cache=True)
def _heed_stall(bus: NDArray[np.float64], now: float, has_resumed: bool) -> None:
    """Excuse what queued up while bus or recorder stood still, and wait for nobody who came before."""
    gap = now - bus[_NOW]
    if has_resumed:
        bus[_RESUMED_AT], bus[_EXCUSED] = now, now + 0.5
    elif bus[_NUM_GAPS] > 64.0 and gap > max(_STALL_GAPS * bus[_USUAL_GAP], _SHORT_STALL_S):
        if gap > _STALL_S:
            bus[_EXCUSED] = now + min(2.0 * gap, 0.5)
            bus[_RESUMED_AT] = now
    elif gap > 0.0:
        bus[_USUAL_GAP] += (gap - bus[_USUAL_GAP]) / min(bus[_NUM_GAPS] + 1.0, 512.0)
        bus[_NUM_GAPS] += 1.0


@njit(cache=True)
def _judge_message(
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
    has_paused = known[habit.LAST] < bus[_RESUMED_AT]
    if has_paused:
        known[habit.KEPT] = 0.0
    has_interval = not has_paused and known[habit.IS_UNTIMED] == 0.0
    known[habit.IS_UNTIMED] = 0.0
    kept = np.int64(known[habit.KEPT])
    times[kept & (RING - 1)] = now
    known[habit.KEPT] += 1.0
    run = known[habit.RUN_INTERVAL]
    if abs(interval - run) < 0.12 * run + min(0.0012, 0.1 * run):
        known[habit.RUN] += 1.0
    else:
        known[habit.RUN], known[habit.RUN_INTERVAL], known[habit.RUN_SINCE] = 0.0, interval, known[habit.LAST]
    is_on, is_excused = bus[_IS_ON] != 0.0, now < bus[_EXCUSED]
    reason, weight, is_suspicious, is_extra = NOTHING, 0.0, False, False
    if believed and has_interval:
        usual, shortest = known[habit.USUAL], curve[COMMITTED, 0]
        is_extra = shortest < np.inf and interval < 0.7 * shortest - 0.0005
        if _are_too_many(known, curve, times, kept, now, is_on):
            is_suspicious = True
            apart = 2.5 * max(usual, interval)
            is_clean = known[habit.RUN] >= 3.0 and now - known[habit.RUN_SINCE] <= apart
            if known[habit.RUN] >= 6.0 and now - known[habit.RUN_SINCE] > 2.5 * usual and interval > 0.002:
                habit.adopt(known, curve, times, now)
            elif not is_excused and not is_clean:
                reason, weight = TOO_MANY, weight + 1.0
        if not is_excused and _is_one_extra(known, curve, interval):
            is_suspicious = True
            reason, weight = EXTRA, weight + 2.0
    if is_on and is_extra and known[habit.GUILTY_UNTIL] > now and not is_excused:
        reason, weight = (TOO_MANY if reason == NOTHING else reason), weight + 1.0
    if reason != NOTHING and not habit.accuse(known, now):
        reason, weight = NOTHING, 0.0
    _keep_usual_times(known, curve, times, kept, now, interval, believed)
    bits = _note_bits(known, np.float64(popcount(changed)))
    if known[habit.LEARNED] >= habit.PAYLOADS_KNOWN and now - known[habit.FIRST] > habit.BELIEVED_S:
        weight_of_bits = _weigh_bits(known, bits, num_bytes, now, is_on)
        if weight_of_bits > 0.0:
            is_suspicious = True
            reason, weight = PAYLOAD, weight + weight_of_bits
            known[habit.FORGED_UNTIL] = now + _FORGED_S
    elif not is_on:
        known[habit.MOST_BITS] = max(known[habit.MOST_BITS], bits)
    if is_suspicious:
        bus[_LAST_SUSPICION] = now
    if not is_on and has_interval and not is_suspicious:
        if not is_extra:
            habit.learn_usual(known, interval)
        habit.learn_times(known, curve, times, now, interval)
        known[habit.BITS_FRESH] = max(known[habit.BITS_FRESH], bits)
    if not believed and not is_on:
        habit.believe_at_once(known, curve)
    known[habit.INTERVAL_BEFORE], known[habit.INTERVAL], known[habit.LAST] = known[habit.INTERVAL], interval, now
    return reason, weight


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
    is_even, usual = known[habit.EVENNESS] > _EVEN, known[habit.USUAL]
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
        known[habit.EVENNESS] > _EVEN
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
    if num_bytes < 4.0 or known[habit.EVENNESS] <= _EVEN:
        return 0.0
    many = _BITS_SHARE * 8.0 * num_bytes
    if bits >= max(known[habit.MOST_BITS] + _BITS, many):
        return _NEED if bits >= known[habit.MOST_BITS] + 2.0 * _BITS else 1.5
    is_still = bits >= max(known[habit.MOST_BITS] + 0.5 * _BITS, 0.8 * many)
    return 1.0 if is_on and known[habit.FORGED_UNTIL] > now and is_still else 0.0


@njit(cache=True)
def _is_flood(
    known: NDArray[np.float64],
    curve: NDArray[np.float64],
    times: NDArray[np.float64],
    bus: NDArray[np.float64],
    now: float,
) -> Any:
    """Return whether the last 32 messages of an identifier came faster than any car sends one."""
    kept = np.int64(known[habit.KEPT])
    if kept <= 32 or now < bus[_EXCUSED]:
        return False
    span, known_span = now - times[(kept - 33) & (RING - 1)], curve[COMMITTED, NUM_SPANS - 1]
    is_known = known[habit.LEARNED] > 400.0 and now - known[habit.FIRST] > 10.0
    return span < 32.0 * _FASTEST_S and (
        known_span == np.inf or span < 0.6 * known_span or known[habit.IS_STRANGER] != 0.0 or not is_known
    )


@njit(cache=True)
def _scan(
    habits: NDArray[np.float64], ring: NDArray[np.float64], bus: NDArray[np.float64], num_ids: int, now: float
) -> tuple[int, int, float]:
    """Look at all identifiers: who came once and not again, who is new and fast, who alone is silent."""
    is_on, resumed = bus[_IS_ON] != 0.0, bus[_RESUMED_AT]
    num_once, stranger, newest, num_late, late, num_later = 0, -1, -1, 0, -1, 0
    for one in range(num_ids):
        known = habits[one]
        seen, first, last = known[habit.SEEN], known[habit.FIRST], known[habit.LAST]
        if seen == 0.0:
            continue
        age, silent = now - first, now - last
        came_once = 0.1 < age < 0.4 and seen <= 2.0
        came_again = known[habit.IS_OF_ATTACK] != 0.0 and silent < 0.3 and known[habit.RUN] == 0.0
        came_again = came_again and known[habit.INTERVAL] > _ABSENT_S
        if came_once or came_again or (is_on and bus[_IS_FUZZED] != 0.0 and _comes_at_random(known, bus, now)):
            num_once, stranger = num_once + 1, one
        is_young = age < _LATE_END_S + 1.0 and first - bus[_START] > 5.0 and first - resumed > 2.0
        if is_young and seen >= 16.0 and silent < 0.1:
            newest = one
        if known[habit.IS_STRANGER] != 0.0 or known[habit.LEARNED] < 60.0:
            continue
        if last < resumed and known[habit.LATE_SINCE] == 0.0:
            continue
        longest = known[habit.LONGEST]
        if longest <= 0.0 or last - first < _LATE_AGE_S or silent > _LATE_END_S + 5.0 or known[habit.TIMES_LATE] > 3.0:
            continue
        num_later += silent > 1.5 * longest + 0.02
        if longest < _EVENLY_LATE * known[habit.USUAL] and silent > max(_LATE * longest, _LATE_S):
            if known[habit.LATE_SINCE] == 0.0:
                known[habit.LATE_SINCE] = now
                known[habit.TIMES_LATE] += 1.0
            if now - known[habit.LATE_SINCE] < _LATE_END_S:
                num_late, late = num_late + 1, one
    reason, suspect, weight = NOTHING, -1, 0.0
    if num_once >= _ONCE and now - bus[_START] > 3.0 and now - resumed > 2.0:
        bus[_NUM_STRANGE] += 1.0
        reason, suspect, weight = STRANGERS, stranger, _NEED if bus[_NUM_STRANGE] >= _NEED else 0.0
        bus[_LAST_SUSPICION] = now
        if bus[_IS_FUZZED] == 0.0:
            bus[_IS_FUZZED], bus[_FUZZED_SINCE] = 1.0, now - 1.0
    else:
        bus[_NUM_STRANGE] = 0.0
    if newest >= 0 and _came_alone(habits, newest, num_ids) and habits[newest, habit.KEPT] > 16.0:
        kept = np.int64(habits[newest, habit.KEPT]) - 1
        if ring[newest, kept & (RING - 1)] - ring[newest, (kept - 16) & (RING - 1)] < 16.0 * _NEW_S:
            reason, suspect, weight = NEW, newest, weight + _NEED
            habits[newest, habit.IS_STRANGER] = 1.0
    if num_late == 1 and num_later == 1:  # several that fall silent together are a unit that sleeps
        reason, suspect, weight = SILENT, late, weight + _NEED
    return reason, suspect, weight


@njit(cache=True)
def _comes_at_random(known: NDArray[np.float64], bus: NDArray[np.float64], now: float) -> Any:
    """Return whether an identifier that first came in an attack by random ones comes at no usual interval."""
    seen, interval, before = known[habit.SEEN], known[habit.INTERVAL], known[habit.INTERVAL_BEFORE]
    return (
        seen > 2.0
        and now - known[habit.FIRST] > 0.3 * seen
        and now - known[habit.LAST] < 0.3
        and known[habit.FIRST] > bus[_FUZZED_SINCE]
        and abs(interval - before) > 0.3 * max(interval, before)
    )


@njit(cache=True)
def _came_alone(habits: NDArray[np.float64], newest: int, num_ids: int) -> bool:
    first = habits[newest, habit.FIRST]
    for one in range(num_ids):
        if one != newest and habits[one, habit.SEEN] > 0.0 and abs(habits[one, habit.FIRST] - first) < 1.0:
            return False
    return True


@njit(cache=True)
def _weigh(known: NDArray[np.float64], bus: NDArray[np.float64], now: float, reason: int, weight: float) -> None:
    """Add evidence to what there is against an identifier; enough of it begins an alarm, more keeps it."""
    need = _NEED_OF_TIMES if reason <= EXTRA else _NEED
    half_s = _HALF_S + _HALF_INTERVALS * known[habit.USUAL]
    faded = known[habit.EVIDENCE] * 2.0 ** (-(now - known[habit.EVIDENCE_AT]) / half_s)
    known[habit.EVIDENCE], known[habit.EVIDENCE_AT] = min(faded + weight, 3.0 * need), now
    if known[habit.EVIDENCE] >= need or bus[_IS_ON] != 0.0:
        bus[_IS_ON], bus[_LAST_EVIDENCE] = 1.0, now
