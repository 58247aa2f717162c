"""Compiled passes over a cost matrix, and the classical shortest-augmenting-path searches on dense rows.

All kernels take `cost` [n, m] float64, C-contiguous, n <= m, where +inf is a forbidden entry, and `mask` [n, m] uint8,
where 1 is forbidden, too, whatever the cost there; a mask of shape [0, 0] forbids nothing. They read the matrix row by
row, because they are bound by memory. No flag lets the compiler reorder sums: integer costs with integer duals stay
exact.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from kdgat.assignment.compilation import compiled
from kdgat.base.machine_code import njit

as_intrinsic: Any = intrinsic  # a call of what it makes has one argument less than the function

EXPONENT = np.int64(0x7FF0000000000000)  # all ones: infinity or NaN
ORDERED = {"nnan", "nsz"}  # lets minima be vectorised; changes no sum
CROWD, CROWDED_PART, SAMPLED_ROWS = 48, 20, 40  # tight entries of a row, part of the rows, rows looked at
BITS, FEW_BITS = 64, 8  # entries compared at a time, one bit each
LANES = 32  # interleaved parts of a row whose minima are taken side by side; entries that vector instructions take


@as_intrinsic
def lesser(_: Any, left: Any, right: Any) -> Any:
    """Return the smaller of two numbers, neither of them NaN: the one form of a minimum over a loop that is vectorised.

    LLVM takes `a if a < b else b` for one only where the selection itself is marked as free of NaN, which numba does
    not do: a row's minimum took nine times as long.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        double = ir.DoubleType()
        form = ir.FunctionType(double, [double, double])
        minimum = builder.module.declare_intrinsic("llvm.minnum", [double], form)
        return builder.call(minimum, arguments, fastmath=tuple(sorted(ORDERED)))

    return types.float64(types.float64, types.float64), generate


