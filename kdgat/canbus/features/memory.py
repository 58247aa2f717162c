"""What is remembered of identifiers, of which an attacker may send any number, and of the bus: in bounded memory.

A vehicle has some hundreds of identifiers, and an attacker may send 2^29. So the first `LASTING` identifiers of a
recording keep their numbers for good, and those that come later share `PASSING` more in turn: the one that came longest
ago loses its number to the next new one and is new itself when it comes again. What a detector learned of a vehicle
before an attack stays, a flood of identifiers looks like what it is, and identifiers that appear after one are learned.

Message features are relative to an identifier's own past, kept by its number (`OfIdentifiers`), and to that of the bus.
"""

from __future__ import annotations

import contextlib
import mmap
import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

Columns = TypeVar("Columns", bound=tuple[NDArray[Any], ...])

LASTING: Final = 8192
PASSING: Final = 10_240  # more than a window has messages: within one, a number means one identifier
_TABLE_BITS: Final = 16
NUM_BINS = 96  # interval histogram, four bins an octave (quarter_octaves) from 2^-17 s to 2^7 s
LOWEST_BIN = 68
_NUM_RANK_BINS = 36
FIRST_TWIN_BIN = 17  # of a payload that is as near to the one before the previous as to the previous
ORDER_TABLE_BITS = 20
NUM_ORDERS = 32  # transitions that a passing identifier takes with it when it loses its number

# Columns of what is remembered of an identifier: seconds,
(
    LAST_TIME,
    INTERVAL_BEFORE,
    FIRST_TIME,
    TIME_BELOW,  # interval time in bins below the median bin
    TIME_TOTAL,
    REPEAT_TIME,
) = range(6)
# counts
NUM_SEEN, MEDIAN_BIN, LAST_LENGTH, COUNT_BELOW = range(4)  # the last one is of intervals below the median bin
# and payloads.
LAST_PAYLOAD, PAYLOAD_BEFORE, TOGGLED, ALWAYS_TOGGLING = range(4)


class Numbered(NamedTuple):
    """The identifiers of M messages by number."""

    number: NDArray[np.int32]  # [M]
    is_new: NDArray[np.bool_]  # [M] the identifier comes for the first time, or was forgotten: nothing is known of it
    num_numbers: int  # that were given so far


class IdentifierNumbers:
    """Number identifiers as they come; a recording in pieces gets the numbers of the whole."""

    most: Final = LASTING + PASSING

    def __init__(self) -> None:
        self._keys = np.full(1 << _TABLE_BITS, -1, np.int64)
        self._values = np.zeros(1 << _TABLE_BITS, np.int32)
        self._identifiers = np.zeros(self.most, np.uint32)  # by number, the last one that had it
        self._counts = np.zeros(2, np.int64)  # numbers that were given; new identifiers so far
        # No attacker can choose identifiers that share a place in the table. No number depends on it.
        self._seed = np.uint64(secrets.randbits(64))

    @property
    def num_bytes(self) -> int:
        """Return the memory of the table, which is always the same."""
        return self._keys.nbytes + self._values.nbytes + self._identifiers.nbytes

    def number(self, identifier: NDArray[np.uint32]) -> Numbered:
        """Number the identifiers of the next M messages."""
        number, is_new = _number(identifier, self._keys, self._values, self._identifiers, self._counts, self._seed)
        return Numbered(number, is_new, int(self._counts[0]))


def with_room(columns: Columns, num_ids: int, new: Callable[[int], Columns]) -> Columns:
    """Return columns [I, ...] by number with room for so many identifiers; `new` makes them for any number.

    The first identifier makes room for all there can be: no flood of them has to wait while what is known is copied.
    """
    return columns if num_ids <= len(columns[0]) else new(IdentifierNumbers.most)


def untouched(shape: int | tuple[int, ...], data_type: type[np.generic] = np.float64) -> NDArray[Any]:
    """Return zeros of which only what is written to takes memory, whatever their number."""
    kind = np.dtype(data_type)
    num_bytes = int(np.prod(shape)) * kind.itemsize
    if not num_bytes:
        return np.zeros(shape, kind)
    # numpy's own may be memory that was used before, and is then written to at once.
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind).reshape(shape)


@njit(cache=True, inline="always")
def _slot(key: Any, mask: int, seed: Any) -> Any:
    """Return where to look first: splitmix64 of the key and the seed."""
    mixed = np.uint64(key) + seed + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> np.uint64(31))) & np.uint64(mask))


