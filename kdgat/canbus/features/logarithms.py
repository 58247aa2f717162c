"""Logarithms, several of which the compiler takes at once; single calls were a third of the time of a message."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kdgat.base.machine_code import njit

# log(1 + f) = f - s (f - R(s^2)) with s = f / (2 + f): the coefficients of R, as in FreeBSD's e_log.c (Sun, 1993).
_R1, _R2, _R3, _R4 = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
)
_R5, _R6, _R7 = 1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01
_PER_LOG: Final = 1.4426950408889634  # 1 / log(2)
# The bits of just below the root of 1/2: mantissas are from there to below twice that.
_HALF: Final = 0x3FE6A09E00000000
_MANTISSA: Final = 0x000FFFFFFFFFFFFF
# Mantissas of the least numbers above 2^(1/4), 2^(1/2) and 2^(3/4).
_QUARTER, _TWO_QUARTERS, _THREE_QUARTERS = 0x306FE0A31B716, 0x6A09E667F3BCD, 0xAE89F995AD3AE


@njit(cache=True, error_model="numpy", inline="always")
def log2(value: Any) -> Any:
    """Return the logarithm of a positive, normal number, within 2 units of the last place; that of a power is exact.

    Has no branch, so that the compiler makes a loop over it take several at once.
    """
    bits = np.float64(value).view(np.int64) - np.int64(_HALF)
    exponent = bits >> np.int64(52)
    rest = np.int64((bits & np.int64(_MANTISSA)) + np.int64(_HALF)).view(np.float64) - 1.0
    ratio = rest / (2.0 + rest)
    square = ratio * ratio
    series = square * (
        _R1 + square * (_R2 + square * (_R3 + square * (_R4 + square * (_R5 + square * (_R6 + square * _R7)))))
    )
    return np.float64(exponent) + _PER_LOG * (rest - ratio * (rest - series))


@njit(cache=True, error_model="numpy", inline="always")
def quarter_octaves(value: Any) -> Any:
    """Return four times the logarithm of a positive number, rounded down."""
    bits = np.float64(value).view(np.int64)
    octave = (bits >> np.int64(52)) - np.int64(1023)
    mantissa = bits & np.int64(_MANTISSA)
    quarters = (
        np.int64(mantissa >= _QUARTER) + np.int64(mantissa >= _TWO_QUARTERS) + np.int64(mantissa >= _THREE_QUARTERS)
    )
    return 4 * octave + quarters