@as_intrinsic
def lowest_bit(_: Any, bits: Any) -> Any:
    """Return the place of the lowest one of 64 bits, of which one is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


def comparison(operator: str, width: int) -> Any:
    """Make an intrinsic that compares `width` values from `begin` on with one number; a NaN is unlike all.

    It returns one bit for each: a vector comparison has them at hand, while what LLVM makes of a loop that shifts and
    ors is three to seven times as slow.
    """

    def compare(_: Any, values: Any, begin: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            double, index = ir.DoubleType(), ir.IntType(32)
            vector = ir.VectorType(double, width)
            first = builder.bitcast(builder.gep(array.data, [arguments[1]]), vector.as_pointer())
            some = builder.load(first)
            some.align = 8
            undefined = ir.Constant(vector, ir.Undefined)
            one = builder.insert_element(undefined, arguments[2], ir.Constant(index, 0))
            all_of_it = builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(index, width), [0] * width))
            compared = builder.fcmp_unordered if operator == "!=" else builder.fcmp_ordered
            bits = builder.bitcast(compared(operator, some, all_of_it), ir.IntType(width))
            return bits if width == BITS else builder.zext(bits, ir.IntType(BITS))

        return types.int64(values, types.intp, types.float64), generate

    return as_intrinsic(compare)


# The loop over a row asks for whole blocks itself: behind one function for these and the last one they took three times
# as long, because LLVM did not inline it.
at_most, some_at_most = comparison("<=", BITS), comparison("<=", FEW_BITS)
unlike, some_unlike = comparison("!=", BITS), comparison("!=", FEW_BITS)


@njit(fastmath=ORDERED)
def last_at_most(values, block, limit):  # type: ignore[no-untyped-def]
    """Return as bits which of the last values, fewer than BITS, none of them NaN, are at most `limit`."""
    bits = 0
    k = block
    while k + FEW_BITS <= values.size:
        bits |= some_at_most(values, k, limit) << (k - block)
        k += FEW_BITS
    while k < values.size:
        bits |= int(values[k] <= limit) << (k - block)
        k += 1
    return bits


@njit
def last_unlike(values, block, number):  # type: ignore[no-untyped-def]
    """Return as bits which of the last values, fewer than BITS, are not this number."""
    bits = 0
    k = block
    while k + FEW_BITS <= values.size:
        bits |= some_unlike(values, k, number) << (k - block)
        k += FEW_BITS
    while k < values.size:
        bits |= int(values[k] != number) << (k - block)
        k += 1
    return bits


@njit(fastmath=ORDERED)
def allowed_row(cost, mask, i, buffer):  # type: ignore[no-untyped-def]
    """Return row i with +inf at forbidden entries; `buffer` [m] holds it if there is a mask."""
    if mask.shape[0] == 0:
        return cost[i]
    for j in range(buffer.size):
        buffer[j] = np.inf if mask[i, j] else cost[i, j]
    return buffer


@compiled(fastmath=ORDERED)
def first_bad_row(bits, mask, allow_infinity, limit):  # type: ignore[no-untyped-def]
    """Return the first row with a NaN, an infinity or a number too large at an allowed entry, or n.

    `bits` is the matrix as int64, `limit` that of the least power of two that is too large.
    """
    n, m = bits.shape
    for i in range(n):
        row = bits[i]
        bad = False
        for j in range(m):
            bad |= (row[j] & EXPONENT) >= limit
        if bad and (allow_infinity or mask.shape[0] != 0):
            bad = False
            for j in range(m):
                special = (row[j] & EXPONENT) >= limit and not (allow_infinity and row[j] == EXPONENT)
                bad |= special and (mask.shape[0] == 0 or mask[i, j] == 0)
        if bad:
            return i
    return n


@njit(fastmath=ORDERED)
def least_slack(row, v):  # type: ignore[no-untyped-def]
    """Return min_j(row_j - v_j)."""
    least = np.inf
    for j in range(v.size):
        least = lesser(least, row[j] - v[j])
    return least


@njit(fastmath=ORDERED)
def smallest(row):  # type: ignore[no-untyped-def]
    """Return the smallest entry."""
    least = np.inf
    for j in range(row.size):
        least = lesser(least, row[j])
    return least


@njit(fastmath=ORDERED)
def fold(row, v, slack, lane):  # type: ignore[no-untyped-def]
    """Write row - v to `slack` [m] and its minima over every LANES-th entry to the beginning of `lane` [m or LANES]."""
    m = row.size
    for j in range(m):
        slack[j] = row[j] - v[j]
    width = LANES
    while 2 * width <= m:
        width *= 2
    for k in range(min(m, width)):
        lane[k] = slack[k]
    for k in range(m, width):
        lane[k] = np.inf
    for j in range(width, m):
        lane[j - width] = lesser(lane[j - width], slack[j])
    while width > LANES:
        width //= 2
        for k in range(width):
            lane[k] = lesser(lane[k], lane[width + k])


@compiled
def is_integral(cost, mask):  # type: ignore[no-untyped-def]
    """Return whether all allowed costs are whole numbers."""
    n, m = cost.shape
    for i in range(n):
        row = cost[i]
        bad = False
        for j in range(m):
            bad |= np.floor(row[j]) != row[j]
        if bad and mask.shape[0] != 0:
            bad = False
            for j in range(m):
                bad |= mask[i, j] == 0 and np.floor(row[j]) != row[j]
        if bad:
            return False
    return True


@compiled(fastmath=ORDERED)
def minima(cost, mask):  # type: ignore[no-untyped-def]
    """Return row minima [n] and column minima [m]; +inf where all is forbidden."""
    n, m = cost.shape
    rows = np.empty(n)
    columns = np.full(m, np.inf)
    buffer = np.empty(m)
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        rows[i] = smallest(row)
        for j in range(m):
            columns[j] = lesser(columns[j], row[j])
    return rows, columns


@compiled(fastmath=ORDERED)
def column_slack(cost, mask, u):  # type: ignore[no-untyped-def]
    """Return min_i(C_ij - u_i) for each column: the min-trick."""
    n, m = cost.shape
    v = np.full(m, np.inf)
    buffer = np.empty(m)
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        potential = u[i]
        for j in range(m):
            v[j] = lesser(v[j], row[j] - potential)
    return v


@compiled(fastmath=ORDERED)
def row_slack(cost, mask, v):  # type: ignore[no-untyped-def]
    """Return min_j(C_ij - v_j) for each row."""
    n, m = cost.shape
    u = np.empty(n)
    buffer = np.empty(m)
    for i in range(n):
        u[i] = least_slack(allowed_row(cost, mask, i, buffer), v)
    return u


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
def flip(origin, end, predecessor, column_of, row_of):  # type: ignore[no-untyped-def]
    """Give every row of an alternating path the column before which it stands: `end` is free, row `origin` too."""
    j = end
    while True:
        i = predecessor[j]
        row_of[j] = i
        following = column_of[i]
        column_of[i] = j
        if i == origin:
            break
        j = following


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


def no_mask() -> NDArray[np.uint8]:
    """Return the mask that forbids nothing."""
    return np.zeros((0, 0), np.uint8)


@compiled(fastmath=ORDERED)
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


@compiled(fastmath=ORDERED)
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
            first = np.inf
            for j in range(m):
                slack[j] = row[j] - v[j]
                first = lesser(first, slack[j])
            total = 0.0
            for j in range(m):
                if slack[j] - first < cut:
                    total += np.exp((first - slack[j]) / temperature)
            u[i] = first - temperature * np.log(total)
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
