"""Match the rows of a small problem where they cost least, and let those that are left bid for columns.

The start of Jonker and Volgenant (1987) over whole rows: minima, reduction transfer, augmenting row reduction.
"""

import numpy as np

from kdgat.assignment.rows import ORDERED, least_slack, lesser, smallest
from kdgat.base.machine_code import njit

NOWHERE = 1 << 62  # larger than any place in a row
BIDS_PER_ROW = 0.5  # in one round


@njit(fastmath=ORDERED)
def place_of(row, v, value):  # type: ignore[no-untyped-def]
    """Return the first j where row_j - v_j is `value`."""
    place = NOWHERE
    for j in range(v.size):
        here = j if row[j] - v[j] == value else NOWHERE
        place = here if here < place else place
    return place


@njit(fastmath=ORDERED)
def free_place_of(row, v, value, row_of):  # type: ignore[no-untyped-def]
    """Return the first free column j where row_j - v_j is `value`."""
    place = NOWHERE
    for j in range(v.size):
        here = j if row[j] - v[j] == value else NOWHERE
        here = here if row_of[j] < 0 else NOWHERE
        place = here if here < place else place
    return place


@njit(fastmath=ORDERED)
def least_other(row, v, place):  # type: ignore[no-untyped-def]
    """Return min_j(row_j - v_j) without column `place`."""
    before = v[place]
    v[place] = -np.inf
    least = least_slack(row, v)
    v[place] = before
    return least


@njit(fastmath=ORDERED)
def match(work, v, u, column_of, row_of, free):  # type: ignore[no-untyped-def]
    """Write u, match rows to columns where they cost least; return (rows in `free`, the bound, whether possible)."""
    bound = 0.0
    for j in range(v.size):
        bound += v[j]
    if bound == np.inf:
        return 0, 0.0, False
    for j in range(v.size):
        row_of[j] = -1
    num_free = 0
    for i in range(work.shape[0]):
        first = least_slack(work[i], v)
        if first == np.inf:
            return 0, 0.0, False
        u[i] = first
        bound += first
        j = free_place_of(work[i], v, first, row_of)
        if j == NOWHERE:
            column_of[i] = -1
            free[num_free] = i
            num_free += 1
        else:
            row_of[j] = i
            column_of[i] = j
    return num_free, bound, True


@njit(fastmath=ORDERED)
def match_by_rows(work, v, u, column_of, row_of, free, num_free, bound):  # type: ignore[no-untyped-def]
    """Match anew from the duals that row minima give, if their bound is better; return (rows in `free`, the bound)."""
    n = v.size
    other = np.full(n, np.inf)
    by_rows = 0.0
    for i in range(n):
        row = work[i]
        least = smallest(row)
        by_rows += least
        for j in range(n):
            other[j] = lesser(other[j], row[j] - least)
    for j in range(n):
        by_rows += other[j]
    if by_rows <= bound:
        return num_free, bound
    for j in range(n):
        v[j] = other[j]
    num_free, bound, _ = match(work, v, u, column_of, row_of, free)
    return num_free, bound


@njit(fastmath=ORDERED)
def transfer(work, v, column_of, max_raise):  # type: ignore[no-untyped-def]
    """Lower each matched column's dual until its row's second choice is as good: what bids for it will have to beat."""
    for i in range(work.shape[0]):
        j = column_of[i]
        if j >= 0:
            lead = least_other(work[i], v, j) - (work[i, j] - v[j])
            if lead <= max_raise:
                v[j] -= lead


@njit(fastmath=ORDERED)
def two_choices(row, v, row_of):  # type: ignore[no-untyped-def]
    """Return the least row_j - v_j, where it is (in a free column, if it can), and the second least."""
    first = least_slack(row, v)
    place = place_of(row, v, first)
    second = least_other(row, v, place)
    if second == first and row_of[place] >= 0:
        free = free_place_of(row, v, first, row_of)
        place = free if free != NOWHERE else place
    return first, place, second


@njit(fastmath=ORDERED)
def bid(work, v, column_of, row_of, free, num_free, max_raise):  # type: ignore[no-untyped-def]
    """Let free rows bid for columns (augmenting row reduction); return (rows still in `free`, entries looked at)."""
    waiting, num_free = num_free, 0
    k = bids = 0
    while k < waiting:
        i = free[k]
        k += 1
        first, j, second = two_choices(work[i], v, row_of)
        bids += 1
        if not second - first <= max_raise:
            free[num_free] = i
            num_free += 1
            continue
        other = row_of[j]
        v[j] -= second - first
        row_of[j] = i
        column_of[i] = j
        if other >= 0:
            column_of[other] = -1
            if first < second and bids < BIDS_PER_ROW * work.shape[0]:
                k -= 1
                free[k] = other
            else:
                free[num_free] = other
                num_free += 1
    return num_free, bids * v.size
