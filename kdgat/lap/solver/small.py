"""Small problems in one compiled call: read, check, solve, prove. No Python between a matrix and its answer.

The way of Jonker and Volgenant (1987): column minima, rows that bid for columns, then shortest augmenting paths over
whole rows. Only duals of columns are kept on the way; those of rows follow from the matching. Rows are padded with
+inf to a multiple of LANES, so that vector instructions take every entry. A problem that this cannot answer is given
back with the reason, for the general solver to answer or to refuse.
"""

import numpy as np
from numba import njit

from kdgat.lap.solver.compilation import compiled
from kdgat.lap.solver.kernels import EXPONENT, LANES, ORDERED, augment_dense, least_slack, lesser

SOLVED, UNUSABLE, INFEASIBLE, UNPROVED = 0, 1, 2, 3  # the last three are left to the general solver
LIMIT = np.float64(2.0**980).view(np.int64)  # no sum of a small problem's costs below it overflows
SCALAR, LONG = 16, 160  # lines up to the first length are looked at entry by entry; from the second on not padded
NOWHERE = 1 << 62  # larger than any place in a row
BIDS_PER_ROW = 0.5  # in one round
LARGEST_BID = 1e3  # relative to the mean size of the duals so far: more would cost precision
TOLERANCE, PRECISION, ROUNDING, EXACT = 1e-9, 1e-12, 4.0 * 2.0**-52, 2.0**52


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
    bad = False
    for i in range(num_rows):
        for j in range(num_columns):
            bad |= (bits[i, j] & EXPONENT) >= LIMIT
    if bad:  # looked at once more, slowly
        for i in range(num_rows):
            for j in range(num_columns):
                special = (bits[i, j] & EXPONENT) >= LIMIT and (mask.shape[0] == 0 or mask[i, j] == 0)
                if special and (forbids == 0 or bits[i, j] != forbids):
                    return False
    return True


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


@njit
def is_as_wanted(cost, mask, num_rows, num_columns, sign):  # type: ignore[no-untyped-def]
    """Return whether the searches can read the user's matrix itself."""
    exact = cost.shape[0] == num_rows and cost.shape[1] == num_columns == padded(num_columns)
    return exact and mask.shape[0] == 0 and sign > 0.0 and num_rows <= num_columns


@njit(fastmath=ORDERED)
def places_of(row, v, value, row_of):  # type: ignore[no-untyped-def]
    """Return the first j where row_j - v_j is `value`, and the first of them that is free."""
    place = free = NOWHERE
    for j in range(v.size):
        here = j if row[j] - v[j] == value else NOWHERE
        place = here if here < place else place
        here = here if row_of[j] < 0 else NOWHERE
        free = here if here < free else free
    return place, free


@njit(fastmath=ORDERED)
def match(work, m, v, column_of, row_of, free):  # type: ignore[no-untyped-def]
    """Make v, and match rows to columns where they cost least; return (rows in `free`, the bound, whether possible)."""
    n = work.shape[0]
    if n == m:
        for j in range(v.size):
            v[j] = np.inf
        for i in range(n):
            row = work[i]
            for j in range(v.size):
                v[j] = lesser(v[j], row[j])
        for j in range(m, v.size):
            v[j] = 0.0
    else:
        v[:] = 0.0
    bound = 0.0
    for j in range(v.size):
        bound += v[j]
    if bound == np.inf:
        return 0, 0.0, False
    row_of[:] = -1
    num_free = 0
    for i in range(n):
        first = least_slack(work[i], v)
        if first == np.inf:
            return 0, 0.0, False
        bound += first
        _, j = places_of(work[i], v, first, row_of)
        if j == NOWHERE:
            column_of[i] = -1
            free[num_free] = i
            num_free += 1
        else:
            row_of[j] = i
            column_of[i] = j
    return num_free, bound, True


@njit(fastmath=ORDERED)
def transfer(work, v, column_of, max_raise):  # type: ignore[no-untyped-def]
    """Lower each matched column's dual until its row's second choice is as good: what bids for it will have to beat."""
    for i in range(work.shape[0]):
        j = column_of[i]
        if j >= 0:
            before = v[j]
            v[j] = -np.inf
            lead = least_slack(work[i], v) - (work[i, j] - before)
            v[j] = before - lead if lead <= max_raise else before


@njit(fastmath=ORDERED)
def two_choices(row, v, row_of):  # type: ignore[no-untyped-def]
    """Return the least row_j - v_j, where it is (in a free column, if it can), and the second least."""
    if v.size <= SCALAR:
        first = second = np.inf
        place = 0
        for j in range(v.size):
            value = row[j] - v[j]
            if value < first or (value == first and row_of[j] < 0):
                second = first
                first = value
                place = j
            elif value < second:
                second = value
        return first, place, second
    first = least_slack(row, v)
    place, free = places_of(row, v, first, row_of)
    before = v[place]
    v[place] = -np.inf
    second = least_slack(row, v)
    v[place] = before
    return first, free if free != NOWHERE else place, second


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


