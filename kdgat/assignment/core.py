"""Shortest augmenting paths over a core: per row only its cheapest entries, made longer where a search needs it, exact.

Each row i keeps a list of candidates and a bound: no entry outside the list has C_ij - v_j below `beyond[i]`. Since
bids and searches only ever lower v, the bound stays true. A search that reaches row i at distance d also waits, in the
same heap, for the distance d + beyond[i] - u_i at which an entry outside the list could matter; when that is next, the
list is made anew from the whole row. So every path found is a shortest one of the whole matrix, and most of the matrix
is read only when the lists are made.

`cost` and `mask` are as in `kdgat.assignment.rows`.
"""

import numpy as np

from kdgat.assignment.rows import BITS, LANES, ORDERED, allowed_row, at_most, fold, last_at_most, lowest_bit
from kdgat.assignment.search import clear, flip, pop, push, reach, settle
from kdgat.base.machine_code import compiled

SHORT_GROUPS, SHORT_CAPACITY = 8, 48  # about 22 candidates of a row of random costs
WIDE_CAPACITY = 256  # after a repair in a search: 16 groups, about 54 candidates; after the second: 32, about 130
SHORT, WHOLE = 0, 3  # times that a search has asked for more of a row; from the last on, it looks at all of it
MAX_REPAIRS = 8  # per row of the matrix; who needs more is better off with dense rows
# Times of an entry of a list, and of a row made a list of per entry, in that of an entry of a row searched whole.
LIST_TIME, REPAIR_TIME = 15.0, 8.0
EARLIEST, WINDOW = 0.5, 0.25  # passes over the matrix, in searches, before these times are compared, and between
LARGEST = float(np.finfo(np.float64).max)  # what is more is forbidden
STUCK_NOWHERE, GAVE_UP = -1, -2


@compiled(fastmath=ORDERED)
def candidates(row, v, slack, lane, first, groups, capacity, columns, costs, at):  # type: ignore[no-untyped-def]
    """Write a row's entries with small C_ij - v_j to columns[at:] and costs[at:]; return (how many, bound on others).

    They are all those up to the largest of `groups` minima over interleaved groups of columns: `groups` or more, about
    groups * ln(groups) for random costs. If there are more than `capacity`, fewer groups are made; if the smallest
    entry alone is there so often, as many of these as fit, from column `first` on, so that rows with the same costs
    differ.
    """
    m = row.size
    fold(row, v, slack, lane)
    size = LANES
    while True:
        while size > groups:
            size //= 2
            for k in range(size):
                lane[k] = min(lane[k], lane[size + k])
        threshold = np.inf
        if m > capacity:
            threshold = lane[0]
            for k in range(1, size):
                threshold = max(threshold, lane[k])
        found = 0
        limit = min(threshold, LARGEST)
        for block in range(0, m, BITS):
            bits = at_most(slack, block, limit) if block + BITS <= m else last_at_most(slack, block, limit)
            while bits != 0:
                if found < capacity:
                    j = block + lowest_bit(bits)
                    columns[at + found] = j
                    costs[at + found] = row[j]
                found += 1
                bits &= bits - 1
        if found <= capacity:
            return found, threshold
        if size == 1:
            break
        groups = size // 2
    found = 0
    for k in range(m):
        j = first + k if first + k < m else first + k - m
        if slack[j] == threshold and found < capacity:
            columns[at + found] = j
            costs[at + found] = row[j]
            found += 1
    return found, threshold


@compiled
def make_core(cost, mask, v):  # type: ignore[no-untyped-def]
    """Return the candidates of all rows: columns and costs [edges], start and count [n], beyond [n]."""
    n, m = cost.shape
    buffer, slack, lane = np.empty(m), np.empty(m), np.empty(max(m, LANES))
    columns = np.empty(n * SHORT_CAPACITY, np.int32)
    costs = np.empty(columns.size)
    start, count, beyond = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n)
    used = 0
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        start[i] = used
        count[i], beyond[i] = candidates(
            row, v, slack, lane, i * 7 % m, SHORT_GROUPS, SHORT_CAPACITY, columns, costs, used
        )
        used += count[i]
    return columns[:used], costs[:used], start, count, beyond


