"""The checksum that an identifier's payloads carry, if there is one: found by what stays the same of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kdgat.base import Config
from kdgat.base.machine_code import njit
from kdgat.canbus.features.checksums import NUM_CHECKSUMS, checksum_residual

_FEWEST_PAYLOADS: Final = 100  # that differ: some kind holds of few by chance


class Checksum(Config):
    """A checksum that all payloads carry."""

    kind: int = Field(ge=0, lt=NUM_CHECKSUMS, description="its number in kdgat.canbus.features.checksums")
    residual: int = Field(ge=0, lt=256, description="what stays the same of all payloads")
    num_bytes: int = Field(ge=2, le=8, description="of the payloads")

    def holds(self, payloads: Sequence[NDArray[np.uint64]]) -> bool:
        """Return whether payloads, which are little-endian words [R], carry it."""
        residuals = _residuals(self.kind, np.unique(np.concatenate(payloads)), self.num_bytes)
        return bool((residuals == self.residual).all())


def find_checksum(payloads: Sequence[NDArray[np.uint64]], num_bytes: int) -> Checksum | None:
    """Return the first kind of checksum that all payloads [R] of an identifier carry; None if they carry none."""
    words = np.unique(np.concatenate(payloads))
    if num_bytes < 2 or len(words) < _FEWEST_PAYLOADS:
        return None
    for kind in range(NUM_CHECKSUMS):
        residuals = _residuals(kind, words, num_bytes)
        if (residuals == residuals[0]).all():
            return Checksum(kind=kind, residual=int(residuals[0]), num_bytes=num_bytes)
    return None


@njit(cache=True)
def _residuals(kind: int, words: NDArray[np.uint64], num_bytes: int) -> NDArray[np.uint8]:
    found = np.zeros(len(words), np.uint8)
    for row in range(len(words)):
        found[row] = checksum_residual(kind, words[row], num_bytes)
    return found
