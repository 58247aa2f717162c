"""The values that sorting would bring to some places, found without moving any: by counting, again and again.

Positive floats are in the order of their bits, read as integers, so a value is found by halving the range that it is
in, or near an end by going from one value to the next. Counting has no branch that nobody could foresee, which is what
sorting and partitioning spend their time on.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

NEAR: Final = 8  # places from an end, up to which going there takes fewer counts than halving, of which there are 20


@njit(cache=True)
def ordered(values: NDArray[np.float32], low: int, middle: int, high: int) -> tuple[float, float, float]:
    """Return the values that sorting would bring to three ascending places; all are positive."""
    bits = values.view(np.int32)
    least, most = bits[0], bits[0]
    for place in range(len(bits)):
        least = min(least, bits[place])
        most = max(most, bits[place])
    median = _at_place(bits, middle, least, most)
    from_end = len(bits) - 1 - high
    shortest = _from_least(bits, low, least) if low < NEAR else _at_place(bits, low, least, median)
    longest = _from_most(bits, from_end, most) if from_end < NEAR else _at_place(bits, high, median, most)
    return _value(shortest), _value(median), _value(longest)


@njit(cache=True, inline="always")
def _value(bits: Any) -> Any:
    return np.float64(np.int32(bits).view(np.float32))


@njit(cache=True)
def _at_place(bits: NDArray[np.int32], place: int, least: Any, most: Any) -> Any:
    """Return what sorting would bring to a place, which is in this range."""
    least, most = np.int64(least), np.int64(most)
    while least < most:
        between = (least + most) >> 1
        border = np.int32(between)
        count = np.int32(0)  # narrow, so that as many as possible are counted at once
        for other in range(len(bits)):
            count = np.int32(count + np.int32(bits[other] <= border))
        if count > place:
            most = between
        else:
            least = between + 1
    return least


@njit(cache=True)
def _from_least(bits: NDArray[np.int32], place: int, value: Any) -> Any:
    """Return what sorting would bring to a place, from the least value on."""
    value = np.int32(value)
    while True:
        count, following = np.int32(0), np.int32(0x7FFFFFFF)
        for other in range(len(bits)):
            count = np.int32(count + np.int32(bits[other] <= value))
            following = min(following, bits[other] if bits[other] > value else np.int32(0x7FFFFFFF))
        if count > place:
            return np.int64(value)
        value = following


@njit(cache=True)
def _from_most(bits: NDArray[np.int32], place: int, value: Any) -> Any:
    """Return what sorting would bring to a place, counted from the end, from the largest value on."""
    value = np.int32(value)
    while True:
        count, following = np.int32(0), np.int32(0)
        for other in range(len(bits)):
            count = np.int32(count + np.int32(bits[other] >= value))
            following = max(following, bits[other] if bits[other] < value else np.int32(0))
        if count > place:
            return np.int64(value)
        value = following
