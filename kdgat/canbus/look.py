"""A look at a recording before anything judges it: one pass over its messages, in pieces, with bounded memory.

What is counted here is plain; what it means, and what is to be done about it, says `kdgat.canbus.findings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.conversion import ECHO_S
from kdgat.canbus.features.bus_time import BusClock
from kdgat.canbus.features.memory import IdentifierNumbers, untouched
from kdgat.canbus.features.suspicion import SuspicionState
from kdgat.canbus.findings import Findings
from kdgat.canbus.messages import RecordingError, Stated

if TYPE_CHECKING:
    from pathlib import Path

    from kdgat.canbus.messages import Messages

SECONDS: Final = Stated(unit=False, base=True)
"""What is known of messages of which nothing is stated: identifiers are numbers, and times may be anything."""
NUM_BINS: Final = 128  # of times, two an octave, from 2^-20 s on
_BINS_BELOW_1_S: Final = 40
_FEWEST_INTERVALS: Final = 10  # of an identifier whose usual interval counts
_MOST_TIMED: Final = 64
_FAR_BACK_S, _FAR_AHEAD_S = 1.0, 10.0
_TOOL_S: Final = 1.0  # from which on a stamp of exactly 0 is none of the bus
_MICROSECONDS: Final = 1e-4  # of a millisecond: nothing finer tells stamps in whole ones from others

(_NUM, _BACK, _FAR_BACK, _FAR_AHEAD, _STAMPS, _WHOLE, _MILLI, _OF_TOOL, _PAIRS, _IDS, _LETTERS, _DIGITS,
 _BEYOND_11, _LARGEST_ID) = range(14)  # fmt: skip
_BEGUN, _FIRST, _LAST, _LEAST, _MOST, _SUM, _SQUARES, _PRODUCTS = range(8)


class Look:
    """Count what the stamps, the identifiers and the copies of a recording's messages show.

    >>> from kdgat.canbus import make_vehicle, simulate
    >>> look = Look()
    >>> look.add(simulate(make_vehicle(5), 5.0))
    >>> findings = look.findings()
    >>> findings.problem(), findings.num_judged > 0
    ('', True)
    """

    def __init__(self, stated: Stated = SECONDS, *, with_habits: bool = True) -> None:
        """Begin; `stated` is what is known of messages that do not say it themselves.

        Without the habits, which somebody else may learn of the same messages, nothing is known of what may be judged.
        """
        most = IdentifierNumbers.most
        self._stated = stated
        self._numbers = IdentifierNumbers()
        self._num_numbers = 0
        self._seen = untouched(1 << 26, np.uint8)  # a bit for each identifier
        self._counts = np.zeros(14, np.int64)
        self._stamps = np.zeros(8)
        self._histograms = np.zeros((2, NUM_BINS), np.int64)  # of steps between messages, and of stamps
        self._intervals = untouched((most, NUM_BINS), np.uint32)
        self._last = untouched(most)  # stamp of each identifier
        self._payload = untouched((most, 3), np.uint64)  # of each identifier: bytes, length, how often in a row
        self._habits = _Habits() if with_habits else None

    def add(self, messages: Messages) -> None:
        """Look at the next messages."""
        self._stated = messages.stated or self._stated
        if not len(messages):
            return
        timestamp = np.ascontiguousarray(messages.timestamp)
        identifier = np.ascontiguousarray(messages.identifier)
        numbered = self._numbers.number(identifier)
        self._num_numbers = numbered.num_numbers
        payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
        length = np.ascontiguousarray(messages.length)
        _count(
            timestamp, identifier, numbered.number, numbered.is_new, payload, length,
            self._seen, self._counts, self._stamps, self._histograms, self._intervals, self._last, self._payload,
        )  # fmt: skip
        if self._habits is not None:
            self._habits.add(timestamp, identifier, numbered, payload, length)

    def watched(self, chunks: Iterable[Messages]) -> Iterator[Messages]:
        """Hand on messages, each chunk after the look at it."""
        for chunk in chunks:
            self.add(chunk)
            yield chunk

    def findings(self) -> Findings:
        """State what was seen so far."""
        counts, stamps = self._counts, self._stamps
        num = int(counts[_NUM])
        num_judged, num_frequent = (None, None) if self._habits is None else self._habits.state.count_judged()
        periods = self._usual_intervals()
        return Findings(
            num_messages=num + int(counts[_OF_TOOL]),
            num_identifiers=int(counts[_IDS]),
            num_of_tool=int(counts[_OF_TOOL]),
            span_s=float(stamps[_MOST] - stamps[_LEAST]),
            least_s=float(stamps[_LEAST]),
            num_backward=int(counts[_BACK]),
            num_far_back=int(counts[_FAR_BACK]),
            num_far_ahead=int(counts[_FAR_AHEAD]),
            num_stamps=int(counts[_STAMPS]),
            whole_share=_share(counts[_WHOLE], num),
            milli_share=_share(counts[_MILLI], num),
            trend=_correlation(num - 1, *stamps[_SUM:]),
            short_gap_s=_quantile(self._histograms[0], 0.05),
            large_stamp_s=_quantile(self._histograms[1], 0.99),
            num_timed_identifiers=len(periods),
            usual_interval_s=float(np.median(periods)) if len(periods) else 0.0,
            interval_spread=_spread(periods),
            twice_share=_share(2 * counts[_PAIRS], num),
            num_digits=0 if counts[_LETTERS] else int(counts[_DIGITS]),
            num_beyond_11_bits=int(counts[_BEYOND_11]),
            largest_identifier=int(counts[_LARGEST_ID]),
            unit_is_stated=self._stated.unit,
            unit_is_said=self._stated.said,
            base_is_stated=self._stated.base,
            num_judged=num_judged,
            num_frequent=num_frequent,
        )

    def _usual_intervals(self) -> NDArray[np.float64]:
        """Return the median interval of each identifier that came often enough, s, within a fifth."""
        rows = self._intervals[: self._num_numbers]
        totals = rows.sum(axis=1)
        frequent = np.argsort(-totals.astype(np.int64), kind="stable")[:_MOST_TIMED]  # those of an attacker are many
        return np.array([_quantile(rows[one], 0.5) for one in frequent if totals[one] >= _FEWEST_INTERVALS])


class _Habits:
    """The habits of identifiers on their own."""

    def __init__(self) -> None:
        self.state = SuspicionState()
        self._bus_clock = BusClock()
        self._latest = -np.inf

    def add(
        self,
        timestamp: NDArray[np.float64],
        identifier: NDArray[np.uint32],
        numbered: Any,
        payload: NDArray[np.uint64],
        length: NDArray[np.uint8],
    ) -> None:
        read = self._bus_clock.read(timestamp)
        time = np.maximum(np.maximum.accumulate(read.time), self._latest)
        self._latest = float(time[-1])
        self.state.judge(time, identifier, numbered, payload, length, read.breaks)


def look_at(messages: Messages, stated: Stated = SECONDS) -> Findings:
    """Look at a whole recording."""
    look = Look(stated)
    look.add(messages)
    return look.findings()


def require_judgeable(path: Path, messages: Messages) -> Findings:
    """Look at a recording that was read from a file; RecordingError, with the fix, if nothing can be judged in it."""
    findings = look_at(messages)
    if problem := findings.problem():
        raise RecordingError(path, problem)
    return findings


def _share(count: Any, total: int) -> float:
    return float(count) / total if total else 0.0


def _quantile(histogram: NDArray[Any], share: float) -> float:
    """Return the middle of the bin in which a quantile is, s; 0 for a bin of none, and where there is nothing."""
    total = int(histogram.sum())
    if not total:
        return 0.0
    place = int(np.searchsorted(np.cumsum(histogram), share * total, side="left"))
    return 2.0 ** ((place + 0.5 - _BINS_BELOW_1_S) / 2.0) if place else 0.0


def _spread(values: NDArray[np.float64]) -> float:
    low, high = np.quantile(values, (0.1, 0.9)) if len(values) else (1.0, 1.0)
    return float(high / max(low, 1e-9))


def _correlation(num: int, total: float, squares: float, products: float) -> float:
    """Return how far stamps grow with the number of the message, from -1 to 1."""
    if num < 2:
        return 0.0
    mean = total / num
    variance = squares / num - mean * mean
    covariance = products / num - mean * (num + 1) / 2.0
    spread = (num * num - 1.0) / 12.0 * max(variance, 0.0)
    return float(np.clip(covariance / np.sqrt(spread), -1.0, 1.0)) if spread > 0.0 else 0.0


@njit(cache=True, inline="always")
def _bin(seconds: float) -> int:
    if not seconds > 0.0:
        return 0
    return int(min(max(np.floor(2.0 * np.log2(seconds)) + _BINS_BELOW_1_S, 1.0), NUM_BINS - 1.0))


@njit(cache=True, nogil=True)
def _count(
    timestamp: NDArray[np.float64],
    identifiers: NDArray[np.uint32],
    numbers: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    payloads: NDArray[np.uint64],
    lengths: NDArray[np.uint8],
    seen: NDArray[np.uint8],
    counts: NDArray[np.int64],
    stamps: NDArray[np.float64],
    histograms: NDArray[np.int64],
    intervals: NDArray[np.uint32],
    last: NDArray[np.float64],
    known: NDArray[np.uint64],
) -> None:
    """Count the next messages into everything that is kept."""
    for message in range(len(timestamp)):
        stamp, identifier, number = timestamp[message], np.int64(identifiers[message]), numbers[message]
        place, bit = identifier >> 3, np.uint8(1 << (identifier & 7))
        if seen[place] & bit == 0:
            seen[place] |= bit
            counts[_IDS] += 1
            counts[_BEYOND_11] += identifier > 0x7FF
            counts[_LARGEST_ID] = max(counts[_LARGEST_ID], identifier)
            rest, num_letters = identifier, 0
            while rest:
                num_letters += int((rest & 15) > 9)
                counts[_DIGITS] += rest > 15  # all but the first one, which is never a letter in 11 bits
                rest >>= 4
            counts[_LETTERS] += num_letters > 0
        if stamps[_BEGUN] == 0.0:
            stamps[_BEGUN] = 1.0
            stamps[_FIRST] = stamps[_LAST] = stamps[_LEAST] = stamps[_MOST] = stamp
            counts[_STAMPS] = 1
        elif stamp == 0.0 and stamps[_LAST] > _TOOL_S:
            counts[_OF_TOOL] += 1
            continue
        else:
            step = stamp - stamps[_LAST]
            counts[_STAMPS] += step != 0.0
            counts[_BACK] += step < 0.0
            counts[_FAR_BACK] += step < -_FAR_BACK_S
            counts[_FAR_AHEAD] += step > _FAR_AHEAD_S
            histograms[0, _bin(step) if step >= 0.0 else 0] += 1
            if counts[_NUM] == 1:
                stamps[_FIRST] = stamp  # the first one may be a time, and all others differences
            grown = stamp - stamps[_FIRST]
            stamps[_SUM] += grown
            stamps[_SQUARES] += grown * grown
            stamps[_PRODUCTS] += grown * counts[_NUM]
            stamps[_LAST] = stamp
            stamps[_LEAST], stamps[_MOST] = min(stamps[_LEAST], stamp), max(stamps[_MOST], stamp)
        counts[_NUM] += 1
        histograms[1, _bin(stamp)] += 1
        counts[_WHOLE] += stamp == np.floor(stamp)
        milli = stamp * 1e3
        counts[_MILLI] += abs(milli - np.rint(milli)) < max(_MICROSECONDS, 4e-16 * abs(milli))
        if is_new[message]:
            intervals[number] = 0
            known[number, 2] = 0
        payload, length = payloads[message], np.uint64(lengths[message])
        if known[number, 2] != 0:
            interval = stamp - last[number]
            intervals[number, _bin(interval)] += 1
            if payload == known[number, 0] and length == known[number, 1] and 0.0 <= interval <= ECHO_S:
                known[number, 2] += np.uint64(1)
                counts[_PAIRS] += known[number, 2] == 2
                counts[_PAIRS] -= known[number, 2] == 3  # a flood, and no echo
            else:
                known[number, 2] = 1
        else:
            known[number, 2] = 1
        known[number, 0], known[number, 1], last[number] = payload, length, stamp
