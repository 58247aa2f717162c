"""Shortest augmenting paths over a core: per row only its cheapest entries, made longer where a search needs it, exact.

Each row i keeps a list of candidates and a bound: no entry outside the list has C_ij - v_j below `beyond[i]`. Since the
searches only ever lower v, the bound stays true. A search that reaches row i at distance d also waits, in the same
heap, for the distance d + beyond[i] - u_i at which an entry outside the list could matter; when that is next, the list
is made anew from the whole row. So every path found is a shortest one of the whole matrix, and most of the matrix is
read only when the lists are made.
"""

import numpy as np
from numba import njit

from kdgat.lap.kernels import ORDERED, allowed_row

LANES = 32  # a row is folded to this many minima, entry j into lane j % 32
CAPACITY = 48  # candidates of a row at first
WIDE_GROUPS, WIDE_CAPACITY = 32, 256  # after the first repair; after the second the whole row is looked at
SHORT, WIDE, WHOLE = 0, 1, 2


@njit(cache=True, fastmath=ORDERED)
def candidates(row, v, slack, first, groups, capacity, columns, costs, at):  # type: ignore[no-untyped-def]
    """Write a row's entries with small C_ij - v_j to columns[at:] and costs[at:]; return (how many, bound on others).

    They are all those up to the largest of `groups` minima over interleaved groups of columns: `groups` or more, about
    groups * ln(groups) for random costs. If there are more than `capacity`, the smallest half of that, and ties with
    the last, taken round from column `first` on so that rows with the same costs differ.
    """
    m = row.size
    lane = np.full(LANES, np.inf)
    full = m - m % LANES
    for block in range(0, full, LANES):
        for k in range(LANES):
            value = row[block + k] - v[block + k]
            slack[block + k] = value
            lane[k] = value if value < lane[k] else lane[k]
    for j in range(full, m):
        value = row[j] - v[j]
        slack[j] = value
        lane[j - full] = value if value < lane[j - full] else lane[j - full]
    size = LANES
    while size > groups:
        size //= 2
        for k in range(size):
            lane[k] = min(lane[k], lane[size + k])
    threshold = -np.inf
    for k in range(size):
        threshold = max(threshold, lane[k])
    if m <= capacity:
        threshold = np.inf
    found = 0
    for block in range(0, full, LANES):
        some = False
        for k in range(LANES):
            some |= slack[block + k] <= threshold
        if some:
            for j in range(block, block + LANES):
                if slack[j] <= threshold and slack[j] < np.inf:
                    if found < capacity:
                        columns[at + found] = j
                        costs[at + found] = row[j]
                    found += 1
    for j in range(full, m):
        if slack[j] <= threshold and slack[j] < np.inf:
            if found < capacity:
                columns[at + found] = j
                costs[at + found] = row[j]
            found += 1
    if found <= capacity:
        return found, threshold
    threshold = np.partition(slack, capacity // 2)[capacity // 2]
    found = 0
    for j in range(m):
        if slack[j] < threshold:
            columns[at + found] = j
            costs[at + found] = row[j]
            found += 1
    for k in range(m):
        j = first + k if first + k < m else first + k - m
        if slack[j] == threshold and found < capacity:
            columns[at + found] = j
            costs[at + found] = row[j]
            found += 1
    return found, threshold


@njit(cache=True)
def rise(keys, nodes, place, position, key, node):  # type: ignore[no-untyped-def]
    """Move a node of a binary heap up from `position` to where `key` belongs."""
    while position > 0:
        parent = (position - 1) >> 1
        if keys[parent] <= key:
            break
        keys[position] = keys[parent]
        nodes[position] = nodes[parent]
        place[nodes[position]] = position
        position = parent
    keys[position] = key
    nodes[position] = node
    place[node] = position


@njit(cache=True)
def remove_first(keys, nodes, place, size):  # type: ignore[no-untyped-def]
    """Take the first node off a binary heap of `size` nodes."""
    place[nodes[0]] = -1
    size -= 1
    if size == 0:
        return
    key, node = keys[size], nodes[size]
    position = 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[position] = keys[child]
        nodes[position] = nodes[child]
        place[nodes[position]] = position
        position = child
    keys[position] = key
    nodes[position] = node
    place[node] = position


@njit(cache=True, fastmath=ORDERED)
def augment_core(cost, mask, u, v, column_of, row_of, groups, max_bids):  # type: ignore[no-untyped-def]
    """Match every free row by Dijkstra's search over the candidates; change u, v and the matching in place.

    Return (row, greedy matches, searches, entries looked at, candidates, repairs); row is -1, or one from which no
    free column can be reached.
    """
    n, m = cost.shape
    buffer = np.empty(m)
    slack = np.empty(m)
    columns = np.empty(n * CAPACITY + 16 * WIDE_CAPACITY, np.int32)
    costs = np.empty(columns.size)
    used = 0
    start = np.empty(n, np.int64)
    count = np.empty(n, np.int64)
    beyond = np.empty(n)
    level = np.zeros(n, np.int8)
    matches = 0
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        start[i] = used
        count[i], beyond[i] = candidates(row, v, slack, i * 7 % m, groups, CAPACITY, columns, costs, used)
        used += count[i]
        if column_of[i] < 0:
            for e in range(start[i], used):
                j = columns[e]
                if row_of[j] < 0 and costs[e] - v[j] <= u[i]:
                    row_of[j] = i
                    column_of[i] = j
                    matches += 1
                    break
    core_edges = used
    looked_at = 0
    repairs = 0

    # Augmenting row reduction: a free row takes its best column from whoever has it and lowers its dual to where the
    # second best is as good. Bounded, because on metric costs rows can outbid each other forever.
    free = np.empty(n, np.int32)
    num_free = 0
    for i in range(n):
        if column_of[i] < 0:
            free[num_free] = i
            num_free += 1
    for _ in range(2):
        bids = 0
        waiting = num_free
        num_free = 0
        k = 0
        while k < waiting:
            i = free[k]
            k += 1
            first, second, best = np.inf, beyond[i], -1
            for e in range(start[i], start[i] + count[i]):
                value = costs[e] - v[columns[e]]
                if value < first:
                    second = min(second, first)
                    first = value
                    best = columns[e]
                elif value < second:
                    second = value
            looked_at += count[i]
            bids += 1
            if best < 0 or first > second or second == np.inf:
                free[num_free] = i
                num_free += 1
                continue
            other = row_of[best]
            if other >= 0 and first == second:
                # another column as good may be free
                for e in range(start[i], start[i] + count[i]):
                    if costs[e] - v[columns[e]] == first and row_of[columns[e]] < 0:
                        best = columns[e]
                        other = -1
                        break
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

    distance = np.full(m, np.inf)
    predecessor = np.empty(m, np.int32)
    reached = np.empty(m, np.int32)  # columns with a distance, to be cleared after the search
    scanned = np.empty(m, np.int32)
    row_at = np.empty(n)  # distance at which a row was reached
    keys = np.empty(n + m)
    nodes = np.empty(n + m, np.int32)  # a column, or m + row: look beyond that row's candidates
    place = np.full(n + m, -1, np.int32)
    searches = 0
    for origin in range(n):
        if column_of[origin] >= 0:
            continue
        searches += 1
        size = 0
        num_reached = 0
        num_scanned = 0
        best = np.inf
        end = -1
        here = 0.0
        i = origin
        row_at[i] = 0.0
        while True:
            # Look at row i from its distance.
            since = row_at[i]
            offset = since - u[i]
            if level[i] == WHOLE:
                row = allowed_row(cost, mask, i, buffer)
                looked_at += m
                for j in range(m):
                    value = max(row[j] - v[j] + offset, here)
                    if value < best and value < distance[j]:
                        if distance[j] == np.inf:
                            reached[num_reached] = j
                            num_reached += 1
                        distance[j] = value
                        predecessor[j] = i
                        if row_of[j] < 0:
                            best = value
                            end = j
                        else:
                            position = place[j]
                            if position < 0:
                                position = size
                                size += 1
                            rise(keys, nodes, place, position, value, j)
            else:
                looked_at += count[i]
                for e in range(start[i], start[i] + count[i]):
                    j = columns[e]
                    value = max(costs[e] - v[j] + offset, here)
                    if value < best and value < distance[j]:
                        if distance[j] == np.inf:
                            reached[num_reached] = j
                            num_reached += 1
                        distance[j] = value
                        predecessor[j] = i
                        if row_of[j] < 0:
                            best = value
                            end = j
                        else:
                            position = place[j]
                            if position < 0:
                                position = size
                                size += 1
                            rise(keys, nodes, place, position, value, j)
                value = max(beyond[i] + offset, here)
                if value < best:
                    rise(keys, nodes, place, size, value, m + i)
                    size += 1
            if size == 0 or keys[0] >= best:
                break
            here = keys[0]
            node = nodes[0]
            remove_first(keys, nodes, place, size)
            size -= 1
            if node < m:
                scanned[num_scanned] = node
                num_scanned += 1
                i = row_of[node]
                row_at[i] = here
            else:
                i = node - m
                repairs += 1
                level[i] += 1
                if level[i] == WIDE:
                    if used + WIDE_CAPACITY > columns.size:
                        more_columns = np.empty(2 * columns.size, np.int32)
                        more_columns[:used] = columns[:used]
                        columns = more_columns
                        more_costs = np.empty(2 * costs.size)
                        more_costs[:used] = costs[:used]
                        costs = more_costs
                    row = allowed_row(cost, mask, i, buffer)
                    looked_at += m
                    start[i] = used
                    count[i], beyond[i] = candidates(
                        row, v, slack, i * 7 % m, WIDE_GROUPS, WIDE_CAPACITY, columns, costs, used
                    )
                    used += count[i]
                    core_edges += count[i]
        if end < 0:
            return origin, matches, searches, looked_at, core_edges, repairs
        u[origin] += best
        for k in range(num_scanned):
            j = scanned[k]
            change = best - distance[j]
            u[row_of[j]] += change
            v[j] -= change
        for k in range(size):
            place[nodes[k]] = -1
        for k in range(num_reached):
            distance[reached[k]] = np.inf
        j = end
        while True:
            i = predecessor[j]
            row_of[j] = i
            following = column_of[i]
            column_of[i] = j
            if i == origin:
                break
            j = following
    return -1, matches, searches, looked_at, core_edges, repairs
