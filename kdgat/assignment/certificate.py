"""Prove that a matching is optimal without trusting whoever found it: the one certificate of solver, users, evaluation.

A matching and duals (u, v) with u_i + v_j <= C_ij on all allowed entries prove themselves by weak duality: no matching
is cheaper than the sum of the duals. In numbers, u_i is first cut at min_j(C_ij - v_j), so that feasibility is no
matter of rounding; then the reduced costs C_ij - u_i - v_j of matched pairs, and the duals of unmatched lines, are
numbers >= 0 whose sum is all that any other matching could save. That sum is the gap. It has to be within a billionth
of the matched costs, row by row and in all, beside what arithmetic with duals of their size rounds away.

What is computed is machine code, which the small solvers call without Python in between (`is_proved`); `prove_lines`
calls the same for everybody else, and says in words what is wrong. All is in terms of the smaller side: n lines, each
matched to one of m others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment import partial
from kdgat.assignment.levels import level_below
from kdgat.assignment.matrix import Matrix, make_matrix, writable
from kdgat.assignment.result import Assignment
from kdgat.assignment.rows import ORDERED, least_slack, lesser, row_slack
from kdgat.assignment.warm_start import line_minima
from kdgat.base.machine_code import compiled, njit

TOLERANCE = 1e-9  # of the proof, relative to the costs of the matching
ROUNDING = 4.0 * 2.0**-52  # of a dual and of a sum of duals, relative to their sizes
SPARE = 16  # roundings of a dual beside those of the n searches that may change it
EXACT = 2.0**52  # whole numbers whose sums stay below are added exactly
PRECISION = 1e-12  # rounding of duals beyond this part of the matched costs is worth another solve
GOOD, ABOVE_SLACK, NOT_TIGHT, POSITIVE, UNMATCHED = 0, 1, 2, 3, 4  # faults
FAULTS = {
    ABOVE_SLACK: "the duals are not feasible: u[{}] exceeds what its row allows by {!r}",
    NOT_TIGHT: "the duals do not prove it: row {} could be matched cheaper by {!r}",
    POSITIVE: "the duals are not feasible: v[{}] is {!r}, of the larger side none may be above 0",
    UNMATCHED: "the duals do not prove it: line {} is unmatched, and its dual is of size {!r}",
}


class CertificateError(ArithmeticError):
    """A solver's answer, or a label, is wrong: a defect of the program or of the data, never of the user's command."""


@dataclass(frozen=True)
class Proof:
    """How far from optimal a matching can be at most."""

    cost: float  # of the matching, added up with one rounding
    bound: float  # sum of the duals
    gap: float  # no matching is cheaper by more
    tolerance: float  # largest gap that was allowed


@dataclass(frozen=True)
class Costs:
    """What a proof asks of costs beyond those of the lines: only where duals are large beside the matched costs."""

    cheapest: Callable[[], float]  # sum of the sizes of the cheapest entries of all rows, and of as many columns
    is_integral: Callable[[], bool]  # whether all allowed costs are whole numbers

    @classmethod
    def of(cls, matrix: Matrix) -> "Costs":
        """Describe a matrix."""

        def cheapest() -> float:
            rows, columns = line_minima(matrix)
            return float(np.abs(rows).sum() + np.abs(np.sort(columns)[: rows.size]).sum())

        return cls(cheapest, matrix.is_integral)


def certify(
    cost: ArrayLike,
    assignment: Assignment,
    *,
    mask: ArrayLike | None = None,
    maximize: bool = False,
    unmatched_cost: float | None = None,
) -> Proof:
    """Prove that an assignment is an optimal one of these costs, whoever made it.

    Every line of the smaller side has to be matched once, every line of the larger at most once, no pair may be
    forbidden, and the duals have to prove the cost. `cost`, `mask`, `maximize` and `unmatched_cost` are those of the
    problem; with the last one, rows may be left.

    Raises:
        CertificateError: naming what is wrong with the assignment.
        CostError, InfeasibleError: if costs or mask cannot be used.

    >>> from dataclasses import replace
    >>> from kdgat.assignment.exact import solve
    >>> cost = [[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]]
    >>> certify(cost, solve(cost)).gap
    0.0
    >>> certify(cost, replace(solve(cost), columns=np.array([1, 0, 1])))
    Traceback (most recent call last):
    kdgat.assignment.certificate.CertificateError: column 1 is matched twice
    """
    if unmatched_cost is not None:
        return _certify_partial(cost, assignment, mask, unmatched_cost, maximize=maximize)
    if not hasattr(cost, "toarray") and np.ndim(cost) == 2 and np.size(cost) == 0:  # `make_matrix` refuses sparse ones
        check_lines(assignment.rows, 0, 0, "row")
        return Proof(0.0, 0.0, 0.0, 0.0)
    matrix = make_matrix(cost, mask, maximize=maximize, may_scale=True)
    n, m = matrix.cost.shape
    row_count, column_count = (m, n) if matrix.transposed else (n, m)
    rows = check_lines(assignment.rows, n, row_count, "row")
    columns = check_lines(assignment.columns, n, column_count, "column")
    u = check_duals(assignment.u, row_count, "u") / matrix.unit
    v = check_duals(assignment.v, column_count, "v") / matrix.unit
    if matrix.transposed:
        rows, columns, u, v = columns, rows, v, u
    column_of = np.empty(n, np.int64)
    column_of[rows] = columns
    proof = prove(matrix, u, v, column_of)
    rounding = ROUNDING * (SPARE + n)
    paid = float(np.abs(matched_costs(matrix, column_of)).sum())
    for name, stated, true, size in (
        ("cost", assignment.cost, proof.cost, paid),
        ("dual_bound", assignment.dual_bound, proof.bound, float(np.abs(u).sum() + np.abs(v).sum())),
    ):
        if not abs(float(stated) / matrix.unit - true) <= rounding * size:
            raise CertificateError(f"{name} is {float(stated)!r}: it adds up to {matrix.unit * true!r}")
    return proof


def _certify_partial(
    cost: ArrayLike, assignment: Assignment, mask: ArrayLike | None, unmatched_cost: float, *, maximize: bool
) -> Proof:
    """Prove a matching that leaves rows, as one of the whole smaller side of bounded costs."""
    bounded = partial.bound_costs(cost, mask, unmatched_cost, maximize=maximize)
    n, m = bounded.shape
    rows = check_lines(assignment.rows, np.size(assignment.rows), n, "row")
    columns = check_lines(assignment.columns, rows.size, m, "column")
    price = partial.check_price(unmatched_cost)
    paid = bounded[rows, columns]
    is_dear = paid == price
    if is_dear.any():
        i, j = rows[is_dear][0], columns[is_dear][0]
        raise CertificateError(f"cost[{i}, {j}] is matched, and no better than an unmatched row, or forbidden")
    total = math.fsum([*paid.tolist(), *[price] * (n - rows.size)])
    rounding = ROUNDING * (SPARE + n) * (np.abs(paid).sum() + n * abs(price))
    for name, stated in (("cost", assignment.cost), ("dual_bound", assignment.dual_bound)):
        if not abs(stated - total) <= rounding + TOLERANCE * abs(total):
            raise CertificateError(f"{name} is {float(stated)!r}: pairs and unmatched rows add up to {total!r}")
    whole = partial.completed(assignment, bounded, maximize=maximize)
    left = bounded[whole.rows[rows.size :], whole.columns[rows.size :]] != price
    if left.any():
        i, j = (int(lines[rows.size :][left][0]) for lines in (whole.rows, whole.columns))
        raise CertificateError(f"row {i} and column {j} are both left, though their pair is better than that")
    return certify(bounded, whole, maximize=maximize)


def prove(matrix: Matrix, u: NDArray[np.float64], v: NDArray[np.float64], column_of: NDArray[np.int64]) -> Proof:
    """Prove a matching of the rows of a `Matrix`, reading all of it once. CertificateError names what is wrong."""
    n, m = matrix.cost.shape
    u, v = check_duals(u, n, "u"), check_duals(v, m, "v")
    column_of = check_lines(column_of, n, m, "column")
    costs = matched_costs(matrix, column_of)
    slack = row_slack(matrix.cost, matrix.mask, v)
    return prove_lines(costs, slack, u, v, column_of, Costs.of(matrix))


def matched_costs(matrix: Matrix, column_of: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cost that each row pays [n]; CertificateError if a pair is forbidden."""
    rows = np.arange(column_of.size)
    costs = matrix.cost[rows, column_of]
    is_forbidden = ~np.isfinite(costs)
    if matrix.mask.size:
        is_forbidden |= matrix.mask[rows, column_of] != 0
    if is_forbidden.any():
        row = int(np.flatnonzero(is_forbidden)[0])
        raise CertificateError(f"{matrix.name(row, int(column_of[row]))} is a forbidden pair, and matched")
    return costs


