"""Solve thousands of small problems in one call, over all cores that this process may use; every answer is proved."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment.errors import CostError, InfeasibleError
from kdgat.assignment.exact import solve
from kdgat.assignment.matrix import check_mask, check_shape, check_type, without_own_mask
from kdgat.assignment.partial import check_price
from kdgat.assignment.quick import FLOAT64, MIN_LISTED
from kdgat.assignment.reading import padded
from kdgat.assignment.result import COLUMN_MINIMA, Assignment, Counters
from kdgat.assignment.rows import ORDERED
from kdgat.assignment.small import SOLVED, solve_into
from kdgat.base import num_usable_cores
from kdgat.base.machine_code import compiled

LEFT = -1  # a problem that the kernel has not solved
MIN_PER_THREAD = 32  # problems; for fewer a thread takes longer to start


@dataclass(frozen=True)
class AssignmentBatch:
    """Optimal matchings of B problems with the duals that prove them, padded to the largest: n rows, m columns."""

    shapes: NDArray[np.int64]  # [B, 2] rows and columns of each problem
    columns: NDArray[np.int64]  # [B, n] of each row; -1 where a row has none
    cost: NDArray[np.float64]  # [B]
    dual_bound: NDArray[np.float64]  # [B]
    u: NDArray[np.float64]  # [B, n], 0 beyond a problem's rows
    v: NDArray[np.float64]  # [B, m]
    seed_bound: NDArray[np.float64]  # [B]
    work: NDArray[np.int64]  # [B, 3] rows matched at once, searches, entries looked at
    failed: dict[int, InfeasibleError] = field(default_factory=dict)  # problems without a matching, by number

    def __len__(self) -> int:
        return self.cost.size

    def __getitem__(self, index: int) -> Assignment:
        """Return one problem's answer as `solve` does, or raise its error if it failed."""
        index = range(len(self))[index]
        if index in self.failed:
            raise self.failed[index]
        n, m = self.shapes[index].tolist()
        rows = np.flatnonzero(self.columns[index] >= 0)
        return Assignment(
            rows,
            self.columns[index, rows],
            float(self.cost[index]),
            self.u[index, :n].copy(),
            self.v[index, :m].copy(),
            float(self.dual_bound[index]),
            float(self.seed_bound[index]),
            Counters(COLUMN_MINIMA, *self.work[index].tolist()),
        )


@compiled(fastmath=ORDERED)
def solve_some(first, last, costs, masks, place, shape, stored, sign, columns, u, v, sums, work):  # type: ignore[no-untyped-def]
    """Solve the problems from `first` to `last`; leave work[k, 0] at LEFT where the general solver has to."""
    floats, places, partners = np.empty(64), np.empty(64, np.int64), np.empty(64, np.int32)
    for k in range(first, last):
        num_rows, num_columns = shape[k]
        if num_rows * num_columns >= MIN_LISTED:
            continue
        if num_rows * num_columns == 0:
            sums[:, k], work[k] = 0.0, 0
            continue
        n, m = min(num_rows, num_columns), padded(max(num_rows, num_columns))
        if floats.size < 3 * n + 2 * m + n * m:
            floats = np.empty(2 * (3 * n + 2 * m + n * m))
        if partners.size < n + 3 * m:
            places, partners = np.empty(2 * (n + m), np.int64), np.empty(2 * (n + 3 * m), np.int32)
        height, width = stored[k]
        cost = costs[place[k] : place[k] + height * width].reshape(height, width)
        mask = masks[:0].reshape(0, 0)
        if masks.size != 0:
            mask = masks[place[k] : place[k] + height * width].reshape(height, width)
        result = solve_into(
            cost,
            mask,
            num_rows,
            num_columns,
            sign,
            0,
            columns[k, :num_rows],
            u[k, :num_rows],
            v[k, :num_columns],
            floats,
            places,
            partners,
        )
        if result[0] == SOLVED:
            sums[0, k], sums[1, k], sums[2, k] = result[1], result[2], result[3]
            work[k, 0], work[k, 1], work[k, 2] = result[4], result[5], result[6]


