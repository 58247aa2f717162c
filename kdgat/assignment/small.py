"""Small problems in one compiled call: read, check, solve, prove. No Python between a matrix and its answer.

The way of Jonker and Volgenant (1987): column minima, rows that bid for columns, then shortest augmenting paths over
whole rows. Only duals of columns are kept on the way; those of rows follow from the matching. A problem that this
cannot answer is given back with the reason, for the general solver to answer or to refuse.
"""

import numpy as np

from kdgat.assignment.auction import bid, match, match_by_rows, transfer
from kdgat.assignment.certificate import is_proved
from kdgat.assignment.core import GAVE_UP, augment_core, make_core, reduce_rows
from kdgat.assignment.dense import augment_dense
from kdgat.assignment.reading import (
    SCALAR,
    column_minima,
    copy_costs,
    copy_square,
    is_as_wanted,
    is_modest,
    is_usable,
    padded,
)
from kdgat.assignment.rows import ORDERED, least_slack, lesser
from kdgat.assignment.search import flip
from kdgat.base.machine_code import compiled, njit

SOLVED, UNUSABLE, INFEASIBLE, UNPROVED = 0, 1, 2, 3  # the last three are left to the general solver
PLUS, MINUS = np.float64(np.inf).view(np.int64), np.float64(-np.inf).view(np.int64)
LONG_BIDS = 400  # lines from which on three rounds of bids pay
# If more of the rows are left, row minima may be the better start, and searches are longer than their lists.
HARD = 0.35
LISTS = 700  # lines from which on these lists are worth being made
LIST_ROUNDS, LIST_BIDS = 2, 4  # rounds of bids on them, bids per row in one round
BIDDING = 0.75  # if more of the rows are left, bids spare no searches
LARGEST_BID = 1e3  # relative to the mean size of the duals so far: more would cost precision


@njit(fastmath=ORDERED)
def solve_few(work, u, v, column_of, row_of, distance, predecessor, order):  # type: ignore[no-untyped-def]
    """Solve a problem of a few lines [n, m], entry by entry; return (rows matched at once, bound, entries looked at).

    No rows but -1 if no matching is possible. Like scipy's, searches keep the columns not yet scanned together.
    """
    n, m = work.shape
    for j in range(m):
        row_of[j] = -1
        v[j] = work[0, j] if n == m else 0.0
    if n == m:
        for i in range(1, n):
            for j in range(m):
                v[j] = lesser(v[j], work[i, j])
    bound = 0.0
    for j in range(m):
        bound += v[j]
    matches = looked_at = 0
    for i in range(n):
        first, at = work[i, 0] - v[0], 0
        for j in range(1, m):
            value = work[i, j] - v[j]
            if value < first or (value == first and row_of[at] >= 0):
                first, at = value, j
        u[i] = first
        bound += first
        column_of[i] = -1
        if row_of[at] < 0 and first < np.inf:
            row_of[at] = i
            column_of[i] = at
            matches += 1
    if bound == np.inf:
        return -1, bound, 0
    for start in range(n):
        if column_of[start] >= 0:
            continue
        for j in range(m):
            distance[j] = np.inf
            order[j] = j
        i, here, num_scanned = start, 0.0, 0
        while True:
            offset = here - u[i]
            nearest, at = np.inf, -1
            for k in range(num_scanned, m):
                j = order[k]
                value = work[i, j] - v[j] + offset
                if value < distance[j]:
                    distance[j] = value
                    predecessor[j] = i
                if distance[j] < nearest or (distance[j] == nearest and row_of[j] < 0):
                    nearest, at = distance[j], k
            looked_at += m - num_scanned
            if at < 0 or nearest == np.inf:
                return -1, bound, looked_at
            here = max(here, nearest)
            end = order[at]
            if row_of[end] < 0:
                break
            order[at] = order[num_scanned]
            order[num_scanned] = end
            distance[end] = here
            num_scanned += 1
            i = row_of[end]
        u[start] += here
        for k in range(num_scanned):
            j = order[k]
            u[row_of[j]] += here - distance[j]
            v[j] -= here - distance[j]
        flip(start, end, predecessor, column_of, row_of)
    return matches, bound, looked_at


