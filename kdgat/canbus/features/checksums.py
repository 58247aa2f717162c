"""Checksums that payloads of cars carry, as residuals: what stays the same as long as the checksum holds.

Each kind is a function of the payload that is constant if the frame carries that checksum, whatever its start value,
data identifier or final inversion: those change the constant only. So a kind is found by a residual that never changes
while the payload does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

_XOR, _SUM, _SUM_AT_END, _SUM_AT_START, NIBBLE_SUM, _FIRST_CRC = range(6)
# CRC-8 as by SAE J1850 and AUTOSAR's end-to-end profile 1; by profile 2; and with the polynomial of SMBus.
_POLYNOMIALS: Final = (0x1D, 0x2F, 0x07)
NUM_CHECKSUMS: Final = _FIRST_CRC + 2 * len(_POLYNOMIALS)  # each of them at the payload's end and at its start


def _table(polynomial: int) -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = ((value << 1) ^ polynomial) & 255 if value & 128 else value << 1
        table.append(value)
    return table


_TABLES: Final = np.array([_table(polynomial) for polynomial in _POLYNOMIALS], np.uint8)


def _slices() -> NDArray[np.uint32]:
    """Return what a byte adds to the CRCs of all polynomials, one in each byte, if so many bytes come after it."""
    values = np.tile(np.arange(256, dtype=np.uint8), (len(_POLYNOMIALS), 1))
    slices = np.zeros((8, 256), np.uint32)
    for distance in range(8):
        values = np.take_along_axis(_TABLES, values.astype(np.int64), axis=1)
        for number, one in enumerate(values):
            slices[distance] |= one.astype(np.uint32) << np.uint32(8 * number)
    return slices


_SLICES: Final = _slices()


@njit(cache=True)
def checksum_residual(kind: Any, word: Any, num_bytes: Any) -> Any:
    """Return what stays the same while a payload of 2 to 8 bytes keeps to this kind of checksum, 0 to 255.

    A single byte is its own checksum: a longer payload's that is cut to one mostly breaks it.
    """
    value = np.uint64(0)
    byte_mask = np.uint64(255)
    if kind == _XOR:
        value = word ^ (word >> np.uint64(32))
        value ^= value >> np.uint64(16)
        value ^= value >> np.uint64(8)
    elif kind in (_SUM, _SUM_AT_END, _SUM_AT_START):
        for place in range(num_bytes):
            value += (word >> np.uint64(8 * place)) & byte_mask
        if kind != _SUM:  # the checksum is the sum of the others, not what makes it zero
            place = num_bytes - 1 if kind == _SUM_AT_END else 0
            value -= np.uint64(2) * ((word >> np.uint64(8 * place)) & byte_mask)
    elif kind == NIBBLE_SUM:  # what makes the sum of half bytes zero, as a half byte
        for place in range(2 * num_bytes):
            value += (word >> np.uint64(4 * place)) & np.uint64(15)
        value &= np.uint64(15)
    else:
        table = _TABLES[(kind - _FIRST_CRC) >> 1]
        at_start = (kind - _FIRST_CRC) & 1
        for place in range(at_start, num_bytes - 1 + at_start):
            value = np.uint64(table[np.int64(value ^ ((word >> np.uint64(8 * place)) & byte_mask))])
        value ^= word >> np.uint64(0 if at_start else 8 * (num_bytes - 1))
    return np.uint8(value & byte_mask)


@njit(cache=True, inline="always")
def checksum_residuals(word: Any, num_bytes: Any) -> tuple[Any, Any]:
    """Return the residuals of all kinds at once, a byte of one of two words each (`residual_of`).

    A CRC is a sum without carry of what each byte adds to it, so that no lookup waits for the one before.
    """
    if num_bytes < 1:
        return np.uint64(0), np.uint64(0)
    byte_mask = np.uint64(255)
    used = word & (~np.uint64(0) >> np.uint64(64 - 8 * num_bytes))
    folded = word ^ (word >> np.uint64(32))
    folded ^= folded >> np.uint64(16)
    folded ^= folded >> np.uint64(8)
    pairs = (used & np.uint64(0x00FF00FF00FF00FF)) + ((used >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF))
    total = (pairs * np.uint64(0x0001000100010001)) >> np.uint64(48)
    halves = (used & np.uint64(0x0F0F0F0F0F0F0F0F)) + ((used >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F))
    nibbles = ((halves * np.uint64(0x0101010101010101)) >> np.uint64(56)) & np.uint64(15)
    first, last = used & byte_mask, used >> np.uint64(8 * (num_bytes - 1))
    at_end = np.uint32(last) * np.uint32(0x010101)
    at_start = np.uint32(first) * np.uint32(0x010101)
    for place in range(num_bytes - 1):
        distance = num_bytes - 2 - place
        at_end ^= _SLICES[distance, np.int64((used >> np.uint64(8 * place)) & byte_mask)]
        at_start ^= _SLICES[distance, np.int64((used >> np.uint64(8 * place + 8)) & byte_mask)]
    low = folded & byte_mask
    low |= (total & byte_mask) << np.uint64(8)
    low |= ((total - np.uint64(2) * last) & byte_mask) << np.uint64(16)
    low |= ((total - np.uint64(2) * first) & byte_mask) << np.uint64(24)
    low |= nibbles << np.uint64(32)
    ends, starts = np.uint64(at_end), np.uint64(at_start)
    low |= (ends & byte_mask) << np.uint64(40)
    low |= (starts & byte_mask) << np.uint64(48)
    low |= ((ends >> np.uint64(8)) & byte_mask) << np.uint64(56)
    high = (starts >> np.uint64(8)) & byte_mask
    high |= ((ends >> np.uint64(16)) & byte_mask) << np.uint64(8)
    high |= ((starts >> np.uint64(16)) & byte_mask) << np.uint64(16)
    return low, high


@njit(cache=True, inline="always")
def residual_of(residuals: tuple[Any, Any], kind: Any) -> Any:
    """Return the residual of one kind, 0 to 255, as `checksum_residual` does."""
    word = residuals[0] if kind < 8 else residuals[1]
    return np.uint8((word >> np.uint64(8 * (kind & 7))) & np.uint64(255))


@njit(cache=True)
def checksum_halves(kind: Any, num_bytes: Any) -> Any:
    """Return the half bytes, as bits, that a checksum of this kind is in, as far as that is known; half a byte is not.

    Sums of all bytes do not show which one makes them even: mostly it is the last.
    """
    if kind == NIBBLE_SUM:
        return np.uint32(0)
    at_start = kind == _SUM_AT_START or (kind >= _FIRST_CRC and (kind - _FIRST_CRC) & 1 == 1)
    return np.uint32(3) << np.uint32(0 if at_start else 2 * (num_bytes - 1))


@njit(cache=True, nogil=True)
def sealed(
    kind: int, residual: int, place: int, words: NDArray[np.uint64], num_bytes: int, is_upper: bool = False
) -> NDArray[np.uint64]:
    """Return payloads [R] whose byte `place` is set so that this kind of checksum holds with this residual.

    A sum of half bytes is kept by the lower half of that byte, or by the upper one. What a byte must be follows from
    what the residual is without it, in one of three ways; for a CRC whose own byte is another one it is searched for.
    """
    out = words.copy()
    num_values = 16 if kind == NIBBLE_SUM else 256
    last = num_values - 1
    shift = np.uint64(8 * place + (4 if is_upper and kind == NIBBLE_SUM else 0))
    for row in range(words.shape[0]):
        others = words[row] & ~(np.uint64(last) << shift)
        without = np.int64(checksum_residual(kind, others, num_bytes))
        for attempt in range(-3, num_values):
            value: Any = attempt
            if attempt == -3:
                value = (without ^ residual) & last
            elif attempt == -2:
                value = (residual - without) & last
            elif attempt == -1:
                value = (without - residual) & last
            candidate = others | (np.uint64(value) << shift)
            if checksum_residual(kind, candidate, num_bytes) == residual:
                out[row] = candidate
                break
    return out
