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
from kdgat.canbus.features.suspicion.known import COUNTER, LITTLE, MOST_FIELDS, SMOOTH, STRICT_COUNTER, bits_of

NUM_PAYLOAD_BITS: Final = 64
MOST_BITS: Final = 32  # of a field
_FEWEST_MESSAGES = 100
_FEWEST_SMOOTH_BITS, _STEPS_OF_ALL = 8, 16  # of a number: its largest step is at most one of so many of its values
_FEWEST_CHANGES, _STEPS_OF_RANGE = 100, 8  # and it has moved over so many of these steps,
_MOST_OF_ALL = 0.8  # of all values, if it went around their end: not the low bytes of a number, which go through all
_COUNTS = 0.97  # share of messages in which a counter goes on
_FEWEST_COUNTER_BITS = 2  # one bit may turn in every message for a while, and then no longer
_FEWEST_TURNS = 3  # of a counter, before it is known to leave out values
_FEWEST_STRICT = 300  # messages with which a counter went on, before it is strict
_BITS_OF_A_BYTE: Final = 8

ByteOrder = Literal["big", "little"]


class PayloadField(Config):
    """Consecutive bits of a payload, the highest first, and what they keep to."""

    first_bit: int = Field(
        ge=0, lt=NUM_PAYLOAD_BITS, description="0: the highest bit of the first byte; little: of the eighth"
    )
    num_bits: int = Field(ge=1, le=MOST_BITS)
    kind: Literal["smooth", "counter"]
    byte_order: ByteOrder = "big"
    step: int = Field(
        ge=-(1 << MOST_BITS),
        le=1 << MOST_BITS,
        description="smooth: the largest, to either side and around the end; counter: the usual one",
    )
    lowest: int = Field(ge=0, lt=1 << MOST_BITS)
    highest: int = Field(ge=0, lt=1 << MOST_BITS)
    modulus: int | None = Field(
        default=None, ge=2, le=1 << MOST_BITS, description="counter: so many values, if not all of its bits'"
    )
    is_strict: bool = Field(default=False, description="counter: it went on with each message at the usual interval")

    @model_validator(mode="after")
    def _lies_in_a_payload(self) -> Self:
        if self.first_bit + self.num_bits > NUM_PAYLOAD_BITS:
            last = self.first_bit + self.num_bits - 1
            raise ValueError(f"first_bit={self.first_bit}, num_bits={self.num_bits}: bit {last} is in no payload")
        if self.kind == "smooth" and self.step < 1:
            raise ValueError(f"step={self.step}: the largest step of a smooth field is one at least")
        return self

    def goes_on_as(
        self, values: Sequence[NDArray[np.int64]], are_usual: Sequence[NDArray[np.bool_]] = ()
    ) -> PayloadField | None:
        """Return the field after further values, one array per stretch of messages; None if they break its rule.

        `are_usual`: as of `find_fields`.
        """
        steps = _steps(values, self.values_in_turn)
        if not len(steps):
            return self
        lowest = min(self.lowest, *(int(one.min()) for one in values))
        highest = max(self.highest, *(int(one.max()) for one in values))
        if self.kind == "counter":
            holds = float(np.mean(steps == self.step)) >= _COUNTS
            has_outsiders = self.modulus is not None and (lowest, highest) != (self.lowest, self.highest)
            is_strict = self.is_strict and _is_strict(steps, self.step, are_usual, fewest=0)
            more = {"lowest": lowest, "highest": highest, "is_strict": is_strict}
            return self.model_copy(update=more) if holds and not has_outsiders else None
        step = max(self.step, int(np.abs(steps).max()))
        if step * _STEPS_OF_ALL > 1 << self.num_bits:
            return None
        return self.model_copy(update={"step": step, "lowest": lowest, "highest": highest})

    @property
    def values_in_turn(self) -> int:
        """Return how many values there are before the first one comes again."""
        return 1 << self.num_bits if self.modulus is None else self.modulus

    def overlaps(self, other: PayloadField) -> bool:
        """Return whether both have a bit in common."""
        return not self.bits.isdisjoint(other.bits)

    @property
    def bits(self) -> frozenset[int]:
        """Return its bits, from the highest of the first byte."""
        return bits_of(self.first_bit, self.num_bits, is_little=self.byte_order == "little")

    @property
    def number_of_kind(self) -> int:
        """Return what it is where it is judged."""
        if self.kind == "counter":
            return STRICT_COUNTER if self.is_strict else COUNTER
        return LITTLE if self.byte_order == "little" else SMOOTH

    def values(self, payload: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the field of payloads, which are little-endian words [R]."""
        return _values(_ordered(payload, self.byte_order), self.first_bit, self.num_bits)


def find_fields(
    stretches: Sequence[NDArray[np.uint64]], num_bytes: int, are_usual: Sequence[NDArray[np.bool_]] = ()
) -> list[PayloadField]:
    """Find the fields of an identifier's payloads, given as stretches of consecutive messages [R].

    `are_usual` says of each message but a stretch's first [R - 1] whether it and the one before came at their usual
    interval, so that none is missing.
    """
    if sum(map(len, stretches)) < _FEWEST_MESSAGES:
        return []
    found = _find(stretches, "big", num_bytes, are_usual)
    little = _find(stretches, "little", num_bytes, are_usual)
    found += [one for one in little if one.kind == "smooth" and one.num_bits > _BITS_OF_A_BYTE]
    # Read in the wrong order a number keeps to no rule, or moves in larger steps for its size.
    found.sort(key=lambda one: (one.kind != "counter", abs(one.step) / (one.highest - one.lowest + 1)))
    chosen: list[PayloadField] = []
    for one in found:
        if not any(one.overlaps(other) for other in chosen):
            chosen.append(one)
    chosen.sort(key=lambda one: (one.kind != "smooth", -one.num_bits))
    return sorted(chosen[:MOST_FIELDS], key=lambda one: one.first_bit)


def _is_strict(
    steps: NDArray[np.int64], step: int, are_usual: Sequence[NDArray[np.bool_]], fewest: int = _FEWEST_STRICT
) -> bool:
    """Return whether a counter went on at each usual interval, of which there were enough."""
    if not are_usual:
        return False
    usual = steps[np.concatenate(are_usual)]
    return len(usual) >= fewest and bool((usual == step).all())


def _find(
    stretches: Sequence[NDArray[np.uint64]],
    byte_order: ByteOrder,
    num_bytes: int,
    are_usual: Sequence[NDArray[np.bool_]],
) -> list[PayloadField]:
    words = [_ordered(payload, byte_order) for payload in stretches]
    # A short payload fills the first bytes, which are the last ones where the order is turned around.
    begin = NUM_PAYLOAD_BITS - _BITS_OF_A_BYTE * num_bytes if byte_order == "little" else 0
    places = _divide(words, begin, _BITS_OF_A_BYTE * num_bytes)
    found = (_describe(words, byte_order, *place, are_usual) for place in places)
    return [one for one in found if one is not None]


def _ordered(payload: NDArray[np.uint64], byte_order: ByteOrder) -> NDArray[np.uint64]:
    """Return payloads as numbers, of which the first bit of any field is the highest."""
    words = payload.astype("<u8")
    return words if byte_order == "little" else words.byteswap()


def _values(words: NDArray[np.uint64], first_bit: int, num_bits: int) -> NDArray[np.int64]:
    shifted = words >> np.uint64(NUM_PAYLOAD_BITS - first_bit - num_bits)
    return (shifted & np.uint64((1 << num_bits) - 1)).astype(np.int64)


def _divide(stretches: Sequence[NDArray[np.uint64]], begin: int, num_bits: int) -> list[tuple[int, int]]:
    """Return first bit and number of bits of each field that changes."""
    changes = np.zeros(num_bits)
    for words in stretches:
        octets = np.ascontiguousarray(words.astype(">u8")).view(np.uint8).reshape(-1, 8)
        bits = np.unpackbits(octets, axis=1)[:, begin : begin + num_bits]
        changes += (bits[1:] != bits[:-1]).sum(axis=0)
    # In powers of two of the rate: that of neighbours within a number differs by chance.
    with np.errstate(divide="ignore"):
        magnitude = np.rint(np.log2(changes / max(sum(len(one) - 1 for one in stretches), 1)))
    begins = [0, *(np.flatnonzero(magnitude[1:] < magnitude[:-1]) + 1).tolist(), num_bits]
    divided = []
    for first, end in pairwise(begins):
        first += int(np.isneginf(magnitude[first:end]).sum())  # bits that never change say nothing of a size
        if first < end:
            divided.append((begin + first, end - first))
    return divided


def _describe(
    stretches: Sequence[NDArray[np.uint64]],
    byte_order: ByteOrder,
    first_bit: int,
    num_bits: int,
    are_usual: Sequence[NDArray[np.bool_]],
) -> PayloadField | None:
    if num_bits > MOST_BITS:
        return None
    values = [_values(words, first_bit, num_bits) for words in stretches]
    steps = _steps(values, 1 << num_bits)
    lowest, highest = min(int(one.min()) for one in values), max(int(one.max()) for one in values)
    place = {"first_bit": first_bit, "num_bits": num_bits, "byte_order": byte_order}
    place |= {"lowest": lowest, "highest": highest}
    # A counter may leave out values at the end of its bits; one that did not get there shows nothing of that. A sum
    # over a counter counts, too, as long as all else stands still: anywhere, and as many values as that counter.
    has_turned = sum(int(np.count_nonzero(np.diff(one) < 0)) for one in values) >= _FEWEST_TURNS
    leaves_out = has_turned and lowest <= 1 < highest and (highest - lowest + 1).bit_count() > 1
    for modulus in (None, highest - lowest + 1) if leaves_out else (None,):
        counting = _steps(values, modulus) if modulus else steps
        kinds, counts = np.unique(counting, return_counts=True)
        usual = int(kinds[counts.argmax()])
        if num_bits >= _FEWEST_COUNTER_BITS and usual != 0 and counts.max() >= _COUNTS * len(steps):
            is_strict = _is_strict(counting, usual, are_usual)
            return PayloadField(kind="counter", step=usual, modulus=modulus, is_strict=is_strict, **place)
    sizes = np.abs(steps)
    step = int(sizes.max())
    span = _span(values, num_bits)
    goes_around = any(np.abs(np.diff(one)).max(initial=0) > 1 << (num_bits - 1) for one in values)
    is_smooth = (
        num_bits >= _FEWEST_SMOOTH_BITS
        and step * _STEPS_OF_ALL <= 1 << num_bits
        and np.count_nonzero(sizes) >= _FEWEST_CHANGES
        and _STEPS_OF_RANGE * step <= span
        and (not goes_around or span <= _MOST_OF_ALL * (1 << num_bits))
    )
    return PayloadField(kind="smooth", step=step, **place) if is_smooth else None


def _span(values: Sequence[NDArray[np.int64]], num_bits: int) -> int:
    """Return over how many values a field has moved: all but the longest row, around the end, that never came."""
    met = np.unique(np.concatenate(values))
    return (1 << num_bits) - int(np.diff(met, append=met[0] + (1 << num_bits)).max())


def _steps(values: Sequence[NDArray[np.int64]], all_values: int) -> NDArray[np.int64]:
    """Return the steps of a field of so many values, the shorter way around its end."""
    steps = [np.diff(one) for one in values]
    joined = np.concatenate(steps) if steps else np.zeros(0, np.int64)
    return (joined + all_values // 2) % all_values - all_values // 2
