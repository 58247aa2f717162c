"""Compiled passes over a cost matrix, and the classical shortest-augmenting-path searches on dense rows.

All kernels take `cost` [n, m] float64, C-contiguous, n <= m, where +inf is a forbidden entry, and `mask` [n, m] uint8,
where 1 is forbidden, too, whatever the cost there; a mask of shape [0, 0] forbids nothing. They read the matrix row by
row, because they are bound by memory. No flag lets the compiler reorder sums: integer costs with integer duals stay
exact.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

EXPONENT = np.int64(0x7FF0000000000000)  # all ones: infinity or NaN
ORDERED = {"nnan", "nsz"}  # lets minima be vectorised; changes no sum


@njit(inline="always")
def allowed_row(cost, mask, i, buffer):  # type: ignore[no-untyped-def]
    """Return row i with +inf at forbidden entries; `buffer` [m] holds it if there is a mask."""
    if mask.shape[0] == 0:
        return cost[i]
    for j in range(buffer.size):
        buffer[j] = np.inf if mask[i, j] else cost[i, j]
    return buffer


@njit(cache=True, fastmath=ORDERED)
def first_bad_row(bits, mask, allow_infinity):  # type: ignore[no-untyped-def]
    """Return the first row with a NaN or an infinity at an allowed entry, or n; `bits` is the matrix as int64."""
    n, m = bits.shape
    for i in range(n):
        bad = np.int64(0)
        row = bits[i]
        for j in range(m):
            special = (row[j] & EXPONENT) == EXPONENT
            if allow_infinity:
                special = special and row[j] != EXPONENT
            if mask.shape[0] != 0:
                special = special and mask[i, j] == 0
            bad |= np.int64(special)
        if bad:
            return i
    return n


@njit(cache=True, fastmath=ORDERED)
def minima(cost, mask):  # type: ignore[no-untyped-def]
    """Return row minima [n] and column minima [m]; +inf where all is forbidden."""
    n, m = cost.shape
    rows = np.empty(n)
    columns = np.full(m, np.inf)
    buffer = np.empty(m)
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        least = np.inf
        for j in range(m):
            value = row[j]
            least = value if value < least else least
            columns[j] = value if value < columns[j] else columns[j]
        rows[i] = least
    return rows, columns


@njit(cache=True, fastmath=ORDERED)
def column_slack(cost, mask, u):  # type: ignore[no-untyped-def]
    """Return min_i(C_ij - u_i) for each column: the min-trick."""
    n, m = cost.shape
    v = np.full(m, np.inf)
    buffer = np.empty(m)
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        potential = u[i]
        for j in range(m):
            value = row[j] - potential
            v[j] = value if value < v[j] else v[j]
    return v


@njit(cache=True, fastmath=ORDERED)
def row_slack(cost, mask, v):  # type: ignore[no-untyped-def]
    """Return min_j(C_ij - v_j) for each row."""
    n, m = cost.shape
    u = np.empty(n)
    buffer = np.empty(m)
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        least = np.inf
        for j in range(m):
            value = row[j] - v[j]
            least = value if value < least else least
        u[i] = least
    return u


@njit(cache=True)
def match_tight(cost, mask, u, v, column_of, row_of):  # type: ignore[no-untyped-def]
    """Match rows greedily on entries where u_i + v_j = C_ij; return how many. -1 is unmatched."""
    n, m = cost.shape
    buffer = np.empty(m)
    matches = 0
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        for j in range(m):
            if row_of[j] < 0 and row[j] - v[j] <= u[i]:
                row_of[j] = i
                column_of[i] = j
                matches += 1
                break
    return matches


@njit(cache=True, fastmath=ORDERED)
def augment_dense(cost, mask, u, v, column_of, row_of):  # type: ignore[no-untyped-def]
    """Match every free row by Dijkstra's search over reduced costs; change u, v and the matching in place.

    Return (row, searches, entries looked at): row is -1, or the first row from which no free column can be reached.
    """
    n, m = cost.shape
    buffer = np.empty(m)
    distance = np.empty(m)  # of columns not yet scanned; +inf after
    open_v = np.empty(m)  # v of columns not yet scanned; -inf after, so that they never come nearer
    predecessor = np.empty(m, np.int32)
    scanned = np.empty(m, np.int32)
    scanned_at = np.empty(m)
    searches = 0
    looked_at = 0
    for start in range(n):
        if column_of[start] >= 0:
            continue
        searches += 1
        distance[:] = np.inf
        open_v[:] = v
        num_scanned = 0
        i = np.int32(start)
        here = 0.0
        end = -1
        while True:
            row = allowed_row(cost, mask, i, buffer)
            offset = here - u[i]
            least = np.inf
            for j in range(m):
                value = row[j] - open_v[j] + offset
                nearer = value < distance[j]
                predecessor[j] = i if nearer else predecessor[j]
                value = value if nearer else distance[j]
                distance[j] = value
                least = value if value < least else least
            looked_at += m
            if least == np.inf:
                return start, searches, looked_at
            here = max(least, here)
            nearest = -1
            for j in range(m):
                if distance[j] == least:
                    if row_of[j] < 0:
                        end = j
                        break
                    if nearest < 0:
                        nearest = j
            if end >= 0:
                break
            scanned[num_scanned] = nearest
            scanned_at[num_scanned] = here
            num_scanned += 1
            distance[nearest] = np.inf
            open_v[nearest] = -np.inf
            i = row_of[nearest]
        u[start] += here
        for k in range(num_scanned):
            j = scanned[k]
            u[row_of[j]] += here - scanned_at[k]
            v[j] -= here - scanned_at[k]
        j = end
        while True:
            i = predecessor[j]
            row_of[j] = i
            following = column_of[i]
            column_of[i] = j
            if i == start:
                break
            j = following
    return -1, searches, looked_at


@njit(cache=True)
def release_columns(cost, mask, u, v, column_of, row_of):  # type: ignore[no-untyped-def]
    """Raise v to 0 at every unmatched column of a matrix with n < m; lower u where needed and unmatch those rows.

    A larger side's unmatched duals must be 0, or the matching found would not be the best. Each column is raised at
    most once.
    """
    n, m = cost.shape
    waiting = np.empty(m, np.int32)
    count = 0
    for j in range(m):
        if row_of[j] < 0 and v[j] < 0.0:
            waiting[count] = j
            count += 1
    while count > 0:
        count -= 1
        j = waiting[count]
        v[j] = 0.0
        for i in range(n):
            if mask.shape[0] != 0 and mask[i, j]:
                continue
            if cost[i, j] < u[i]:
                u[i] = cost[i, j]
                left = column_of[i]
                if left >= 0:
                    column_of[i] = -1
                    row_of[left] = -1
                    if v[left] < 0.0:
                        waiting[count] = left
                        count += 1


@njit(cache=True, fastmath=ORDERED)
def least_slack(cost, mask, u, v):  # type: ignore[no-untyped-def]
    """Return min_ij(C_ij - u_i - v_j): not below 0 if the duals are feasible."""
    n, m = cost.shape
    buffer = np.empty(m)
    total = np.inf
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        least = np.inf
        for j in range(m):
            value = row[j] - v[j]
            least = value if value < least else least
        total = min(total, least - u[i])
    return total


def no_mask() -> NDArray[np.uint8]:
    """Return the mask that forbids nothing."""
    return np.zeros((0, 0), np.uint8)


@njit(cache=True, fastmath=ORDERED)
def local_scale(cost, mask, rank):  # type: ignore[no-untyped-def]
    """Return the mean over rows of (rank-th smallest - smallest) allowed cost; rows with fewer give their range."""
    n, m = cost.shape
    buffer = np.empty(m)
    total = 0.0
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        finite = np.sort(row[row < np.inf])
        total += finite[min(rank, finite.size) - 1] - finite[0]
    return total / n


@njit(cache=True, fastmath=ORDERED)
def sinkhorn_rounds(cost, mask, v, temperatures):  # type: ignore[no-untyped-def]
    """Return u [n] after one update of u and of v at each temperature, from v [m], which is changed."""
    n, m = cost.shape
    buffer = np.empty(m)
    slack = np.empty(m)
    u = np.empty(n)
    for temperature in temperatures:
        sums = np.zeros(m)
        nearest = np.full(m, np.inf)
        cut = 30.0 * temperature  # e^-30 adds nothing
        for i in range(n):
            row = allowed_row(cost, mask, i, buffer)
            least = np.inf
            for j in range(m):
                value = row[j] - v[j]
                slack[j] = value
                least = value if value < least else least
            total = 0.0
            for j in range(m):
                if slack[j] - least < cut:
                    total += np.exp((least - slack[j]) / temperature)
            u[i] = least - temperature * np.log(total)
            for j in range(m):
                value = slack[j] - u[i]
                nearest[j] = value if value < nearest[j] else nearest[j]
                if value < cut:
                    sums[j] += np.exp(-value / temperature)
        for j in range(m):
            if sums[j] > 0.0:
                v[j] -= temperature * np.log(sums[j])
            elif nearest[j] < np.inf:
                v[j] += nearest[j] - cut  # so that its sum is not lost in the next round
    return u