@compiled
def match_core(columns, costs, start, count, u, v, column_of, row_of):  # type: ignore[no-untyped-def]
    """Match rows greedily on candidates where u_i + v_j = C_ij; return how many."""
    matches = 0
    for i in range(start.size):
        if column_of[i] >= 0:
            continue
        for e in range(start[i], start[i] + count[i]):
            j = columns[e]
            if row_of[j] < 0 and costs[e] - v[j] <= u[i]:
                row_of[j] = i
                column_of[i] = j
                matches += 1
                break
    return matches


@compiled
def reduce_rows(  # type: ignore[no-untyped-def]
    columns, costs, start, count, beyond, u, v, column_of, row_of, free, otherwise, rounds, max_bids, max_raise
):
    """Let the rows in `free` bid for columns (augmenting row reduction); return the entries looked at.

    A free row takes its best column from whoever has it and lowers the column's dual until the second best is as good.
    There are at most `max_bids` a round, because on metric costs two rows can outbid each other for long. A bid of more
    than `max_raise` is left to a search, or the prohibitive price of a second choice that is not needed would become
    a dual, next to which other costs are rounded away. A row may have something else at the price `otherwise`. Who
    takes that, or a column that belongs to no row and is not free either (row_of < -1), is left to a search, too.
    """
    num_free = free.size
    looked_at = 0
    for _ in range(rounds):
        bids = 0
        waiting = num_free
        num_free = 0
        k = 0
        while k < waiting:
            i = free[k]
            k += 1
            first, second, best = np.inf, min(beyond[i], otherwise), -1
            for e in range(start[i], start[i] + count[i]):
                value = costs[e] - v[columns[e]]
                if value < first or (value == first and row_of[columns[e]] < 0):
                    second = min(second, first)
                    first = value
                    best = columns[e]
                elif value < second:
                    second = value
            looked_at += count[i]
            bids += 1
            if best < 0 or row_of[best] < -1 or first > second or not second - first <= max_raise:
                free[num_free] = i  # the best may lie beyond the candidates: left to a search
                num_free += 1
                continue
            other = row_of[best]
            u[i] = second
            v[best] -= second - first
            row_of[best] = i
            column_of[i] = best
            if other >= 0:
                column_of[other] = -1
                if first < second and bids < max_bids:
                    k -= 1
                    free[k] = other
                else:
                    free[num_free] = other
                    num_free += 1
    return looked_at


