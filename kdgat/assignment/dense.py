"""The classical shortest-augmenting-path searches over whole rows, and the matchings on tight entries before them.

`cost` and `mask` are as in `kdgat.assignment.rows`. `column_of` [n] and `row_of` [m] are the matching, -1 is unmatched.
"""

import numpy as np

from kdgat.assignment.rows import BITS, ORDERED, allowed_row, at_most, last_at_most, lesser, lowest_bit
from kdgat.assignment.search import flip
from kdgat.base.machine_code import compiled

CROWD, CROWDED_PART, SAMPLED_ROWS = 48, 20, 40  # tight entries of a row, part of the rows, rows looked at


@compiled
def match_tight(cost, mask, u, v, column_of, row_of):  # type: ignore[no-untyped-def]
    """Match free rows greedily on entries where u_i + v_j = C_ij; return how many. -1 is unmatched."""
    n, m = cost.shape
    buffer = np.empty(m)
    matches = 0
    for i in range(n):
        if column_of[i] >= 0:
            continue
        row = allowed_row(cost, mask, i, buffer)
        for j in range(m):
            if row_of[j] < 0 and row[j] - v[j] <= u[i]:
                row_of[j] = i
                column_of[i] = j
                matches += 1
                break
    return matches


@compiled
def is_crowded(cost, mask, u, v):  # type: ignore[no-untyped-def]
    """Return whether one row in CROWDED_PART or more has over CROWD entries where u_i + v_j = C_ij, of a sample."""
    n, m = cost.shape
    buffer = np.empty(m)
    step = max(1, n // SAMPLED_ROWS)
    sampled = crowded = 0
    for i in range(0, n, step):
        row = allowed_row(cost, mask, i, buffer)
        tight = 0
        for j in range(m):
            tight += row[j] - v[j] <= u[i]
        sampled += 1
        crowded += tight > CROWD
    return crowded * CROWDED_PART >= sampled


@compiled
def match_scarce(cost, mask, u, v, column_of, row_of):  # type: ignore[no-untyped-def]
    """Match the rows with up to CROWD entries where u_i + v_j = C_ij; return those of them left, and how many are not.

    They get as many columns as they can, by augmenting paths over their tight entries (Kuhn 1955, breadth first), those
    with few such entries first: rows that may have any column must not take the only one of others.
    """
    n, m = cost.shape
    buffer = np.empty(m)
    count = np.empty(n, np.int64)
    lists = np.empty((n, CROWD), np.int32)
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        found = 0
        for j in range(m):
            if row[j] - v[j] <= u[i]:
                if found < CROWD:
                    lists[i, found] = j
                found += 1
                if found > CROWD:
                    break
        count[i] = found
    matches = 0
    seen = np.full(m, -1, np.int32)
    predecessor = np.empty(m, np.int32)
    queue = np.empty(n, np.int32)
    left = n * m  # entries to be looked at in longer paths
    scarce = np.flatnonzero(count <= CROWD)
    for i in scarce[np.argsort(count[scarce])]:
        end = -1
        queue[0] = i
        head, tail = 0, 1
        while head < tail and end < 0 and (head == 0 or left > 0):
            other = queue[head]
            head += 1
            left -= count[other]
            for e in range(count[other]):
                j = lists[other, e]
                if seen[j] != i:
                    seen[j] = i
                    predecessor[j] = other
                    if row_of[j] < 0:
                        end = j
                        break
                    queue[tail] = row_of[j]
                    tail += 1
        if end < 0:
            continue
        matches += 1
        flip(i, end, predecessor, column_of, row_of)
    return scarce[column_of[scarce] < 0], matches


@compiled(fastmath=ORDERED)
def augment_dense(cost, mask, u, v, column_of, row_of, rows):  # type: ignore[no-untyped-def]
    """Match every free row among `rows` by Dijkstra's search over reduced costs; change u, v and the matching in place.

    Return (row, searches, entries looked at): row is -1, or the first row from which no free column can be reached.
    """
    m = cost.shape[1]
    # Arrays of its own: LLVM knows that they do not overlap, and vectorises the loop over a row.
    buffer = np.empty(m)
    distance = np.empty(m)  # of columns not yet scanned; +inf after
    open_v = np.empty(m)  # v of columns not yet scanned; -inf after, so that they never come nearer
    predecessor = np.empty(m, np.int32)
    scanned = np.empty(m, np.int32)
    scanned_at = np.empty(m)
    searches = 0
    looked_at = 0
    for start in rows:
        if column_of[start] >= 0:
            continue
        searches += 1
        for j in range(m):
            distance[j] = np.inf
            open_v[j] = v[j]
        num_scanned = 0
        num_done = 0  # scanned columns whose rows have been looked at
        i = np.int32(start)
        here = 0.0
        end = -1
        while True:
            row = allowed_row(cost, mask, i, buffer)
            offset = here - u[i]
            nearest_at = np.inf
            for j in range(m):
                value = row[j] - open_v[j] + offset
                before = distance[j]
                predecessor[j] = i if value < before else predecessor[j]
                value = lesser(value, before)
                distance[j] = value
                nearest_at = lesser(nearest_at, value)
            looked_at += m
            if num_done == num_scanned or nearest_at <= here:
                if nearest_at == np.inf:
                    return start, searches, looked_at
                here = max(nearest_at, here)
                for block in range(0, m, BITS):
                    bits = (
                        at_most(distance, block, nearest_at)
                        if block + BITS <= m
                        else last_at_most(distance, block, nearest_at)
                    )
                    while bits != 0:
                        j = block + lowest_bit(bits)
                        bits &= bits - 1
                        if row_of[j] < 0:
                            end = j
                            break
                        scanned[num_scanned] = j
                        scanned_at[num_scanned] = here
                        num_scanned += 1
                        distance[j] = np.inf
                        open_v[j] = -np.inf
                    if end >= 0:
                        break
                if end >= 0:
                    break
            i = row_of[scanned[num_done]]
            num_done += 1
        u[start] += here
        for k in range(num_scanned):
            j = scanned[k]
            u[row_of[j]] += here - scanned_at[k]
            v[j] -= here - scanned_at[k]
        flip(start, end, predecessor, column_of, row_of)
    return -1, searches, looked_at


@compiled
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
