"""What speaks against an identifier, message by message, and when it is enough for an alarm: no training, no profile.

Evidence against an identifier adds up, halves with time, and becomes an alarm at a threshold:

* more messages within a time than ever (`habits`), by a factor; where an identifier is not even, by a larger one, over
  16 intervals and more;
* one extra message between two that keep the timer;
* almost all bits change in each of four messages, which never happened before;
* 32 messages faster than any car sends one identifier, also before anything was learned;
* many identifiers that come once and not again;
* an identifier with an even timer that alone falls silent; it is no news after some seconds;
* a new identifier that comes alone and is fast at once; no news after some seconds.

A new period that is clean (the old timer does not come in between) is a state of the car. An alarm ends .3 s after its
last evidence, or sooner where that was dense.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import UNCOUNTED, njit
from kdgat.canbus.features.bus_time import RESUMED, UNTIMED
from kdgat.canbus.features.memory import IdentifierNumbers, Numbered, untouched
from kdgat.canbus.features.suspicion import habits as habit
from kdgat.canbus.features.suspicion.census import look_at_all
from kdgat.canbus.features.suspicion.evidence import (
    AT,
    KIND_OF_REASON,
    NEED,
    NUM_BUS,
    Reason,
    count_unexpected,
    heed_stall,
    weigh,
)
from kdgat.canbus.features.suspicion.habits import EVEN, NUM_SPANS, RING
from kdgat.canbus.features.suspicion.known import (
    FASTEST_S,
    MOST_FIELDS,
    MOST_OTHERS,
    RECALLED,
    Known,
    find,
    find_absent,
    judge_payload,
    nothing_known,
    recall,
)
from kdgat.canbus.features.suspicion.load import commit_load, find_load, forget_load
from kdgat.canbus.features.suspicion.sender import is_flood, judge_message

_SCAN_S = 0.02  # between two looks at all identifiers
_AT_ONCE = 8  # messages that come twice as fast as those of any known identifier; fewer are one in parts
# Identifiers of 29 bits: their lowest eight are a source address, the eighteen above a parameter group (J1939).
_EXTENDED, _NUM_SENDERS, _NUM_GROUPS = 1 << 11, 256, 1 << 18
_SENT = 100  # messages of a source address that is known
_WAKING_S, _FEWEST_WOKEN = 0.5, 4  # in which identifiers of a unit that wakes come first, and how many they are
_STRETCH, _STEADY = 32.0, 0.06  # messages that take as long as those before them, to a share of both
_REGULAR = 3.0  # intervals in a row that are alike: a timer of a unit that has woken


class Suspicions(NamedTuple):
    """What speaks against M messages."""

    reason: NDArray[np.int8]  # [M] of the newest evidence; NOTHING unless there is, or just was, enough
    suspect: NDArray[np.uint32]  # [M] the identifier that it speaks against


def of_windows(
    found: Suspicions, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return what speaks against windows of messages [M], given as rows from which and up to which they are [G].

    That is the reason of a window's last message that is an alarm, or NOTHING, and the identifier that it speaks
    against, or -1.
    """
    if not len(starts):
        return np.zeros(0, np.int8), np.zeros(0, np.int32)
    last = np.maximum.accumulate(np.where(found.reason != Reason.NOTHING, np.arange(len(found.reason)), -1))[stops - 1]
    is_alarm = last >= starts
    reason = np.where(is_alarm, found.reason[last], np.int8(Reason.NOTHING))
    return reason, np.where(is_alarm, found.suspect[last].astype(np.int32), np.int32(-1))


