"""Solve problems whose matrix does not fit into memory: of distances between points, or read in blocks of rows.

Of each row the cheapest entries are kept, memory for n rows and lists of k is O(nk). An auction whose steps become
smaller and smaller (Bertsekas 1988) finds duals near the best ones, without reading more than lists; shortest
augmenting paths from there make them exact. For the proof the costs are read once more, all of them.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment import padded, sparse
from kdgat.assignment.certificate import CertificateError, Costs, Proof, check_lines, prove_lines
from kdgat.assignment.core import candidates
from kdgat.assignment.errors import CostError, InfeasibleError
from kdgat.assignment.levels import Change, are_apart, level_below, solve_levels
from kdgat.assignment.matrix import check_type, too_large
from kdgat.assignment.points import METRICS, PointCosts
from kdgat.assignment.result import Assignment, Counters
from kdgat.assignment.rows import LANES, first_bad_row, no_mask, row_slack
from kdgat.assignment.warm_start import ROW_MINIMA
from kdgat.base.machine_code import compiled

Values = NDArray[np.float64]

SHORT, WIDE = 24, 160  # candidates of a row, and of one that a search asked for more
ASKED_TOGETHER = 1024  # rows of the auction that look for more candidates in one go
FIRST_STEP, STEPS = 0.25, 7  # of the auction; the first relative to the mean spread of the lists
SHRINKING = 0.2  # of each step
BIDS = 40  # per row and step at most: what is left is for the searches
AUCTION = "auction"  # what counters call duals of an auction
BLOCK_ENTRIES = 1 << 21  # of a block in float64: 16 MB
ENTRIES_PER_GROUP = 5  # of a list: a list of k holds the entries below the largest of k / 5 minima


class RowCosts(Protocol):
    """Costs [n, m], n <= m, of which rows can be had."""

    shape: tuple[int, int]

    def refresh(self, v: Values) -> None:
        """Take note of duals, for `nearest` to be quicker."""

    def nearest(self, rows: NDArray[np.int64], v: Values, size: int) -> tuple[NDArray[Any], ...]:
        """Return the entries with least C_ij - v_j of some rows: columns and costs [r, k], count, bound on others."""

    def row(self, i: int, out: Values) -> None:
        """Write all costs of a row to `out` [m], +inf where forbidden."""

    def check(self, v: Values, column_of: NDArray[np.int64]) -> tuple[Values, Values]:
        """Return min_j(C_ij - v_j) of every row and its matched cost [n], from every entry."""


@compiled
def block_candidates(block, v, groups, capacity, columns, costs, count, beyond):  # type: ignore[no-untyped-def]
    """Write the entries with small C_ij - v_j of each row of a block to a row of `columns` and `costs`."""
    m = v.size
    slack, lane = np.empty(m), np.empty(max(m, LANES))
    for r in range(block.shape[0]):
        count[r], beyond[r] = candidates(block[r], v, slack, lane, r * 7 % m, groups, capacity, columns[r], costs[r], 0)


class BlockCosts:
    """Costs [n, m], n <= m, of which `rows(start, stop)` returns [stop - start, m]; +inf is a forbidden pair."""

    def __init__(self, rows: Callable[[int, int], ArrayLike], shape: tuple[int, int]) -> None:
        """Take a function; nothing is read yet."""
        n, m = shape
        if not 0 < n <= m:
            raise CostError(
                f"shape is {shape}: no more rows than columns are needed; give blocks of the transposed costs"
            )
        self.rows, self.shape = rows, (n, m)
        self.block_rows = max(1, BLOCK_ENTRIES // m)
        self.limit = too_large(n * m)

    def read(self, start: int, stop: int) -> Values:
        """Return a block; CostError if it cannot be used."""
        block = np.require(check_type(self.rows(start, stop)), np.float64, ["C", "A", "W"])
        if block.shape != (stop - start, self.shape[1]):
            raise CostError(f"rows({start}, {stop}) has shape {block.shape}: {(stop - start, self.shape[1])} is needed")
        row = first_bad_row(block.view(np.int64), no_mask(), True, np.float64(self.limit).view(np.int64))
        if row < block.shape[0]:
            j = int(np.flatnonzero(~((np.abs(block[row]) < self.limit) | (block[row] == np.inf)))[0])
            raise CostError(
                f"cost[{start + row}, {j}] is {block[row, j]}: costs and sums of them have to be finite; "
                "+inf forbids a pair"
            )
        return block

    def refresh(self, v: Values) -> None:
        """Nothing is known but the costs."""

    def nearest(self, rows: NDArray[np.int64], v: Values, size: int) -> tuple[NDArray, ...]:  # type: ignore[type-arg]
        """Return columns and costs [r, size] of entries with small C_ij - v_j, how many, and the bound on others."""
        found = (
            np.zeros((rows.size, size), np.int32),
            np.zeros((rows.size, size)),
            np.empty(rows.size, np.int64),
            np.empty(rows.size),
        )
        groups = 1 << int(np.log2(max(1, size // ENTRIES_PER_GROUP)))
        begin = 0
        while begin < rows.size:
            end = begin + 1
            while end < rows.size and rows[end] == rows[end - 1] + 1 and end - begin < self.block_rows:
                end += 1
            block = self.read(int(rows[begin]), int(rows[end - 1]) + 1)
            block_candidates(block, v, min(groups, LANES), size, *(part[begin:end] for part in found))
            begin = end
        return found

    def row(self, i: int, out: Values) -> None:
        """Write all costs of a row to `out` [m]."""
        out[:] = self.read(i, i + 1)[0]

    def check(self, v: Values, column_of: NDArray[np.int64]) -> tuple[Values, Values]:
        """Return min_j(C_ij - v_j) of every row and its matched cost [n], from every entry."""
        n = self.shape[0]
        slack, paid = np.empty(n), np.empty(n)
        for start in range(0, n, self.block_rows):
            stop = min(start + self.block_rows, n)
            block = self.read(start, stop)
            slack[start:stop] = row_slack(block, no_mask(), v)
            paid[start:stop] = block[np.arange(stop - start), column_of[start:stop]]
        return slack, paid

    def level_below(self, paid: Values) -> float:
        """Return the largest cost beside which those that are paid hide it; 0 if there is none, or some lie between."""
        largest = 0.0
        for start in range(0, self.shape[0], self.block_rows):
            block = self.read(start, min(start + self.block_rows, self.shape[0]))
            largest = max(largest, level_below(block, no_mask(), *block.shape, paid))
        return largest if largest < np.inf else 0.0

    def solve_changed(self, change: Change) -> Assignment:
        """Solve these costs after a change of each block."""
        return solve_rows(BlockCosts(lambda start, stop: change(self.read(start, stop), start), self.shape))


def solve_points(a: ArrayLike, b: ArrayLike, metric: str = "euclidean") -> Assignment:
    """Match points of the smaller set to points of the other at least total distance.

    Args:
        a: [n, d], coordinates of the rows.
        b: [m, d], coordinates of the columns.
        metric: euclidean, sqeuclidean, cityblock or chebyshev.

    Raises:
        CostError: if coordinates or metric cannot be used.

    >>> solve_points([[0.0], [1.0], [5.0]], [[1.1], [4.0], [0.2]]).columns.tolist()
    [2, 0, 1]
    """
    if metric not in METRICS:
        raise CostError(f"metric is {metric!r}: {', '.join(METRICS)} are known")
    first, second = _coordinates(a, "a"), _coordinates(b, "b")
    if first.shape[1] != second.shape[1]:
        raise CostError(f"a has {first.shape[1]} coordinates a point, b has {second.shape[1]}: as many are needed")
    swapped = first.shape[0] > second.shape[0]
    if swapped:
        first, second = second, first
    return solve_rows(PointCosts(first, second, METRICS.index(metric)), swapped=swapped)


def solve_blocks(
    rows: Callable[[int, int], ArrayLike] | NDArray[Any], shape: tuple[int, int] | None = None
) -> Assignment:
    """Match all rows at least total cost, reading blocks of them; +inf forbids a pair.

    Args:
        rows: `rows(start, stop)` returns costs [stop - start, m], the same at every call; or an array [n, m] of any
            real type, such as float32 mapped from a file, that is never copied as a whole.
        shape: (n, m), n <= m, for a function.

    Raises:
        CostError: if costs or shape cannot be used.
        InfeasibleError: if no matching of all rows is allowed.

    >>> places = np.array([2.2, 0.1, 1.3])
    >>> solve_blocks(lambda start, stop: abs(np.arange(start, stop)[:, None] - places), (3, 3)).columns.tolist()
    [1, 2, 0]
    """
    if callable(rows):
        if shape is None:
            raise CostError("shape is None: (rows, columns) is needed where costs come from a function")
        return solve_rows(BlockCosts(rows, shape))
    array = check_type(rows)
    if array.ndim != 2 or array.size == 0:
        raise CostError(f"cost has shape {array.shape}: a matrix [rows, columns] with entries is needed")
    if array.shape[0] > array.shape[1]:
        turned = array.T
        return solve_rows(BlockCosts(lambda start, stop: turned[start:stop], turned.shape), swapped=True)
    return solve_rows(BlockCosts(lambda start, stop: array[start:stop], array.shape))


def _coordinates(points: ArrayLike, name: str) -> Values:
    if isinstance(points, np.ma.MaskedArray):
        raise CostError(f"{name} is a masked array: leave out the points that are masked")
    values = np.asarray(points)
    if values.ndim != 2 or values.size == 0 or values.dtype.kind not in "fiub":
        raise CostError(
            f"{name} has shape {values.shape} and dtype {values.dtype}: numbers [points, coordinates] are needed"
        )
    values = np.ascontiguousarray(values, np.float64)
    if not (np.abs(values) < 1e150).all():
        i, c = np.argwhere(~(np.abs(values) < 1e150))[0]
        raise CostError(f"{name}[{i}, {c}] is {values[i, c]}: coordinates have to be finite, and their squares, too")
    return values


def solve_rows(costs: RowCosts, *, swapped: bool = False) -> Assignment:
    """Solve from rows of costs; `swapped`: rows and columns are the user's columns and rows."""
    n, m = costs.shape
    solver, seed_bound, matches = _searched(costs, with_auction=n == m)
    try:
        proof = solver.prove()
    except CertificateError:  # an auction's duals may be too large for an optimum of about 0
        solver, seed_bound, matches = _searched(costs, with_auction=False)
        try:
            proof = solver.prove()
        except CertificateError as error:
            raise CertificateError(
                f"a matching did not pass its proof: {error}; this is a defect of the solver, please report the problem"
            ) from error
    if isinstance(costs, BlockCosts) and are_apart(solver.paid):
        below = costs.level_below(solver.paid)
        if below > 0.0:
            solver.u, solver.v, solver.column_of[:] = solve_levels(solver.paid, below, m, costs.solve_changed)
            proof = solver.prove()
    u, v, column_of = solver.u, solver.v, solver.column_of.astype(np.int64)
    state = solver.arrays[0]
    counters = Counters(
        AUCTION if solver.has_bid else ROW_MINIMA,
        matches,
        int(state[sparse.SEARCHES]),
        int(state[sparse.LOOKED_AT]),
        solver.columns.size + solver.wide_columns.size,
        solver.repairs,
    )
    rows = np.arange(n)
    if swapped:
        order = np.argsort(column_of)
        rows, column_of, u, v = column_of[order], order, v, u
    return Assignment(rows, column_of, proof.cost, u, v, proof.bound, seed_bound, counters)


