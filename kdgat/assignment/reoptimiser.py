"""Solve a problem again after some of its lines changed, looking only at those and at what their searches reach.

Why that is exact, and proved. After a solve every pair is known to have u_i + v_j <= C_ij. A change of a line takes its
match away and gives it the best dual that all other lines allow, which reads that line alone. Then a search for each
line without a match raises u of the rows that it reaches, and lowers v.

The proof needs min_j(C_ij - v_j) of every row, or a number below it. Each row has a list of its cheapest entries, and a
bound: no entry outside the list had C_ij - v_j, as a rounded number, below it when the row was last read whole. Since
then v_j is the same or smaller, so that C_ij - v_j is no smaller: rounding keeps order. Where v_j was raised, because
column j is new or lost its row, the column was compared with the bound of every row and put on the list if below. Where
all duals are shifted, bounds are lowered by more than that can round. So the least of list and bound is such a number,
in every row, whatever was or was not reached. The certificate then adds up the reduced costs of all matched pairs, as
it does for any answer.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment import padded
from kdgat.assignment.certificate import EXACT, PRECISION, ROUNDING, CertificateError, Costs, prove_lines
from kdgat.assignment.core import reduce_rows
from kdgat.assignment.errors import CostError
from kdgat.assignment.exact import LARGEST_BID, solve_matrix
from kdgat.assignment.levels import are_apart, level_below
from kdgat.assignment.matrix import Matrix, check_mask, check_type, infeasible, make_matrix, too_large
from kdgat.assignment.padded import DUMMY, FREE
from kdgat.assignment.result import Assignment, Counters
from kdgat.assignment.rows import first_bad_row, no_mask
from kdgat.assignment.warm_start import line_minima

Lines = Sequence[int] | NDArray[np.integer[Any]]

LARGE_CHANGE = 0.25  # of the lines: from here on a solve from the duals that are known is quicker
REUSED = "reused"  # what counters call duals of the solve before
BIDDING_ROUNDS, BIDS_PER_ROW = 2, 4  # before searches: bids for each row without a match in one round
LEVELLING = 4.0 * ROUNDING  # of duals that are all shifted: what their sums with costs may round


class Reoptimiser:
    """Hold an assignment problem and its solution while lines are replaced, added and removed.

    Rows and columns are counted as in a matrix of which lines are deleted and to whose end lines are added
    (`numpy.delete`, `numpy.append`). Changes take effect together in the next `solve()`. The costs are copied.

    >>> problem = Reoptimiser([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
    >>> problem.solve().cost
    5.0
    >>> problem.replace_rows([2], [[0.0, 2.0, 2.0]])
    >>> found = problem.solve()
    >>> found.columns.tolist(), found.cost
    ([2, 1, 0], 3.0)
    """

    def __init__(self, cost: ArrayLike, *, mask: ArrayLike | None = None, maximize: bool = False) -> None:
        """Copy a problem: `cost` [n, m], `mask` [n, m], True where a pair is forbidden. CostError as of `solve`."""
        matrix = make_matrix(cost, mask)
        values = np.where(matrix.allowed(), matrix.cost, np.inf)
        self._sign = -1.0 if maximize else 1.0
        self._cost = np.ascontiguousarray(values.T if matrix.transposed else values)
        if maximize:
            np.negative(self._cost, out=self._cost, where=np.isfinite(self._cost))
        n, m = self._cost.shape
        self._rows, self._columns = np.arange(n), np.arange(m)  # where the user's lines are in the arrays below
        self._u, self._v = np.full(n, np.nan), np.full(m, np.nan)
        self._column_of, self._row_of = np.full(n, FREE, np.int32), np.full(m, FREE, np.int32)
        self._lists = _no_lists(n)
        self._new_rows, self._new_columns = np.ones(n, bool), np.ones(m, bool)
        self._dummy_duals = np.zeros(2)  # of rows of zeros, of columns of zeros
        self._had_dummies = (False, False)
        self._all_changed = True  # the duals that are kept are a seed and no more
        self._solved: Assignment | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Return how many rows and columns there are."""
        return self._rows.size, self._columns.size

    @property
    def cost(self) -> NDArray[np.float64]:
        """Return a copy of the costs [n, m]; a forbidden pair is +inf, or -inf if the costs are maximised."""
        return self._sign * self._values()

    def replace_rows(self, rows: Lines, cost: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Give rows new costs [k, m]: another worker, another track."""
        places = self._rows[line_numbers(rows, self.shape[0], "row")]
        block = self._read(cost, mask, (places.size, self.shape[1]))
        padded.write_block(block, places, self._columns, self._cost)
        self._forget_rows(places)

    def replace_columns(self, columns: Lines, cost: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Give columns new costs [n, k]."""
        places = self._columns[line_numbers(columns, self.shape[1], "column")]
        block = self._read(cost, mask, (self.shape[0], places.size))
        padded.write_block(block, self._rows, places, self._cost)
        self._forget_columns(places)

    def add(
        self,
        *,
        rows: ArrayLike | None = None,
        columns: ArrayLike | None = None,
        row_mask: ArrayLike | None = None,
        column_mask: ArrayLike | None = None,
    ) -> None:
        """Append columns [n, k], then rows [l, m + k]: costs of the pairs of both belong to the rows."""
        if columns is not None:
            block = self._read(columns, column_mask, (self.shape[0], count_lines(columns, 1)))
            places = self._more_columns(block.shape[1])
            self._cost[np.ix_(self._rows, places)] = block
            self._columns = np.append(self._columns, places)
        if rows is not None:
            block = self._read(rows, row_mask, (count_lines(rows, 0), self.shape[1]))
            places = self._more_rows(block.shape[0])
            self._cost[np.ix_(places, self._columns)] = block
            self._rows = np.append(self._rows, places)
        self._solved = None

    def remove(self, *, rows: Lines = (), columns: Lines = ()) -> None:
        """Remove lines; those behind them move up. CostError if none would be left."""
        gone = line_numbers(rows, self.shape[0], "row"), line_numbers(columns, self.shape[1], "column")
        if gone[0].size == self.shape[0] or gone[1].size == self.shape[1]:
            raise CostError(f"rows {gone[0].size}, columns {gone[1].size}: a line of each kind has to be left")
        if gone[0].size:
            self._forget_rows(self._rows[gone[0]])
            self._rows = np.delete(self._rows, gone[0])
        if gone[1].size:
            places = self._columns[gone[1]]
            self._forget_columns(places)
            self._columns = np.delete(self._columns, gone[1])
            self._cost[:, places] = np.inf
            self._v[places] = -np.inf
        self._compact()

    def update(self, cost: ArrayLike, mask: ArrayLike | None = None) -> None:
        """Take all costs anew [n, m]; only lines with entries that differ are looked at again."""
        block = self._read(cost, mask, self.shape)
        rows, columns = lines_of(block != self._values())
        if self._is_compact:
            self._cost = block
        else:
            self._cost[np.ix_(self._rows, self._columns)] = block
        if rows.size + columns.size > LARGE_CHANGE * sum(self.shape):
            self._solved = None
            self._all_changed = True
            return
        self._forget_rows(self._rows[rows])
        self._forget_columns(self._columns[columns])

    def solve(self) -> Assignment:
        """Return the optimal matching and its proof; InfeasibleError as `solve` raises it, until lines allow one.

        `counters.seed` is "reused" where only changes were looked at; `greedy_matches` are then the rows whose match
        was kept.
        """
        if self._solved is None:
            changed = self._new_rows[self._rows].sum() + self._new_columns[self._columns].sum()
            if self._all_changed or changed > LARGE_CHANGE * sum(self.shape):
                self._solve_whole()
            else:
                self._solved = self._repair()
                if self._solved is None:
                    self._u[:] = np.nan
                    self._v[self._columns] = np.nan
                    self._solve_whole()
        assert self._solved is not None
        return self._solved

    def _solve_whole(self) -> None:
        """Solve from the duals that are known."""
        u = np.where(self._new_rows, np.nan, self._u)[self._rows]
        v = np.where(self._new_columns, np.nan, self._v)[self._columns]
        found = solve_matrix(self._matrix(), u, v, "core")
        self._column_of[:], self._row_of[:] = FREE, FREE
        self._column_of[self._rows] = DUMMY
        self._row_of[self._columns] = DUMMY
        self._column_of[self._rows[found.rows]] = self._columns[found.columns]
        self._row_of[self._columns[found.columns]] = self._rows[found.rows]
        self._u[self._rows], self._v[self._columns] = found.u, found.v
        self._dummy_duals[:] = 0.0
        self._had_dummies = self._has_dummies()
        self._new_rows[:], self._new_columns[:] = False, False
        self._all_changed = False
        padded.make_lists(self._cost, self._v, self._rows, *self._lists)
        sign = self._sign
        self._solved = Assignment(
            found.rows,
            found.columns,
            sign * found.cost,
            sign * found.u,
            sign * found.v,
            sign * found.dual_bound,
            sign * found.seed_bound,
            found.counters,
        )

    def _repair(self) -> Assignment | None:
        """Solve from the last solution; None if its duals do not bear that.

        They are left over from other costs: they may be large beside those that are left, and hold the roundings of all
        changes since the last solve of the whole.
        """
        read = self._set_duals()
        free_dummies, origins = self._free_lines()
        kept = int((self._column_of[self._rows] >= 0).sum())
        missing = (max(0, self.shape[1] - self.shape[0]), max(0, self.shape[0] - self.shape[1]))
        seed_bound = float(
            self._u[self._rows].sum() + self._v[self._columns].sum() + np.dot(missing, self._dummy_duals)
        )
        read += self._bid(origins[origins != DUMMY], free_dummies >= 0)
        origins = np.append(self._rows[self._column_of[self._rows] == FREE], origins[origins == DUMMY])
        state, searches, looked_at, repairs = padded.augment(
            self._cost,
            self._u,
            self._v,
            self._dummy_duals,
            self._column_of,
            self._row_of,
            origins,
            free_dummies,
            *self._lists,
        )
        if state != padded.STUCK_NOWHERE:
            raise infeasible(self._oriented())
        self._level()
        counters = Counters(REUSED, kept, int(searches), int(looked_at) + read, repairs=int(repairs))
        try:
            return self._proved(counters, seed_bound)
        except CertificateError:  # bounds may be worse than the truth, by roundings next to duals of before
            padded.make_lists(self._cost, self._v, self._rows, *self._lists)
        try:
            return self._proved(counters, seed_bound)
        except CertificateError:
            return None

    def _set_duals(self) -> int:
        """Give all new lines, and columns that lost their row, the best duals that the others allow.

        Return the entries looked at.
        """
        has_rows, has_columns = self._has_dummies()
        duals = self._dummy_duals
        is_new = self._new_rows[self._rows]
        old_rows, new_rows = self._rows[~is_new], self._rows[is_new]
        is_new = self._new_columns[self._columns]
        raised = self._columns[is_new | (self._row_of[self._columns] == FREE)]
        known = self._v[self._columns[~is_new]]
        ceiling = -duals[0] if has_rows and self._had_dummies[0] else np.inf
        read = padded.raise_columns(
            self._cost, old_rows, raised, self._u, self._v, ceiling, known.max(initial=0.0), *self._lists
        )
        padded.make_lists(self._cost, self._v, new_rows, *self._lists)
        best = self._slacks(new_rows)
        if np.isinf(best).any():  # rows that no column allows
            if not has_columns:
                raise infeasible(self._oriented())
            best = np.where(np.isinf(best), self._u[old_rows].max(initial=0.0), best)
        self._u[new_rows] = best
        if has_columns and self._had_dummies[1]:
            self._u[new_rows] = np.minimum(self._u[new_rows], -duals[1])
        if has_rows and not self._had_dummies[0]:
            duals[0] = -self._v[self._columns].max()
        if has_columns and not self._had_dummies[1]:
            duals[1] = -self._u[self._rows].max()
        self._had_dummies = (has_rows, has_columns)
        self._new_rows[:] = False
        self._new_columns[:] = False
        return int(read) + new_rows.size * self._v.size

    def _bid(self, free: NDArray[np.int64], has_dummy_columns: bool) -> int:
        """Let free rows bid for columns, which spares short searches; change `free`, return the entries looked at."""
        columns, costs, count, beyond = self._lists
        size = float(np.abs(self._u[self._rows]).mean() + np.abs(self._v[self._columns]).mean())
        looked_at: int = reduce_rows(
            columns.reshape(-1),
            costs.reshape(-1),
            np.arange(count.size) * padded.CAPACITY,
            count,
            beyond,
            self._u,
            self._v,
            self._column_of,
            self._row_of,
            free,
            -self._dummy_duals[1] if has_dummy_columns else np.inf,
            BIDDING_ROUNDS,
            BIDS_PER_ROW * free.size,
            LARGEST_BID * size if size > 0.0 else float(np.finfo(np.float64).max),
        )
        return int(looked_at)

    def _level(self) -> None:
        """Make the dummies' duals 0: a larger side's duals are <= 0, and 0 where unmatched.

        Bounds follow by the same amount, less what that may round.
        """
        n, m = self.shape
        u, v = self._u[self._rows], self._v[self._columns]
        shift = self._dummy_duals[0] if m > n else -self._dummy_duals[1] if n > m else 0.0
        levelled_u, levelled_v = u - shift, v + shift
        if m > n:
            levelled_v = np.minimum(levelled_v, 0.0)
        if n > m:
            levelled_u = np.minimum(levelled_u, 0.0)
        levelled_u[self._column_of[self._rows] == DUMMY] = 0.0
        levelled_v[self._row_of[self._columns] == DUMMY] = 0.0
        self._dummy_duals[:] = 0.0
        if not np.array_equal(v, levelled_v):
            size = float(np.abs(v).max()) + abs(shift)
            beyond = self._lists[3]
            beyond -= shift + LEVELLING * (size + np.where(np.isfinite(beyond), np.abs(beyond), 0.0))
        self._u[self._rows], self._v[self._columns] = levelled_u, levelled_v

    def _slacks(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what min_j(C_ij - v_j) is at least in some rows, from their lists and bounds."""
        slack = np.empty(self._u.size)
        padded.row_slacks(self._v, rows, *self._lists, slack)
        return slack[rows]

    def _free_lines(self) -> tuple[int, NDArray[np.int64]]:
        """Match lines with dummies as far as these are there; return free dummy columns, -1 for none, and free rows."""
        n, m = self.shape
        spare = []
        for count, lines, partner, duals, dual in (
            (n - m, self._rows, self._column_of, self._u, self._dummy_duals[1]),
            (m - n, self._columns, self._row_of, self._v, self._dummy_duals[0]),
        ):
            held = lines[partner[lines] == DUMMY]
            partner[held[max(count, 0) :]] = FREE
            left = max(count, 0) - min(held.size, max(count, 0))
            tight = lines[(partner[lines] == FREE) & (duals[lines] == -dual)][:left] if left else lines[:0]
            partner[tight] = DUMMY
            spare.append(left - tight.size)
        origins = self._rows[self._column_of[self._rows] == FREE]
        return spare[0] if n > m else -1, np.append(origins, np.full(spare[1], DUMMY, np.int64))

    def _proved(self, counters: Counters, seed_bound: float) -> Assignment | None:
        """Return the answer with its proof, or None if the duals are too large beside the costs that are left."""
        n, m = self.shape
        more_rows, more_columns = max(0, m - n), max(0, n - m)
        to_column = np.full(self._v.size, -1)
        to_column[self._columns] = np.arange(m)
        column_of = self._column_of[self._rows].astype(np.int64)
        is_real = column_of >= 0
        costs = np.zeros(n)
        costs[is_real] = self._cost[self._rows[is_real], column_of[is_real]]
        column_of[is_real] = to_column[column_of[is_real]]
        column_of[~is_real] = np.arange(m, m + (~is_real).sum())
        idle = np.flatnonzero(self._row_of[self._columns] == DUMMY)
        u, v, slack = self._u[self._rows], self._v[self._columns], self._slacks(self._rows)
        if more_columns:
            slack = np.minimum(slack, -self._dummy_duals[1])
        square = (
            np.append(costs, np.zeros(more_rows)),
            np.append(slack, np.full(more_rows, -v.max())),
            np.append(u, np.full(more_rows, self._dummy_duals[0])),
            np.append(v, np.full(more_columns, self._dummy_duals[1])),
            np.append(column_of, idle),
        )
        proof = prove_lines(*square, Costs(lambda: Costs.of(self._oriented()).cheapest(), self._is_integral), min(n, m))
        if self._exceeds_precision(square[2], square[3], costs[is_real]):
            return None
        sign, bound = self._sign, proof.bound
        if (u > slack).any():
            u = np.minimum(u, slack)  # feasible without any tolerance, whichever side is looked at
            self._u[self._rows] = u
            bound = math.fsum((math.fsum(u), math.fsum(v)))
        return Assignment(
            np.flatnonzero(is_real),
            column_of[is_real],
            sign * proof.cost,
            sign * u,
            sign * v,
            sign * bound,
            sign * min(seed_bound, bound),  # searches only raise it: what is above is rounding of large duals
            counters,
        )

    def _exceeds_precision(self, u: NDArray[np.float64], v: NDArray[np.float64], costs: NDArray[np.float64]) -> bool:
        """Return whether the duals, left over from other costs perhaps, or some matched costs, hide others."""
        size = float(np.abs(u).sum() + np.abs(v).sum())
        hides = are_apart(costs) and 0.0 < level_below(self._values(), no_mask(), *self.shape, costs) < np.inf
        if ROUNDING * size <= PRECISION * float(np.abs(costs).sum()) and not hides:
            return False
        whole = all((duals == np.rint(duals)).all() for duals in (u, v))
        return not (whole and size < EXACT and self._is_integral())

    def _is_integral(self) -> bool:
        return self._oriented().is_integral()

    def _matrix(self) -> Matrix:
        """Return the problem as `solve` reads it, to be minimised."""
        return make_matrix(self._values(), allow_infinity=True)

    def _values(self) -> NDArray[np.float64]:
        """Return the costs in the user's order, not to be changed."""
        return self._cost if self._is_compact else self._cost[np.ix_(self._rows, self._columns)]

    @property
    def _is_compact(self) -> bool:
        """Return whether every line is where the user counts it."""
        return all(
            lines.size == size and np.array_equal(lines, np.arange(size))
            for lines, size in zip((self._rows, self._columns), self._cost.shape, strict=True)
        )

    def _oriented(self) -> Matrix:
        matrix = self._matrix()
        line_minima(matrix)
        return matrix

    def _has_dummies(self) -> tuple[bool, bool]:
        n, m = self.shape
        return m > n, n > m

    def _forget_rows(self, places: NDArray[np.int64]) -> None:
        """Take matches and duals of rows away."""
        taken = self._column_of[places]
        self._row_of[taken[taken >= 0]] = FREE
        self._column_of[places] = FREE
        self._new_rows[places] = True
        self._solved = None

    def _forget_columns(self, places: NDArray[np.int64]) -> None:
        taken = self._row_of[places]
        self._column_of[taken[taken >= 0]] = FREE
        self._row_of[places] = FREE
        self._new_columns[places] = True
        self._solved = None

    def _read(self, cost: ArrayLike, mask: ArrayLike | None, shape: tuple[int, int]) -> NDArray[np.float64]:
        return read_block(cost, mask, shape, self._cost.size, maximize=self._sign < 0.0)

    def _more_rows(self, count: int) -> NDArray[np.int64]:
        """Return places for new rows, of removed ones or beyond all."""
        idle = np.setdiff1d(np.arange(self._u.size), self._rows)[:count]
        more = max(0, count - idle.size)
        if more:
            grown = max(more, self._u.size // 4)
            self._cost = np.vstack([self._cost, np.full((grown, self._v.size), np.inf)])
            self._u = np.append(self._u, np.full(grown, np.nan))
            self._lists = tuple(map(np.concatenate, zip(self._lists, _no_lists(grown), strict=True)))
            self._column_of = np.append(self._column_of, np.full(grown, FREE, np.int32))
            self._new_rows = np.append(self._new_rows, np.ones(grown, bool))
            idle = np.setdiff1d(np.arange(self._u.size), self._rows)[:count]
        self._new_rows[idle] = True
        self._column_of[idle] = FREE
        return idle

    def _more_columns(self, count: int) -> NDArray[np.int64]:
        idle = np.setdiff1d(np.arange(self._v.size), self._columns)[:count]
        more = max(0, count - idle.size)
        if more:
            grown = max(more, self._v.size // 4)
            self._cost = np.hstack([self._cost, np.full((self._u.size, grown), np.inf)])
            self._v = np.append(self._v, np.full(grown, -np.inf))
            self._row_of = np.append(self._row_of, np.full(grown, FREE, np.int32))
            self._new_columns = np.append(self._new_columns, np.ones(grown, bool))
            idle = np.setdiff1d(np.arange(self._v.size), self._columns)[:count]
        self._new_columns[idle] = True
        self._row_of[idle] = FREE
        return idle

    def _compact(self) -> None:
        """Give memory of removed lines back once they are most of it."""
        if self._u.size > 2 * self._rows.size:
            self._cost = self._cost[self._rows]
            self._u, self._new_rows = self._u[self._rows], self._new_rows[self._rows]
            self._lists = tuple(part[self._rows] for part in self._lists)
            self._column_of = self._column_of[self._rows]
            self._row_of = _renumbered(self._row_of, self._rows)
            self._rows = np.arange(self._rows.size)
        if self._v.size > 2 * self._columns.size:
            self._cost = np.ascontiguousarray(self._cost[:, self._columns])
            self._v, self._new_columns = self._v[self._columns], self._new_columns[self._columns]
            self._row_of = self._row_of[self._columns]
            self._column_of = _renumbered(self._column_of, self._columns)
            self._columns = np.arange(self._columns.size)
            padded.make_lists(self._cost, self._v, self._rows, *self._lists)


def _renumbered(partners: NDArray[np.int32], lines: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return partners as these are counted once only `lines` are left; FREE and DUMMY stay."""
    moved = np.empty(int(lines.max()) + 1, np.int32)
    moved[lines] = np.arange(lines.size)
    found, is_line = partners.copy(), partners >= 0
    found[is_line] = moved[partners[is_line]]
    return found


def _no_lists(rows: int) -> tuple[NDArray[Any], ...]:
    """Return columns, costs, count and bound of rows that were never read."""
    shape = (rows, padded.CAPACITY)
    return np.zeros(shape, np.int32), np.zeros(shape), np.zeros(rows, np.int64), np.full(rows, -np.inf)


def read_block(
    cost: ArrayLike, mask: ArrayLike | None, shape: tuple[int, int], num_entries: int, *, maximize: bool
) -> NDArray[np.float64]:
    """Return costs of some lines to be minimised, +inf where forbidden; CostError if they cannot be used.

    `num_entries` is how many the whole matrix has: so many may be added up.
    """
    values = check_type(cost)
    if values.shape != shape:
        raise CostError(f"cost has shape {values.shape}: {list(shape)} is needed for these lines")
    forbidden = check_mask(mask, shape)
    block = np.array(values, np.float64, order="C")
    if maximize:
        np.negative(block, out=block)
    if forbidden is not None:
        block[forbidden] = 0.0
    limit = too_large(max(num_entries, block.size, 1))
    i = first_bad_row(block.view(np.int64), no_mask(), False, np.float64(limit).view(np.int64))
    if i < block.shape[0]:
        j = int(np.flatnonzero(~(np.abs(block[i]) < limit))[0])
        raise CostError(
            f"cost[{i}, {j}] is {values[i, j]}: every allowed cost has to be finite, and sums of them, too; "
            "replace it, scale the costs, or say mask[i, j] = True for pairs that are forbidden"
        )
    if forbidden is not None:
        block[forbidden] = np.inf
    return block


def line_numbers(lines: Lines, count: int, name: str) -> NDArray[np.int64]:
    """Check that lines are there, each named once."""
    found = np.asarray(lines, np.int64 if len(lines) == 0 else None)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise CostError(f"{name}s have shape {found.shape} and dtype {found.dtype}: a list of whole numbers is needed")
    outside = (found < 0) | (found >= count)
    if outside.any():
        raise CostError(f"{name} {int(found[outside][0])}: there are {count} {name}s, from 0")
    if np.unique(found).size < found.size:
        raise CostError(f"{name} {int(np.bincount(found).argmax())} is named twice")
    return found.astype(np.int64)


def count_lines(lines: ArrayLike, axis: Literal[0, 1]) -> int:
    shape = np.shape(lines)
    if len(shape) != 2:
        raise CostError(f"cost has shape {shape}: a matrix [rows, columns] is needed")
    return int(shape[axis])


def lines_of(differs: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return few rows and columns that hold all entries which differ."""
    rows, columns = np.flatnonzero(differs.any(1)), np.flatnonzero(differs.any(0))
    if min(rows.size, columns.size) <= LARGE_CHANGE * min(differs.shape):
        nothing = np.zeros(0, np.int64)
        return (rows, nothing) if rows.size <= columns.size else (nothing, columns)
    many = np.count_nonzero(differs, axis=1) > differs.shape[1] // 2
    return np.flatnonzero(many), np.flatnonzero(differs[~many].any(0))
