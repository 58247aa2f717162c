"""Solve without compiled code of ours: scipy's matching, duals by numpy, the same proof. For the first call only.

Until numba has compiled the solver on a machine, a command would wait ten seconds and more for a matrix that takes
milliseconds. scipy says which matching is best, but not why: the duals are the shortest distances between columns over
matched rows (Bellman and Ford), whole rows at a time.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.certificate import ROUNDING, CertificateError, Costs, prove_lines
from kdgat.assignment.result import Assignment, Counters

MAX_ENTRIES = 1024 * 1024  # above, compiling is soon repaid
SEED = "matching of scipy"


def solve(cost: NDArray[Any], mask: NDArray[np.bool_] | None, maximize: bool) -> Assignment | None:
    """Return an optimal assignment with its proof, or None for what needs the compiled solver: wrong input, too.

    >>> solve(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]]), None, False).cost
    5.0
    """
    from scipy.optimize import linear_sum_assignment

    if cost.ndim != 2 or not 0 < cost.size <= MAX_ENTRIES or cost.dtype.kind not in "fiub":
        return None
    sign = -1.0 if maximize else 1.0
    work = sign * cost.astype(np.float64)
    if mask is not None:
        work[mask] = 0.0
    if not np.isfinite(work.sum()):
        return None
    if mask is not None:
        work[mask] = np.inf
    try:
        rows, columns = linear_sum_assignment(work)
    except ValueError:  # infeasible: the compiled solver names the lines that compete
        return None
    is_tall = work.shape[0] > work.shape[1]
    if is_tall:
        work, order = work.T, np.argsort(columns)
        column_of = rows[order]
    else:
        column_of = columns
    u, v = _duals(work, column_of)
    matched, slack = work[np.arange(column_of.size), column_of], (work - v).min(axis=1)
    if not np.isfinite(matched).all():
        return None
    of_all = Costs(lambda: 0.0, lambda: bool((work == np.rint(work)).all()))
    try:
        proof = prove_lines(matched, slack, u, v, column_of, of_all, is_compiled=False)
    except CertificateError:
        return None
    if is_tall:
        u, v = v, u
    total, bound = sign * proof.cost, sign * proof.bound
    return Assignment(rows, columns, total, sign * u, sign * v, bound, bound, Counters(SEED, rows.size, 0, 0))


def _duals(work: NDArray[np.float64], column_of: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return u [n] and v [m] of an optimal matching of all rows."""
    n, m = work.shape
    matched = work[np.arange(n), column_of]
    over = work - matched[:, None]
    v = np.zeros(m)
    for _ in range(n + 1):
        nearer = np.minimum(v, (over + v[column_of][:, None]).min(axis=0))
        is_last = (v - nearer <= ROUNDING * np.abs(nearer)).all()
        v = nearer
        if is_last:
            break
    is_free = np.ones(m, bool)
    is_free[column_of] = False
    v[is_free] = 0.0
    return matched - v[column_of], v