def solve_batch(
    costs: ArrayLike | Sequence[ArrayLike],
    *,
    sizes: ArrayLike | None = None,
    mask: ArrayLike | Sequence[ArrayLike | None] | None = None,
    maximize: bool = False,
    unmatched_cost: float | None = None,
    keep_infeasible: bool = False,
    threads: int | None = None,
) -> AssignmentBatch:
    """Solve many problems as `solve` solves each, and prove every answer.

    Args:
        costs: [B, n, m], or a list of matrices of any shapes; without rows or columns, nothing is matched.
        sizes: [B, 2], rows and columns of each problem of an array, if they are fewer.
        mask: of the form of `costs`, True where a pair is forbidden.
        maximize: seek the largest totals.
        unmatched_cost: what each row costs that is left without a column, as of `solve`: then no problem is infeasible.
        keep_infeasible: answer the others where problems have no matching. `failed` has their errors by number, their
            rows have no columns, and their cost is NaN.
        threads: how many problems are solved at a time; by default one on each core that this process may use.

    Raises:
        CostError, InfeasibleError: as `solve` does, with the number of the problem in front.

    >>> batch = solve_batch([[[4.0, 1.0], [2.0, 0.0]], [[1.0, 2.0, 3.0]], np.zeros((0, 2))])
    >>> batch.cost.tolist(), batch.columns.tolist()
    ([3.0, 1.0, 0.0], [[1, 0], [0, -1], [-1, -1]])
    >>> solve_batch([[[0.2, 0.9], [0.8, 0.7]]], unmatched_cost=0.5).columns.tolist()
    [[0, -1]]
    """
    given = _padded(costs, sizes, mask) if isinstance(costs, np.ndarray) else _ragged(costs, sizes, mask)
    problems = given if unmatched_cost is None else _bounded(given, check_price(unmatched_cost), maximize)
    shape = problems.shape
    num_problems = len(shape)
    n, m = shape.max(axis=0, initial=0).tolist()
    columns = np.full((num_problems, n), -1, np.int64)
    u, v = np.zeros((num_problems, n)), np.zeros((num_problems, m))
    sums, work = np.empty((3, num_problems)), np.full((num_problems, 3), LEFT, np.int64)
    arguments = (problems.costs, problems.masks, problems.place, shape, problems.stored)
    sign = -1.0 if maximize else 1.0
    failed: dict[int, InfeasibleError] = {}

    def run(first: int, last: int) -> None:
        solve_some(first, last, *arguments, sign, columns, u, v, sums, work)
        for k in first + np.flatnonzero(work[first:last, 0] == LEFT):
            try:
                found = _solve_alone(problems, int(k), maximize)
            except InfeasibleError as error:
                if not keep_infeasible:
                    raise
                failed[int(k)] = error
                columns[k], u[k], v[k], sums[:, k], work[k] = -1, 0.0, 0.0, np.nan, 0
                continue
            columns[k], u[k], v[k] = -1, 0.0, 0.0
            columns[k, found.rows] = found.columns
            u[k, : found.u.size], v[k, : found.v.size] = found.u, found.v
            sums[:, k] = found.cost, found.dual_bound, found.seed_bound
            counters = found.counters
            work[k] = counters.greedy_matches, counters.augmentations, counters.scanned_columns

    workers = min(threads or num_usable_cores(), num_problems // MIN_PER_THREAD)
    if workers <= 1:
        run(0, num_problems)
    else:
        # Contiguous parts, more than workers: a part of hard problems does not keep all waiting.
        ends = np.linspace(0, num_problems, 4 * workers + 1).astype(int).tolist()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, ends[:-1], ends[1:]))
    batch = AssignmentBatch(shape, columns, sums[0], sums[1], u, v, sums[2], work, dict(sorted(failed.items())))
    return batch if unmatched_cost is None else _without_dear_pairs(batch, problems, float(unmatched_cost), sign)


@dataclass(frozen=True)
class _Problems:
    """Matrices one after another, as the kernel reads them."""

    costs: NDArray[np.float64]  # [entries]
    masks: NDArray[np.bool_]  # [entries], or [0]
    place: NDArray[np.int64]  # [B] first entry of each
    shape: NDArray[np.int64]  # [B, 2] of the problem
    stored: NDArray[np.int64]  # [B, 2] of the matrix that begins with it

    def matrix(self, k: int, values: NDArray[Any]) -> NDArray[Any]:
        height, width = self.stored[k].tolist()
        n, m = self.shape[k].tolist()
        return values[self.place[k] : self.place[k] + height * width].reshape(height, width)[:n, :m]


def _bounded(problems: _Problems, price: float, maximize: bool) -> _Problems:
    """Cut costs at the price of an unmatched row, as `kdgat.assignment.partial` does."""
    costs = (np.maximum if maximize else np.minimum)(problems.costs, price)
    if problems.masks.size:
        costs[problems.masks] = price
    return replace(problems, costs=costs, masks=np.zeros(0, bool))


