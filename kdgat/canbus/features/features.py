"""Features of every message against the same identifier's own past.

An arbitration id means nothing on another vehicle, but "this id came twice as often as it usually does, with a
payload that flips bits it never flips" means the same everywhere. One causal pass keeps, for each id, what it did so
far in this recording, and describes each message relative to that. State never crosses a recording's border.

Long-run statistics weigh every message by the time since the id's previous one, so that a burst of injected messages,
which come close together, hardly moves them: the period is the median of the intervals weighted by their length.

What is remembered is a `FeatureState` that outlives a call: a recording in pieces has the features of the whole.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import UNCOUNTED, njit
from kdgat.canbus.features.logarithms import log2, quarter_octaves
from kdgat.canbus.features.memory import (
    ALWAYS_TOGGLING,
    COUNT_BELOW,
    FIRST_TIME,
    FIRST_TWIN_BIN,
    INTERVAL_BEFORE,
    LAST_LENGTH,
    LAST_PAYLOAD,
    LAST_TIME,
    LOWEST_BIN,
    MEDIAN_BIN,
    NUM_BINS,
    NUM_ORDERS,
    NUM_SEEN,
    ORDER_TABLE_BITS,
    PASSING,
    PAYLOAD_BEFORE,
    REPEAT_TIME,
    TIME_BELOW,
    TIME_TOTAL,
    TOGGLED,
    IdentifierNumbers,
    Numbered,
    OfBus,
    OfIdentifiers,
    forget,
    forget_orders,
    new_identifiers,
    note_order,
    untouched,
    with_room,
)


class MessageColumns(NamedTuple):
    """Number the features of a message."""

    # logarithms (_SCALES)
    interval_ratio: int  # log2 of the interval to the id's previous message over its long-run period
    double_interval_ratio: int  # the same over two messages and two periods
    interval_low_rank: int  # -log2 of the share of the id's intervals that were at most this long
    interval_high_rank: int  # -log2 of the share that were at least this long
    toggle_rank: int  # -log2 of the share of the id's time in which its payload changed as surprisingly
    twin_rank: int  # -log2 of the share of the id's time in which it was as much so
    repeat_rank: int  # -log2 of the share of the id's time in which payloads repeated, or did not, as now
    experience: int  # log2 of the number of the id's messages so far, over 16
    order_surprise: int  # -log2 of how often this id follows the previous one, over 8
    bus_gap: int  # log2 of the time since the previous message over its long-run mean
    bus_rate: int  # log2 of the bus rate of the last 50 ms over its long-run mean
    log_period: int  # log2 of the id's long-run period in seconds, over 8
    recording_age: int  # log2 of seconds since the recording began, over 8
    # and all others
    interval_novelty: int  # share of the id's time before it first showed an interval this short
    bits_changed: int  # share of payload bits that differ from the id's previous payload
    toggle_surprise: int  # sum over changed bits of -log2 of how often that bit changes, over 64
    missing_toggles: int  # bits that nearly always change and did not, over 8
    new_toggles: int  # bits that never changed before, over 8
    twin: int  # nearer to the payload before the previous than to the previous: A, B, A, B
    length_changed: int
    novelty: int  # share of the recording so far in which this id did not exist
    outranks: int  # this id wins arbitration against every established id
    priority: int  # share of the traffic so far with a lower id
    period_known: int


COLUMN: Final = MessageColumns(*range(len(MessageColumns._fields)))
MESSAGE_FEATURES: Final = MessageColumns._fields
NUM_MESSAGE_FEATURES: Final = len(MESSAGE_FEATURES)

# What the logarithms are multiplied by, and what they are kept to. They are taken of many messages at once.
_SCALES: Final = np.array([1, 1, -1, -1, -1, -1, -1, 1 / 16, -1 / 8, 1, 1, 1 / 8, 1 / 8])
_LIMITS: Final = np.array([6.0, 6.0, *[np.inf] * 7, 6.0, 4.0, np.inf, np.inf])
_NUM_LOGARITHMS: Final = len(_SCALES)
_NUM_ARGUMENTS: Final = 16  # with some to spare, so that rows are lines of the cache
_NUM_ROWS: Final = 64
_MEMORY_S = 30.0  # long-run means forget with this time constant
_ESTABLISHED_S = 1.0
_ORIGINAL_S = 2.0  # from the beginning of a recording, in which its own identifiers come;
_NEWCOMER_S = 60.0  # an identifier that comes later is established only after so long: floods do not last
_ESTABLISHED_COUNT = 8
_SHORTEST_INTERVAL_S = 1e-6
_SMALLEST_PRODUCT = 1e-150  # far above what floats become inexact at


@njit(cache=True, inline="always")
def popcount(value: np.uint64) -> Any:
    value = value - ((value >> np.uint64(1)) & np.uint64(0x5555555555555555))
    value = (value & np.uint64(0x3333333333333333)) + ((value >> np.uint64(2)) & np.uint64(0x3333333333333333))
    value = (value + (value >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((value * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True, inline="always")
def _rank(above: float, total: float) -> float:
    """Return the share of `total` seconds that are in a bin or in a higher one, one bin's width of doubt added."""
    return (above + 0.01) / (total + 0.01)


