"""What message features are relative to: an identifier's own past, and that of the bus."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.identifiers import LASTING, untouched

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


class OfIdentifiers(NamedTuple):
    """What is remembered of I identifiers, by their numbers; zero, but for `first_as_short`, of one that is new.

    Single numbers of an identifier stand side by side: each array of its own would be another line of the cache.
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