def _searched(costs: RowCosts, *, with_auction: bool) -> tuple["_Search", float, int]:
    """Return a finished search, the bound of its seed, and how many rows that matched."""
    search = _Search(costs)
    if with_auction:
        search.auction()
    matches = search.make_tight()
    seed_bound = float(search.u.sum() + search.v.sum())
    search.search()
    return search, seed_bound, matches


class _Search:
    """Lists, duals and matching on the way to the optimum."""

    def __init__(self, costs: RowCosts) -> None:
        self.costs = costs
        n, m = costs.shape
        self.u, self.v = np.zeros(n), np.zeros(m)
        self.column_of, self.row_of = np.full(n, -1, np.int32), np.full(m, -1, np.int32)
        self.rows = np.arange(n)
        costs.refresh(self.v)
        self.columns, self.list_costs, self.count, self.beyond = costs.nearest(self.rows, self.v, SHORT)
        if not self.count.all():
            row = int(np.flatnonzero(self.count == 0)[0])
            raise InfeasibleError(f"row {row} has no allowed entry: allow some, or leave it out", n - 1, [row], [])
        self.wide_of = np.full(n, -1)
        self.wide_columns, self.wide_costs = np.zeros((1, WIDE), np.int32), np.zeros((1, WIDE))
        self.repairs, self.has_bid = 0, False
        self.paid = np.zeros(n)  # by each row, once it is proved
        self.arrays = sparse.search_arrays(n, m)

    @property
    def lists(self) -> tuple[NDArray[Any], ...]:
        return self.columns, self.list_costs, self.count, self.beyond

    def look_again(self, rows: NDArray[np.int64]) -> None:
        """Make lists of rows anew with the duals of now."""
        self.costs.refresh(self.v)
        found = self.costs.nearest(rows, self.v, SHORT)
        for kept, new in zip(self.lists, found, strict=True):
            kept[rows] = new

    def auction(self) -> None:
        """Lower v until rows hold columns that are within a small step of their best."""
        n = self.rows.size
        least = np.empty(n)
        padded.row_slacks(self.v, self.rows, *self.lists, least)
        spread = (self.beyond - least)[np.isfinite(self.beyond)]
        if not spread.size and n > SHORT:  # a sparse matrix: lists hold all that there is
            is_listed = np.arange(self.list_costs.shape[1]) < self.count[:, None]
            spread = np.where(is_listed, self.list_costs, -np.inf).max(axis=1) - least
        step = FIRST_STEP * float(spread.mean()) if spread.size else 0.0
        queue, state = np.empty(n, np.int64), np.zeros(3, np.int64)
        asking = np.empty(ASKED_TOGETHER, np.int64)
        for _ in range(STEPS):
            if step <= 0.0:
                break
            self.has_bid = True
            self.look_again(self.rows)
            self.column_of[:], self.row_of[:] = -1, -1
            queue[:] = self.rows
            state[:] = 0, n, 0
            while state[1]:
                asked = sparse.bid(
                    *self.lists, self.v, self.column_of, self.row_of, queue, state, step, BIDS * n, asking
                )
                if state[2] >= BIDS * n:
                    break
                if asked:
                    self.look_again(asking[:asked])
                    places = (state[0] + state[1] + np.arange(asked)) % n
                    queue[places] = asking[:asked]
                    state[1] += asked
            step *= SHRINKING

    def make_tight(self) -> int:
        """Make duals feasible and matches tight; return how many rows keep one."""
        self.look_again(self.rows)
        return int(sparse.keep_tight(*self.lists, self.u, self.v, self.column_of, self.row_of))

    def search(self) -> None:
        """Match all rows that are left; InfeasibleError if that cannot be done."""
        m = self.v.size
        every, whole = np.arange(m, dtype=np.int32), np.empty(m)
        state = self.arrays[0]
        while True:
            found = sparse.search(
                *self.lists,
                self.wide_of,
                self.wide_columns,
                self.wide_costs,
                every,
                whole,
                self.u,
                self.v,
                self.column_of,
                self.row_of,
                *self.arrays,
            )
            if found == sparse.DONE:
                return
            row = int(state[sparse.ROW])
            if found == sparse.STUCK:
                self._refuse(int(state[sparse.NUM_SCANNED]), row)
            self.repairs += 1
            if found == sparse.LOOK_AT_ALL:
                self.costs.row(row, whole)
            else:
                self._widen(row)

    def _widen(self, row: int) -> None:
        """Make a row's list longer."""
        if self.repairs % ASKED_TOGETHER == 1:
            self.costs.refresh(self.v)
        place = int(self.wide_of[row])
        if place < 0:
            place = int(self.wide_of.max()) + 1
            self.wide_of[row] = place
            if place == self.wide_costs.shape[0]:
                self.wide_columns = np.concatenate([self.wide_columns, np.zeros_like(self.wide_columns)])
                self.wide_costs = np.concatenate([self.wide_costs, np.zeros_like(self.wide_costs)])
        columns, costs, count, beyond = self.costs.nearest(np.array([row]), self.v, WIDE)
        k = columns.shape[1]
        self.wide_columns[place, :k], self.wide_costs[place, :k] = columns[0], costs[0]
        self.count[row], self.beyond[row] = count[0], beyond[0]

    def prove(self) -> Proof:
        """Read all costs once more and prove the matching; CertificateError if that cannot be done."""
        column_of = self.column_of.astype(np.int64)
        check_lines(column_of, *self.costs.shape, "column")
        slack, self.paid = self.costs.check(self.v, column_of)
        return prove_lines(self.paid, slack, self.u, self.v, column_of, Costs(self.cheapest, lambda: False))

    def cheapest(self) -> float:
        """Return the sum of the sizes of the cheapest entries of all rows."""
        slack, _ = self.costs.check(np.zeros(self.v.size), self.column_of.astype(np.int64))
        return float(np.abs(slack).sum())

    def _refuse(self, num_scanned: int, row: int) -> None:
        columns = np.sort(self.arrays[5][:num_scanned]).tolist()
        rows = sorted([row, *self.row_of[columns].tolist()])
        raise InfeasibleError(
            f"no matching of all {self.rows.size} rows over the allowed entries: {len(rows)} rows, among them {row}, "
            f"may only take {len(columns)} columns; allow more of their entries, or leave rows out",
            int((self.column_of >= 0).sum()),
            rows,
            columns,
        )
