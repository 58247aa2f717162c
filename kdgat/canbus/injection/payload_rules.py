"""Rules that the payloads of one identifier keep: counters and a checksum, and how to keep to them after a change.

What a control unit sends changes from drive to drive, but its counters continue and its checksum holds. A virtual
vehicle that broke them without an attack would teach that broken rules mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.checksums import NIBBLE_SUM, NUM_CHECKSUMS, checksum_residual, sealed

_FEWEST_PAYLOADS: Final = 24  # different ones, that a checksum was found in
_COUNTER_CHANGES: Final = 0.6  # share of the messages in which a counter continues
_COUNTER_KEEPS: Final = 0.9  # share of them in which it continues with the value that usually follows


@dataclass(frozen=True)
class PayloadRules:
    """What holds in all of an identifier's payloads."""

    successors: NDArray[np.int8]  # [16, 16] of each half byte's value the one that follows; -1 where none counts
    checksum: int | None  # kind
    residual: int = 0
    place: int = 0  # byte that the checksum is in
    is_upper: bool = False  # a checksum of half a byte is its upper one

    @classmethod
    def of(cls, payload: NDArray[np.uint8], length: NDArray[np.uint8]) -> PayloadRules:
        """Find the rules of payloads [R, 8] in the order in which they were sent."""
        if len(payload) < _FEWEST_PAYLOADS or length.min() != length.max():
            return cls(np.full((16, 16), -1, np.int8), None)
        halves = np.stack([payload & 15, payload >> 4], axis=-1).reshape(len(payload), 16)
        successors = _successors(halves)
        num_bytes = int(length[0])
        words = np.unique(np.ascontiguousarray(payload).view("<u8").reshape(-1))
        if len(words) < _FEWEST_PAYLOADS or num_bytes < 2:
            return cls(successors, None)
        kind = int(_constant_kind(words, num_bytes))
        if kind < 0:
            return cls(successors, None)
        residual = int(checksum_residual(kind, words[0], num_bytes))
        # It is in the byte that differs most, at one of the ends where two differ as much; or in half a byte.
        if kind == NIBBLE_SUM:
            varied = np.where((successors >= 0).any(axis=1), 0, _num_values(halves))[: 2 * num_bytes]
            half = int(np.flatnonzero(varied == varied.max())[-1])
            return cls(successors, kind, residual, half // 2, is_upper=half % 2 == 1)
        varied = _num_values(payload)
        place = max((num_bytes - 1, 0, *range(num_bytes)), key=lambda one: int(varied[one]))
        return cls(successors, kind, residual, place)

    @property
    def counters(self) -> NDArray[np.bool_]:
        """Return of which bytes a half counts, [8]."""
        return np.asarray((self.successors >= 0).any(axis=1).reshape(8, 2).any(axis=1))

    def count_on(self, payload: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
        """Return payloads [R, 8], in the order of sending, with counters that continue from the first one."""
        if not (self.successors >= 0).any() or not len(payload):
            return payload
        return self.keep(_counted_on(payload, self.successors), num_bytes)

    def keep(self, payload: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
        """Return payloads [R, 8] of so many bytes with the checksum that they would have been sent with."""
        if self.checksum is None or not len(payload):
            return payload
        words = np.ascontiguousarray(payload).view("<u8").reshape(-1)
        return (
            sealed(self.checksum, self.residual, self.place, words, num_bytes, self.is_upper)
            .view(np.uint8)
            .reshape(-1, 8)
        )

    def free_columns(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leave out the bytes that a change of the payload does not touch."""
        taken = self.counters
        if self.checksum is not None:
            taken[self.place] = True
        return columns[~taken[columns]]


def _num_values(columns: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Count the values that each of [R, C] columns takes."""
    return np.array([len(np.unique(columns[:, place])) for place in range(columns.shape[1])])


@njit(cache=True, nogil=True)
def _successors(halves: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return what follows half bytes [R, 16], if it is one certain value, and most of the time another one."""
    num_rows, num_places = halves.shape
    counts = np.zeros((num_places, 16, 16), np.int64)
    successors = np.full((num_places, 16), -1, np.int8)
    for place in range(num_places):
        changes = 0
        for row in range(1, num_rows):
            before, now = halves[row - 1, place], halves[row, place]
            counts[place, before, now] += 1
            changes += before != now
        kept = 0
        for before in range(16):
            kept += counts[place, before].max()
        if changes >= _COUNTER_CHANGES * (num_rows - 1) and kept >= _COUNTER_KEEPS * (num_rows - 1):
            for before in range(16):
                if counts[place, before].max() > 0:
                    successors[place, before] = counts[place, before].argmax()
    return successors


@njit(cache=True, nogil=True)
def _counted_on(payload: NDArray[np.uint8], successors: NDArray[np.int8]) -> NDArray[np.uint8]:
    out = payload.copy()
    for place in range(16):
        shift = 4 * (place & 1)
        for row in range(1, len(out)):
            following = successors[place, (out[row - 1, place >> 1] >> shift) & 15]
            if following >= 0:
                out[row, place >> 1] = (out[row, place >> 1] & (0xF0 >> shift)) | (following << shift)
    return out


@njit(cache=True, nogil=True)
def _constant_kind(words: NDArray[np.uint64], num_bytes: Any) -> int:
    """Return the first kind of checksum that all payloads keep to, -1 if there is none."""
    for kind in range(NUM_CHECKSUMS):
        residual = checksum_residual(kind, words[0], num_bytes)
        holds = True
        for row in range(1, len(words)):
            if checksum_residual(kind, words[row], num_bytes) != residual:
                holds = False
                break
        if holds:
            return kind
    return -1
