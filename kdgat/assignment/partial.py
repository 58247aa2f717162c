"""Matchings that may leave rows without a column, at a price: trackers gate their costs, and some tracks end.

A row without a column costs x, so no pair of x or more is worth having. With every cost cut at x, and x where a pair is
forbidden, a matching of the whole smaller side costs what its cheaper pairs cost and x for each other row: it is the
best partial one, once the pairs at x are taken out. That is exact, needs no larger matrix, and what is cut is one
constant, which the solver does not search. (Dummy columns, one for each row, would do the same.)

The duals that prove it are u_i <= x and v_j <= 0 with u_i + v_j <= C_ij; they add up to what pairs and rows left cost.
Where rows outnumber columns they are u_i <= 0 and v_j <= x, and the rows that have to be left pay x each beside them: a
price that is large beside the costs would round them away if it were moved from v to u.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment.errors import CostError
from kdgat.assignment.matrix import check_mask, check_shape, check_type, without_own_mask
from kdgat.assignment.result import Assignment


def check_price(unmatched_cost: float) -> float:
    """Return what an unmatched row costs; CostError if it is no finite number."""
    try:
        price = float(unmatched_cost)
    except (TypeError, ValueError):
        price = math.nan
    if not math.isfinite(price):
        raise CostError(
            f"unmatched_cost is {unmatched_cost!r}: a finite number is needed, or None if all lines are to be matched"
        )
    return price


def bound_costs(
    cost: ArrayLike, mask: ArrayLike | None, unmatched_cost: float, *, maximize: bool
) -> NDArray[np.float64]:
    """Return costs [n, m] cut at the price of an unmatched row, which forbidden pairs cost, too; CostError."""
    price = check_price(unmatched_cost)
    cost, mask = without_own_mask(cost, mask)
    values = check_type(cost)
    check_shape(values)
    forbidden = check_mask(mask, values.shape)
    bounded = (np.maximum if maximize else np.minimum)(values, price, dtype=np.float64)
    if forbidden is not None:
        bounded[forbidden] = price
    return bounded


def without_dear_pairs(
    found: Assignment, bounded: NDArray[np.float64], unmatched_cost: float, *, maximize: bool
) -> Assignment:
    """Return the best partial matching, given the best one of costs that are `bounded` by `bound_costs`."""
    price, sign = check_price(unmatched_cost), -1.0 if maximize else 1.0
    n, m = bounded.shape
    paid = bounded[found.rows, found.columns]
    kept = sign * paid < sign * price
    u, v = found.u, found.v
    if n == m > 0:
        shift = sign * float((sign * v).max())
        u, v = u + shift, v - shift
    left = max(n - m, 0) * price
    return replace(
        found,
        rows=found.rows[kept],
        columns=found.columns[kept],
        cost=math.fsum([*paid[kept].tolist(), *[price] * (n - int(kept.sum()))]),
        u=u,
        v=v,
        dual_bound=found.dual_bound + left,
        seed_bound=found.seed_bound + left,
    )


def completed(assignment: Assignment, bounded: NDArray[np.float64], *, maximize: bool) -> Assignment:
    """Return a partial matching as one of the whole smaller side of `bound_costs`, for the certificate to prove."""
    n, m = bounded.shape
    sign = -1.0 if maximize else 1.0
    rows, columns = np.asarray(assignment.rows), np.asarray(assignment.columns)
    free_rows, free_columns = np.setdiff1d(np.arange(n), rows), np.setdiff1d(np.arange(m), columns)
    k = max(0, min(n, m) - rows.size)
    rows = np.append(rows, free_rows[:k]).astype(np.int64)
    columns = np.append(columns, free_columns[:k]).astype(np.int64)
    u, v = np.asarray(assignment.u), np.asarray(assignment.v)
    if n > m:  # 0 for a row that is left, whoever made the duals
        level = sign * float((sign * u).max())
        u, v = u - level, v + level
    cost, bound = math.fsum(bounded[rows, columns].tolist()), math.fsum([*u.tolist(), *v.tolist()])
    return replace(assignment, rows=rows, columns=columns, cost=cost, u=u, v=v, dual_bound=bound)
