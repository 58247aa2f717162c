"""What the certificate computes, as compiled code that the small solvers call without Python in between.

Everything is in terms of the smaller side: n lines, each matched to one of m others. The rules are those of
`kdgat.assignment.certificate`, which says in words what is wrong.
"""

import numpy as np

from kdgat.assignment.compilation import compiled
from kdgat.assignment.kernels import ORDERED, least_slack, lesser
from kdgat.base.machine_code import njit

TOLERANCE = 1e-9  # of the proof, relative to the costs of the matching
ROUNDING = 4.0 * 2.0**-52  # of a dual and of a sum of duals, relative to their sizes
SPARE = 16  # roundings of a dual beside those of the n searches that may change it
EXACT = 2.0**52  # whole numbers whose sums stay below are added exactly
PRECISION = 1e-12  # rounding of duals beyond this part of the matched costs is worth another solve
GOOD, ABOVE_SLACK, NOT_TIGHT, POSITIVE, UNMATCHED = 0, 1, 2, 3, 4  # faults


@compiled
def mark(column_of, taken):  # type: ignore[no-untyped-def]
    """Write 1 to taken [m] where a column is matched, else 0; return whether all lines are, each to another one."""
    m = taken.size
    for j in range(m):
        taken[j] = 0
    for i in range(column_of.size):
        j = column_of[i]
        if j < 0 or j >= m or taken[j] != 0:
            return False
        taken[j] = 1
    return True


@compiled
def judge(costs, slack, u, v, column_of, taken, num_searches):  # type: ignore[no-untyped-def]
    """Judge a matching and its duals.

    Args:
        costs: [n], what each line pays, allowed pairs only.
        slack: [n], min_j(C_ij - v_j) over all allowed entries of each line.
        u: [n], finite.
        v: [m], finite, n <= m.
        column_of: [n], as `mark` has checked it.
        taken: [m], as `mark` has written it.
        num_searches: how many may have changed a dual.

    Returns:
        A fault, the line and by how much; sums of costs and of duals, of reduced costs, of |costs| and of |duals|.
    """
    n, m = u.size, v.size
    total = paid = bound = size = largest = 0.0
    for i in range(n):
        total += costs[i]
        paid += abs(costs[i])
        bound += u[i]
        size += abs(u[i])
        largest = max(largest, abs(u[i]))
    for j in range(m):
        bound += v[j]
        size += abs(v[j])
        largest = max(largest, abs(v[j]))
    of_one = ROUNDING * (SPARE + num_searches) * largest
    gap = worst = 0.0
    fault, line = GOOD, -1
    for i in range(n):
        limit = TOLERANCE * abs(costs[i]) + of_one
        over = u[i] - slack[i]
        reduced = costs[i] - min(u[i], slack[i]) - v[column_of[i]]
        gap += reduced
        if over > limit and not (fault == ABOVE_SLACK and over <= worst):
            fault, line, worst = ABOVE_SLACK, i, over
        elif not reduced <= limit and fault != ABOVE_SLACK and not reduced <= worst:
            fault, line, worst = NOT_TIGHT, i, reduced
    if fault == GOOD and n < m:
        for j in range(m):
            if v[j] > of_one and v[j] > worst:
                fault, line, worst = POSITIVE, j, v[j]
        for j in range(m):
            if taken[j] == 0 and fault != POSITIVE:
                gap += abs(v[j])
                if abs(v[j]) > of_one and abs(v[j]) > worst:
                    fault, line, worst = UNMATCHED, j, abs(v[j])
    return fault, line, worst, total, bound, gap, paid, size


@njit
def is_whole(duals):  # type: ignore[no-untyped-def]
    """Return whether all duals are whole numbers."""
    whole = True
    for value in duals:
        whole &= np.floor(value) == value
    return whole


@njit(fastmath=ORDERED)
def least_negated(row, v):  # type: ignore[no-untyped-def]
    """Return min_j(-row_j - v_j)."""
    least = np.inf
    for j in range(v.size):
        least = lesser(least, -row[j] - v[j])
    return least


@njit(fastmath=ORDERED)
def least_allowed(row, forbidden, sign, v):  # type: ignore[no-untyped-def]
    """Return min_j(sign row_j - v_j) over the allowed entries."""
    least = np.inf
    for j in range(v.size):
        least = lesser(least, np.inf if forbidden[j] else sign * row[j] - v[j])
    return least


@njit(fastmath=ORDERED)
def read_lines(cost, mask, num_rows, num_columns, sign, column_of, v, costs, slack):  # type: ignore[no-untyped-def]
    """Read a user's matrix once: write what each line of the smaller side pays, and its slack; return if allowed."""
    if num_rows <= num_columns:
        for i in range(num_rows):
            if mask.shape[0] != 0:
                slack[i] = least_allowed(cost[i], mask[i], sign, v)
            elif sign < 0.0:
                slack[i] = least_negated(cost[i], v)
            else:
                slack[i] = least_slack(cost[i], v)
    else:
        for j in range(num_columns):
            slack[j] = np.inf
        for i in range(num_rows):
            row = cost[i]
            dual = v[i]
            if mask.shape[0] == 0:
                for j in range(num_columns):
                    slack[j] = lesser(slack[j], sign * row[j] - dual)
            else:
                for j in range(num_columns):
                    slack[j] = lesser(slack[j], np.inf if mask[i, j] else sign * row[j] - dual)
    allowed = True
    for k in range(column_of.size):
        i, j = (k, column_of[k]) if num_rows <= num_columns else (column_of[k], k)
        allowed &= mask.shape[0] == 0 or mask[i, j] == 0
        costs[k] = sign * cost[i, j]
        allowed &= abs(costs[k]) < np.inf
    return allowed


@njit
def is_proved(cost, mask, num_rows, num_columns, sign, column_of, u, v, taken, numbers):  # type: ignore[no-untyped-def]
    """Prove a matching of the smaller side on the matrix as it came; return (whether, cost, bound, as a minimum).

    `numbers` is room for 2 n. Where duals are large beside the costs, it is not proved: the certificate may look at
    more than these.
    """
    n = u.size
    costs, slack = numbers[:n], numbers[n : 2 * n]
    if not mark(column_of, taken):
        return False, 0.0, 0.0
    if not read_lines(cost, mask, num_rows, num_columns, sign, column_of, v, costs, slack):
        return False, 0.0, 0.0
    fault, _, _, total, bound, gap, paid, size = judge(costs, slack, u, v, column_of, taken, n)
    good = fault == GOOD
    good &= ROUNDING * size <= PRECISION * paid or (size < EXACT and is_whole(u) and is_whole(v))
    tolerance = TOLERANCE * paid + ROUNDING * (SPARE + n) * size
    return good and gap <= tolerance and abs(total - bound) <= tolerance, total, bound