@njit(fastmath=ORDERED)
def is_proved(cost, mask, num_rows, num_columns, sign, column_of, u, v, taken):  # type: ignore[no-untyped-def]
    """Check a matching and the duals that prove it on the matrix as it came; return (whether, cost, bound).

    Every line of the smaller side is matched once and allowed so, and no entry has u_i + v_j above its cost, up to a
    billionth of the mean matched cost and rounding. Duals are those of the minimum.
    """
    total = size = bound = dual_size = largest = 0.0
    matched = 0
    good = whole = True
    for j in range(num_columns):
        taken[j] = 0
    for i in range(num_rows):
        bound += u[i]
        dual_size += abs(u[i])
        largest = max(largest, abs(u[i]))
        whole &= np.floor(u[i]) == u[i]
        j = column_of[i]
        if j < 0:
            good &= u[i] == 0.0
            continue
        good &= j < num_columns and taken[j] == 0 and (mask.shape[0] == 0 or mask[i, j] == 0)
        if not good:
            break
        taken[j] = 1
        matched += 1
        total += sign * cost[i, j]
        size += abs(cost[i, j])
        good &= num_rows <= num_columns or u[i] <= 0.0
    for j in range(num_columns):
        bound += v[j]
        dual_size += abs(v[j])
        largest = max(largest, abs(v[j]))
        whole &= np.floor(v[j]) == v[j]
        good &= (taken[j] != 0 or v[j] == 0.0) and (num_rows >= num_columns or v[j] <= 0.0)
    good &= matched == min(num_rows, num_columns)
    good &= ROUNDING * dual_size <= PRECISION * size or (whole and dual_size < EXACT)
    rounding = ROUNDING * (16 + matched)
    good &= abs(total - bound) <= TOLERANCE * size + rounding * dual_size
    least = -(TOLERANCE * size / max(matched, 1) + rounding * largest)
    for i in range(num_rows):
        row = cost[i]
        dual = u[i]
        bad = False
        if mask.shape[0] != 0:
            for j in range(num_columns):
                bad |= (sign * row[j] - v[j] - dual < least) & (mask[i, j] == 0)
        else:
            for j in range(num_columns):
                bad |= sign * row[j] - v[j] - dual < least
        good &= not bad
    return good, total, bound


@njit(fastmath=ORDERED)
def solve_into(cost, mask, num_rows, num_columns, sign, forbids, column_of, u, v, floats, places, partners):  # type: ignore[no-untyped-def]
    """Solve cost[:num_rows, :num_columns]; write the matching and its duals, in the user's order and sign.

    With n lines of the smaller side and m, padded, of the larger, `floats` has room for n + m numbers, and n m more
    unless `is_as_wanted`, `places` for n + m, `partners` for n + m. Return (state, cost, bound, bound before any bid or
    search, rows matched before, searches, entries looked at in them).
    """
    n, lines = min(num_rows, num_columns), max(num_rows, num_columns)
    m = padded(lines)
    w, mine_u = floats[:m], floats[m : m + n]
    free, taken = places[:n], places[n : n + m]
    row_of, mine = partners[:m], partners[m : m + n]
    if not is_usable(cost, mask, num_rows, num_columns, forbids):
        return UNUSABLE, 0.0, 0.0, 0.0, 0, 0, 0
    work = cost
    if not is_as_wanted(cost, mask, num_rows, num_columns, sign):
        work = floats[n + m : n + m + n * m].reshape(n, m)
        copy_costs(cost, mask, num_rows, num_columns, sign, work)
    num_free, seed_bound, possible = match(work, lines, w, mine, row_of, free)
    matches = n - num_free
    looked_at = searches = 0
    if possible and num_free > 0:
        max_raise = LARGEST_BID * abs(seed_bound) / n if seed_bound != 0.0 else np.inf
        transfer(work, w, mine, max_raise)
        searches, looked_at = bid(work, w, mine, row_of, free, num_free, max_raise)
        if searches > 0:
            for i in range(n):
                mine_u[i] = work[i, mine[i]] - w[mine[i]] if mine[i] >= 0 else least_slack(work[i], w)
            stuck, _, more = augment_dense(work, np.empty((0, 0), np.uint8), mine_u, w, mine, row_of, free[:searches])
            looked_at += more
            possible = stuck < 0
    if not possible:
        return INFEASIBLE, 0.0, 0.0, 0.0, 0, 0, 0
    if num_rows <= num_columns:
        for i in range(n):
            column_of[i] = mine[i]
            u[i] = work[i, mine[i]] - w[mine[i]]
        for j in range(num_columns):
            v[j] = w[j]
    else:
        for i in range(num_rows):
            column_of[i] = row_of[i]
            u[i] = w[i]
        for j in range(n):
            v[j] = work[j, mine[j]] - w[mine[j]]
    good, total, bound = is_proved(cost, mask, num_rows, num_columns, sign, column_of, u, v, taken)
    if not good:
        return UNPROVED, 0.0, 0.0, 0.0, 0, 0, 0
    if sign < 0.0:
        for i in range(num_rows):
            u[i] = -u[i]
        for j in range(num_columns):
            v[j] = -v[j]
    return SOLVED, sign * total, sign * bound, sign * seed_bound, matches, searches, looked_at


@compiled(fastmath=ORDERED)
def solve_one(cost, mask, sign, forbids, numbers, pairs):  # type: ignore[no-untyped-def]
    """Solve a matrix; write u and v to `numbers` [n + m], rows and their columns to `pairs` [2, k]."""
    num_rows, num_columns = cost.shape
    n, m = min(num_rows, num_columns), padded(max(num_rows, num_columns))
    floats = np.empty(n + m + (0 if is_as_wanted(cost, mask, num_rows, num_columns, sign) else n * m))
    places, partners = np.empty(n + m + num_rows, np.int64), np.empty(n + m, np.int32)
    column_of = places[n + m :]
    u, v = numbers[:num_rows], numbers[num_rows:]
    result = solve_into(cost, mask, num_rows, num_columns, sign, forbids, column_of, u, v, floats, places, partners)
    if result[0] == SOLVED:
        k = 0
        for i in range(num_rows):
            if column_of[i] >= 0:
                pairs[0, k] = i
                pairs[1, k] = column_of[i]
                k += 1
    return result
