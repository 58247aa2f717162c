"""Where a solve starts: dual seeds from one pass over the matrix, and from duals that somebody gives.

A seed is feasible duals (u [n], v [m]) of min sum C_ij x_ij: u_i + v_j <= C_ij on allowed entries; the larger side's
duals are <= 0. CostError and InfeasibleError are raised as `kdgat.assignment.exact.solve` does.

Given duals may be of rows, of columns, of some lines only, right or stale. Duals of columns with the rows' best ones,
and duals of rows with the columns' best ones, are different seeds: after a row was replaced, its stale dual drags down
every column that it could be matched to, but the columns' own are as good as before. So both are weighed. A line that
alone holds down many lines of the other side (an optimum has few tight entries a line) is taken as stale, and weighed
as unknown as well. All that together reads the matrix as often as a solve without a seed does, because one pass serves
all candidates.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment.errors import CostError
from kdgat.assignment.matrix import Matrix, check_duals, infeasible, make_matrix
from kdgat.assignment.result import COLUMN_MINIMA as COLUMN_MINIMA
from kdgat.assignment.rows import LANES, ORDERED, allowed_row, column_slack, fold, minima, row_slack
from kdgat.base.machine_code import compiled

PREDICTION, ROW_MINIMA = "prediction", "row minima"
STALE = 16  # lines of the other side that one line may hold down without being suspected
CLOSE = 0.01  # of what the best prediction's bound gains: within it, rows matched at once decide
CONVINCING = 0.6  # gains from this part of these sizes on are never given up
FAINT, FEW = 0.08, 1.05  # gains below this part of the sizes of the minima's duals need so many times their matches

Values = NDArray[np.float64]
Duals = tuple[Values, Values]


@dataclass(frozen=True)
class Seed:
    """Feasible duals of a `Matrix`, the rows' as large as the columns' allow and the other way round."""

    name: str
    u: Values  # [n]
    v: Values  # [m]; <= 0 if n < m
    fallback: "Seed | None" = None  # to start from again if searches from this one are long; None: go on

    @property
    def bound(self) -> float:
        """Return the lower bound on the optimum that they prove."""
        return float(self.u.sum() + self.v.sum())


def project(cost: ArrayLike, u: ArrayLike, mask: ArrayLike | None = None) -> Values:
    """Return the largest v [m] with u_i + v_j <= C_ij: v_j = min_i(C_ij - u_i), the min-trick.

    With n < m it is cut at 0, as the rectangular problem demands; with n > m, u has to be <= 0.
    """
    matrix = make_matrix(cost, mask)
    n, m = _user_shape(matrix)
    duals = check_duals(u, n, "u")
    assert duals is not None
    if not matrix.transposed:
        v = column_slack(matrix.cost, matrix.mask, duals)
        return np.minimum(v, 0.0) if n < m else v
    if (duals > 0).any():
        place = int(np.flatnonzero(duals > 0)[0])
        raise CostError(f"u[{place}] is {duals[place]}: with more rows than columns, duals of rows have to be <= 0")
    return row_slack(matrix.cost, matrix.mask, duals)


def dual_bound(cost: ArrayLike, u: ArrayLike, v: ArrayLike | None = None, mask: ArrayLike | None = None) -> float:
    """Return the lower bound on the optimum that duals prove, after making them feasible.

    Without v: by `project`. With v: each u_i is cut at min_j(C_ij - v_j).
    """
    matrix = make_matrix(cost, mask)
    n, m = _user_shape(matrix)
    rows, columns = check_duals(u, n, "u"), check_duals(v, m, "v")
    assert rows is not None
    if columns is None:
        return float(rows.sum() + project(cost, rows, mask).sum())
    small, large = (columns, rows) if matrix.transposed else (rows, columns)
    if n != m:
        large = np.minimum(large, 0.0)
    return float(np.minimum(small, row_slack(matrix.cost, matrix.mask, large)).sum() + large.sum())


def column_minima(cost: ArrayLike, mask: ArrayLike | None = None) -> Duals:
    """Return v = column minima, u = row minima of what is left (for a rectangle: shifted so that v <= 0)."""
    matrix = make_matrix(cost, mask)
    _, columns = line_minima(matrix)
    return user_duals(matrix, column_seed(matrix, columns))


def row_minima(cost: ArrayLike, mask: ArrayLike | None = None) -> Duals:
    """Return u = row minima, v = column minima of what is left."""
    matrix = make_matrix(cost, mask)
    rows, _ = line_minima(matrix)
    return user_duals(matrix, row_seed(matrix, rows, ROW_MINIMA))


def line_minima(matrix: Matrix) -> Duals:
    """Return the minima of rows [n] and columns [m]; raise InfeasibleError if a line that must be matched has none."""
    rows, columns = minima(matrix.cost, matrix.mask)
    check_minima(matrix, rows, columns)
    return rows, columns


def check_minima(matrix: Matrix, rows: Values, columns: Values) -> None:
    """Raise InfeasibleError if a line that must be matched has no allowed entry."""
    n, m = matrix.cost.shape
    if np.isinf(rows).any() or np.isinf(columns).sum() > m - n:
        raise infeasible(matrix)


def column_seed(matrix: Matrix, columns: Values) -> Seed:
    """Return the seed that column minima give; `columns` are `line_minima`'s."""
    n, m = matrix.cost.shape
    v = columns if n == m else np.minimum(columns - gauge(columns, n), 0.0)
    return Seed(COLUMN_MINIMA, row_slack(matrix.cost, matrix.mask, v), v)