class FeatureState:
    """Remember what the features of a recording's next messages are relative to.

    Memory is bounded by the number of identifiers, 3 kB each, and that by `IdentifierNumbers`; what is not used yet is
    reserved only.
    """

    def __init__(self) -> None:
        self.numbers = IdentifierNumbers()
        self._of_identifiers = new_identifiers(0)
        self._of_bus = OfBus(
            times=np.zeros(4),
            places=np.array([0, -1, 1 << 40], np.int64),
            order_count=np.zeros(1 << ORDER_TABLE_BITS, np.float32),
            priority_count=np.zeros(64, np.int64),
            orders=untouched((PASSING, NUM_ORDERS), np.int32),
            num_orders=untouched(PASSING, np.int64),
        )

    @property
    def num_bytes(self) -> int:
        """Return the memory of what is remembered."""
        return self.numbers.num_bytes + sum(array.nbytes for array in (*self._of_identifiers, *self._of_bus))

    def describe(
        self,
        timestamp: NDArray[np.float64],
        identifier: NDArray[np.uint32],
        payload: NDArray[np.uint64],
        length: NDArray[np.uint8],
        wanted: NDArray[np.bool_] | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> tuple[Numbered, NDArray[np.float32]]:
        """Describe the next M messages against their ids' own past, and remember them.

        Arguments: seconds [M], ids [M], payload as little-endian words [M], payload bytes [M], and which messages are
        to be described [M], by default all; the others are remembered only, which takes half the time. Returns the
        numbers of the ids, and float32 [M, NUM_MESSAGE_FEATURES], named by MESSAGE_FEATURES: `out`, if zeros are given.
        """
        wanted = np.ones(len(timestamp), bool) if wanted is None else wanted
        numbered = self.numbers.number(identifier)
        self._of_identifiers = with_room(self._of_identifiers, numbered.num_numbers, new_identifiers)
        features = np.zeros((len(timestamp), NUM_MESSAGE_FEATURES), np.float32) if out is None else out
        _describe(
            timestamp, *numbered[:2], identifier, payload, length, wanted, self._of_identifiers, self._of_bus,
            np.ones((_NUM_ROWS, _NUM_ARGUMENTS)), np.empty(_NUM_ROWS, np.int64), np.empty(_NUM_ROWS, np.int64),
            features,
        )  # fmt: skip
        return numbered, features


@njit(cache=True, error_model="numpy", fastmath=False, **UNCOUNTED)
def _write_logarithms(
    arguments: NDArray[np.float64], described: NDArray[np.int64], num_rows: int, out: NDArray[np.float32]
) -> None:
    """Write the logarithms of so many messages into their rows; all arguments are 1 then."""
    # The pass's arithmetic may be reordered, this must not be: what a message gets may not depend on its row here. Said
    # above, too: a function without the option is compiled as its caller.
    flat = arguments.reshape(-1)
    for place in range(num_rows * _NUM_ARGUMENTS):
        flat[place] = log2(flat[place])
    for row in range(num_rows):
        message = described[row]
        for column in range(_NUM_LOGARITHMS):
            value = _SCALES[column] * arguments[row, column]
            out[message, column] = min(max(value, -_LIMITS[column]), _LIMITS[column])
    for place in range(num_rows * _NUM_ARGUMENTS):
        flat[place] = 1.0


@njit(cache=True, **UNCOUNTED)
def _look_up_transitions(
    numbers: NDArray[np.int32], previous: Any, order_count: NDArray[np.float32], transitions: NDArray[np.int64]
) -> None:
    """Write the places in `order_count` of the transitions to some messages, and have the cache fetch all of them.

    One after the other, as the pass comes to them, each would be waited for.
    """
    order_mask = (1 << ORDER_TABLE_BITS) - 1
    for place in range(numbers.shape[0]):
        index = np.int64(numbers[place])
        transitions[place] = ((previous * 40503) ^ (index * 9973)) & order_mask
        previous = index
    touched = np.float32(0.0)
    for place in range(numbers.shape[0]):
        touched += order_count[transitions[place]]
    if touched < 0.0:  # never: counts are read here for the cache's sake alone
        transitions[0] = 0


@njit(cache=True, fastmath=True, error_model="numpy", nogil=True, **UNCOUNTED)
def _describe(
    timestamp: NDArray[np.float64],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    identifiers: NDArray[np.uint32],
    payload: NDArray[np.uint64],
    length: NDArray[np.uint8],
    wanted: NDArray[np.bool_],
    ids: OfIdentifiers,
    bus: OfBus,
    arguments: NDArray[np.float64],
    described: NDArray[np.int64],
    transitions: NDArray[np.int64],
    out: NDArray[np.float32],
) -> None:
    num_messages = timestamp.shape[0]
    if num_messages == 0:
        return
    histogram_count = ids.histogram_count
    histogram_time = ids.histogram_time
    first_as_short = ids.first_as_short
    bit_time = ids.bit_time
    toggle_time = ids.toggle_time
    twin_time = ids.twin_time
    order_count, priority_count = bus.order_count, bus.priority_count
    before = bus.places[0]
    if before == 0:
        bus.times[0] = timestamp[0]
        bus.times[1] = timestamp[0]
    start, previous_time, bus_mean_gap, bus_short_rate = bus.times[0], bus.times[1], bus.times[2], bus.times[3]
    previous, established_lowest = bus.places[1], bus.places[2]
    num_rows: Any = np.int64(0)  # not 0 alone: what is called with it would be compiled once more for that literal
    for message in range(num_messages):
        block = message % _NUM_ROWS
        if block == 0:
            _look_up_transitions(numbers[message : message + _NUM_ROWS], previous, order_count, transitions)
        now = timestamp[message]
        is_wanted = wanted[message]
        if is_wanted:
            if num_rows == _NUM_ROWS:
                _write_logarithms(arguments, described, num_rows, out)
                num_rows = 0
            described[num_rows] = message
            num_rows += 1
        row = max(num_rows - 1, 0)
        index = np.int64(numbers[message])
        place = before + message  # in the recording
        if is_new[message]:
            if ids.counts[index, NUM_SEEN] > 0:
                forget(ids, index)
                forget_orders(bus, index)
            first_as_short[index] = np.inf
        word = payload[message]
        num_bits = 8.0 * max(1, length[message])
        age = max(now - start, 0.0)
        seen = ids.counts[index, NUM_SEEN]

        # the bus as a whole
        gap = max(now - previous_time, _SHORTEST_INTERVAL_S)
        if place > 0:
            weight = min(gap / _MEMORY_S, 1.0)  # after a pause longer than the memory, the mean is that pause
            bus_mean_gap += (gap - bus_mean_gap) * (max(1.0 / place, weight) if place < 100_000 else weight)
            bus_short_rate = bus_short_rate * np.exp(-gap / 0.05) + 20.0
            if is_wanted:
                arguments[row, COLUMN.bus_gap] = gap / bus_mean_gap
                if age > 0.1:
                    arguments[row, COLUMN.bus_rate] = bus_short_rate * bus_mean_gap
        if previous >= 0:
            key = transitions[block]
            follows = order_count[key]
            if follows == 0.0:
                note_order(bus, previous, key)
                note_order(bus, index, key)
            if is_wanted:
                arguments[row, COLUMN.order_surprise] = (follows + 0.25) / (ids.counts[previous, NUM_SEEN] + 8.0)
            order_count[key] = follows + 1.0

        # the id itself
        identifier: Any = np.int64(identifiers[message])
        if seen == 0:
            ids.numbers[index, FIRST_TIME] = now
        id_age = max(now - ids.numbers[index, FIRST_TIME], 0.0)
        # arbitration compares the first 11 bits of an extended id with those of a standard one
        bucket: Any = (identifier if identifier < 2048 else identifier >> 18) >> 5
        if is_wanted:
            out[message, COLUMN.novelty] = (age - id_age) / (age + 0.5)
            arguments[row, COLUMN.experience] = 1.0 + seen
            out[message, COLUMN.outranks] = 1.0 if identifier < established_lowest and age > _ESTABLISHED_S else 0.0
            lower = 0
            for other in range(bucket):
                lower += priority_count[other]
            out[message, COLUMN.priority] = lower / (place + 1.0)
            arguments[row, COLUMN.recording_age] = 1.0 + age
        priority_count[bucket] += 1

        if seen > 0:
            interval = max(now - ids.numbers[index, LAST_TIME], _SHORTEST_INTERVAL_S)
            position: Any = min(max(quarter_octaves(interval) + LOWEST_BIN, 0), NUM_BINS - 1)
            if is_wanted and seen > 3:
                middle = ids.counts[index, MEDIAN_BIN]
                period = histogram_time[index, middle] / max(histogram_count[index, middle], 1)
                arguments[row, COLUMN.interval_ratio] = interval / period
                double = interval + ids.numbers[index, INTERVAL_BEFORE]
                arguments[row, COLUMN.double_interval_ratio] = double / (2.0 * period)
                at_most = ids.counts[index, COUNT_BELOW]
                for other in range(middle, position):  # one of these two loops, and mostly a short one
                    at_most += histogram_count[index, other]
                for other in range(position, middle):
                    at_most -= histogram_count[index, other]
                equal = histogram_count[index, position]
                known = seen - 1.0
                arguments[row, COLUMN.interval_low_rank] = (at_most + equal + 0.5) / (known + 1.0)
                arguments[row, COLUMN.interval_high_rank] = (known - at_most + 0.5) / (known + 1.0)
                # one bin of margin: a clock that drifts over a bin's border is nothing new
                since = now - min(first_as_short[index, min(position + 1, NUM_BINS - 1)], now)
                out[message, COLUMN.interval_novelty] = 1.0 - since / (id_age + 0.1)
                arguments[row, COLUMN.log_period] = period
                out[message, COLUMN.period_known] = 1.0
            changed = word ^ ids.words[index, LAST_PAYLOAD]
            num_changed = popcount(changed)
            weight_time = max(id_age, 1e-3)
            twin = 0.0
            if seen > 1:
                twin = (num_changed - popcount(word ^ ids.words[index, PAYLOAD_BEFORE])) / num_bits
            if is_wanted:
                out[message, COLUMN.bits_changed] = num_changed / num_bits
                out[message, COLUMN.twin] = twin
                out[message, COLUMN.new_toggles] = (
                    popcount(changed & ~ids.words[index, TOGGLED]) / 8.0 if seen > 1 else 0.0
                )
                if seen > 8:
                    out[message, COLUMN.missing_toggles] = popcount(ids.words[index, ALWAYS_TOGGLING] & ~changed) / 8.0
            # The logarithm of a product is the sum of theirs.
            surprise, product = 0.0, 1.0
            least, inverse = 0.02 * min(interval, 0.1), 1.0 / (weight_time + 0.02)
            remaining = changed
            while remaining != 0:
                lowest = remaining & (~remaining + np.uint64(1))
                bit = popcount(lowest - np.uint64(1))
                product *= min((bit_time[index, bit] + least) * inverse, 1.0)
                if product < _SMALLEST_PRODUCT:
                    surprise -= np.log2(product)
                    product = 1.0
                bit_time[index, bit] += np.float32(interval)
                remaining ^= lowest
            if product != 1.0:
                surprise -= np.log2(product)
            surprise = min(surprise, 320.0)
            surprise_bin: Any = quarter_octaves(1.0 + surprise)
            twin_bin: Any = np.int64(17.5 * (1.0 + min(max(twin, -1.0), 1.0)))
            is_repeat = num_changed == 0
            if is_wanted and seen > 3:
                out[message, COLUMN.toggle_surprise] = surprise / 64.0
                arguments[row, COLUMN.toggle_rank] = _rank(toggle_time[index, surprise_bin], id_age)
                arguments[row, COLUMN.twin_rank] = _rank(twin_time[index, twin_bin], id_age) if twin > 0.0 else 1.0
                like_now = ids.numbers[index, REPEAT_TIME] if is_repeat else id_age - ids.numbers[index, REPEAT_TIME]
                arguments[row, COLUMN.repeat_rank] = (max(like_now, 0.0) + 0.01) / (id_age + 0.01)
            if is_wanted:
                out[message, COLUMN.length_changed] = 1.0 if length[message] != ids.counts[index, LAST_LENGTH] else 0.0

            # update; each message counts by the time it closes
            for other in range(surprise_bin + 1):
                toggle_time[index, other] += interval
            for other in range(FIRST_TWIN_BIN, twin_bin + 1):
                twin_time[index, other] += interval
            if is_repeat:
                ids.numbers[index, REPEAT_TIME] += interval
            ids.words[index, TOGGLED] |= changed
            if seen & 15 == 8:
                mask = np.uint64(0)
                for bit in range(64):
                    if bit_time[index, bit] > 0.9 * weight_time:
                        mask |= np.uint64(1) << np.uint64(bit)
                ids.words[index, ALWAYS_TOGGLING] = mask
            longer = position
            while longer < NUM_BINS and first_as_short[index, longer] > now:
                first_as_short[index, longer] = now
                longer += 1
            histogram_count[index, position] += 1
            histogram_time[index, position] += interval
            ids.numbers[index, TIME_TOTAL] += interval
            middle = ids.counts[index, MEDIAN_BIN]
            count_below, time_below = ids.counts[index, COUNT_BELOW], ids.numbers[index, TIME_BELOW]
            if position < middle:
                count_below += 1
                time_below += interval
            half = 0.5 * ids.numbers[index, TIME_TOTAL]
            while time_below > half:
                middle -= 1
                count_below -= histogram_count[index, middle]
                time_below -= histogram_time[index, middle]
            while middle < NUM_BINS - 1 and time_below + histogram_time[index, middle] < half:
                count_below += histogram_count[index, middle]
                time_below += histogram_time[index, middle]
                middle += 1
            ids.counts[index, MEDIAN_BIN] = middle
            ids.counts[index, COUNT_BELOW] = count_below
            ids.numbers[index, TIME_BELOW] = time_below
            ids.numbers[index, INTERVAL_BEFORE] = interval

        ids.words[index, PAYLOAD_BEFORE] = ids.words[index, LAST_PAYLOAD]
        ids.words[index, LAST_PAYLOAD] = word
        ids.counts[index, LAST_LENGTH] = length[message]
        ids.numbers[index, LAST_TIME] = now
        ids.counts[index, NUM_SEEN] = seen + 1
        needed = _ESTABLISHED_S if ids.numbers[index, FIRST_TIME] - start <= _ORIGINAL_S else _NEWCOMER_S
        if seen + 1 >= _ESTABLISHED_COUNT and id_age > max(needed, min(0.5 * age, _NEWCOMER_S)):
            established_lowest = min(established_lowest, identifier)
        previous = index
        previous_time = now
    _write_logarithms(arguments, described, num_rows, out)
    bus.times[1], bus.times[2], bus.times[3] = previous_time, bus_mean_gap, bus_short_rate
    bus.places[0], bus.places[1], bus.places[2] = before + num_messages, previous, established_lowest
