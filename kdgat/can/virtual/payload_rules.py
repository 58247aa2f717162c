"""Rules that the payloads of one identifier keep: counters and a checksum, and how to keep to them after a change.

What a control unit says changes from drive to drive, but its counters go on and its checksum holds. A virtual vehicle
that broke them while nobody attacks it would teach that broken rules mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kdgat.can.windows.checksums import NUM_CHECKSUMS, checksum_residual, sealed

_FEWEST_PAYLOADS: Final = 24  # different ones, that a checksum was found in
_COUNTER_CHANGES: Final = 0.6  # share of the messages in which a counter goes on
_COUNTER_KEEPS: Final = 0.9  # share of them in which it goes on to the value that it usually goes on to


@dataclass(frozen=True)
class PayloadRules:
    """What holds in all of an identifier's payloads."""

    counters: NDArray[np.bool_]  # [8] bytes of which a half counts
    checksum: int | None  # kind
    residual: int = 0
    place: int = 0  # byte that the checksum is in

    @classmethod
    def of(cls, payload: NDArray[np.uint8], length: NDArray[np.uint8]) -> PayloadRules:
        """Find the rules of payloads [R, 8] in the order in which they were sent."""
        counters = np.zeros(8, bool)
        if len(payload) < _FEWEST_PAYLOADS or length.min() != length.max():
            return cls(counters, None)
        halves = np.stack([payload & 15, payload >> 4], axis=-1)  # [R, 8, 2]
        counters = np.logical_or.reduce(_counting(halves.reshape(len(payload), 16)).reshape(8, 2), axis=1)
        num_bytes = int(length[0])
        words = np.unique(np.ascontiguousarray(payload).view("<u8").reshape(-1))
        if len(words) < _FEWEST_PAYLOADS or num_bytes < 2:
            return cls(counters, None)
        kind = int(_constant_kind(words, num_bytes))
        if kind < 0:
            return cls(counters, None)
        # It is in the byte that differs most, at one of the ends where two differ as much.
        variety = [len(np.unique(payload[:, place])) for place in range(num_bytes)]
        place = max((num_bytes - 1, 0, *range(num_bytes)), key=lambda one: variety[one])
        return cls(counters, kind, int(checksum_residual(kind, words[0], num_bytes)), place)

    def keep(self, payload: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
        """Return payloads [R, 8] of so many bytes with the checksum that they would have been sent with."""
        if self.checksum is None or not len(payload):
            return payload
        words = np.ascontiguousarray(payload).view("<u8").reshape(-1)
        return sealed(self.checksum, self.residual, self.place, words, num_bytes).view(np.uint8).reshape(-1, 8)

    def free_columns(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leave out the bytes that a change of what is said does not touch."""
        taken = self.counters.copy()
        if self.checksum is not None:
            taken[self.place] = True
        return columns[~taken[columns]]


@njit(cache=True)
def _counting(halves: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Say which half bytes [R, 16] go on to one certain value, and most of the time to another one."""
    num_rows, num_places = halves.shape
    counts = np.zeros((num_places, 16, 16), np.int64)
    found = np.zeros(num_places, np.bool_)
    for place in range(num_places):
        changes = 0
        for row in range(1, num_rows):
            before, now = halves[row - 1, place], halves[row, place]
            counts[place, before, now] += 1
            changes += before != now
        kept = 0
        for before in range(16):
            kept += counts[place, before].max()
        found[place] = changes >= _COUNTER_CHANGES * (num_rows - 1) and kept >= _COUNTER_KEEPS * (num_rows - 1)
    return found


@njit(cache=True)
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