def row_seed(matrix: Matrix, u: Values, name: str) -> Seed:
    """Return the seed that any duals of the rows give, by the min-trick and a tightening of the rows.

    For a rectangle, u is first shifted by the constant that gives the best bound. Row minima of a square matrix are
    tight as they are: v is 0 in the columns where they lie.
    """
    n, m = matrix.cost.shape
    v = column_slack(matrix.cost, matrix.mask, u)
    if n == m and name == ROW_MINIMA:
        return Seed(name, u, v)
    if n < m:
        v = np.minimum(v - gauge(v, n), 0.0)
    return Seed(name, row_slack(matrix.cost, matrix.mask, v), v)


def gauge(slack: Values, n: int) -> float:
    """Return the shift c that maximises n c + sum_j min(0, slack_j - c): the n-th smallest slack."""
    return float(np.partition(slack, n - 1)[n - 1])


def _user_shape(matrix: Matrix) -> tuple[int, int]:
    n, m = matrix.cost.shape
    return (m, n) if matrix.transposed else (n, m)


def user_duals(matrix: Matrix, seed: Seed) -> Duals:
    """Return the duals of the user's rows and columns."""
    return (seed.v, seed.u) if matrix.transposed else (seed.u, seed.v)


@dataclass(frozen=True)
class Weighed:
    """The seeds of a matrix: two that need no prediction, and those of given duals with the rows that match at once."""

    rows: Values  # [n], minima
    columns: Values  # [m], minima
    by_columns: Seed
    by_rows: Seed
    most_matches: int  # rows that match at once on tight entries of either
    predictions: list[tuple[Seed, int]]


@compiled(fastmath=ORDERED)
def slacks(cost, mask, u, v):  # type: ignore[no-untyped-def]
    """Return min_j(C_ij - v_bj) and min_i(C_ij - u_ai) for some duals u [a, n] and v [b, m], in one pass.

    Beside them: how many columns each row holds down with u [a, n], how many rows each column with v [b, m], and how
    many rows match greedily on their smallest entries [b]. A dual of -inf is unknown: its line counts for nothing.
    """
    n, m = cost.shape
    rows, row_load = np.empty((v.shape[0], n)), np.zeros((u.shape[0], n), np.int64)
    columns, column_load = np.full((u.shape[0], m), np.inf), np.zeros((v.shape[0], m), np.int64)
    row_at = np.full((u.shape[0], m), -1, np.int32)
    taken = np.zeros((v.shape[0], m), np.uint8)
    matches = np.zeros(v.shape[0], np.int64)
    buffer, slack, lane = np.empty(m), np.empty(m), np.empty(max(m, LANES))
    for i in range(n):
        row = allowed_row(cost, mask, i, buffer)
        for b in range(v.shape[0]):
            fold(row, v[b], slack, lane)
            smallest = np.inf
            for k in range(LANES):
                smallest = min(smallest, lane[k])
            rows[b, i] = smallest
            if smallest == np.inf:
                continue
            is_first = True
            done = False
            for block in range(0, m, LANES):
                some = block + LANES > m
                if not some:
                    for k in range(LANES):
                        some |= slack[block + k] == smallest
                if some:
                    for j in range(block, min(block + LANES, m)):
                        if slack[j] == smallest:
                            if is_first:
                                column_load[b, j] += 1
                                is_first = False
                            if taken[b, j] == 0:
                                taken[b, j] = 1
                                matches[b] += 1
                                done = True
                                break
                if done:
                    break
        for a in range(u.shape[0]):
            potential = u[a, i]
            nearest, at = columns[a], row_at[a]
            for j in range(m):
                value = row[j] - potential
                at[j] = i if value < nearest[j] else at[j]
                nearest[j] = value if value < nearest[j] else nearest[j]
    for a in range(u.shape[0]):
        for j in range(m):
            if row_at[a, j] >= 0:
                row_load[a, row_at[a, j]] += 1
    return rows, columns, row_load, column_load, matches


