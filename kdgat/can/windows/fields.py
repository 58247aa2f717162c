"""Payload fields: whether what an identifier says is what it could say next, by its own past.

Nobody tells what the bits of a payload mean, but an identifier shows its own rules: a counter goes on, a constant
stays, a page follows the page before it, a checksum holds, a signal moves in steps of some size. One causal pass learns
them from messages that keep to them: each half byte's successors, each byte's usual steps, values and pauses, and which
of the checksums that cars use holds. A message that breaks them is odd and teaches nothing; odd messages that follow
one another closely are an episode, which counts as one event a second at most, as a lamp that is switched on does.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kdgat.can.windows.checksums import NUM_CHECKSUMS, checksum_residual
from kdgat.can.windows.identifiers import Numbered

FIELD_FEATURES: Final = (
    "sequence_surprise",  # bits by which the half bytes' successors surprise, over 64
    "sequence_excess",  # log2 of that over the most that was usual
    "sequence_peak",  # bits by which the most surprising half byte does, over 12
    "counter_break",  # bits by which a half byte that goes on like a counter does, over 12
    "checksum_break",  # log2 of 1 + messages in which a checksum held that does not now, over 12
    "checksum_known",  # a checksum has been found
    "jump",  # log2 of a byte's step over its largest usual one, over 8; of the byte that jumps most
    "value_rank",  # -log2 of the share of the id's time in which a byte was near this value; of the rarest
    "frozen",  # log2 of the time a byte has not changed over the longest usual such time; of the longest
    "still",  # the same of the payload as a whole
    "odd",  # the message breaks the id's rules
    "odd_run",  # log2 of 1 + odd messages in this episode, over 8
)
NUM_FIELD_FEATURES: Final = len(FIELD_FEATURES)
(
    _SEQUENCE_SURPRISE,
    _SEQUENCE_EXCESS,
    _SEQUENCE_PEAK,
    _COUNTER_BREAK,
    _CHECKSUM_BREAK,
    _CHECKSUM_KNOWN,
    _JUMP,
    _VALUE_RANK,
    _FROZEN,
    _STILL,
    _ODD,
    _ODD_RUN,
) = range(NUM_FIELD_FEATURES)

_LEARNED = 10.0  # conforming messages before an id is judged
_MEMORY = 2000.0  # messages that shares are taken over
_SUM_MARGIN = 8.0  # bits beyond the usual that are odd,
_SUM_RATIO = 1.25  # beside this factor
_COUNTER_BITS = 4.0  # a half byte that surprises by as many when its successor does not come, and changes
_COUNTER_CHANGES = 0.6  # in this share of the messages, is a counter
_CREDIT_S = 1.0  # of an episode that goes on, that count as one more event
_CREDIT_RATIO, _CREDIT_BITS = 1.1, 2.0  # by which an event may raise what surprise is usual
_CALM_S = 2.0  # without an odd message, an episode is over,
_CALM_MESSAGES = 8.0  # after so many
_HELD = 24  # payloads that changed and kept to a checksum
_FEWEST_CHANGES = 8.0  # of a byte that is called frozen
_NUM_VALUES = 16  # bins of a byte's value


class _OfIdentifiers(NamedTuple):
    """What is remembered of I identifiers, by their numbers."""

    learned: NDArray[np.float64]  # [I] conforming messages
    latest: NDArray[np.float64]  # [I] s
    first: NDArray[np.float64]
    payload: NDArray[np.uint64]
    conforming: NDArray[np.uint64]  # [I] the last one that was not odd
    successor: NDArray[np.uint8]  # [I, 16, 16] of each half byte's value: 1 + the value that followed it last
    misses: NDArray[np.float32]  # [I, 16] how often another one came
    pending: NDArray[np.uint32]  # [I] half bytes that another one came of in an episode that is not over
    changes: NDArray[np.float32]  # [I, 16] how often the half byte changed
    most_surprise: NDArray[np.float64]  # [I] usual
    most_pending: NDArray[np.float64]  # [I] of the odd messages that are pending
    credited: NDArray[np.float64]  # [I] s, when pending ones were counted last
    num_credits: NDArray[np.float64]  # [I] how often they were in this episode
    largest_step: NDArray[np.uint8]  # [I, 8] usual
    value_time: NDArray[np.float32]  # [I, 8, _NUM_VALUES] s
    changed: NDArray[np.float64]  # [I, 8] s, when the byte changed last
    longest: NDArray[np.float64]  # [I, 8] s that it usually stays at most
    num_changes: NDArray[np.float32]  # [I, 8]
    payload_changed: NDArray[np.float64]  # [I] s, when the payload changed last
    payload_longest: NDArray[np.float64]  # [I] s that it usually stays at most
    num_payloads: NDArray[np.float64]  # [I] how often it changed
    checksum: NDArray[np.uint8]  # [I, NUM_CHECKSUMS] what the residual is, if it is a checksum
    held: NDArray[np.int32]  # [I, NUM_CHECKSUMS] changed payloads in a row that kept to it; -1: it is none
    broken: NDArray[np.int32]
    shown: NDArray[np.uint64]  # [I] hashes of the payloads that were tested: the same again proves nothing
    odd_since: NDArray[np.float64]  # [I] conforming messages since the last odd one
    odd_time: NDArray[np.float64]  # [I] s, of the last odd one
    odd_run: NDArray[np.float64]  # [I] odd messages of the episode, 0: none


def _new_identifiers(num_ids: int) -> _OfIdentifiers:
    return _OfIdentifiers(
        learned=np.zeros(num_ids),
        latest=np.zeros(num_ids),
        first=np.zeros(num_ids),
        payload=np.zeros(num_ids, np.uint64),
        conforming=np.zeros(num_ids, np.uint64),
        successor=np.zeros((num_ids, 16, 16), np.uint8),
        misses=np.zeros((num_ids, 16), np.float32),
        pending=np.zeros(num_ids, np.uint32),
        most_surprise=np.zeros(num_ids),
        changes=np.zeros((num_ids, 16), np.float32),
        most_pending=np.zeros(num_ids),
        credited=np.zeros(num_ids),
        num_credits=np.zeros(num_ids),
        largest_step=np.zeros((num_ids, 8), np.uint8),
        value_time=np.zeros((num_ids, 8, _NUM_VALUES), np.float32),
        changed=np.zeros((num_ids, 8)),
        longest=np.zeros((num_ids, 8)),
        num_changes=np.zeros((num_ids, 8), np.float32),
        payload_changed=np.zeros(num_ids),
        payload_longest=np.zeros(num_ids),
        num_payloads=np.zeros(num_ids),
        checksum=np.zeros((num_ids, NUM_CHECKSUMS), np.uint8),
        held=np.zeros((num_ids, NUM_CHECKSUMS), np.int32),
        broken=np.zeros((num_ids, NUM_CHECKSUMS), np.int32),
        shown=np.zeros(num_ids, np.uint64),
        odd_since=np.zeros(num_ids),
        odd_time=np.zeros(num_ids),
        odd_run=np.zeros(num_ids),
    )


class FieldState:
    """Remember the rules of a recording's payloads; bounded by the number of identifiers, 1.4 kB each."""

    def __init__(self) -> None:
        self._of_identifiers = _new_identifiers(0)

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is remembered."""
        return sum(array.nbytes for array in self._of_identifiers)

    def describe(
        self,
        timestamp: NDArray[np.float64],
        numbered: Numbered,
        payload: NDArray[np.uint64],
        length: NDArray[np.uint8],
    ) -> NDArray[np.float32]:
        """Judge what the next M messages say, and learn from it.

        Arguments: seconds that never go back [M], numbers of the ids, payload as little-endian words [M], payload bytes
        [M]. Returns float32 [M, NUM_FIELD_FEATURES], named by FIELD_FEATURES.
        """
        self._make_room(numbered.num_numbers)
        return _judge(timestamp, numbered.number, numbered.is_new, payload, length, self._of_identifiers)

    def _make_room(self, num_ids: int) -> None:
        known = len(self._of_identifiers.learned)
        if num_ids <= known:
            return
        larger = _new_identifiers(max(num_ids, 2 * known))
        for name, new in larger._asdict().items():
            new[:known] = getattr(self._of_identifiers, name)
        self._of_identifiers = larger


@njit(cache=True)
def _forget(known: _OfIdentifiers, index: Any) -> None:
    """Make room for another identifier under this number; what its first message sets is left."""
    known.learned[index] = 0.0
    known.successor[index] = 0
    known.misses[index] = 0.0
    known.pending[index] = 0
    known.most_surprise[index] = 0.0
    known.changes[index] = 0.0
    known.most_pending[index] = 0.0
    known.credited[index] = 0.0
    known.num_credits[index] = 0.0
    known.shown[index] = 0
    known.largest_step[index] = 0
    known.value_time[index] = 0.0
    known.longest[index] = 0.0
    known.num_changes[index] = 0.0
    known.payload_longest[index] = 0.0
    known.num_payloads[index] = 0.0
    known.held[index] = 0
    known.broken[index] = 0
    known.odd_since[index] = 0.0
    known.odd_time[index] = 0.0
    known.odd_run[index] = 0.0


@njit(cache=True, inline="always")
def _byte(word: Any, place: Any) -> Any:
    return np.int64((word >> np.uint64(8 * place)) & np.uint64(255))


@njit(cache=True, error_model="numpy")
def _judge(
    timestamp: NDArray[np.float64],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    payload: NDArray[np.uint64],
    length: NDArray[np.uint8],
    ids: _OfIdentifiers,
) -> NDArray[np.float32]:
    num_messages = timestamp.shape[0]
    out = np.zeros((num_messages, NUM_FIELD_FEATURES), np.float32)
    for message in range(num_messages):
        now = timestamp[message]
        index = np.int64(numbers[message])
        word = payload[message]
        num_bytes = np.int64(length[message])
        if is_new[message]:
            _forget(ids, index)
            out[message, _FROZEN] = out[message, _STILL] = -4.0
            ids.first[index] = now
            ids.latest[index] = now
            ids.payload[index] = word
            ids.conforming[index] = word
            ids.changed[index] = now
            ids.payload_changed[index] = now
            _learn_checksums(ids, index, word, num_bytes)
            continue
        before = ids.payload[index]
        learned = ids.learned[index]
        is_known = learned >= _LEARNED
        interval = now - ids.latest[index]
        age = now - ids.first[index]

        # what could follow the previous message or, in an episode, the last one that conformed
        surprise, peak, counter, missed = _surprise(ids, index, before, word, num_bytes)
        if ids.odd_run[index] > 0.0 and ids.conforming[index] != before:
            other = _surprise(ids, index, ids.conforming[index], word, num_bytes)
            if other[0] < surprise:
                surprise, peak, counter, missed = other

        # which bytes moved, how far, and to where
        jump, rarest, longest_frozen = 0.0, np.inf, 0.0
        for place in range(num_bytes):
            value = _byte(word, place)
            step = abs(value - _byte(before, place))
            step = min(step, 256 - step)
            if step > 0:
                jump = max(jump, (step + 1.0) / (ids.largest_step[index, place] + 1.0))
            rarest = min(rarest, ids.value_time[index, place, value >> 4])
            if step == 0 and ids.num_changes[index, place] >= _FEWEST_CHANGES:
                same = (now - ids.changed[index, place]) / ids.longest[index, place]
                longest_frozen = max(longest_frozen, same)
        still = 0.0
        if word == before and ids.num_payloads[index] >= _FEWEST_CHANGES:
            still = (now - ids.payload_changed[index]) / ids.payload_longest[index]
        breaks, checksum_known = _broken_checksum(ids, index, word, num_bytes)
        is_odd = False
        if is_known:
            out[message, _SEQUENCE_SURPRISE] = min(surprise, 192.0) / 64.0
            excess = np.log2((surprise + 4.0) / (ids.most_surprise[index] + 4.0))
            out[message, _SEQUENCE_EXCESS] = min(max(excess, -4.0), 4.0)
            out[message, _SEQUENCE_PEAK] = peak / 12.0
            out[message, _COUNTER_BREAK] = counter / 12.0
            out[message, _JUMP] = np.log2(jump) / 8.0 if jump > 1.0 else 0.0
            out[message, _VALUE_RANK] = -np.log2((min(rarest, age) + 0.02) / (age + 0.02)) if num_bytes else 0.0
            out[message, _FROZEN] = min(max(np.log2(max(longest_frozen, 0.0625)), -4.0), 4.0)
            out[message, _STILL] = min(max(np.log2(max(still, 0.0625)), -4.0), 4.0)
            out[message, _CHECKSUM_KNOWN] = checksum_known
            if breaks > 0:
                out[message, _CHECKSUM_BREAK] = np.log2(1.0 + breaks) / 12.0
            is_odd = breaks > 0 or counter > 0.0 or surprise > _SUM_RATIO * ids.most_surprise[index] + _SUM_MARGIN
        else:
            out[message, _FROZEN] = out[message, _STILL] = -4.0

        if is_odd:
            if ids.odd_run[index] == 0.0:
                ids.credited[index] = now
                ids.num_credits[index] = 0.0
            ids.odd_run[index] += 1.0
            ids.odd_time[index] = now
            ids.odd_since[index] = 0.0
            ids.pending[index] |= missed
            ids.most_pending[index] = max(ids.most_pending[index], surprise)
            out[message, _ODD] = 1.0
        else:
            ids.odd_since[index] += 1.0
            ids.num_credits[index] = 0.0
            ids.conforming[index] = word
        out[message, _ODD_RUN] = np.log2(1.0 + ids.odd_run[index]) / 8.0
        if ids.odd_run[index] > 0.0:
            if now - ids.odd_time[index] > _CALM_S and ids.odd_since[index] > _CALM_MESSAGES:
                ids.odd_run[index] = 0.0
                _credit(ids, index)
            elif now - ids.credited[index] > _CREDIT_S:
                ids.credited[index] = now
                _credit(ids, index)
        else:
            _learn(ids, index, word, before, num_bytes, missed, surprise, now, interval)
            if word != before:
                _learn_checksums(ids, index, word, num_bytes)
        for place in range(num_bytes):
            if _byte(word, place) != _byte(before, place):
                ids.changed[index, place] = now
        if word != before:
            ids.payload_changed[index] = now
        ids.payload[index] = word
        ids.latest[index] = now
    return out


@njit(cache=True, error_model="numpy")
def _surprise(
    ids: _OfIdentifiers, index: Any, before: Any, word: Any, num_bytes: Any
) -> tuple[float, float, float, np.uint32]:
    """Return by how many bits a payload surprises after another: in all, at most, in counters; and which half bytes."""
    surprise, peak, counter, missed = 0.0, 0.0, 0.0, np.uint32(0)
    count = min(ids.learned[index], _MEMORY) + 1.0
    for place in range(2 * num_bytes):
        value = np.int64((word >> np.uint64(4 * place)) & np.uint64(15))
        last = np.int64((before >> np.uint64(4 * place)) & np.uint64(15))
        successor = np.int64(ids.successor[index, place, last]) - 1
        if value != (successor if successor >= 0 else last):
            missed |= np.uint32(1) << np.uint32(place)
            bits = max(-np.log2((ids.misses[index, place] + 0.5) / count), 0.0)
            surprise += bits
            peak = max(peak, bits)
            if bits > _COUNTER_BITS and ids.changes[index, place] > _COUNTER_CHANGES * count:
                counter = max(counter, bits)
    return surprise, peak, counter, missed


@njit(cache=True, error_model="numpy")
def _learn(
    ids: _OfIdentifiers,
    index: Any,
    word: Any,
    before: Any,
    num_bytes: Any,
    missed: Any,
    surprise: float,
    now: float,
    interval: float,
) -> None:
    """Learn from a message that conforms."""
    learned = ids.learned[index]
    for place in range(2 * num_bytes):
        value = (word >> np.uint64(4 * place)) & np.uint64(15)
        last = np.int64((before >> np.uint64(4 * place)) & np.uint64(15))
        ids.successor[index, place, last] = np.uint8(value + np.uint64(1))
        if learned >= _MEMORY:
            ids.misses[index, place] *= np.float32(1.0 - 1.0 / _MEMORY)
            ids.changes[index, place] *= np.float32(1.0 - 1.0 / _MEMORY)
        if np.int64(value) != last:
            ids.changes[index, place] += np.float32(1.0)
        if (missed >> np.uint32(place)) & np.uint32(1):
            ids.misses[index, place] += np.float32(1.0)
    for place in range(num_bytes):
        value = _byte(word, place)
        step = abs(value - _byte(before, place))
        step = min(step, 256 - step)
        if step > ids.largest_step[index, place]:
            ids.largest_step[index, place] = np.uint8(step)
        ids.value_time[index, place, value >> 4] += np.float32(interval)
        if step > 0:
            ids.num_changes[index, place] += np.float32(1.0)
            same = now - ids.changed[index, place]
            if same > ids.longest[index, place]:
                ids.longest[index, place] = same
    if word != before:
        ids.num_payloads[index] += 1.0
        ids.payload_longest[index] = max(ids.payload_longest[index], now - ids.payload_changed[index])
    ids.most_surprise[index] = max(ids.most_surprise[index], surprise)
    ids.learned[index] = learned + 1.0


@njit(cache=True)
def _credit(ids: _OfIdentifiers, index: Any) -> None:
    """Learn of the odd messages that are pending; in an episode that goes on they count more and more."""
    ids.num_credits[index] += 1.0
    for place in range(16):
        if (ids.pending[index] >> np.uint32(place)) & np.uint32(1):
            ids.misses[index, place] += np.float32(ids.num_credits[index])
    ids.pending[index] = 0
    usual = ids.most_surprise[index]
    ids.most_surprise[index] = max(usual, min(ids.most_pending[index], _CREDIT_RATIO * usual + _CREDIT_BITS))
    ids.most_pending[index] = 0.0


@njit(cache=True)
def _learn_checksums(ids: _OfIdentifiers, index: Any, word: Any, num_bytes: Any) -> None:
    """Give up what is no checksum; what is left of them was tested by every payload that was new."""
    if num_bytes < 2:
        return
    is_first = ids.shown[index] == 0
    shown = np.uint64(1) << ((word * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(58))
    is_shown = (ids.shown[index] & shown) != 0
    ids.shown[index] |= shown
    for kind in range(NUM_CHECKSUMS):
        if ids.held[index, kind] < 0:
            continue
        residual = checksum_residual(kind, word, num_bytes)
        if is_first:
            ids.checksum[index, kind] = residual
        elif residual != ids.checksum[index, kind]:
            ids.held[index, kind] = -1
            continue
        if not is_shown or ids.held[index, kind] >= _HELD:
            ids.held[index, kind] += 1


@njit(cache=True)
def _broken_checksum(ids: _OfIdentifiers, index: Any, word: Any, num_bytes: Any) -> tuple[int, float]:
    """Return how often a checksum held that does not now, 0 if all hold, and whether there is one."""
    breaks, holds = 0, False
    wrong = np.uint32(0)
    for kind in range(NUM_CHECKSUMS):
        if ids.held[index, kind] >= _HELD:
            if checksum_residual(kind, word, num_bytes) == ids.checksum[index, kind]:
                holds = True
            else:
                breaks = max(breaks, ids.held[index, kind])
                wrong |= np.uint32(1) << np.uint32(kind)
    if wrong != 0:
        for kind in range(NUM_CHECKSUMS):
            if (wrong >> np.uint32(kind)) & np.uint32(1):
                ids.broken[index, kind] += 1
                # Two kinds may look alike for long: the one that still holds is it.
                if holds or ids.broken[index, kind] > ids.held[index, kind]:
                    ids.held[index, kind] = -1
    return 0 if holds else breaks, 1.0 if holds or breaks > 0 else 0.0
