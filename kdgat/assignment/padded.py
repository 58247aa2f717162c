"""Kernels of a matrix that is square in thought, and of the candidates of its rows while lines come and go.

A rectangle n x m is a square problem with |n - m| dummy lines of zero cost. Dummy rows share one dual, and so do dummy
columns, because every path reaches all of them at the same distance; so none is stored, and a search treats all dummy
rows as one node and all dummy columns as one. It starts at any free row, whichever side is the larger.

Each row has candidates and a bound, as in `core`: no entry outside the list has C_ij - v_j below `beyond[i]`. Both are
kept from solve to solve. v only falls in a search; where it has to be raised, the column is put on the lists where it
matters. So lists and bounds of all rows tell min_j(C_ij - v_j) well enough for a proof, without reading the matrix.

`cost` [rows, columns] is C-contiguous float64 with room to grow, +inf where forbidden. A column out of use has +inf in
all rows, and v = -inf. `lists` are columns, costs [rows, CAPACITY], count and beyond [rows].
"""

import numpy as np

from kdgat.assignment.core import SHORT_CAPACITY, SHORT_GROUPS, WHOLE, candidates
from kdgat.assignment.rows import LANES, ORDERED
from kdgat.assignment.search import clear, pop, push, reach
from kdgat.base.machine_code import compiled

LONG_GROUPS = 32
FREE, DUMMY = -1, -2  # in column_of and row_of, beside the number of a line
STUCK_NOWHERE, AT_A_DUMMY = -1, -2  # states of `augment`, beside the row from which no free column can be reached
CAPACITY = 160  # of a list: room for columns that come, and for rows that a search asked for more


@compiled
def write_block(block, rows, columns, cost):  # type: ignore[no-untyped-def]
    """Write a block to some rows and columns of the costs; numpy takes three times as long for a few columns."""
    for r in range(rows.size):
        source, target = block[r], cost[rows[r]]
        for k in range(columns.size):
            target[columns[k]] = source[k]


@compiled
def make_lists(cost, v, rows, columns, costs, count, beyond):  # type: ignore[no-untyped-def]
    """Make the candidates of some rows anew, reading them whole."""
    m = cost.shape[1]
    slack, lane = np.empty(m), np.empty(max(m, LANES))
    for i in rows:
        count[i], beyond[i] = candidates(
            cost[i], v, slack, lane, i * 7 % m, SHORT_GROUPS, SHORT_CAPACITY, columns[i], costs[i], 0
        )


@compiled
def row_slacks(v, rows, columns, costs, count, beyond, slack):  # type: ignore[no-untyped-def]
    """Write what min_j(C_ij - v_j) is at least to slack[rows], from lists and bounds."""
    for i in rows:
        smallest = beyond[i]
        for e in range(count[i]):
            smallest = min(smallest, costs[i, e] - v[columns[i, e]])
        slack[i] = smallest


@compiled
def raise_columns(cost, rows, raised, u, v, ceiling, fallback, columns, costs, count, beyond):  # type: ignore[no-untyped-def]
    """Set v of some columns to the most that `rows` and the ceiling allow, and put them on the lists of these rows.

    A column that no row allows gets `fallback` if there is no ceiling. Return the entries looked at.
    """
    m = cost.shape[1]
    slack, lane = np.empty(m), np.empty(max(m, LANES))
    is_raised = np.zeros(m, np.bool_)
    is_raised[raised] = True
    block = np.empty((rows.size, raised.size))  # read once: entries of a column lie far apart
    least = np.full(raised.size, ceiling)
    for r in range(rows.size):
        row, kept_row, potential = cost[rows[r]], block[r], u[rows[r]]
        for k in range(raised.size):
            value = row[raised[k]]
            kept_row[k] = value
            value -= potential
            least[k] = value if value < least[k] else least[k]
    v[raised] = least
    for j in raised:
        if v[j] == np.inf:
            v[j] = fallback
    duals = v[raised]
    looked_at = rows.size * raised.size
    for r in range(rows.size):
        i, kept_row = rows[r], block[r]
        kept = 0
        for e in range(count[i]):
            if not is_raised[columns[i, e]]:
                columns[i, kept] = columns[i, e]
                costs[i, kept] = costs[i, e]
                kept += 1
        count[i] = kept
        for k in range(raised.size):
            if kept_row[k] - duals[k] < beyond[i]:
                if count[i] == CAPACITY:
                    looked_at += m
                    count[i], beyond[i] = candidates(
                        cost[i], v, slack, lane, i * 7 % m, SHORT_GROUPS, SHORT_CAPACITY, columns[i], costs[i], 0
                    )
                    break
                columns[i, count[i]] = raised[k]
                costs[i, count[i]] = kept_row[k]
                count[i] += 1
    return looked_at


