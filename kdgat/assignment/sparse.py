"""Kernels that see of a matrix only each row's cheapest entries: an auction, and shortest augmenting paths.

Each row has a list of candidates and a bound, as in `core`: no entry outside the list has C_ij - v_j below
`beyond[i]`, and because v only falls, that stays true. Where a list does not tell enough, a kernel returns and names
the row; whoever called it looks further, and calls again: all that a search has under way is in arrays.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.search import clear, flip, pop, push, reach, settle
from kdgat.base.machine_code import compiled

DONE, LOOK_FURTHER, LOOK_AT_ALL, STUCK = 0, 1, 2, 3
POSITION, SIZE, NUM_REACHED, NUM_SCANNED, NUM_REPAIRED, END, ROW, MODE, SEARCHES, LOOKED_AT = range(10)  # of a search
BEST, HERE = range(2)


@compiled
def bid(columns, costs, count, beyond, v, column_of, row_of, queue, state, step, max_bids, asking):  # type: ignore[no-untyped-def]
    """Let free rows bid for columns until all have one, or `max_bids` are made; return how many rows ask for more.

    A row takes its best column and lowers v there by what the second best is dearer, and `step`; who had it is free
    again (Bertsekas 1988). `queue` is a ring of free rows, from state[0] on, state[1] of them; state[2] counts bids. A
    row whose best column may be outside its list is put into `asking` instead.
    """
    asked = 0
    n = queue.size
    head, waiting, bids = state[0], state[1], state[2]
    while waiting > 0 and bids < max_bids and asked < asking.size:
        i = queue[head]
        head = head + 1 if head + 1 < n else 0
        waiting -= 1
        first, second, best = np.inf, beyond[i], -1
        for e in range(count[i]):
            value = costs[i, e] - v[columns[i, e]]
            if value < first:
                second = min(second, first)
                first = value
                best = columns[i, e]
            elif value < second:
                second = value
        if best < 0 or first > beyond[i]:
            asking[asked] = i
            asked += 1
            continue
        bids += 1
        v[best] -= step + (second - first if second < np.inf else 0.0)
        other = row_of[best]
        row_of[best] = i
        column_of[i] = best
        if other >= 0:
            column_of[other] = -1
            place = head + waiting
            queue[place if place < n else place - n] = other
            waiting += 1
    state[0], state[1], state[2] = head, waiting, bids
    return asked


@compiled
def keep_tight(columns, costs, count, beyond, u, v, column_of, row_of):  # type: ignore[no-untyped-def]
    """Set u to what lists and bounds allow, keep only matches that are tight, and match free rows on such entries.

    Return how many rows are matched.
    """
    matches = 0
    for i in range(count.size):
        smallest = beyond[i]
        for e in range(count[i]):
            smallest = min(smallest, costs[i, e] - v[columns[i, e]])
        u[i] = smallest
        if column_of[i] >= 0:
            is_tight = False
            for e in range(count[i]):
                if columns[i, e] == column_of[i]:
                    is_tight = costs[i, e] - v[columns[i, e]] <= smallest
            if is_tight:
                matches += 1
            else:
                row_of[column_of[i]] = -1
                column_of[i] = -1
    for i in range(count.size):
        if column_of[i] < 0:
            for e in range(count[i]):
                j = columns[i, e]
                if row_of[j] < 0 and costs[i, e] - v[j] <= u[i]:
                    row_of[j] = i
                    column_of[i] = j
                    matches += 1
                    break
    return matches


def search_arrays(n: int, m: int) -> tuple[NDArray[Any], ...]:
    """Return what `search` keeps from call to call: integers, numbers, and room."""
    return (
        np.zeros(10, np.int64),
        np.zeros(2),
        np.full(m, np.inf),  # distance
        np.empty(m, np.int32),  # predecessor
        np.empty(m, np.int32),  # reached
        np.empty(m, np.int32),  # scanned
        np.empty(n),  # distance at which a row was reached
        np.empty(n + m),  # keys of the heap
        np.empty(n + m, np.int32),  # its nodes: a column, or m + row: look beyond that row's list
        np.full(n + m, -1, np.int32),  # where a node is in it
        np.zeros(n, np.int8),  # how often this search asked for more of a row
        np.empty(n, np.int32),  # rows that it asked for
    )


@compiled
def search(  # type: ignore[no-untyped-def]
    columns,
    costs,
    count,
    beyond,
    wide_of,
    wide_columns,
    wide_costs,
    whole_columns,
    whole,
    u,
    v,
    column_of,
    row_of,
    state,
    numbers,
    distance,
    predecessor,
    reached,
    scanned,
    row_at,
    keys,
    nodes,
    place,
    level,
    repaired,
):
    """Match free rows by Dijkstra's search over lists; return a state, and in state[ROW] the row that it is about.

    LOOK_FURTHER: make the list of that row longer, in wide_columns[wide_of[row]]; LOOK_AT_ALL: put the row's costs into
    `whole`; then call again. STUCK: no free column can be reached from that row. DONE: all rows are matched.
    """
    n, m = count.size, row_of.size
    i = state[ROW]
    mode = state[MODE]  # 0: begin, 1: go on with the list of row i, 2: with all of its entries
    size, end = state[SIZE], state[END]
    num_reached, num_scanned, num_repaired = state[NUM_REACHED], state[NUM_SCANNED], state[NUM_REPAIRED]
    best, here = numbers[BEST], numbers[HERE]
    while True:
        if mode == 0:
            while state[POSITION] < n and column_of[state[POSITION]] >= 0:
                state[POSITION] += 1
            if state[POSITION] == n:
                return DONE
            state[SEARCHES] += 1
            i = state[POSITION]
            size = num_reached = num_scanned = num_repaired = 0
            best, here = np.inf, 0.0
            end = -1
            row_at[i] = 0.0
        offset = row_at[i] - u[i]
        if mode == 2:
            these, values, stop = whole_columns, whole, m
        elif wide_of[i] >= 0:
            these, values, stop = wide_columns[wide_of[i]], wide_costs[wide_of[i]], count[i]
        else:
            these, values, stop = columns[i], costs[i], count[i]
        state[LOOKED_AT] += stop
        for e in range(stop):
            j = these[e]
            value = max(values[e] - v[j] + offset, here)
            if value < best and value < distance[j]:
                num_reached = reach(j, value, i, distance, predecessor, reached, num_reached)
                if row_of[j] < 0:
                    best = value
                    end = j
                else:
                    size = push(keys, nodes, place, size, value, j)
        value = max(beyond[i] + offset, here)
        if mode != 2 and value < best:
            size = push(keys, nodes, place, size, value, m + i)
        if size > 0 and keys[0] < best:
            here = keys[0]
            node = nodes[0]
            size = pop(keys, nodes, place, size)
            mode = 1
            if node < m:
                scanned[num_scanned] = node
                num_scanned += 1
                i = row_of[node]
                row_at[i] = here
                continue
            i = node - m
            if level[i] == 0:
                repaired[num_repaired] = i
                num_repaired += 1
            level[i] += 1
            mode = LOOK_FURTHER if level[i] == 1 else LOOK_AT_ALL
            state[ROW], state[MODE], state[SIZE], state[END] = i, mode, size, end
            state[NUM_REACHED], state[NUM_SCANNED], state[NUM_REPAIRED] = num_reached, num_scanned, num_repaired
            numbers[BEST], numbers[HERE] = best, here
            return mode
        origin = state[POSITION]
        if end < 0:
            state[ROW], state[NUM_SCANNED] = origin, num_scanned
            return STUCK
        settle(best, origin, u, v, row_of, distance, scanned, num_scanned)
        clear(distance, reached, num_reached, nodes, place, size)
        for k in range(num_repaired):
            level[repaired[k]] = 0
        flip(origin, end, predecessor, column_of, row_of)
        mode = 0
