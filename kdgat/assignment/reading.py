"""Read a small matrix: check it, and write it as the searches want it, with its column minima.

Rows are padded with +inf to a multiple of LANES, so that vector instructions take every entry.
"""

import numpy as np

from kdgat.assignment.rows import EXPONENT, LANES, ORDERED, lesser
from kdgat.base.machine_code import njit

LIMIT = np.float64(2.0**980).view(np.int64)  # no sum of a small problem's costs below it overflows
SCALAR, LONG = 16, 160  # lines up to the first length are looked at entry by entry; from the second on not padded


@njit
def padded(m):  # type: ignore[no-untyped-def]
    """Return the least multiple of LANES from m on where the last few entries would cost as much as all others."""
    return m if m <= SCALAR or m >= LONG else (m + LANES - 1) // LANES * LANES


@njit(fastmath=ORDERED)
def is_usable(cost, mask, num_rows, num_columns, forbids):  # type: ignore[no-untyped-def]
    """Return whether all allowed costs are finite and not too large.

    `forbids` is the infinity that forbids a pair, as int64, or 0 if none does.
    """
    bits = cost.view(np.int64)
    for i in range(num_rows):
        for j in range(num_columns):
            special = (bits[i, j] & EXPONENT) >= LIMIT and (mask.shape[0] == 0 or mask[i, j] == 0)
            if special and (forbids == 0 or bits[i, j] != forbids):
                return False
    return True


@njit(fastmath=ORDERED)
def is_modest(cost, num_rows, num_columns):  # type: ignore[no-untyped-def]
    """Return whether all costs, allowed or not, are finite and not too large."""
    bits = cost.view(np.int64)
    bad = False
    for i in range(num_rows):
        row = bits[i]
        for j in range(num_columns):
            bad |= (row[j] & EXPONENT) >= LIMIT
    return not bad


@njit(fastmath=ORDERED)
def copy_costs(cost, mask, num_rows, num_columns, sign, work):  # type: ignore[no-untyped-def]
    """Write the problem to `work` [n, padded m], to be minimised, +inf where forbidden."""
    if num_rows > num_columns:
        for j in range(num_columns):
            for i in range(num_rows):
                work[j, i] = sign * cost[i, j]
    else:
        for i in range(num_rows):
            for j in range(num_columns):
                work[i, j] = sign * cost[i, j]
    n, m = min(num_rows, num_columns), max(num_rows, num_columns)
    for i in range(n):
        for j in range(m, work.shape[1]):
            work[i, j] = np.inf
    if mask.shape[0] != 0:
        for i in range(num_rows):
            for j in range(num_columns):
                if mask[i, j]:
                    if num_rows > num_columns:
                        work[j, i] = np.inf
                    else:
                        work[i, j] = np.inf


@njit(fastmath=ORDERED)
def copy_square(cost, n, sign, work, v):  # type: ignore[no-untyped-def]
    """Do what `is_modest`, `copy_costs` and `column_minima` do for a square matrix without a mask, in one pass."""
    bits = cost.view(np.int64)
    for j in range(v.size):
        v[j] = np.inf
    bad = False
    for i in range(n):
        source, pattern, target = cost[i], bits[i], work[i]
        for j in range(n):
            bad |= (pattern[j] & EXPONENT) >= LIMIT
            value = sign * source[j]
            target[j] = value
            v[j] = lesser(v[j], value)
        for j in range(n, v.size):
            target[j] = np.inf
    for j in range(n, v.size):
        v[j] = 0.0
    return not bad


@njit(fastmath=ORDERED)
def column_minima(work, m, v):  # type: ignore[no-untyped-def]
    """Write to v the duals of columns to begin with: minima, 0 for a rectangle and where only padding is."""
    if work.shape[0] < m:
        for j in range(v.size):
            v[j] = 0.0
        return
    for j in range(v.size):
        v[j] = np.inf
    for i in range(m):
        row = work[i]
        for j in range(v.size):
            v[j] = lesser(v[j], row[j])
    for j in range(m, v.size):
        v[j] = 0.0


@njit
def is_as_wanted(cost, mask, num_rows, num_columns, sign):  # type: ignore[no-untyped-def]
    """Return whether the searches can read the user's matrix itself."""
    exact = cost.shape[0] == num_rows and cost.shape[1] == num_columns == padded(num_columns)
    return exact and mask.shape[0] == 0 and sign > 0.0 and num_rows <= num_columns
