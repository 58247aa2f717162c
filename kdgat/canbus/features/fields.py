"""Payload fields: whether an identifier's payload is one that could come next, by its own past.

No file states what the bits of a payload mean, but an identifier shows its own rules: a counter counts, a constant
stays, a page follows the page before it, a checksum holds, a signal moves in steps of some size. One causal pass learns
them from messages that keep to them: each half byte's successors, each byte's usual steps, values and pauses, and which
of the checksums that cars use holds. A message that breaks them is odd and teaches nothing; odd messages that follow
one another closely are an episode, which counts as one event a second at most, as a lamp that is switched on does.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import UNCOUNTED, njit
from kdgat.canbus.features.checksums import checksum_residuals
from kdgat.canbus.features.field_rules import (
    CONFORMING,
    CREDITED,
    FIRST,
    KNOWN,
    LATEST,
    LEARNED,
    MOST_PENDING,
    MOST_SURPRISE,
    NUM_CREDITS,
    NUM_PAYLOADS,
    ODD_RUN,
    ODD_SINCE,
    ODD_TIME,
    PAYLOAD,
    PAYLOAD_CHANGED,
    PAYLOAD_LONGEST,
    PENDING,
    POSSIBLE,
    FieldRules,
    broken_checksum,
    byte_of,
    changed_bytes,
    credit,
    forget,
    learn,
    learn_checksums,
    new_rules,
    surprise_after,
    trailing_zeros,
)
from kdgat.canbus.features.memory import Numbered, with_room
from kdgat.canbus.features.timer import REST


class FieldColumns(NamedTuple):
    """Number the features of a payload."""

    sequence_surprise: int  # bits by which the half bytes' successors surprise, over 64
    sequence_excess: int  # log2 of that over the most that was usual
    sequence_peak: int  # bits by which the most surprising half byte does, over 12
    counter_break: int  # bits by which a half byte that continues like a counter does, over 12
    checksum_break: int  # log2 of 1 + messages in which a checksum held that does not now, over 12
    checksum_known: int  # a checksum has been found
    jump: int  # log2 of a byte's step over its largest usual one, over 8; of the byte that jumps most
    value_rank: int  # -log2 of the share of the id's time in which a byte was near this value; of the rarest
    frozen: int  # log2 of the time a byte has not changed over the longest usual such time; of the longest
    still: int  # the same of the payload as a whole
    odd: int  # the message breaks the id's rules
    odd_run: int  # log2 of 1 + odd messages in this episode, over 8


_COLUMN: Final = FieldColumns(*range(len(FieldColumns._fields)))
FIELD_FEATURES: Final = FieldColumns._fields
NUM_FIELD_FEATURES: Final = len(FIELD_FEATURES)

_LEARNED = 10.0  # conforming messages before an id is judged
_SUM_MARGIN = 8.0  # bits beyond the usual that are odd,
_SUM_RATIO = 1.25  # beside this factor
_CREDIT_S = 1.0  # of an episode that lasts, that count as one more event
_MOST_STILL = 2.0  # log2: longer than four times the longest is no longer news, a car may be parked
_CALM_S = 2.0  # without an odd message, an episode is over,
_CALM_MESSAGES = 8.0  # after so many
_FEWEST_CHANGES = 8.0  # of a byte that is called frozen
_SHORTEST_S = 1e-6


class FieldState:
    """Remember the rules of a recording's payloads; bounded by the number of identifiers, 1.4 kB each."""

    def __init__(self) -> None:
        self._of_identifiers = new_rules(0)

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
        wanted: NDArray[np.bool_] | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Judge the payloads of the next M messages, and learn from them.

        Arguments: seconds that never go back [M], numbers of the ids, payload as little-endian words [M], payload bytes
        [M], and which messages are to be described [M], by default all; from the others is learned only. Returns
        float32 [M, NUM_FIELD_FEATURES], named by FIELD_FEATURES: `out`, if zeros are given.
        """
        wanted = np.ones(len(timestamp), bool) if wanted is None else wanted
        self._of_identifiers = with_room(self._of_identifiers, numbered.num_numbers, new_rules)
        features = np.zeros((len(timestamp), NUM_FIELD_FEATURES), np.float32) if out is None else out
        _judge(timestamp, numbered.number, numbered.is_new, payload, length, wanted, self._of_identifiers, features)
        return features


@njit(cache=True, forceinline=True)
def _log_ratio(ratio: float) -> Any:
    """Return log2 of a ratio, REST to _MOST_STILL."""
    return min(np.log2(ratio), _MOST_STILL) if ratio > 2.0**REST else REST


@njit(cache=True, error_model="numpy", nogil=True, **UNCOUNTED)
def _judge(
    timestamp: NDArray[np.float64],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    payload: NDArray[np.uint64],
    length: NDArray[np.uint8],
    wanted: NDArray[np.bool_],
    ids: FieldRules,
    out: NDArray[np.float32],
) -> None:
    for message in range(timestamp.shape[0]):
        now = timestamp[message]
        index = np.uint64(numbers[message])  # unsigned: no check whether it counts from the end
        word = payload[message]
        num_bytes: Any = min(np.int64(length[message]), 8)
        is_wanted = wanted[message]
        if is_new[message]:
            forget(ids, index)
            if is_wanted:
                out[message, _COLUMN.frozen] = out[message, _COLUMN.still] = REST
            ids.numbers[index, FIRST] = now
            ids.numbers[index, LATEST] = now
            ids.words[index, PAYLOAD] = word
            ids.words[index, CONFORMING] = word
            ids.changed[index] = now
            ids.numbers[index, PAYLOAD_CHANGED] = now
            learn_checksums(ids, index, word, num_bytes, checksum_residuals(word, num_bytes))
            continue
        before = ids.words[index, PAYLOAD]
        learned = ids.numbers[index, LEARNED]
        is_known = learned >= _LEARNED
        interval = now - ids.numbers[index, LATEST]
        age = now - ids.numbers[index, FIRST]

        # what could follow the previous message or, in an episode, the last one that conformed
        residuals = (np.uint64(0), np.uint64(0))
        if ids.words[index, KNOWN] != 0 or (ids.words[index, POSSIBLE] != 0 and word != before):
            residuals = checksum_residuals(word, num_bytes)
        breaks, checksum_known, explained = broken_checksum(ids, index, num_bytes, residuals)
        surprise, peak, counter, missed, is_told = surprise_after(ids, index, before, word, num_bytes, explained)
        if ids.numbers[index, ODD_RUN] > 0.0 and ids.words[index, CONFORMING] != before:
            other = surprise_after(ids, index, ids.words[index, CONFORMING], word, num_bytes, explained)
            counter = min(counter, other[2])
            if other[0] < surprise:
                surprise, peak, missed = other[0], other[1], other[3]
            is_told = True

        # which bytes moved, how far, and to where
        jump, rarest, longest_frozen = 0.0, np.inf, 0.0
        for place in range(num_bytes if is_wanted and is_known else 0):
            value = byte_of(word, place)
            step = abs(value - byte_of(before, place))
            step = min(step, 256 - step)
            if step > 0:
                jump = max(jump, (step + 1.0) / (ids.largest_step[index, place] + 1.0))
            rarest = min(rarest, ids.value_time[index, place, value >> 4])
            if step == 0 and ids.num_changes[index, place] >= _FEWEST_CHANGES:
                same = (now - ids.changed[index, place]) / max(ids.longest[index, place], _SHORTEST_S)
                longest_frozen = max(longest_frozen, same)
        still = 0.0
        if word == before and ids.numbers[index, NUM_PAYLOADS] >= _FEWEST_CHANGES:
            still = (now - ids.numbers[index, PAYLOAD_CHANGED]) / max(ids.numbers[index, PAYLOAD_LONGEST], _SHORTEST_S)
        is_odd = False
        if is_known:
            is_odd = (
                breaks > 0 or counter > 0.0 or surprise > _SUM_RATIO * ids.numbers[index, MOST_SURPRISE] + _SUM_MARGIN
            )
        if is_known and is_wanted:
            out[message, _COLUMN.sequence_surprise] = min(surprise, 192.0) / 64.0
            excess = np.log2((surprise + 4.0) / (ids.numbers[index, MOST_SURPRISE] + 4.0))
            out[message, _COLUMN.sequence_excess] = min(max(excess, -4.0), 4.0)
            out[message, _COLUMN.sequence_peak] = peak / 12.0
            out[message, _COLUMN.counter_break] = counter / 12.0
            out[message, _COLUMN.jump] = np.log2(jump) / 8.0 if jump > 1.0 else 0.0
            out[message, _COLUMN.value_rank] = -np.log2((min(rarest, age) + 0.02) / (age + 0.02)) if num_bytes else 0.0
            out[message, _COLUMN.frozen] = _log_ratio(longest_frozen)
            out[message, _COLUMN.still] = _log_ratio(still)
            out[message, _COLUMN.checksum_known] = checksum_known
            if breaks > 0:
                out[message, _COLUMN.checksum_break] = np.log2(1.0 + breaks) / 12.0
        elif is_wanted:
            out[message, _COLUMN.frozen] = out[message, _COLUMN.still] = REST

        if is_odd:
            if ids.numbers[index, ODD_RUN] == 0.0:
                ids.numbers[index, CREDITED] = now
                ids.numbers[index, NUM_CREDITS] = 0.0
            ids.numbers[index, ODD_RUN] += 1.0
            ids.numbers[index, ODD_TIME] = now
            ids.numbers[index, ODD_SINCE] = 0.0
            ids.words[index, PENDING] |= missed
            ids.numbers[index, MOST_PENDING] = max(ids.numbers[index, MOST_PENDING], surprise)
            if is_wanted:
                out[message, _COLUMN.odd] = 1.0
        else:
            ids.numbers[index, ODD_SINCE] += 1.0
            ids.numbers[index, NUM_CREDITS] = 0.0
            ids.words[index, CONFORMING] = word
        if is_wanted and ids.numbers[index, ODD_RUN] > 0.0:
            out[message, _COLUMN.odd_run] = np.log2(1.0 + ids.numbers[index, ODD_RUN]) / 8.0
        if ids.numbers[index, ODD_RUN] > 0.0:
            if now - ids.numbers[index, ODD_TIME] > _CALM_S and ids.numbers[index, ODD_SINCE] > _CALM_MESSAGES:
                ids.numbers[index, ODD_RUN] = 0.0
                credit(ids, index)
            elif now - ids.numbers[index, CREDITED] > _CREDIT_S:
                ids.numbers[index, CREDITED] = now
                credit(ids, index)
        else:
            learn(ids, index, word, before, num_bytes, missed, is_told, surprise, now, interval)
            if word != before:
                learn_checksums(ids, index, word, num_bytes, residuals)
        if word != before:
            remaining = changed_bytes(word, before, num_bytes)
            while remaining != 0:
                ids.changed[index, trailing_zeros(remaining) >> np.uint64(3)] = now
                remaining &= remaining - np.uint64(1)
            ids.numbers[index, PAYLOAD_CHANGED] = now
        ids.words[index, PAYLOAD] = word
        ids.numbers[index, LATEST] = now
