"""What a profile has learned of a vehicle before, as its identifiers are judged by: who comes, when, with what."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.checksums import checksum_residual
from kdgat.canbus.features.suspicion import habits as habit
from kdgat.canbus.features.suspicion.evidence import AT, KIND_OF_REASON, NEED, Reason, kind_of_reason
from kdgat.canbus.features.suspicion.habits import COMMITTED, NEAR, NUM_HABITS, NUM_SPANS

MOST_FIELDS: Final = 8  # of an identifier
SMOOTH, COUNTER, LITTLE, STRICT_COUNTER = 1, 2, 3, 4  # kinds of fields; little: smooth, with the low byte first
FIRST_BIT, NUM_BITS, KIND, STEP, LOWEST, MODULUS = range(6)  # columns of a field; the last two of a counter
NUM_FIELD_COLUMNS: Final = 6
RECALLED: Final = 1000.0  # messages that an identifier counts as having sent before the log
_AGE_S = 10.5  # before it
_JUMP, _MORE = 2, 2  # times the largest step that was seen, and as many more
_MORE_BITS, _AS_BEFORE = 12, 4  # that change at once than ever
_AGITATED, _CALMS = 4.0, 0.97  # times the largest step that it may be at most of late; what is left with each message
_MOST_BROKEN = 3.5  # counters of late; more are a state of the car,
_FADES = 1.0 - 1.0 / 64.0  # and what is left of them with each message
_STILL, _NEWS_S = 6.0, 10.0  # messages in which no counter counts; it is no news after some seconds
_WAIT_S = 2.5  # until an identifier is missed that has not come at all,
_ABSENT, _ABSENT_S = 5.0, 5.0  # times its longest interval; it is no news after some seconds


MOST_OTHERS, FASTEST_S = range(
    2
)  # how many may come within some seconds; mean interval of the fastest eight messages of those known


class Known(NamedTuple):
    """What is known of P identifiers, in ascending order."""

    identifier: NDArray[np.uint32]  # [P]
    habits: NDArray[np.float64]  # [P, NUM_HABITS]
    curves: NDArray[np.float64]  # [P, NUM_SPANS]
    most_changed: NDArray[np.int64]  # [P] bits that ever changed from one message to the next
    fields: NDArray[np.int64]  # [P, MOST_FIELDS, NUM_FIELD_COLUMNS]
    checksum: NDArray[np.int64]  # [P, 3] its kind, or -1; what stays the same of it; bytes of the payload
    always_changes: NDArray[np.bool_]  # [P] no payload is that of the message before
    is_expected: NDArray[np.bool_]  # [P] comes evenly, from the first second on
    others: NDArray[np.float64]  # [2] what is known of identifiers that are not among these

    def field_of(self, identifier: int, reason: int) -> tuple[str, frozenset[int]]:
        """Say which field a reason is about, with its bits from the highest of the first byte; neither if none."""
        row = int(np.searchsorted(self.identifier, identifier))
        is_known = row < len(self.identifier) and self.identifier[row] == identifier
        if kind_of_reason(reason) != Reason.JUMP or not is_known:
            return "", frozenset()
        first, num, kind, *_ = self.fields[row, reason // (KIND_OF_REASON + 1)].tolist()
        bits = bits_of(first, num, is_little=kind == LITTLE)
        if kind == LITTLE:
            return f"bytes {min(bits) // 8} to {max(bits) // 8}, low byte first", bits
        return f"bits {first} to {first + num - 1}", bits


def bits_of(first_bit: int, num_bits: int, *, is_little: bool) -> frozenset[int]:
    """Return the bits of a field from the highest of the first byte; if it is little, its bytes are the other way."""
    bits = range(first_bit, first_bit + num_bits)
    return frozenset(8 * (7 - bit // 8) + bit % 8 if is_little else bit for bit in bits)


def nothing_known() -> Known:
    """Return that there is no profile."""
    return Known(
        np.zeros(0, np.uint32), np.zeros((0, NUM_HABITS)), np.zeros((0, NUM_SPANS)), np.zeros(0, np.int64),
        np.zeros((0, MOST_FIELDS, NUM_FIELD_COLUMNS), np.int64), np.zeros((0, 3), np.int64), np.zeros(0, np.bool_),
        np.zeros(0, np.bool_),
        np.array([np.inf, 0.0]),
    )  # fmt: skip


@njit(cache=True)
def find(profile: Known, identifier: Any) -> int:
    """Return the row of an identifier; -1 if the profile does not know it."""
    low, high = 0, len(profile.identifier)
    while low < high:
        middle = (low + high) // 2
        if profile.identifier[middle] < identifier:
            low = middle + 1
        else:
            high = middle
    return low if low < len(profile.identifier) and profile.identifier[low] == identifier else -1


@njit(cache=True)
def recall(profile: Known, row: int, known: NDArray[np.float64], curve: NDArray[np.float64], now: float) -> None:
    """Give an identifier that comes for the first time in this log the habits that the profile knows."""
    for column in range(NUM_HABITS):
        known[column] = profile.habits[row, column]
    for place in range(NUM_SPANS):
        curve[COMMITTED, place] = profile.curves[row, place]
    is_timed = known[habit.LEARNED] > 0.0
    known[habit.SEEN] = known[habit.SEEN_BEFORE] = RECALLED
    known[habit.KEPT], known[habit.LAST] = 1.0, now
    known[habit.FIRST] = now - _AGE_S if is_timed else now


@njit(cache=True)
def judge_payload(
    profile: Known,
    row: int,
    known: NDArray[np.float64],
    recent: NDArray[np.float64],
    before: Any,
    last: Any,
    payload: Any,
    num_bytes: Any,
) -> tuple[int, float]:
    """Judge a payload after two others by what the profile knows of them; return reason and weight of the evidence.

    A checksum is wrong; a counter did not go on, though no message is missing; no counter counts; a value that moves in
    small steps was far away for one message; more bits than ever changed for one message. `recent` has the largest step
    of late of each field, in those of the profile, and the most bits that changed [MOST_FIELDS + 1]: a value that
    moves faster than in the profile is a state of the car, within limits.
    """
    if known[habit.SEEN] < RECALLED + 2.0:
        return Reason.NOTHING, 0.0
    is_back = known[habit.IS_BACK] != 0.0  # the step to `last` is the way back of a value that was far off
    known[habit.IS_BACK] = 0.0
    changed = habit.num_changed(before ^ last)
    fewest = min(changed, habit.num_changed(last ^ payload))
    most = profile.most_changed[row]
    usual = max(most, np.int64(recent[MOST_FIELDS]))
    reason: int = Reason.NOTHING
    weight, newest = 0.0, 0.0
    if fewest >= max(usual + _MORE_BITS, 3 * usual // 2) and habit.num_changed(before ^ payload) <= usual + _AS_BEFORE:
        known[habit.IS_BACK] = 1.0
        reason, weight = Reason.MANY_BITS, NEED if fewest >= 2 * usual + _AS_BEFORE else 0.5 * NEED
    elif not is_back:
        newest = min(float(changed), float(most + _MORE_BITS))
    recent[MOST_FIELDS] = max(recent[MOST_FIELDS] * _CALMS, newest)
    other_before, other_last, other_payload = habit.swapped(before), habit.swapped(last), habit.swapped(payload)
    is_usual = _is_usual(known[habit.INTERVAL], known) and _is_usual(known[habit.INTERVAL_BEFORE], known)
    num_counters, num_still, has_broken = 0, 0, False
    for place in range(MOST_FIELDS):
        kind, step = profile.fields[row, place, KIND], profile.fields[row, place, STEP]
        if kind == 0:
            break
        bits = profile.fields[row, place, NUM_BITS]
        shift = np.uint64(64 - profile.fields[row, place, FIRST_BIT] - bits)
        if kind == LITTLE:
            one, two, three = _part(before, shift, bits), _part(last, shift, bits), _part(payload, shift, bits)
        else:
            one, two = _part(other_before, shift, bits), _part(other_last, shift, bits)
            three = _part(other_payload, shift, bits)
        if kind in (COUNTER, STRICT_COUNTER):
            num_counters += 1
            num_still += three == two
            if kind == STRICT_COUNTER and is_usual:
                lowest, modulus = profile.fields[row, place, LOWEST], profile.fields[row, place, MODULUS]
                is_outside = three < lowest or three >= lowest + modulus
                has_broken = has_broken or is_outside or (three - two - step) % modulus != 0
            continue
        away, back = _step(one, two, bits), _step(two, three, bits)
        largest = step * max(recent[place], 1.0)
        jump, newest = _JUMP * largest + _MORE, 0.0
        if abs(away) > jump and abs(back) > jump and abs(away + back) <= 2.0 * largest + _MORE:
            known[habit.IS_BACK] = 1.0
            if reason & KIND_OF_REASON != Reason.JUMP:
                reason, weight = Reason.JUMP + place * (KIND_OF_REASON + 1), NEED
        elif not is_back:
            newest = min(abs(away) / step, _AGITATED)
        recent[place] = max(recent[place] * _CALMS, newest)
    is_still = (num_counters > 0 and num_still == num_counters) or (profile.always_changes[row] and payload == last)
    if not is_still:
        known[habit.STILL] = 0.0
    elif _is_usual(known[habit.INTERVAL], known):  # what waited in a queue may be sent as often as it is late
        known[habit.STILL] += 1.0
    is_news = (known[habit.STILL] - _STILL) * known[habit.USUAL] < _NEWS_S
    if known[habit.STILL] >= _STILL and is_news:
        return Reason.STILL, NEED
    kind = profile.checksum[row, 0]
    if kind >= 0 and (
        num_bytes != profile.checksum[row, 2] or checksum_residual(kind, payload, num_bytes) != profile.checksum[row, 1]
    ):
        return Reason.CHECKSUM, NEED
    known[habit.NUM_BROKEN] = known[habit.NUM_BROKEN] * _FADES + has_broken
    is_new_break = has_broken and known[habit.NUM_BROKEN] < _MOST_BROKEN  # else it counts no longer
    return (Reason.BREAK, NEED) if is_new_break and reason == Reason.NOTHING else (reason, weight)


@njit(cache=True, inline="always")
def _is_usual(interval: float, known: NDArray[np.float64]) -> Any:
    """Return whether no message is missing in an interval, and none is one too many."""
    return abs(interval - known[habit.USUAL]) < NEAR * known[habit.USUAL]


@njit(cache=True)
def find_absent(profile: Known, has_come: NDArray[np.bool_], bus: NDArray[np.float64], now: float) -> int:
    """Return the row of the only identifier that is expected and has not come at all; -1 if there is none, or more."""
    found, since = -1, now - bus[AT.start]
    if since < _WAIT_S or bus[AT.resumed_at] > bus[AT.start]:
        return found
    for row in range(len(profile.identifier)):
        if profile.is_expected[row] and not has_come[row]:
            late = since - max(_ABSENT * profile.habits[row, habit.LONGEST], _WAIT_S)
            if found >= 0 or late < 0.0:  # several are a unit that sleeps
                return -1
            if late < _ABSENT_S:
                found = row
    return found


@njit(cache=True, inline="always")
def _part(payload: Any, shift: Any, bits: Any) -> Any:
    return np.int64((payload >> shift) & ((np.uint64(1) << np.uint64(bits)) - np.uint64(1)))


@njit(cache=True, inline="always")
def _step(one: Any, two: Any, bits: Any) -> Any:
    """Return the step from a value to the next, the shorter way around the end."""
    half = np.int64(1) << (bits - 1)
    return ((two - one + half) & ((half << 1) - 1)) - half
