"""Fields of payloads that nobody has described, found by how often each bit changes.

The highest bit of a number changes seldom, and each lower one more often, so a field begins where bits change less
often than the one before (Marchetti, Stabili 2019). Two kinds keep to rules that hardly any driving breaks: numbers
that move in steps far smaller than themselves, and counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kdgat.base import Config
from kdgat.canbus.features.suspicion.known import MOST_FIELDS

NUM_PAYLOAD_BITS: Final = 64
MOST_BITS: Final = 32  # of a field
_FEWEST_MESSAGES = 100
_FEWEST_SMOOTH_BITS, _STEPS_OF_ALL = 8, 16  # of a number: its largest step is at most one of so many of its values
_FEWEST_CHANGES, _STEPS_OF_RANGE = 100, 4  # and it has moved over more than so many of these steps
_HALVES_AGREE = 3  # times the largest step of one half of the messages, that of the other half at most
_COUNTS = 0.97  # share of messages in which a counter goes on
_FEWEST_COUNTER_BITS = 2


class PayloadField(Config):
    """Consecutive bits of a payload, the highest first, and what they keep to."""

    first_bit: int = Field(ge=0, lt=NUM_PAYLOAD_BITS, description="0: the highest bit of the first byte")
    num_bits: int = Field(ge=1, le=MOST_BITS)
    kind: Literal["smooth", "counter"]
    step: int = Field(
        ge=-(1 << MOST_BITS),
        le=1 << MOST_BITS,
        description="smooth: the largest, to either side and around the end; counter: the usual one",
    )
    lowest: int
    highest: int

    @model_validator(mode="after")
    def _lies_in_a_payload(self) -> Self:
        if self.first_bit + self.num_bits > NUM_PAYLOAD_BITS:
            last = self.first_bit + self.num_bits - 1
            raise ValueError(f"first_bit={self.first_bit}, num_bits={self.num_bits}: bit {last} is in no payload")
        if self.kind == "smooth" and self.step < 1:
            raise ValueError(f"step={self.step}: the largest step of a smooth field is one at least")
        return self

    def goes_on_as(self, values: Sequence[NDArray[np.int64]]) -> PayloadField | None:
        """Return the field after further values, one array per stretch of messages; None if they break its rule."""
        steps = _steps(values, self.num_bits)
        if not len(steps):
            return self
        lowest = min(self.lowest, *(int(one.min()) for one in values))
        highest = max(self.highest, *(int(one.max()) for one in values))
        if self.kind == "counter":
            holds = float(np.mean(steps == self.step)) >= _COUNTS
            return self.model_copy(update={"lowest": lowest, "highest": highest}) if holds else None
        step = max(self.step, int(np.abs(steps).max()))
        if step * _STEPS_OF_ALL > 1 << self.num_bits:
            return None
        return self.model_copy(update={"step": step, "lowest": lowest, "highest": highest})

    def overlaps(self, other: PayloadField) -> bool:
        """Return whether both have a bit in common."""
        first, second = (range(one.first_bit, one.first_bit + one.num_bits) for one in (self, other))
        return first.start < second.stop and second.start < first.stop

    def in_words(self) -> str:
        """Say which bits, and what they keep to."""
        bits = f"bits {self.first_bit} to {self.first_bit + self.num_bits - 1}"
        if self.kind == "counter":
            return f"{bits} count by {self.step}"
        return f"{bits} move by at most {self.step:,}, between {self.lowest:,} and {self.highest:,}"


def values_of(payload: NDArray[np.uint64], first_bit: int, num_bits: int) -> NDArray[np.int64]:
    """Return a field of payloads, which are little-endian words [R]."""
    shifted = payload.astype("<u8").byteswap() >> np.uint64(64 - first_bit - num_bits)
    return (shifted & np.uint64((1 << num_bits) - 1)).astype(np.int64)


def find_fields(stretches: Sequence[NDArray[np.uint64]], num_bytes: int) -> list[PayloadField]:
    """Find the fields of an identifier's payloads, given as stretches of consecutive messages [R]."""
    if sum(map(len, stretches)) < _FEWEST_MESSAGES:
        return []
    found = (_describe(stretches, first, num) for first, num in _divide(stretches, num_bytes))
    described = [one for one in found if one is not None]
    described.sort(key=lambda one: (one.kind != "smooth", -one.num_bits))
    return sorted(described[:MOST_FIELDS], key=lambda one: one.first_bit)


def _divide(stretches: Sequence[NDArray[np.uint64]], num_bytes: int) -> list[tuple[int, int]]:
    """Return first bit and number of bits of each field that changes."""
    num_bits = 8 * num_bytes
    changes = np.zeros(num_bits)
    for payload in stretches:
        octets = np.ascontiguousarray(payload.astype("<u8")).view(np.uint8).reshape(-1, 8)[:, :num_bytes]
        bits = np.unpackbits(np.ascontiguousarray(octets), axis=1)
        changes += (bits[1:] != bits[:-1]).sum(axis=0)
    # In powers of two of the rate: that of neighbours within a number differs by chance.
    with np.errstate(divide="ignore"):
        magnitude = np.rint(np.log2(changes / max(sum(len(one) - 1 for one in stretches), 1)))
    begins = [0, *(np.flatnonzero(magnitude[1:] < magnitude[:-1]) + 1).tolist(), num_bits]
    divided = []
    for first, end in pairwise(begins):
        first += int(np.isneginf(magnitude[first:end]).sum())  # bits that never change say nothing of a size
        if first < end:
            divided.append((first, end - first))
    return divided


def _describe(stretches: Sequence[NDArray[np.uint64]], first_bit: int, num_bits: int) -> PayloadField | None:
    if num_bits > MOST_BITS:
        return None
    values = [values_of(payload, first_bit, num_bits) for payload in stretches]
    steps = _steps(values, num_bits)
    lowest, highest = min(int(one.min()) for one in values), max(int(one.max()) for one in values)
    described = {"first_bit": first_bit, "num_bits": num_bits, "lowest": lowest, "highest": highest}
    kinds, counts = np.unique(steps, return_counts=True)
    usual = int(kinds[counts.argmax()])
    if num_bits >= _FEWEST_COUNTER_BITS and usual != 0 and counts.max() >= _COUNTS * len(steps):
        return PayloadField(kind="counter", step=usual, **described)
    sizes = np.abs(steps)
    step, half = int(sizes.max()), len(sizes) // 2
    halves = sorted((int(sizes[:half].max(initial=0)), int(sizes[half:].max(initial=0))))
    is_smooth = (
        num_bits >= _FEWEST_SMOOTH_BITS
        and step * _STEPS_OF_ALL <= 1 << num_bits
        and np.count_nonzero(sizes) >= _FEWEST_CHANGES
        and highest - lowest >= _STEPS_OF_RANGE * step
        and halves[1] <= _HALVES_AGREE * halves[0] + 2
    )
    return PayloadField(kind="smooth", step=step, **described) if is_smooth else None


def _steps(values: Sequence[NDArray[np.int64]], num_bits: int) -> NDArray[np.int64]:
    """Return the steps of a field, the shorter way around its end."""
    all_values = 1 << num_bits
    steps = [np.diff(one) for one in values]
    joined = np.concatenate(steps) if steps else np.zeros(0, np.int64)
    return (joined + all_values // 2) % all_values - all_values // 2