def _without_dear_pairs(batch: AssignmentBatch, problems: _Problems, price: float, sign: float) -> AssignmentBatch:
    """Return partial matchings, given the best ones of bounded costs; see `kdgat.assignment.partial`."""
    num_rows, num_columns = batch.shapes.T
    n, m = batch.columns.shape[1], batch.v.shape[1]
    entries = problems.place[:, None] + np.arange(n) * problems.stored[:, 1:] + batch.columns
    is_pair = batch.columns >= 0
    is_dear = np.zeros(is_pair.shape, bool)
    is_dear[is_pair] = sign * problems.costs[entries[is_pair]] >= sign * price
    u, v = sign * batch.u, sign * batch.v
    has_row, has_column = np.arange(n) < num_rows[:, None], np.arange(m) < num_columns[:, None]
    shift = np.where(has_column, v, -np.inf).max(axis=1, initial=-np.inf)
    shift = np.where(num_rows == num_columns, shift, 0.0)
    shift[num_rows == 0] = 0.0
    left = np.maximum(num_rows - num_columns, 0) * price
    return replace(
        batch,
        columns=np.where(is_dear, -1, batch.columns),
        cost=batch.cost + left,
        dual_bound=batch.dual_bound + left,
        seed_bound=batch.seed_bound + left,
        u=sign * (u + has_row * shift[:, None]),
        v=sign * (v - has_column * shift[:, None]),
    )


def _solve_alone(problems: _Problems, k: int, maximize: bool) -> Assignment:
    cost = problems.matrix(k, problems.costs)
    mask = problems.matrix(k, problems.masks) if problems.masks.size else None
    try:
        return solve(cost, mask=mask, maximize=maximize)
    except InfeasibleError as error:
        raise InfeasibleError(f"problem {k}: {error}", error.matched, error.rows, error.columns) from error
    except CostError as error:
        raise CostError(f"problem {k}: {error}") from error


def _padded(costs: NDArray[Any], sizes: ArrayLike | None, mask: Any) -> _Problems:
    data, mask = without_own_mask(costs, mask)
    values = check_type(data)
    if values.ndim != 3:
        raise CostError(f"costs has shape {values.shape}: [problems, rows, columns] or a list of matrices is needed")
    num_problems, height, width = values.shape
    shape = np.tile(np.array([height, width]), (num_problems, 1))
    if sizes is not None:
        given = np.asarray(sizes)
        if given.shape != shape.shape or given.dtype.kind not in "iu":
            raise CostError(
                f"sizes has shape {given.shape}, dtype {given.dtype}: whole numbers [problems, 2] are needed"
            )
        wrong = ((given < 0) | (given > shape)).any(axis=1)
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            raise CostError(f"sizes[{k}] is {given[k].tolist()}: from [0, 0] to [{height}, {width}] are possible")
        shape = np.ascontiguousarray(given, np.int64)
    forbidden = check_mask(mask, values.shape)
    flags = np.zeros(0, bool) if forbidden is None else np.array(forbidden).reshape(-1)
    flat = np.require(values, np.float64, ["C", "A", "W"]).reshape(-1)
    stored = np.tile(np.array([height, width]), (num_problems, 1))
    return _Problems(flat, flags, np.arange(num_problems) * height * width, shape, stored)


def _ragged(costs: Any, sizes: ArrayLike | None, masks: Any) -> _Problems:
    if sizes is not None:
        raise CostError("sizes is given beside a list of matrices: these have their own shapes; leave it out")
    if masks is not None and len(masks) != len(costs):
        raise CostError(f"mask has {len(masks)} entries, costs has {len(costs)}: one for each problem is needed")
    matrices: list[NDArray[Any]] = []
    own: dict[int, NDArray[np.bool_]] = {}
    for k, cost in enumerate(costs):
        if type(cost) is np.ndarray and cost.ndim == 2 and cost.dtype is FLOAT64 and masks is None:
            matrices.append(cost)  # what follows takes a tenth of the time that a problem of ten rows does
            continue
        try:
            values, mask = without_own_mask(cost, None if masks is None else masks[k])
            matrix = check_type(values)
            check_shape(matrix)
            forbidden = check_mask(mask, matrix.shape)
        except CostError as error:
            raise type(error)(f"problem {k}: {error}") from error
        matrices.append(matrix)
        if forbidden is not None:
            own[k] = forbidden
    shape = np.array([matrix.shape for matrix in matrices], np.int64).reshape(-1, 2)
    flags = np.zeros(0, bool)
    if own:
        parts = [own[k].reshape(-1) if k in own else np.zeros(c.size, bool) for k, c in enumerate(matrices)]
        flags = np.concatenate([flags, *parts])
    flat = np.concatenate([np.zeros(0), *(matrix.reshape(-1) for matrix in matrices)], dtype=np.float64)
    place = np.concatenate([np.zeros(1, np.int64), np.cumsum(shape.prod(axis=1))])[:-1]
    return _Problems(flat, flags, place, shape, shape)
