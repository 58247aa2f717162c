"""What an identifier's payloads keep to, as far as they have shown: successors, checksums, steps, values and pauses.

`kdgat.canbus.features.fields` judges by these rules, and learns them from what conforms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.checksums import NUM_CHECKSUMS, checksum_halves, residual_of
from kdgat.canbus.features.features import popcount
from kdgat.canbus.features.memory import untouched

_MEMORY = 2000.0  # messages that shares are taken over
_COUNTER_BITS = 4.0  # a half byte that surprises by as many when its successor does not come, and changes
_COUNTER_CHANGES = 0.6  # in this share of the messages, is a counter,
_FEWEST_CONFIRMED = 8  # if it held as often while something else changed: checksums of what does not change count, too
_HALVES = np.uint64(0x1111111111111111)  # a bit of each half byte,
_BYTES = np.uint64(0x0101010101010101)  # and of each byte
_CREDIT_RATIO, _CREDIT_BITS = 1.1, 2.0  # by which an event may raise what surprise is usual
_HELD = 24  # payloads that changed and kept to a checksum
_FEWEST_OUTDONE, _OUTDONE = 2, 0.1  # payloads, and share of those that broke it, that kept to another one
_ALL_KINDS = np.uint64((1 << NUM_CHECKSUMS) - 1)
_NUM_VALUES = 16  # bins of a byte's value

# Columns of `FieldRules.numbers`, in seconds and counts of messages,
(
    LEARNED,  # conforming messages
    LATEST,  # s
    FIRST,
    MOST_SURPRISE,  # usual
    MOST_PENDING,  # of the odd messages that are pending
    CREDITED,  # s, when pending ones were counted last
    NUM_CREDITS,  # how often they were in this episode
    PAYLOAD_CHANGED,  # s, when the payload changed last
    PAYLOAD_LONGEST,  # s that it usually stays at most
    NUM_PAYLOADS,  # how often it changed
    ODD_SINCE,  # conforming messages since the last odd one
    ODD_TIME,  # s, of the last odd one
    ODD_RUN,  # odd messages of the episode, 0: none
) = range(13)
_NUM_NUMBERS = 16  # two lines of the cache
# and of `FieldRules.words`.
(
    PAYLOAD,
    CONFORMING,  # the last payload that was not odd
    COUNTING,  # half bytes that change as a counter does, a bit of each
    SHOWN,  # hashes of the payloads that were tested: the same again proves nothing
    PENDING,  # half bytes that another one came of in an episode that is not over, a bit each
    POSSIBLE,  # kinds of checksums that no payload has broken yet, a bit each: those of which `held` is not negative;
    KNOWN,  # and those that held so often that they are one
) = range(7)
_NUM_WORDS = 8


class FieldRules(NamedTuple):
    """What is remembered of I identifiers, by their numbers.

    Single numbers of an identifier are side by side: each array of its own would be another line of the cache.
    """

    numbers: NDArray[np.float64]  # [I, _NUM_NUMBERS]: LEARNED to ODD_RUN
    words: NDArray[np.uint64]  # [I, _NUM_WORDS]: PAYLOAD to PENDING
    successor: NDArray[np.uint8]  # [I, 16, 16] of each half byte's value: 1 + the value that followed it last
    misses: NDArray[np.float32]  # [I, 16] how often another one came
    changes: NDArray[np.float32]  # [I, 16] how often the half byte changed
    confirmed: NDArray[np.uint8]  # [I, 16] how often the half byte went on while others than those changed
    largest_step: NDArray[np.uint8]  # [I, 8] usual
    value_time: NDArray[np.float32]  # [I, 8, _NUM_VALUES] s
    changed: NDArray[np.float64]  # [I, 8] s, when the byte changed last
    longest: NDArray[np.float64]  # [I, 8] s that it usually stays at most
    num_changes: NDArray[np.float32]  # [I, 8]
    checksum: NDArray[np.uint8]  # [I, NUM_CHECKSUMS] what the residual is, if it is a checksum
    held: NDArray[np.int32]  # [I, NUM_CHECKSUMS] changed payloads in a row that kept to it; -1: it is none
    broken: NDArray[np.int32]  # [I, NUM_CHECKSUMS] payloads that did not keep to it since
    outdone: NDArray[np.int32]  # [I, NUM_CHECKSUMS] of them, that kept to another one


def new_rules(num_ids: int) -> FieldRules:
    return FieldRules(
        numbers=untouched((num_ids, _NUM_NUMBERS)),
        words=untouched((num_ids, _NUM_WORDS), np.uint64),
        successor=untouched((num_ids, 16, 16), np.uint8),
        misses=untouched((num_ids, 16), np.float32),
        confirmed=untouched((num_ids, 16), np.uint8),
        changes=untouched((num_ids, 16), np.float32),
        largest_step=untouched((num_ids, 8), np.uint8),
        value_time=untouched((num_ids, 8, _NUM_VALUES), np.float32),
        changed=untouched((num_ids, 8)),
        longest=untouched((num_ids, 8)),
        num_changes=untouched((num_ids, 8), np.float32),
        checksum=untouched((num_ids, NUM_CHECKSUMS), np.uint8),
        held=untouched((num_ids, NUM_CHECKSUMS), np.int32),
        broken=untouched((num_ids, NUM_CHECKSUMS), np.int32),
        outdone=untouched((num_ids, NUM_CHECKSUMS), np.int32),
    )


@njit(cache=True)
def forget(known: FieldRules, index: Any) -> None:
    """Make room for another identifier under this number; what its first message sets is left."""
    known.numbers[index] = 0.0
    known.words[index] = 0
    known.words[index, POSSIBLE] = _ALL_KINDS
    known.successor[index] = 0
    known.misses[index] = 0.0
    known.confirmed[index] = 0
    known.changes[index] = 0.0
    known.largest_step[index] = 0
    known.value_time[index] = 0.0
    known.longest[index] = 0.0
    known.num_changes[index] = 0.0
    known.held[index] = 0
    known.broken[index] = 0
    known.outdone[index] = 0


@njit(cache=True, forceinline=True)
def trailing_zeros(value: Any) -> Any:
    """Return the place of the lowest bit that is set in a word that is not zero."""
    return np.uint64(popcount((value & (~value + np.uint64(1))) - np.uint64(1)))


@njit(cache=True, forceinline=True)
def byte_of(word: Any, place: Any) -> Any:
    return np.int64((word >> (np.uint64(8) * np.uint64(place))) & np.uint64(255))


@njit(cache=True, forceinline=True)
def changed_bytes(word: Any, before: Any, num_bytes: Any) -> Any:
    """Return a bit for each byte of a payload that is another one, the lowest of that byte."""
    differs = word ^ before
    differs |= differs >> np.uint64(4)
    differs |= differs >> np.uint64(2)
    differs = (differs | (differs >> np.uint64(1))) & _BYTES
    return differs if num_bytes == 8 else differs & ((np.uint64(1) << np.uint64(8 * num_bytes)) - np.uint64(1))


@njit(cache=True, error_model="numpy", forceinline=True)
def surprise_after(
    ids: FieldRules, index: Any, before: Any, word: Any, num_bytes: Any, explained: Any
) -> tuple[float, float, float, np.uint32, Any]:
    """Return by how many bits a payload surprises after another: in all, at most, in counters; and which half bytes.

    Half bytes that are `explained` by the others, as a checksum that holds, are no surprise. The last value says that
    there is a successor to be learned: another one than was known, or the first.
    """
    missed, is_first = np.uint32(0), np.uint64(0)
    count = min(ids.numbers[index, LEARNED], _MEMORY) + 1.0
    for place in range(2 * num_bytes):  # without a branch, which no processor could predict
        value = (word >> np.uint64(4 * place)) & np.uint64(15)
        last = (before >> np.uint64(4 * place)) & np.uint64(15)
        successor = np.uint64(ids.successor[index, place, last])
        is_first |= np.uint64(successor == 0)
        expected = last + np.uint64(1) if successor == 0 else successor
        missed |= np.uint32(value + np.uint64(1) != expected) << np.uint32(place)
    remaining = missed & ~np.uint32(explained)
    if remaining == 0:
        return 0.0, 0.0, 0.0, missed, is_first != 0 or missed != 0
    # Bits are logarithms of shares: their sum is that of the product, 1e-58 at least, and the most that of the least.
    product, least, least_of_counters = 1.0, 1.0, 1.0
    while remaining != 0:
        place = trailing_zeros(np.uint64(remaining))
        remaining &= remaining - np.uint32(1)
        share = min((ids.misses[index, place] + 0.5) / count, 1.0)
        product *= share
        least = min(least, share)
        is_counter = (ids.words[index, COUNTING] >> np.uint64(4 * place)) & np.uint64(1)
        if is_counter and ids.confirmed[index, place] >= _FEWEST_CONFIRMED:
            least_of_counters = min(least_of_counters, share)
    counter = -np.log2(least_of_counters) if least_of_counters < 2.0**-_COUNTER_BITS else 0.0
    return -np.log2(product), -np.log2(least), counter, missed, True


@njit(cache=True, error_model="numpy", forceinline=True)
def learn(
    ids: FieldRules,
    index: Any,
    word: Any,
    before: Any,
    num_bytes: Any,
    missed: Any,
    is_told: Any,
    surprise: float,
    now: float,
    interval: float,
) -> None:
    """Learn from a message that conforms."""
    learned = ids.numbers[index, LEARNED]
    differs = word ^ before
    differs = (differs | (differs >> np.uint64(1)) | (differs >> np.uint64(2)) | (differs >> np.uint64(3))) & _HALVES
    others_change = (differs & ~ids.words[index, COUNTING]) != 0
    # Loops without branches over all places: the compiler takes several at once.
    num_halves = 2 * num_bytes
    if is_told:
        for place in range(num_halves):
            value = (word >> np.uint64(4 * place)) & np.uint64(15)
            last = (before >> np.uint64(4 * place)) & np.uint64(15)
            ids.successor[index, place, last] = np.uint8(value + np.uint64(1))
    kept = np.float32(1.0 - 1.0 / _MEMORY) if learned >= _MEMORY else np.float32(1.0)
    fewest_changes = _COUNTER_CHANGES * (min(learned, _MEMORY) + 1.0)
    counting = np.uint64(0)
    for place in range(num_halves):
        is_missed = (np.uint64(missed) >> np.uint64(place)) & np.uint64(1)
        ids.misses[index, place] = ids.misses[index, place] * kept + np.float32(is_missed)
        has_changed = (differs >> np.uint64(4 * place)) & np.uint64(1)
        num_changes = ids.changes[index, place] * kept + np.float32(has_changed)
        ids.changes[index, place] = num_changes
        counting |= np.uint64(np.float64(num_changes) > fewest_changes) << np.uint64(4 * place)
    ids.words[index, COUNTING] = counting
    if others_change:
        for place in range(num_halves):
            is_confirmed = np.uint32((differs >> np.uint64(4 * place)) & ~(np.uint64(missed) >> np.uint64(place)))
            grown = np.uint32(ids.confirmed[index, place]) + (is_confirmed & np.uint32(1))
            ids.confirmed[index, place] = np.uint8(min(grown, np.uint32(255)))
    for place in range(num_bytes):
        ids.value_time[index, place, (word >> np.uint64(8 * place + 4)) & np.uint64(15)] += np.float32(interval)
    if word != before:
        remaining_bits = changed_bytes(word, before, num_bytes)
        while remaining_bits != 0:
            place = trailing_zeros(remaining_bits) >> np.uint64(3)
            remaining_bits &= remaining_bits - np.uint64(1)
            step = abs(byte_of(word, place) - byte_of(before, place))
            step = min(step, 256 - step)
            if step > ids.largest_step[index, place]:
                ids.largest_step[index, place] = np.uint8(step)
            ids.num_changes[index, place] += np.float32(1.0)
            same = now - ids.changed[index, place]
            if same > ids.longest[index, place]:
                ids.longest[index, place] = same
        ids.numbers[index, NUM_PAYLOADS] += 1.0
        ids.numbers[index, PAYLOAD_LONGEST] = max(
            ids.numbers[index, PAYLOAD_LONGEST], now - ids.numbers[index, PAYLOAD_CHANGED]
        )
    ids.numbers[index, MOST_SURPRISE] = max(ids.numbers[index, MOST_SURPRISE], surprise)
    ids.numbers[index, LEARNED] = learned + 1.0


@njit(cache=True, error_model="numpy", forceinline=True)
def credit(ids: FieldRules, index: Any) -> None:
    """Learn of the odd messages that are pending; in an episode that lasts they count more and more."""
    ids.numbers[index, NUM_CREDITS] += 1.0
    for place in range(16):
        if (ids.words[index, PENDING] >> np.uint32(place)) & np.uint32(1):
            ids.misses[index, place] += np.float32(ids.numbers[index, NUM_CREDITS])
    ids.words[index, PENDING] = 0
    usual = ids.numbers[index, MOST_SURPRISE]
    ids.numbers[index, MOST_SURPRISE] = max(
        usual, min(ids.numbers[index, MOST_PENDING], _CREDIT_RATIO * usual + _CREDIT_BITS)
    )
    ids.numbers[index, MOST_PENDING] = 0.0


@njit(cache=True, error_model="numpy", forceinline=True)
def learn_checksums(ids: FieldRules, index: Any, word: Any, num_bytes: Any, residuals: tuple[Any, Any]) -> None:
    """Give up what is no checksum; what is left of them was tested by every payload that was new."""
    if num_bytes < 2:
        return
    remaining = ids.words[index, POSSIBLE]
    if remaining == 0:  # of most identifiers, soon
        return
    is_first = ids.words[index, SHOWN] == 0
    shown = np.uint64(1) << ((word * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(58))
    is_shown = (ids.words[index, SHOWN] & shown) != 0
    ids.words[index, SHOWN] |= shown
    while remaining != 0:
        kind = np.int64(trailing_zeros(remaining))
        bit = remaining & (~remaining + np.uint64(1))
        remaining ^= bit
        residual = residual_of(residuals, kind)
        if is_first:
            ids.checksum[index, kind] = residual
        elif residual != ids.checksum[index, kind]:
            ids.held[index, kind] = -1
            ids.words[index, POSSIBLE] &= ~bit
            ids.words[index, KNOWN] &= ~bit
            continue
        if not is_shown or ids.held[index, kind] >= _HELD:
            ids.held[index, kind] += 1
            if ids.held[index, kind] >= _HELD:
                ids.words[index, KNOWN] |= bit


@njit(cache=True, error_model="numpy", forceinline=True)
def broken_checksum(
    ids: FieldRules, index: Any, num_bytes: Any, residuals: tuple[Any, Any]
) -> tuple[int, float, np.uint32]:
    """Return how often a checksum held that does not now, 0 if all hold; whether there is one; the half bytes of it."""
    remaining = ids.words[index, KNOWN]
    if remaining == 0:
        return 0, 0.0, np.uint32(0)
    breaks, holds = 0, False
    wrong, halves = np.uint32(0), np.uint32(0)
    while remaining != 0:
        known: Any = np.int64(trailing_zeros(remaining))
        remaining &= remaining - np.uint64(1)
        if residual_of(residuals, known) == ids.checksum[index, known]:
            holds = True
            halves |= checksum_halves(known, num_bytes)
        else:
            breaks = max(breaks, ids.held[index, known])
            wrong |= np.uint32(1) << np.uint32(known)
    if wrong != 0:
        for kind in range(NUM_CHECKSUMS):
            if (wrong >> np.uint32(kind)) & np.uint32(1):
                ids.broken[index, kind] += 1
                ids.outdone[index, kind] += holds
                # Two kinds may look alike for long: the one that still holds is it, unless an attacker hit upon it.
                is_outdone = ids.outdone[index, kind] > max(_FEWEST_OUTDONE, _OUTDONE * ids.broken[index, kind])
                if is_outdone or ids.broken[index, kind] > ids.held[index, kind]:
                    ids.held[index, kind] = -1
                    ids.words[index, POSSIBLE] &= ~(np.uint64(1) << np.uint64(kind))
                    ids.words[index, KNOWN] &= ~(np.uint64(1) << np.uint64(kind))
    return 0 if holds else breaks, 1.0 if holds or breaks > 0 else 0.0, halves
