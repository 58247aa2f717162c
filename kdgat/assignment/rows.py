"""Compiled passes over the rows of a cost matrix: its minima, what duals leave, and what forbids using it.

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

from kdgat.base.machine_code import compiled, njit

as_intrinsic: Any = intrinsic  # a call of what it makes has one argument less than the function

EXPONENT = np.int64(0x7FF0000000000000)  # all ones: infinity or NaN
ORDERED = {"nnan", "nsz"}  # lets minima be vectorised; changes no sum
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


def no_mask() -> NDArray[np.uint8]:
    """Return the mask that forbids nothing."""
    return np.zeros((0, 0), np.uint8)