def prove_lines(
    costs: NDArray[np.float64],
    slack: NDArray[np.float64],
    u: NDArray[np.float64],
    v: NDArray[np.float64],
    column_of: NDArray[np.int64],
    of_all: Costs,
    num_searches: int | None = None,
) -> Proof:
    """Prove a matching from what was read of its rows.

    Args:
        costs: [n], what each row pays, allowed pairs only.
        slack: [n], min_j(C_ij - v_j) over all allowed entries of each row.
        u: [n], finite.
        v: [m], finite, n <= m.
        column_of: [n], distinct, of 0 to m - 1.
        of_all: what else may be asked.
        num_searches: how many may have changed a dual, n unless stated.
    """
    n, m = u.size, v.size
    costs, slack, u, v = (writable(np.ascontiguousarray(values)) for values in (costs, slack, u, v))
    column_of, taken = writable(np.ascontiguousarray(column_of, np.int64)), np.empty(m, np.int64)
    if not mark(column_of, taken):
        raise CertificateError("the matching does not match every row, each to another column")
    with np.errstate(over="ignore", invalid="ignore"):
        fault, line, worst, _, _, gap, paid, size = judge(
            costs, slack, u, v, column_of, taken, n if num_searches is None else num_searches
        )
    total = math.fsum(costs)
    if not (np.isfinite(total) and np.isfinite(size)):
        raise CertificateError(f"the costs add up to {total!r}, the sizes of the duals to {size!r}: no finite numbers")
    noise, allowance = ROUNDING * size, TOLERANCE * paid
    if noise > allowance:
        allowance += TOLERANCE * of_all.cheapest()
        is_exact = size < EXACT and all((duals == np.rint(duals)).all() for duals in (u, v)) and of_all.is_integral()
        if noise > allowance and not is_exact:
            raise CertificateError(
                f"the sizes of the duals add up to {size!r}, those of the matched costs to {paid!r}: "
                "beside such duals costs are rounded away, so that they prove nothing"
            )
    if fault != GOOD:
        raise CertificateError(FAULTS[fault].format(line, float(worst)))
    bound = math.fsum((math.fsum(u), math.fsum(v)))
    rounding = ROUNDING * (SPARE + (n if num_searches is None else num_searches))
    tolerance = TOLERANCE * paid + rounding * size
    if not (gap <= tolerance and abs(total - bound) <= tolerance):
        raise CertificateError(f"the cost is {total!r}, the duals prove {bound!r} up to {gap!r} in reduced costs")
    return Proof(total, bound, max(float(gap), 0.0), float(tolerance))