def weigh(matrix: Matrix, u: Values | None, v: Values | None) -> Weighed:
    """Return the seeds of a matrix and of given duals: u [n], v [m], NaN where unknown, one of them at least."""
    cost, mask = matrix.cost, matrix.mask
    n, m = cost.shape
    us = [np.zeros(n)] + ([] if u is None else [np.where(np.isnan(u), -np.inf, u)])
    vs = [np.zeros(m)] + ([] if v is None else [_levelled(np.where(np.isnan(v), -np.inf, v), n)])
    rows, columns, row_load, column_load, matches = slacks(cost, mask, np.array(us), np.array(vs))
    check_minima(matrix, rows[0], columns[0])
    from_v, from_u = list(zip(rows[1:], matches[1:], strict=True)), list(columns[1:])
    fresh_u, fresh_v = _without_stale(us[1:], row_load[1:]), _without_stale(vs[1:], column_load[1:])
    if fresh_u or fresh_v:
        more_rows, more_columns, _, _, more = slacks(
            cost, mask, np.array(fresh_u).reshape(-1, n), np.array(fresh_v).reshape(-1, m)
        )
        from_v += zip(more_rows, more, strict=True)
        from_u += list(more_columns)
    starts = [_cut(np.where(np.isinf(start), columns[0], start), n) for start in (columns[0], *from_u)]
    ends = [np.where(np.isinf(end), rows[0], end) for end in (rows[0], *(end for end, _ in from_v))]
    tight, loose, _, _, counts = slacks(cost, mask, np.array(ends), np.array(starts))
    predictions = [
        (Seed(PREDICTION, *duals), int(count)) for *duals, count in zip(tight[1:], starts[1:], counts[1:], strict=True)
    ]
    for end, slack, (_, count) in zip(ends[1:], loose[1:], from_v, strict=True):
        if n < m:
            slack = _cut(slack, n)
            end = row_slack(cost, mask, slack)
        predictions.append((Seed(PREDICTION, end, slack), int(count)))
    by_rows = Seed(ROW_MINIMA, rows[0], loose[0]) if n == m else row_seed(matrix, rows[0], ROW_MINIMA)
    by_columns = Seed(COLUMN_MINIMA, tight[0], starts[0])
    return Weighed(rows[0], columns[0], by_columns, by_rows, int(max(counts[0], matches[0])), predictions)


def _without_stale(duals: list[Values], load: NDArray[np.int64]) -> list[Values]:
    """Return duals without those that hold down more lines than a right one does; none if all are kept, or no other."""
    found = []
    for values, count in zip(duals, load, strict=True):
        is_stale = count > STALE
        if is_stale.any() and np.isfinite(values[~is_stale]).any():
            found.append(np.where(is_stale, -np.inf, values))
    return found


def _levelled(v: Values, n: int) -> Values:
    """Return duals of a larger side at the level where as many are 0 as stay unmatched, cut there."""
    if n == v.size:
        return v
    known = v[np.isfinite(v)]
    level = np.sort(known)[min(n * known.size // v.size, known.size - 1)]
    return np.minimum(v - level, 0.0)


def _cut(slack: Values, n: int) -> Values:
    """Return the best duals of columns for what rows leave: of a larger side at the best level, none above 0."""
    return slack if n == slack.size else np.minimum(slack - gauge(slack, n), 0.0)


def choose(weighed: Weighed, minimum: Seed, bounds: list[float], bound: float) -> Seed | None:
    """Return the prediction to start from, by bound and by rows that match at once; None if minima are better.

    A bound that is hardly better says little if no more rows match: such seeds cost up to five passes more than minima.
    One that is not much better may mislead, too: its seed has the minima as `fallback`.

    Args:
        weighed: all seeds.
        minimum: the better one of those that need no prediction.
        bounds: of the predictions.
        bound: of `minimum`.
    """
    gain = max(bounds) - bound
    if not gain >= 0.0:
        return None
    pairs = zip(weighed.predictions, bounds, strict=True)
    close = [pair for pair, its_bound in pairs if its_bound >= max(bounds) - CLOSE * gain]
    seed, matches = max(close, key=lambda pair: (pair[1], pair[0].bound))
    spread = sum(float(np.abs(duals - np.median(duals)).sum()) for duals in (minimum.u, minimum.v))
    is_faint = gain < FAINT * spread and matches <= FEW * weighed.most_matches
    if is_faint and matches < minimum.u.size:
        return None
    return seed if gain >= CONVINCING * spread else replace(seed, fallback=minimum)