@njit(fastmath=ORDERED)
def search_lists(work, v, u, column_of, row_of, free, max_raise):  # type: ignore[no-untyped-def]
    """Match the free rows over lists of the cheapest entries of each row, and over whole rows where these are quicker.

    Return (row, searches, entries looked at): row is -1, or one from which no free column can be reached.
    """
    n = work.shape[0]
    no_mask = np.empty((0, 0), np.uint8)
    columns, costs, start, count, beyond = make_core(work, no_mask, v)
    arrays = (u, v, column_of, row_of)
    left = np.flatnonzero(column_of < 0)
    bids = reduce_rows(
        columns, costs, start, count, beyond, *arrays, left, np.inf, LIST_ROUNDS, LIST_BIDS * n, max_raise
    )
    stuck, searches, looked_at, _, _ = augment_core(
        work, no_mask, columns, costs, start, count, beyond, *arrays, work.size * n, True
    )
    looked_at += bids
    if stuck == GAVE_UP:
        stuck, some, more = augment_dense(work, no_mask, *arrays, np.arange(n))
        searches, looked_at = searches + some, looked_at + more
    return stuck, searches, looked_at


@njit(fastmath=ORDERED)
def solve_more(work, u, v, column_of, row_of, free):  # type: ignore[no-untyped-def]
    """Solve a problem [n, padded m] by bids and searches, given v; return what `solve_few` does, and the searches."""
    n = work.shape[0]
    num_free, bound, possible = match(work, v, u, column_of, row_of, free)
    if not possible:
        return -1, bound, 0, 0
    is_hard = num_free > HARD * n and v.size >= LONG_BIDS
    if is_hard and n == v.size:
        num_free, bound = match_by_rows(work, v, u, column_of, row_of, free, num_free, bound)
    matches = n - num_free
    looked_at = searches = 0
    if num_free == 0:
        return matches, bound, looked_at, searches
    max_raise = LARGEST_BID * abs(bound) / n if bound != 0.0 else np.inf
    if is_hard and v.size >= LISTS:
        stuck, searches, looked_at = search_lists(work, v, u, column_of, row_of, free, max_raise)
        return -1 if stuck >= 0 else matches, bound, looked_at, searches
    searches = num_free
    if num_free <= BIDDING * n:
        transfer(work, v, column_of, max_raise)
        for _ in range(1 if v.size < LONG_BIDS else 3):
            searches, more = bid(work, v, column_of, row_of, free, searches, max_raise)
            looked_at += more
    if searches > 0:
        for i in range(n):
            u[i] = work[i, column_of[i]] - v[column_of[i]] if column_of[i] >= 0 else least_slack(work[i], v)
        no_mask = np.empty((0, 0), np.uint8)
        stuck, _, more = augment_dense(work, no_mask, u, v, column_of, row_of, free[:searches])
        looked_at += more
        if stuck >= 0:
            return -1, bound, looked_at, searches
    return matches, bound, looked_at, searches