def check_lines(lines: Any, count: int, limit: int, name: str) -> NDArray[np.int64]:
    """Check the matched rows or columns: `count` distinct numbers from 0 to limit - 1."""
    found = np.asarray(lines)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise CertificateError(
            f"the {name}s have shape {found.shape} and dtype {found.dtype}: {count} whole numbers are needed"
        )
    outside = (found < 0) | (found >= limit)
    if outside.any():
        raise CertificateError(f"{name} {int(found[outside][0])} is matched: there are {limit} {name}s, from 0")
    times = np.bincount(found, minlength=limit)
    if times.max(initial=0) > 1:
        raise CertificateError(f"{name} {int(times.argmax())} is matched twice")
    return found.astype(np.int64)


def check_duals(duals: Any, size: int, name: str) -> NDArray[np.float64]:
    """Check duals that are said to prove something: `size` finite numbers."""
    found = np.asarray(duals)
    if found.shape != (size,) or found.dtype.kind not in "fiu":
        raise CertificateError(f"{name} has shape {found.shape} and dtype {found.dtype}: {size} numbers are needed")
    if not np.isfinite(found).all():
        place = int(np.flatnonzero(~np.isfinite(found))[0])
        raise CertificateError(f"{name}[{place}] is {found[place]}: duals have to be finite")
    return np.ascontiguousarray(found, np.float64)


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


@njit(fastmath=False)
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


@njit(fastmath=False)
def is_proved(cost, mask, num_rows, num_columns, sign, column_of, u, v, taken, numbers):  # type: ignore[no-untyped-def]
    """Prove a matching of the smaller side on the matrix as it came; return (whether, cost, bound, as a minimum).

    `numbers` is room for 2 n. Where duals are large beside the costs, or costs beside each other, it is not proved: the
    general solver may look at more than these.
    """
    n = u.size
    costs, slack = numbers[:n], numbers[n : 2 * n]
    if not mark(column_of, taken):
        return False, 0.0, 0.0
    if not read_lines(cost, mask, num_rows, num_columns, sign, column_of, v, costs, slack):
        return False, 0.0, 0.0
    fault, _, _, total, bound, gap, paid, size = judge(costs, slack, u, v, column_of, taken, n)
    good = fault == GOOD
    is_clear = ROUNDING * size <= PRECISION * paid
    is_clear &= not 0.0 < level_below(cost, mask, num_rows, num_columns, costs) < np.inf
    good &= is_clear or (size < EXACT and is_whole(u) and is_whole(v))
    tolerance = TOLERANCE * paid + ROUNDING * (SPARE + n) * size
    return good and gap <= tolerance and abs(total - bound) <= tolerance, total, bound
