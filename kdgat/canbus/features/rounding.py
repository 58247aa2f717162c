"""Features as a store keeps them: rounded where they are made, so that whoever sees a window sees the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.errors import UserError
from kdgat.base.machine_code import njit

_INFINITY: Final = 0x47800000  # 65,536 as float32: what rounds to it is beyond the largest float16


def round_features(rows: NDArray[np.float32], names: Sequence[str]) -> None:
    """Round features [N, F] to the nearest float16, in place; -0 becomes 0.

    Raises:
        UserError: naming a feature whose value is not finite, or beyond 65,504.
    """
    place = _round(rows.reshape(-1).view(np.uint32))
    if place >= 0:
        raise UserError(
            f"feature {names[place % len(names)]} is {rows.reshape(-1)[place]}, beyond what a store keeps "
            "(65,504): a fault of kdgat's features; report it with the recording"
        )


@njit(cache=True, nogil=True)
def _round(bits: NDArray[np.uint32]) -> Any:
    """Round numbers, given by their bits; return the place of the first that is too large, else -1."""
    most = np.uint32(0)
    smallest = np.float32(2.0**24)
    for place in range(bits.shape[0]):  # without a branch: the compiler takes several at once
        word = bits[place]
        size = word & np.uint32(0x7FFFFFFF)
        # Half of a unit of the last of ten bits is added, less one where the tenth bit is even: ties go to even.
        rounded = np.uint32(
            (size + np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
        )
        most = max(most, rounded)
        # Below 2^-14 float16 has steps of 2^-24. What is larger is not looked at: it may not even be a number.
        tiny = np.uint32(min(size, np.uint32(0x38800000))).view(np.float32)
        stepped = np.float32(np.rint(tiny * smallest) / smallest).view(np.uint32)
        rounded = stepped if size < np.uint32(0x38800000) else min(rounded, max(size, np.uint32(_INFINITY)))
        bits[place] = rounded if rounded == 0 else rounded | (word & np.uint32(0x80000000))
    if most >= np.uint32(_INFINITY):
        for place in range(bits.shape[0]):  # what was too large still is
            if (bits[place] & np.uint32(0x7FFFFFFF)) >= np.uint32(_INFINITY):
                return np.int64(place)
    return np.int64(-1)