@njit(cache=True, nogil=True)
def _number(
    identifier: NDArray[np.uint32],
    keys: NDArray[np.int64],
    values: NDArray[np.int32],
    identifiers: NDArray[np.uint32],
    counts: NDArray[np.int64],
    seed: Any,
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    numbers = np.empty(identifier.shape[0], np.int32)
    is_new = np.zeros(identifier.shape[0], np.bool_)
    mask = keys.shape[0] - 1
    for message in range(identifier.shape[0]):
        key = np.int64(identifier[message])
        slot = _slot(key, mask, seed)
        while keys[slot] != key and keys[slot] != -1:
            slot = (slot + 1) & mask
        if keys[slot] == -1:
            if counts[0] < LASTING + PASSING:
                number = counts[0]
                counts[0] += 1
            else:
                number = LASTING + (counts[1] - LASTING) % PASSING
                _remove(np.int64(identifiers[number]), keys, values, seed)
                slot = _slot(key, mask, seed)  # the removal may have moved what was on the way
                while keys[slot] != -1:
                    slot = (slot + 1) & mask
            counts[1] += 1
            is_new[message] = True
            keys[slot] = key
            values[slot] = number
            identifiers[number] = identifier[message]
        numbers[message] = values[slot]
    return numbers, is_new


@njit(cache=True)
def _remove(key: Any, keys: NDArray[np.int64], values: NDArray[np.int32], seed: Any) -> None:
    """Take a key out of a table with linear probing: later ones move up, so that no search ends early."""
    mask = keys.shape[0] - 1
    slot = _slot(key, mask, seed)
    while keys[slot] != key:
        slot = (slot + 1) & mask
    following = slot
    while True:
        following = (following + 1) & mask
        if keys[following] == -1:
            break
        home = _slot(keys[following], mask, seed)
        if ((following - home) & mask) >= ((following - slot) & mask):
            keys[slot] = keys[following]
            values[slot] = values[following]
            slot = following
    keys[slot] = -1


class OfIdentifiers(NamedTuple):
    """What is remembered of I identifiers, by their numbers; zero, but for `first_as_short`, of one that is new.

    Single numbers of an identifier are side by side: each array of its own would be another line of the cache.
    """

    numbers: NDArray[np.float64]  # [I, 8] s: LAST_TIME to REPEAT_TIME
    counts: NDArray[np.int64]  # [I, 4] NUM_SEEN to COUNT_BELOW
    words: NDArray[np.uint64]  # [I, 4] LAST_PAYLOAD to ALWAYS_TOGGLING
    histogram_count: NDArray[np.int32]  # [I, NUM_BINS]
    histogram_time: NDArray[np.float64]
    first_as_short: NDArray[np.float64]  # when an interval of this bin or a shorter one first came
    bit_time: NDArray[np.float32]  # [I, 64] time that ended in a change of this bit
    toggle_time: NDArray[np.float64]  # [I, _NUM_RANK_BINS] id's time that a change closed which surprised as much
    twin_time: NDArray[np.float64]  # the same of twins, from the bin FIRST_TWIN_BIN on


class OfBus(NamedTuple):
    """What is remembered of all messages; arrays of one row are written back at the end of a call."""

    times: NDArray[np.float64]  # [4] start, of the previous message, mean gap, short-time rate
    places: NDArray[np.int64]  # [3] messages so far, number of the previous identifier or -1, lowest established id
    order_count: NDArray[np.float32]  # [2^ORDER_TABLE_BITS] how often one identifier followed another
    priority_count: NDArray[np.int64]  # [64] messages by the first bits of their identifier
    orders: NDArray[np.int32]  # [PASSING, NUM_ORDERS] 1 + places in order_count of who shares a number in turn
    num_orders: NDArray[np.int64]  # [PASSING] so far; the first ones are written over


def new_identifiers(num_ids: int) -> OfIdentifiers:
    return OfIdentifiers(
        numbers=untouched((num_ids, 8)),
        counts=untouched((num_ids, 4), np.int64),
        words=untouched((num_ids, 4), np.uint64),
        histogram_count=untouched((num_ids, NUM_BINS), np.int32),
        histogram_time=untouched((num_ids, NUM_BINS)),
        first_as_short=untouched((num_ids, NUM_BINS)),
        bit_time=untouched((num_ids, 64), np.float32),
        toggle_time=untouched((num_ids, _NUM_RANK_BINS)),
        twin_time=untouched((num_ids, _NUM_RANK_BINS)),
    )


@njit(cache=True)
def forget(known: OfIdentifiers, index: Any) -> None:
    """Make room for another identifier under this number."""
    known.numbers[index] = 0.0
    known.counts[index] = 0
    known.words[index] = 0
    known.histogram_count[index] = 0
    known.histogram_time[index] = 0.0
    known.bit_time[index] = 0.0
    known.toggle_time[index] = 0.0
    known.twin_time[index] = 0.0


@njit(cache=True)
def note_order(bus: OfBus, index: Any, key: Any) -> None:
    """Remember a transition that an identifier which may lose its number was the first to make."""
    row = index - LASTING
    if row >= 0:
        bus.orders[row, bus.num_orders[row] % NUM_ORDERS] = key + 1
        bus.num_orders[row] += 1


@njit(cache=True)
def forget_orders(bus: OfBus, index: Any) -> None:
    """Forget whom the last identifier of this number followed, and who followed it."""
    row = index - LASTING
    if row >= 0:
        for place in range(min(bus.num_orders[row], NUM_ORDERS)):
            bus.order_count[bus.orders[row, place] - 1] = 0.0
        bus.num_orders[row] = 0