@compiled(fastmath=ORDERED)
def augment_core(cost, mask, columns, costs, start, count, beyond, u, v, column_of, row_of, max_looked_at, may_turn):  # type: ignore[no-untyped-def]
    """Match every free row by Dijkstra's search over the candidates; change u, v, the matching and the lists in place.

    Return (state, searches, entries looked at, candidates added, repairs). The state is -1, or a row from which no free
    column can be reached, or -2: so many repairs were needed that the rows left are better searched on dense rows, or
    more than `max_looked_at` entries were looked at. If it `may_turn`, it does so as soon as dense rows would have been
    quicker for the last searches.

    After a few searches most columns are reached at the very distance where the search is, over entries without slack:
    a stack is enough for them, a heap has the others.
    """
    n, m = cost.shape
    buffer, slack, lane = np.empty(m), np.empty(m), np.empty(max(m, LANES))
    every = np.arange(m).astype(np.int32)
    wide_columns = np.empty(16 * WIDE_CAPACITY, np.int32)
    wide_costs = np.empty(wide_columns.size)
    used = 0
    wide_start = np.full(n, -1)  # a row's place in the wide lists
    level = np.zeros(n, np.int8)
    repaired = np.empty(n, np.int32)  # rows of a search that asked for more
    distance = np.full(m, np.inf)
    predecessor = np.empty(m, np.int32)
    reached = np.empty(m, np.int32)  # columns with a distance, to be cleared after the search
    scanned = np.empty(m, np.int32)
    ready = np.empty(m, np.int32)  # columns reached at the distance where the search is
    row_at = np.empty(n)  # distance at which a row was reached
    keys = np.empty(n + m)
    nodes = np.empty(n + m, np.int32)  # a column, or m + row: look beyond that row's candidates
    place = np.full(n + m, -1, np.int32)
    searches = looked_at = added = repairs = scans = 0
    looked_at_before = scans_before = repairs_before = 0
    check_at = EARLIEST * n * m
    for origin in range(n):
        if column_of[origin] >= 0:
            continue
        if repairs > MAX_REPAIRS * n or looked_at > max_looked_at:
            return GAVE_UP, searches, looked_at, added, repairs
        if may_turn and looked_at > check_at:
            made = (repairs - repairs_before) * m
            spent = LIST_TIME * (looked_at - looked_at_before - made) + REPAIR_TIME * made
            if looked_at_before > 0 and spent > (scans - scans_before) * m:
                return GAVE_UP, searches, looked_at, added, repairs
            check_at = looked_at + WINDOW * n * m
            looked_at_before, scans_before, repairs_before = looked_at, scans, repairs
        searches += 1
        size = num_reached = num_scanned = num_repaired = num_ready = 0
        best = np.inf  # distance of the nearest free column so far
        end = -1
        here = 0.0
        i = origin
        row_at[i] = 0.0
        while True:
            offset = row_at[i] - u[i]
            if level[i] == WHOLE:
                these, values = every, allowed_row(cost, mask, i, buffer)
                begin, stop = 0, m
            elif wide_start[i] >= 0:
                these, values = wide_columns, wide_costs
                begin, stop = wide_start[i], wide_start[i] + count[i]
            else:
                these, values = columns, costs
                begin, stop = start[i], start[i] + count[i]
            looked_at += stop - begin
            scans += 1
            for e in range(begin, stop):
                j = these[e]
                value = max(values[e] - v[j] + offset, here)
                if value < best and value < distance[j]:
                    num_reached = reach(j, value, i, distance, predecessor, reached, num_reached)
                    if row_of[j] < 0:
                        best = value
                        end = j
                    elif value <= here:
                        ready[num_ready] = j
                        num_ready += 1
                    else:
                        size = push(keys, nodes, place, size, value, j)
            value = max(beyond[i] + offset, here)
            if level[i] != WHOLE and value < best:
                size = push(keys, nodes, place, size, value, m + i)
            node = -1
            while node < 0 and best > here:
                if num_ready > 0:
                    num_ready -= 1
                    node = ready[num_ready]
                elif size == 0 or keys[0] >= best:
                    break
                else:
                    key, first = keys[0], nodes[0]
                    size = pop(keys, nodes, place, size)
                    if first >= m or distance[first] == key:  # it may have been ready before
                        here, node = key, first
            if node < 0:
                break
            if node < m:
                scanned[num_scanned] = node
                num_scanned += 1
                i = row_of[node]
                row_at[i] = here
                continue
            i = node - m
            repairs += 1
            level[i] += 1
            if level[i] == 1:
                repaired[num_repaired] = i
                num_repaired += 1
            if level[i] < WHOLE:
                if wide_start[i] < 0:
                    if used == wide_columns.size:
                        more_columns, more_costs = np.empty(2 * used, np.int32), np.empty(2 * used)
                        for e in range(used):
                            more_columns[e] = wide_columns[e]
                            more_costs[e] = wide_costs[e]
                        wide_columns, wide_costs = more_columns, more_costs
                    wide_start[i] = used
                    used += WIDE_CAPACITY
                row = allowed_row(cost, mask, i, buffer)
                looked_at += m
                count[i], beyond[i] = candidates(
                    row,
                    v,
                    slack,
                    lane,
                    i * 7 % m,
                    8 << level[i],
                    WIDE_CAPACITY,
                    wide_columns,
                    wide_costs,
                    wide_start[i],
                )
                added += count[i]
        if end < 0:
            return origin, searches, looked_at, added, repairs
        settle(best, origin, u, v, row_of, distance, scanned, num_scanned)
        clear(distance, reached, num_reached, nodes, place, size)
        for k in range(num_repaired):
            level[repaired[k]] = SHORT
        flip(origin, end, predecessor, column_of, row_of)
    return STUCK_NOWHERE, searches, looked_at, added, repairs
