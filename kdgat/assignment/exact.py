"""Solve linear assignment problems exactly, from the best dual seed at hand."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment import core, dense, partial, quick
from kdgat.assignment import warm_start as seeds
from kdgat.assignment.certificate import EXACT, PRECISION, ROUNDING, TOLERANCE, CertificateError, prove
from kdgat.assignment.errors import CostError
from kdgat.assignment.levels import Change, level_below, solve_levels
from kdgat.assignment.matrix import (
    Matrix,
    check_duals,
    check_mask,
    check_type,
    infeasible,
    make_matrix,
    without_own_mask,
)
from kdgat.assignment.result import COLUMN_MINIMA, Assignment, Counters, PackedAssignment
from kdgat.assignment.warm_start import Seed

BIDDING_ROUNDS, BIDS_PER_ROW = 2, 4  # of the augmenting row reduction in the core
LARGEST_BID = 1e3  # relative to the mean size of the seed's duals

CROWDED_LOSS = 0.1  # of the bound, where column minima leave rows a crowd of tight entries, and row minima fewer

LONG_SEARCHES = 1.0  # passes over the matrix, in searches, after which a seed that may be misleading is given up
NO_LIMIT = 1 << 62

CACHED = 1500 * 1500  # entries up to which whole rows come quickly enough to be searched where lists do not suffice

CENTRED_LIMIT = 1e3  # seed duals beyond this many times the typical cost are looked at more closely

Method = Literal["auto", "core", "dense"]
METHODS = get_args(Method)

make, set_packed = object.__new__, PackedAssignment.packed.__set__  # type: ignore[attr-defined]  # at once


def solve(
    cost: ArrayLike,
    u: ArrayLike | None = None,
    v: ArrayLike | None = None,
    *,
    mask: ArrayLike | None = None,
    method: Method = "auto",
    maximize: bool = False,
    unmatched_cost: float | None = None,
) -> Assignment:
    """Return the matching of the whole smaller side with the least (largest) total cost, and duals that prove it.

    The seed's two sides are weighed apart, because one stale dual spoils what is made of its side (`warm_start.py`). Of
    these, column minima and row minima, the one with the best dual bound is the start: a bad seed costs two passes at
    most.

    Args:
        cost: [n, m], finite numbers; of a scipy.sparse matrix, pairs without a stored entry are forbidden. A masked
            array brings its mask along. Without an entry, nothing is matched.
        u: [n], a seed in the unit of the costs: any finite numbers, NaN where unknown, made feasible here. It has no
            effect on a sparse matrix.
        v: [m], the seed's duals of the columns.
        mask: [n, m] bool, True where a pair is forbidden; the cost there does not matter.
        method: "core" looks at each row's cheapest entries and further only where a search needs it; "dense" is the
            classical way of Jonker and Volgenant (1987), all entries of each row that a search reaches. "auto" solves
            what is small, or mostly one constant (where given duals are not needed), in one compiled call, and all else
            by "core", or by whole rows once these would have been quicker. All are exact.
        maximize: seek the largest total.
        unmatched_cost: what each row costs that is left without a column, in the unit of the costs. Then any number of
            rows may be left, a pair that is no cheaper is never matched, and an infinite cost forbids a pair.

    Raises:
        CostError: for input that cannot be used.
        InfeasibleError: if no such matching exists; never with `unmatched_cost`.

    >>> found = solve([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
    >>> found.columns.tolist(), found.cost
    ([1, 0, 2], 5.0)
    >>> found = solve([[0.2, 0.9], [0.8, 0.7]], unmatched_cost=0.5)
    >>> found.rows.tolist(), found.columns.tolist(), found.cost
    ([0], [0], 0.7)
    """
    if unmatched_cost is not None and not hasattr(cost, "toarray"):
        bounded = partial.bound_costs(cost, mask, unmatched_cost, maximize=maximize)
        found = solve(bounded, u, v, method=method, maximize=maximize)
        return partial.without_dear_pairs(found, bounded, unmatched_cost, maximize=maximize)
    if method == "auto":
        if u is None and v is None:
            packed = quick.attempt(cost, mask, maximize, False)
        else:
            check_seed(cost, u, v)
            packed = quick.attempt(cost, mask, maximize, False, with_small=False)
        if packed is not None:
            answer = make(PackedAssignment)
            set_packed(answer, packed)
            return answer
    elif method not in METHODS:
        raise CostError(f"method is {method!r}: {', '.join(METHODS)} are known")
    if hasattr(cost, "toarray"):
        return solve_sparse(cost, u, v, mask, method, maximize=maximize, unmatched_cost=unmatched_cost)
    cost, mask = without_own_mask(cost, mask)
    values = check_type(cost)
    if values.ndim == 2 and values.size == 0:
        check_mask(mask, values.shape)
        return without_entries(*values.shape)
    found = solve_matrix(make_matrix(values, mask, maximize=maximize, may_scale=True), u, v, method)
    if not all(np.isfinite(part).all() for part in (found.cost, found.dual_bound, found.u, found.v)):
        make_matrix(values, mask, maximize=maximize)  # names the cost that is too large
    return found


def solve_sparse(
    cost: Any,
    u: ArrayLike | None,
    v: ArrayLike | None,
    mask: ArrayLike | None,
    method: Method,
    *,
    maximize: bool,
    unmatched_cost: float | None,
) -> Assignment:
    """Return `solve` of a sparse matrix: dense if it is small or nearly full, else from its entries alone."""
    from kdgat.assignment import entries  # scipy.sparse, and what solves large problems

    if mask is not None:
        raise CostError("mask is given beside a sparse matrix, which has no entry where a pair is forbidden")
    check_seed(cost, u, v)
    if entries.is_better_dense(cost):
        values, forbidden = entries.make_dense(cost)
        return solve(values, u, v, mask=forbidden, method=method, maximize=maximize, unmatched_cost=unmatched_cost)
    if method == "dense":
        raise CostError("method is 'dense', and cost a large sparse matrix: choose auto, or pass cost.toarray()")
    return entries.solve_entries(cost, maximize=maximize, unmatched_cost=unmatched_cost)


def without_entries(n: int, m: int) -> Assignment:
    """Return the answer to a problem that lacks rows or columns: nothing is matched, and duals of 0 prove it."""
    nothing = np.zeros(0, np.int64)
    return Assignment(nothing, nothing, 0.0, np.zeros(n), np.zeros(m), 0.0, 0.0, Counters(COLUMN_MINIMA, 0, 0, 0))


def linear_sum_assignment(
    cost_matrix: ArrayLike, maximize: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows (ascending) and columns of an optimal matching: a drop-in for scipy's function of this name.

    As there, +inf (-inf if maximising) is a forbidden pair, an empty matrix has an empty matching, and NaN or the
    other infinity is a ValueError. docs/scipy.md compares the two, behaviour by behaviour.

    Args:
        cost_matrix: [n, m], anything that numpy makes an array of real numbers of.
        maximize: seek the largest total.

    Returns:
        Two int64 arrays [min(n, m)].

    Raises:
        CostError: a ValueError, for what is no matrix of numbers; CostTypeError, also a TypeError, for other types.
        InfeasibleError: a ValueError, if no matching of the whole smaller side is allowed.

    >>> rows, columns = linear_sum_assignment([[4.0, 1.0], [2.0, 0.0]])
    >>> columns.tolist()
    [1, 0]
    """
    answer = quick.attempt(cost_matrix, None, maximize, True)
    if answer is not None:
        n, m, packed = answer
        k = n if n < m else m
        return packed[:k], packed[k : 2 * k]
    cost, mask = without_own_mask(cost_matrix, None)
    values = check_type(cost)
    if values.ndim == 2 and values.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    matrix = make_matrix(values, mask, maximize=bool(maximize), allow_infinity=True, may_scale=True)
    found = solve_matrix(matrix, None, None, "auto")
    return found.rows, found.columns


def check_seed(cost: ArrayLike, u: ArrayLike | None, v: ArrayLike | None) -> None:
    """Check given duals before anything is solved; costs of a wrong shape are named by who reads them."""
    shape = np.shape(cost)
    if len(shape) == 2:
        check_duals(u, shape[0], "u", may_be_unknown=True)
        check_duals(v, shape[1], "v", may_be_unknown=True)


def solve_matrix(matrix: Matrix, u: ArrayLike | None, v: ArrayLike | None, method: Method) -> Assignment:
    """Return `solve` of a matrix that was read before."""
    return solve_from(matrix, best_seed(matrix, u, v), method)


def solve_from(matrix: Matrix, seed: Seed, method: Method) -> Assignment:
    """Return `solve` of a matrix from one seed, whatever others are worth.

    If duals are so large beside the costs of the matching that these are rounded away, it is solved once more in the
    way that needs no large ones: from the best untrained seed, without bids, on dense rows.
    """
    found = search(matrix, seed, method, with_bids=True)
    if lacks_precision(matrix, found):
        untrained = best_seed(matrix, None, None)
        other = search(matrix, untrained, "dense", with_bids=False)
        if other.total <= found.total + PRECISION * np.abs(found.costs).sum():
            seed, found = untrained, other
    below = level_below(matrix.cost, matrix.mask, *matrix.cost.shape, found.costs)
    if 0.0 < below < np.inf and not found.is_exact(matrix):
        found = search_levels(matrix, found, below)
    return proven(matrix, seed, found)


@dataclass(frozen=True)
class Found:
    """A matching and duals that ought to prove it."""

    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [m]
    column_of: NDArray[np.int64]  # [n]
    costs: NDArray[np.float64]  # [n], matched
    counters: Counters

    @property
    def total(self) -> float:
        """Return the cost of the matching, rounded once."""
        return math.fsum(self.costs)

    @property
    def size_of_duals(self) -> float:
        """Return the sum of their absolute values."""
        return float(np.abs(self.u).sum() + np.abs(self.v).sum())

    def is_exact(self, matrix: Matrix) -> bool:
        """Return whether all sums are of whole numbers that are added exactly."""
        whole = all((duals == np.rint(duals)).all() for duals in (self.u, self.v))
        return whole and self.size_of_duals < EXACT and matrix.is_integral()


def search(matrix: Matrix, seed: Seed, method: Method, *, with_bids: bool) -> Found:
    """Match all rows from a seed; raise InfeasibleError if that cannot be done."""
    n, m = matrix.cost.shape
    row_duals, column_duals = seed.u.copy(), seed.v.copy()
    column_of, row_of = np.full(n, -1, np.int32), np.full(m, -1, np.int32)
    duals_and_matching = (row_duals, column_duals, column_of, row_of)
    arrays = (matrix.cost, matrix.mask, *duals_and_matching)
    matches = searches = looked_at = edges = repairs = 0
    state = core.GAVE_UP
    may_turn = method == "auto" and n * m <= CACHED
    if dense.is_crowded(*arrays[:4]):  # with many ties, short lists are blind: whole rows are searched
        method = "dense"
        rows, matches = dense.match_scarce(*arrays)
        if n == m:  # rows that may have almost any column come last
            state, searches, looked_at = dense.augment_dense(*arrays, rows)
            if state != core.STUCK_NOWHERE:
                raise infeasible(matrix)
            state = core.GAVE_UP
    if n < m or method == "dense":
        matches += dense.match_tight(*arrays)
    if n < m:
        dense.release_columns(*arrays)
        matches = int((column_of >= 0).sum())
    if method != "dense":
        columns, costs, start, count, beyond = core.make_core(matrix.cost, matrix.mask, column_duals)
        matches += core.match_core(columns, costs, start, count, *duals_and_matching)
        if with_bids:
            size = float(np.abs(row_duals).mean() + np.abs(column_duals).mean())
            largest = LARGEST_BID * size if size > 0.0 else float(np.finfo(np.float64).max)
            lists, free = (columns, costs, start, count, beyond), np.flatnonzero(column_of < 0)
            looked_at = core.reduce_rows(
                *lists, *duals_and_matching, free, np.inf, BIDDING_ROUNDS, BIDS_PER_ROW * n, largest
            )
        limit = int(LONG_SEARCHES * matrix.cost.size) - int(looked_at) if seed.fallback is not None else NO_LIMIT
        state, searches, more, added, repairs = core.augment_core(
            matrix.cost, matrix.mask, columns, costs, start, count, beyond, *duals_and_matching, limit, may_turn
        )
        if seed.fallback is not None and state == core.GAVE_UP and more > limit:
            found = search(matrix, seed.fallback, method, with_bids=with_bids)
            wasted = found.counters.scanned_columns + int(looked_at + more)
            return replace(found, counters=replace(found.counters, scanned_columns=wasted))
        looked_at, edges = looked_at + more, columns.size + added
    if state == core.GAVE_UP:
        state, some, more = dense.augment_dense(*arrays, np.arange(n))
        searches, looked_at = searches + some, looked_at + more
    if state != core.STUCK_NOWHERE:
        raise infeasible(matrix)
    counters = Counters(seed.name, *map(int, (matches, searches, looked_at, edges, repairs)))
    return Found(row_duals, column_duals, column_of.astype(np.int64), matrix.cost[np.arange(n), column_of], counters)


def search_levels(matrix: Matrix, found: Found, below: float) -> Found:
    """Match all rows once more, large costs first; `below` is the largest of the others."""

    def solve_changed(change: Change) -> Assignment:
        return solve_matrix(Matrix(change(matrix.cost, 0), matrix.mask, False, False), None, None, "auto")

    u, v, column_of = solve_levels(found.costs, below, matrix.cost.shape[1], solve_changed)
    return Found(u, v, column_of, matrix.cost[np.arange(column_of.size), column_of], found.counters)


def lacks_precision(matrix: Matrix, found: Found) -> bool:
    """Return whether arithmetic with duals of this size rounds more away than the matched costs can bear.

    Whole numbers are exact, and an optimum of about 0 is judged by the costs of the cheapest entries as well.
    """
    rounding = ROUNDING * found.size_of_duals
    if rounding <= PRECISION * np.abs(found.costs).sum():
        return False
    if found.is_exact(matrix):
        return False
    rows, columns = seeds.line_minima(matrix)
    cheapest = np.abs(rows).sum() + np.abs(np.sort(columns)[: rows.size]).sum()
    return bool(rounding > PRECISION * (np.abs(found.costs).sum() + cheapest))


def best_seed(matrix: Matrix, u: ArrayLike | None, v: ArrayLike | None) -> Seed:
    """Return the seed with the best dual bound: of the given duals, if there are any, column minima or row minima.

    Where bounds are about the same, rows that match at once on tight entries decide. Of costs with many ties, row
    minima are preferred to column minima of about the same bound: rows that may have any column at the same price are
    told from the others, and are matched when these have been.
    """
    n, m = matrix.cost.shape
    given = (
        check_duals(u, m if matrix.transposed else n, "u", may_be_unknown=True),
        check_duals(v, n if matrix.transposed else m, "v", may_be_unknown=True),
    )
    row_duals, column_duals = (
        None if duals is None or np.isnan(duals).all() else settled(matrix, duals / matrix.unit)
        for duals in (reversed(given) if matrix.transposed else given)
    )
    weighed = None
    if row_duals is None and column_duals is None:
        rows, columns = seeds.line_minima(matrix)
        by_columns = seeds.column_seed(matrix, columns)
        by_rows = seeds.row_seed(matrix, rows, seeds.ROW_MINIMA)
    else:
        weighed = seeds.weigh(matrix, row_duals, column_duals)
        rows, columns, by_columns, by_rows = weighed.rows, weighed.columns, weighed.by_columns, weighed.by_rows
    typical = n * max(float(np.abs(rows).max()), float(np.abs(columns[np.isfinite(columns)]).max()))
    minimum = max(by_rows, by_columns, key=lambda seed: _certain_bound(seed, typical))
    if weighed is not None:
        bounds = [_certain_bound(seed, typical) for seed, _ in weighed.predictions]
        chosen = seeds.choose(weighed, minimum, bounds, _certain_bound(minimum, typical))
        if chosen is not None:
            return chosen
    is_close = by_columns.bound - by_rows.bound <= CROWDED_LOSS * abs(by_columns.bound)
    if minimum is by_columns and is_close and dense.is_crowded(matrix.cost, matrix.mask, minimum.u, minimum.v):
        return by_rows
    return minimum


def _certain_bound(seed: Seed, typical: float) -> float:
    """Return the bound, of huge duals less what rounding may have added, or those that cancel would look good."""
    rounding = ROUNDING * float(np.abs(seed.u).sum() + np.abs(seed.v).sum())
    return seed.bound - rounding if rounding > TOLERANCE * typical else seed.bound


def settled(matrix: Matrix, duals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a seed's duals of one side in numbers that arithmetic with these costs can bear.

    Only differences of duals matter, and no useful one is larger than all costs of a path together, so larger ones are
    cut: next to a dual of 1e300 every cost would be rounded away. Integer costs get integer duals: their arithmetic is
    exact. NaN stays.
    """
    with np.errstate(over="ignore"):
        centred = duals - np.nanmedian(duals)
    sample = slice(None, None, max(1, matrix.cost.shape[0] // dense.SAMPLED_ROWS))
    allowed = np.isfinite(matrix.cost[sample])
    if matrix.mask.size:
        allowed &= matrix.mask[sample] == 0
    typical = float(np.abs(matrix.cost[sample].min(axis=1, where=allowed, initial=np.inf)).min())
    if not np.nanmax(np.abs(centred)) <= CENTRED_LIMIT * typical:
        largest = float(np.abs(matrix.cost).max(where=matrix.allowed(), initial=0.0))
        limit = 2.0 * duals.size * largest
        centred = np.clip(centred, -limit, limit)
    return np.rint(centred) if matrix.is_integral() else centred


def proven(matrix: Matrix, seed: Seed, found: Found) -> Assignment:
    """Check matching and duals by the certificate; return both as the user counts and signs them."""
    u, v, column_of = found.u, found.v, found.column_of
    rows = np.arange(column_of.size)
    try:
        proof = prove(matrix, u, v, column_of)
    except CertificateError as error:
        raise CertificateError(
            f"a matching did not pass its proof: {error}; this is a defect of the solver, please report the matrix"
        ) from error
    user_rows, user_columns = rows, column_of
    if matrix.transposed:
        order = np.argsort(column_of)
        user_rows, user_columns, u, v = column_of[order], rows[order], v, u
    unit = matrix.unit
    with np.errstate(over="ignore"):
        u, v = unit * u, unit * v
    return Assignment(
        user_rows,
        user_columns,
        unit * proof.cost,
        u,
        v,
        unit * proof.bound,
        unit * min(seed.bound, proof.bound),  # searches only raise it: what is above is rounding of large duals
        found.counters,
    )