class SuspicionState:
    """Hold the habits of a recording's identifiers, and the evidence against them; pieces give what the whole does."""

    def __init__(self, known: Known | None = None) -> None:
        """Begin with what a profile knows, if there is one."""
        self._known = nothing_known() if known is None else known
        self._has_come = np.zeros(len(self._known.identifier), np.bool_)
        self._absent = self._known.habits.copy()  # of identifiers that have not come, and so have no number
        self._row: NDArray[np.int32] = np.zeros(0, np.int32)  # in the profile, by number; -1: it does not know it
        self._payload_before: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._habits: NDArray[np.float64] = np.zeros((0, habit.NUM_HABITS))
        self._curves: NDArray[np.float64] = np.zeros((0, 4, NUM_SPANS))
        self._ring: NDArray[np.float64] = np.zeros((0, RING))
        self._payload: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._identifier: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._bus = np.zeros(NUM_BUS)
        self._sent = np.zeros(_NUM_SENDERS, np.int64)  # messages of 29 bits, by source address
        self._recent = np.zeros((len(self._known.identifier), MOST_FIELDS + 1))  # largest steps of fields, of late
        self._groups = np.zeros(_NUM_GROUPS, np.bool_)  # parameter groups that have come

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is known."""
        known = (self._habits, self._curves, self._ring, self._payload, self._identifier)
        return sum(array.nbytes for array in known)

    def count_judged(self) -> tuple[int, int]:
        """Count the identifiers that come evenly, often and long enough to be judged, and those without the first."""
        before = np.where(self._habits[:, habit.IS_RECALLED] > 0.0, RECALLED, 0.0)  # this log, by the profile's count
        lasted_s = self._habits[:, habit.LAST] - self._habits[:, habit.FIRST]
        seen = (self._habits[:, habit.SEEN] - before > habit.BELIEVED_AFTER) & (lasted_s > habit.BELIEVED_S)
        is_even = (self._habits[:, habit.LEARNED] >= habit.BELIEVED_AFTER) & (self._habits[:, habit.EVENNESS] > EVEN)
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
            self._row, self._payload_before = untouched(most, np.int32), untouched(most, np.uint64)
        found = Suspicions(np.zeros(len(time), np.int8), np.zeros(len(time), np.uint32))
        _judge(
            time, identifier, numbered.number, numbered.is_new, payload, length, breaks, numbered.num_numbers,
            self._habits, self._curves, self._ring, self._payload, self._identifier, self._bus,
            self._known, self._has_come, self._absent, self._row, self._payload_before,
            self._recent, self._sent, self._groups, *found,
        )  # fmt: skip
        return found


@njit(cache=True, nogil=True, error_model="numpy", **UNCOUNTED)
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
    profile: Known,
    has_come: NDArray[np.bool_],
    absent: NDArray[np.float64],
    rows: NDArray[np.int32],
    payloads_before: NDArray[np.uint64],
    recent: NDArray[np.float64],
    sent: NDArray[np.int64],
    groups: NDArray[np.bool_],
    reasons: NDArray[np.int8],
    suspects: NDArray[np.uint32],
) -> None:
    for message in range(len(time)):
        number = numbers[message]
        identifier_of[number] = identifiers[message]
        known, curve, times, now = habits[number], curves[number], ring[number], time[message]
        sender = np.int64(identifiers[message]) % _NUM_SENDERS if identifiers[message] >= _EXTENDED else -1
        if sender >= 0:
            sent[sender] += 1
        if breaks[message] == UNTIMED:
            if is_new[message]:
                rows[number] = _begin(profile, has_come, identifiers[message], known, curve, times, now)
            else:
                habit.note_untimed(known, times, now)
            payloads_before[number], payloads[number] = payloads[number], payload[message]
            if bus[AT.is_on] != 0.0:
                reasons[message], suspects[message] = bus[AT.reason], bus[AT.suspect]
            continue
        if bus[AT.has_begun] == 0.0:
            bus[:] = -1e9
            bus[AT.has_begun] = 1.0
            bus[AT.is_on] = bus[AT.is_fuzzed] = bus[AT.num_gaps] = bus[AT.usual_gap] = bus[AT.num_strange] = 0.0
            bus[AT.unexpected] = bus[AT.newcomers] = bus[AT.num_newcomers] = 0.0
            bus[AT.now] = bus[AT.start] = bus[AT.slice] = bus[AT.generation] = now
            bus[AT.next_scan] = now + _SCAN_S
            for column in (AT.load_most, AT.load_fresh, AT.load_waiting, AT.load_next, AT.load_anchor, AT.load_full):
                bus[column] = 0.0
        heed_stall(bus, now, breaks[message] == RESUMED)
        bus[AT.now] = now
        reason: int = Reason.NOTHING
        suspect, weight, fullest = number, 0.0, -1
        if is_new[message]:
            rows[number] = _begin(profile, has_come, identifiers[message], known, curve, times, now)
            if sender >= 0:
                group = (np.int64(identifiers[message]) >> 8) % _NUM_GROUPS
                known[habit.IS_OF_UNIT] = sent[sender] > _SENT or groups[group]
                groups[group] = True
        else:
            reason, weight = judge_message(
                known, curve, times, bus, now, payload[message] ^ payloads[number], float(length[message])
            )
        if len(profile.identifier) > 0 and rows[number] < 0:
            _note_stretch(known, now)
            if not _has_woken(habits, rows, number, num_ids, now):
                if _is_faster(known, times, now, profile.others[FASTEST_S]) and now >= bus[AT.excused]:
                    reason, weight = Reason.NEW, weight + 1.0
                is_even = known[habit.LEARNED] >= habit.BELIEVED_AFTER and habit.is_even(known)
                is_timer = is_even or known[habit.RUN] >= _REGULAR
                if not is_timer and count_unexpected(bus, now, is_new[message], profile.others[MOST_OTHERS]):
                    reason, weight = Reason.NEW, NEED
        if rows[number] >= 0:
            found, weight_of_payload = judge_payload(
                profile, rows[number], known, recent[rows[number]], payloads_before[number], payloads[number],
                payload[message], np.int64(length[message]),
            )  # fmt: skip
            if found != Reason.NOTHING:
                reason, weight = found, weight + weight_of_payload
        payloads_before[number], payloads[number] = payloads[number], payload[message]
        if reason >= Reason.NEW:
            bus[AT.last_suspicion] = now
        if is_flood(known, curve, times, bus, now):
            reason, weight = Reason.FAST, weight + 1.0
            bus[AT.last_suspicion] = now
            if bus[AT.is_on] != 0.0:
                known[habit.IS_STRANGER] = 1.0
        if now >= bus[AT.next_scan]:
            bus[AT.next_scan] = now + _SCAN_S
            seen, scanned, weight_of_scan = look_at_all(habits, ring, bus, num_ids, now)
            if seen != Reason.NOTHING:
                reason, weight = seen, weight + weight_of_scan
                suspect = scanned
            fullest = find_load(habits, bus, num_ids, now)
            if fullest >= 0:
                reason, weight, suspect = Reason.FAST, weight + NEED, fullest
                bus[AT.last_suspicion] = now
            missing = find_absent(profile, has_come, bus, now)
            if missing >= 0:
                silent: Any = np.int64(Reason.SILENT)  # else `weigh` is compiled for the enum, too
                bus[AT.reason], bus[AT.suspect] = silent, profile.identifier[missing]
                weigh(absent[missing], bus, now, silent, NEED, False)
        if weight > 0.0:
            bus[AT.reason], bus[AT.suspect] = reason, identifier_of[suspect]
            # Who the profile does not know speaks against itself by each message, and by nothing between them.
            is_unknown = len(profile.identifier) > 0 and rows[suspect] < 0
            kind = reason & KIND_OF_REASON
            is_brief = is_unknown or (kind >= Reason.JUMP and kind != Reason.STILL)
            is_brief = is_brief and fullest < 0
            weigh(habits[suspect], bus, now, reason, weight, is_brief)
        if bus[AT.is_on] != 0.0 and now - bus[AT.last_evidence] > bus[AT.hold]:
            if bus[AT.is_brief] != 0.0:  # what there is against others goes on: single messages must not hide them
                habit.discard(habits, curves, num_ids)
            else:
                habit.roll_back(habits, curves, num_ids, bus[AT.fuzzed_since] if bus[AT.is_fuzzed] != 0.0 else np.inf)
            bus[AT.is_on] = bus[AT.is_fuzzed] = bus[AT.load_fresh] = bus[AT.load_waiting] = 0.0
            bus[AT.slice] = now
        if bus[AT.is_on] != 0.0:
            reasons[message], suspects[message] = bus[AT.reason], bus[AT.suspect]
        elif now - bus[AT.slice] > habit.COMMIT_S:
            if now - bus[AT.last_suspicion] > habit.CALM_S:
                habit.commit(habits, curves, num_ids, now)
                commit_load(bus)
            bus[AT.slice] = now
            if now - bus[AT.generation] > habit.FORGOTTEN_S:
                bus[AT.generation] = now
                habit.forget(habits, curves, num_ids)
                forget_load(bus)


@njit(cache=True)
def _note_stretch(known: NDArray[np.float64], now: float) -> None:
    """Note, every few messages, whether they took as long as those before: a timer, though it comes in packets."""
    if known[habit.SEEN] % _STRETCH == 0.0:
        stretch, before = now - known[habit.STRETCH_SINCE], known[habit.STRETCH]
        known[habit.IS_STEADY] = abs(stretch - before) < _STEADY * (stretch + before)
        known[habit.STRETCH], known[habit.STRETCH_SINCE] = stretch, now


@njit(cache=True)
def _has_woken(habits: NDArray[np.float64], rows: NDArray[np.int32], number: Any, num_ids: int, now: float) -> bool:
    """Return whether an identifier that the profile does not know is a timer that began a while ago, and not alone.

    That is a unit in a state of the car that the profile has not met: that it wakes is news, what it goes on to send
    is not.
    """
    known = habits[number]
    first = known[habit.FIRST]
    if now - first < _WAKING_S or (known[habit.RUN] < _REGULAR and known[habit.IS_STEADY] == 0.0):
        return False
    num_woken = 0
    for one in range(num_ids):
        is_early = rows[one] < 0 and habits[one, habit.SEEN] > 2.0
        num_woken += is_early and abs(habits[one, habit.FIRST] - first) < _WAKING_S
    return num_woken >= _FEWEST_WOKEN


@njit(cache=True)
def _is_faster(known: NDArray[np.float64], times: NDArray[np.float64], now: float, fastest_s: float) -> Any:
    kept = np.int64(known[habit.KEPT]) - 1
    return kept >= _AT_ONCE and 2.0 * (now - times[(kept - _AT_ONCE) & (RING - 1)]) < _AT_ONCE * fastest_s


@njit(cache=True)
def _begin(
    profile: Known,
    has_come: NDArray[np.bool_],
    identifier: Any,
    known: NDArray[np.float64],
    curve: NDArray[np.float64],
    times: NDArray[np.float64],
    now: float,
) -> int:
    """Begin to know an identifier, with what the profile knows of it; return its row there, or -1."""
    habit.begin(known, curve, times, now)
    row = find(profile, identifier)
    if row >= 0:
        has_come[row] = True
        recall(profile, row, known, curve, now)
    return row