@njit(fastmath=ORDERED)
def solve_into(cost, mask, num_rows, num_columns, sign, forbids, column_of, u, v, numbers, places, partners):  # type: ignore[no-untyped-def]
    """Solve cost[:num_rows, :num_columns]; write the matching and its duals, in the user's order and sign.

    With n lines of the smaller side and m, padded, of the larger, `numbers` has room for 3 n + 2 m, and n m more unless
    `is_as_wanted`, `places` for n + m, `partners` for n + 3 m. Return (state, cost, bound, bound before any bid or
    search, rows matched before, searches, entries looked at in them).
    """
    n, lines = min(num_rows, num_columns), max(num_rows, num_columns)
    m = padded(lines)
    mine_u, w, room = numbers[:n], numbers[n : n + m], numbers[n + m : 3 * n + 2 * m]
    free, taken = places[:n], places[n : n + lines]
    mine, row_of, nodes = partners[:n], partners[n : n + m], partners[n + m : n + 3 * m]
    work = cost
    if is_as_wanted(cost, mask, num_rows, num_columns, sign):
        modest = is_modest(cost, num_rows, num_columns)
        if lines > SCALAR:
            column_minima(work, lines, w)
    else:
        work = numbers[3 * n + 2 * m : 3 * n + 2 * m + n * m].reshape(n, m)
        if num_rows == num_columns and mask.shape[0] == 0:
            modest = copy_square(cost, num_rows, sign, work, w)
        else:
            modest = is_modest(cost, num_rows, num_columns)
            copy_costs(cost, mask, num_rows, num_columns, sign, work)
            if lines > SCALAR:
                column_minima(work, lines, w)
    if not modest and not is_usable(cost, mask, num_rows, num_columns, forbids):
        return UNUSABLE, 0.0, 0.0, 0.0, 0, 0, 0
    if lines <= SCALAR:
        matches, seed_bound, looked_at = solve_few(work, mine_u, w, mine, row_of, room, nodes[:m], nodes[m:])
        searches = n - matches
    else:
        matches, seed_bound, looked_at, searches = solve_more(work, mine_u, w, mine, row_of, free)
    if matches < 0:
        return INFEASIBLE, 0.0, 0.0, 0.0, 0, 0, 0
    for i in range(n):
        mine_u[i] = work[i, mine[i]] - w[mine[i]]
    good, total, bound = is_proved(cost, mask, num_rows, num_columns, sign, mine, mine_u, w[:lines], taken, room)
    if not good:
        return UNPROVED, 0.0, 0.0, 0.0, 0, 0, 0
    write_answer(num_rows, num_columns, sign, mine, row_of, mine_u, w, column_of, u, v)
    return SOLVED, sign * total, sign * bound, sign * seed_bound, matches, searches, looked_at


@njit(fastmath=False)
def write_answer(num_rows, num_columns, sign, mine, row_of, mine_u, w, column_of, u, v):  # type: ignore[no-untyped-def]
    """Write a matching of the smaller side, and duals of the minimum, in the user's order and sign."""
    if num_rows <= num_columns:
        for i in range(num_rows):
            column_of[i] = mine[i]
            u[i] = sign * mine_u[i]
        for j in range(num_columns):
            v[j] = sign * w[j]
    else:
        for i in range(num_rows):
            column_of[i] = row_of[i]
            u[i] = sign * w[i]
        for j in range(num_columns):
            v[j] = sign * mine_u[j]


@njit(fastmath=False)
def pack(packed, num_rows, num_columns, column_of, result):  # type: ignore[no-untyped-def]
    """Write the rest of what a `PackedAssignment` holds; u and v are there."""
    k = 0
    size = min(num_rows, num_columns)
    for i in range(num_rows):
        if column_of[i] >= 0:
            packed[k] = i
            packed[size + k] = column_of[i]
            k += 1
    numbers = packed.view(np.float64)[2 * size + num_rows + num_columns :]
    numbers[0], numbers[1], numbers[2] = result[1], result[2], result[3]
    numbers[3], numbers[4], numbers[5] = result[4], result[5], result[6]


@compiled(fastmath=ORDERED)
def solve_one(cost, mask, maximize, may_forbid, packed):  # type: ignore[no-untyped-def]
    """Solve a matrix; fill what a `PackedAssignment` holds, and return the state.

    `may_forbid`: +inf (-inf if maximising) forbids a pair.
    """
    num_rows, num_columns = cost.shape
    n, m = min(num_rows, num_columns), padded(max(num_rows, num_columns))
    sign = -1.0 if maximize else 1.0
    forbids = (MINUS if maximize else PLUS) if may_forbid else 0
    size = 3 * n + 2 * m + (0 if is_as_wanted(cost, mask, num_rows, num_columns, sign) else n * m)
    room = np.empty(size + n + m + num_rows + n + 3 * m)  # one piece of memory for all that follows
    places, partners = room[size : size + n + m + num_rows].view(np.int64), room[-n - 3 * m :].view(np.int32)
    column_of, duals = places[n + m :], packed[2 * n :].view(np.float64)
    u, v = duals[:num_rows], duals[num_rows : num_rows + num_columns]
    result = solve_into(cost, mask, num_rows, num_columns, sign, forbids, column_of, u, v, room, places, partners)
    if result[0] == SOLVED:
        pack(packed, num_rows, num_columns, column_of, result)
    return result[0]