@compiled(fastmath=ORDERED)
def augment(cost, u, v, dummy_duals, column_of, row_of, origins, free_dummies, columns, costs, count, beyond):  # type: ignore[no-untyped-def]
    """Match each origin, a free row or DUMMY, by Dijkstra's search over the candidates; change all in place.

    `dummy_duals` are those of dummy rows and of dummy columns, `free_dummies` how many columns of the second kind are
    free (-1: there are none at all). Return (state, searches, entries looked at, repairs). What is reached at the very
    distance where the search is, waits on a stack, as in `core`.
    """
    height, m = cost.shape
    slack, lane = np.empty(m), np.empty(max(m, LANES))
    every, zeros = np.arange(m).astype(np.int32), np.zeros(m)
    level = np.zeros(height, np.int8)
    repaired = np.empty(height, np.int32)
    distance = np.full(m, np.inf)
    predecessor = np.empty(m, np.int32)
    reached, scanned = np.empty(m, np.int32), np.empty(m, np.int32)
    ready = np.empty(m, np.int32)  # columns reached at the distance where the search is
    seen, pending = np.empty(height, np.int32), np.empty(height, np.int32)
    row_at = np.empty(height)
    dummies = m + height  # the node of the dummy columns
    keys = np.empty(dummies + 1)
    nodes = np.empty(dummies + 1, np.int32)  # a column, m + row: look beyond that row's candidates, or the dummies
    place = np.full(dummies + 1, -1, np.int32)
    searches = looked_at = repairs = 0
    for origin in origins:
        searches += 1
        size = num_reached = num_scanned = num_repaired = num_seen = num_pending = num_ready = 0
        best, here = np.inf, 0.0
        end = -1
        entry = -1  # column by which the dummy rows were reached
        has_dummy_row, dummy_row_at = False, 0.0
        dummy_at, dummy_from, dummy_done = np.inf, -1, False
        i = origin
        is_fresh = True
        while True:
            if i == DUMMY:
                has_dummy_row = True
                dummy_row_at = here
                these, values = every, zeros
                offset = here - dummy_duals[0]
                stop = m
            else:
                if is_fresh:
                    row_at[i] = here
                    seen[num_seen] = i
                    num_seen += 1
                offset = row_at[i] - u[i]
                if level[i] == WHOLE:
                    these, values = every, cost[i]
                    stop = m
                else:
                    these, values = columns[i], costs[i]
                    stop = count[i]
            looked_at += stop
            for e in range(stop):
                j = these[e]
                value = max(values[e] - v[j] + offset, here)
                if value < best and value < distance[j]:
                    num_reached = reach(j, value, i, distance, predecessor, reached, num_reached)
                    if row_of[j] == FREE:
                        best = value
                        end = j
                    elif value <= here:
                        ready[num_ready] = j
                        num_ready += 1
                    else:
                        size = push(keys, nodes, place, size, value, j)
            if i != DUMMY:
                value = max(beyond[i] + offset, here)
                if level[i] != WHOLE and value < best:
                    size = push(keys, nodes, place, size, value, m + i)
                value = max(offset - dummy_duals[1], here)
                if free_dummies >= 0 and not dummy_done and value < best and value < dummy_at:
                    dummy_at = value
                    dummy_from = i
                    if free_dummies > 0:
                        best = value
                        end = m
                    else:
                        size = push(keys, nodes, place, size, value, dummies)
            is_done = False
            while True:
                if num_pending > 0:
                    num_pending -= 1
                    i = pending[num_pending]
                    is_fresh = True
                    break
                if best <= here or (num_ready == 0 and (size == 0 or keys[0] >= best)):
                    is_done = True
                    break
                if num_ready > 0:
                    num_ready -= 1
                    node = ready[num_ready]
                else:
                    key, node = keys[0], nodes[0]
                    size = pop(keys, nodes, place, size)
                    if node < m and distance[node] < key:
                        continue  # it was ready before
                    here = key
                if node < m:
                    scanned[num_scanned] = node
                    num_scanned += 1
                    if row_of[node] == DUMMY and (has_dummy_row or origin == DUMMY):
                        continue
                    i = row_of[node]
                    is_fresh = True
                    if i == DUMMY:
                        entry = node
                    break
                if node == dummies:
                    dummy_done = True
                    dummy_at = here
                    for r in range(height):
                        if column_of[r] == DUMMY:
                            pending[num_pending] = r
                            num_pending += 1
                    continue
                i = node - m
                is_fresh = False
                repairs += 1
                if level[i] == 0:
                    repaired[num_repaired] = i
                    num_repaired += 1
                    level[i] = 1
                    looked_at += m
                    count[i], beyond[i] = candidates(
                        cost[i], v, slack, lane, i * 7 % m, LONG_GROUPS, CAPACITY, columns[i], costs[i], 0
                    )
                else:
                    level[i] = WHOLE
                break
            if is_done:
                break
        if end < 0:
            return AT_A_DUMMY if origin == DUMMY else origin, searches, looked_at, repairs
        for k in range(num_seen):
            u[seen[k]] += best - row_at[seen[k]]
        for k in range(num_scanned):
            v[scanned[k]] -= best - distance[scanned[k]]
        if has_dummy_row:
            dummy_duals[0] += best - dummy_row_at
        if dummy_done:
            dummy_duals[1] -= best - dummy_at
        clear(distance, reached, num_reached, nodes, place, size)
        for k in range(num_repaired):
            i = repaired[k]
            if level[i] == WHOLE:  # the search went beyond the bound
                looked_at += m
                count[i], beyond[i] = candidates(
                    cost[i], v, slack, lane, i * 7 % m, LONG_GROUPS, CAPACITY, columns[i], costs[i], 0
                )
            level[i] = 0
        if end == m:
            free_dummies -= 1
        node = end
        while True:
            i = dummy_from if node == m else predecessor[node]
            before = entry if i == DUMMY else column_of[i]
            if node == m:
                column_of[i] = DUMMY
            else:
                row_of[node] = i
                if i != DUMMY:
                    column_of[i] = node
            if i == origin:
                break
            node = m if before == DUMMY else before
    return STUCK_NOWHERE, searches, looked_at, repairs
