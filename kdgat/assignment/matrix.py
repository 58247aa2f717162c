"""A cost matrix as the kernels want it: checked, no more rows than columns, to be minimised."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.assignment import bipartite
from kdgat.assignment.errors import CostError, CostTypeError, InfeasibleError
from kdgat.assignment.rows import first_bad_row, is_integral, no_mask

NUMBERS_SHOWN = 10
FORBID = {  # what to do about an infinity, whether one of them forbids or not
    False: "say mask[i, j] = True for pairs that are forbidden",
    True: "a pair is forbidden by +inf if costs are minimised, by -inf if they are maximised",
}
SPARE_EXPONENT = 8
# Of the sum of all entries: duals, which sum some costs each, are summed in turn.
FINITE_EXPONENT = 1024 - SPARE_EXPONENT


@dataclass(frozen=True)
class Matrix:
    """A cost matrix for the kernels, and what was done to the user's to get it."""

    cost: NDArray[np.float64]  # [n, m], n <= m, C-contiguous; +inf is forbidden
    mask: NDArray[np.uint8]  # [n, m], 1 is forbidden; or [0, 0]
    transposed: bool
    negated: bool
    exponent: int = 0  # the user's costs are so many times larger, as a power of two

    @property
    def sign(self) -> float:
        """Return what turns a cost of this matrix into one of the user's."""
        return -1.0 if self.negated else 1.0

    @property
    def unit(self) -> float:
        """Return the user's number that is 1 here."""
        return self.sign * 2.0**self.exponent

    def allowed(self) -> NDArray[np.bool_]:
        """Return which entries may be matched [n, m]."""
        allowed = np.isfinite(self.cost)
        return allowed & (self.mask == 0) if self.mask.size else allowed

    def is_integral(self) -> bool:
        """Return whether all allowed entries are whole numbers; the first row that is not ends the pass."""
        return bool(is_integral(self.cost, self.mask))

    def name(self, i: int, j: int) -> str:
        """Name an entry as the user counts them."""
        return f"cost[{j}, {i}]" if self.transposed else f"cost[{i}, {j}]"


def make_matrix(
    cost: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    maximize: bool = False,
    allow_infinity: bool = False,
    may_scale: bool = False,
) -> Matrix:
    """Check a cost matrix and its mask; copy only what has to be converted.

    `allow_infinity`: an entry that is +inf (-inf if maximising) is forbidden, as in scipy. `may_scale`: costs whose
    sums could overflow are divided by a power of two, which `exponent` keeps. A masked array brings its own mask along.
    Raise CostError.
    """
    cost, mask = without_own_mask(cost, mask)
    values = check_type(cost)
    check_shape(values)
    if values.size == 0:
        raise CostError(f"cost has shape {values.shape}: it has no entry, so there is nothing to assign")
    forbidden = check_mask(mask, values.shape)
    transposed = values.shape[0] > values.shape[1]
    if transposed:
        values = values.T
        forbidden = None if forbidden is None else forbidden.T
    if maximize:
        work = np.empty(values.shape)
        np.negative(values, out=work, dtype=np.float64)
    else:
        work = writable(np.require(values, np.float64, ["C", "A"]))
    blocked = no_mask() if forbidden is None else writable(np.require(forbidden, np.bool_, ["C"]).view(np.uint8))
    matrix = Matrix(work, blocked, transposed, maximize)
    if may_scale and is_scaled_down(matrix, allow_infinity):
        exponent = SPARE_EXPONENT + math.ceil(math.log2(work.size))
        matrix = replace(matrix, cost=np.ldexp(work, -exponent), exponent=exponent)
    check_numbers(matrix, allow_infinity)
    return matrix


def check_shape(values: NDArray[Any]) -> None:
    """Raise CostError if costs are no matrix."""
    if values.ndim != 2:
        raise CostError(
            f"expected a matrix (2-D array), got a {values.ndim} array: cost has shape {values.shape}, "
            "[rows, columns] is needed"
        )


def check_type(cost: ArrayLike) -> NDArray[Any]:
    """Return costs as an array of real numbers that float64 takes.

    Lists are converted as scipy converts them: whole numbers beyond 64 bits, Decimal, Fraction and numbers in strings
    are rounded to float64, None is NaN. CostError for what is no array of numbers, CostTypeError for other types.
    """
    if hasattr(cost, "toarray"):
        raise CostError(
            "cost is sparse, expected a matrix (2-D array): `solve` takes it, else pass cost.toarray(), and as mask "
            "where no entry is stored"
        )
    if isinstance(cost, np.ma.MaskedArray):
        raise CostError("cost is a masked array: pass cost.data, and np.ma.getmaskarray(cost) as the mask")
    try:
        values = np.asarray(cost)
    except ValueError as error:
        raise CostError(f"cost is no matrix: {error}") from error
    if values is not cost and values.dtype.kind in "OU":
        return _converted(values)
    if values.dtype.kind not in "fiub" or values.dtype.itemsize > np.dtype(np.float64).itemsize:
        raise CostTypeError(
            f"Cannot cast array data from {values.dtype!r} to dtype('float64'): cost has dtype {values.dtype}, real "
            "numbers of up to 64 bits are needed; convert with cost.astype(float)"
        )
    return values


def _converted(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return Python's objects as numbers; CostError, CostTypeError."""
    try:
        return values.astype(np.float64)
    except OverflowError as error:
        raise CostError("cost holds a whole number beyond 1e308: scale the matrix") from error
    except TypeError as error:
        raise CostTypeError(f"cost has dtype {values.dtype}: {error}") from error
    except ValueError as error:
        raise CostError(f"cost holds what is no number: {error}") from error


def without_own_mask(cost: ArrayLike, mask: ArrayLike | None) -> tuple[ArrayLike, ArrayLike | None]:
    """Return the data of a masked array, and a mask that forbids what either of the masks does."""
    if not isinstance(cost, np.ma.MaskedArray):
        return cost, mask
    own = np.ma.getmaskarray(cost)
    forbidden = check_mask(mask, own.shape)
    if forbidden is None:
        return cost.data, own if own.any() else None
    return cost.data, own | forbidden


def writable(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array with the same data that says it may be written; no kernel writes to it.

    numba takes a read-only array for another type and would compile all kernels once more; a copy would double the
    memory of a mapped file.
    """
    if values.flags.writeable:
        return values
    return np.asarray(_Writable(values))


class _Writable:
    """What numpy makes an array of that shares the data of another one, and keeps that one alive."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.__array_interface__ = {**values.__array_interface__, "data": (values.ctypes.data, False)}


def check_mask(mask: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """Check that a mask is boolean and as large as the matrix."""
    if mask is None:
        return None
    forbidden = np.asarray(mask)
    if forbidden.shape != shape:
        raise CostError(f"mask has shape {forbidden.shape}, cost has {shape}: one flag per entry is needed")
    if forbidden.dtype != np.bool_:
        raise CostError(f"mask has dtype {forbidden.dtype}: booleans are needed, True where a pair is forbidden")
    return forbidden


def too_large(entries: int) -> float:
    """Return the power of two from which on sums and duals of a matrix of so many entries could overflow."""
    return 2.0 ** (FINITE_EXPONENT - math.ceil(math.log2(entries)))


def is_scaled_down(matrix: Matrix, allow_infinity: bool) -> bool:
    """Return whether costs are finite, but so large that sums of them could overflow."""
    rows = matrix.cost.view(np.int64)
    limits = (np.float64(limit).view(np.int64) for limit in (too_large(matrix.cost.size), np.inf))
    first, infinite = (first_bad_row(rows, matrix.mask, allow_infinity, limit) for limit in limits)
    return bool(first < infinite == matrix.cost.shape[0])


def check_numbers(matrix: Matrix, allow_infinity: bool) -> None:
    """Raise CostError for the first allowed entry that is not a finite number."""
    cost, mask = matrix.cost, matrix.mask
    limit = too_large(cost.size)
    row = first_bad_row(cost.view(np.int64), mask, allow_infinity, np.float64(limit).view(np.int64))
    if row == cost.shape[0]:
        return
    bad = ~(np.abs(cost[row]) < limit)
    if allow_infinity:
        bad &= cost[row] != np.inf
    if mask.size:
        bad &= mask[row] == 0
    column = int(np.flatnonzero(bad)[0])
    value = matrix.sign * cost[row, column]
    if np.isfinite(value):
        large = np.where(matrix.allowed(), np.abs(cost), 0.0)
        row, column = divmod(int(large.argmax()), cost.shape[1])
        raise CostError(
            f"{matrix.name(row, column)} is {matrix.sign * cost[row, column]}: sums of costs of {limit:.1e} "
            "or more could overflow; scale the matrix, for example by 2.0**-64, or forbid these pairs"
        )
    fix = "replace it by a number" if np.isnan(value) else FORBID[allow_infinity]
    raise CostError(
        f"{matrix.name(row, column)} is {value}: matrix contains invalid numeric entries; every allowed cost has to be "
        f"finite; {fix}"
    )


def check_duals(
    duals: ArrayLike | None, size: int, name: str, *, may_be_unknown: bool = False
) -> NDArray[np.float64] | None:
    """Check a seed's duals of one side: `size` finite numbers, or NaN for those that are unknown, if that may be."""
    if duals is None:
        return None
    values = np.asarray(duals)
    if values.dtype.kind not in "fiub":
        raise CostError(f"{name} has dtype {values.dtype}: real numbers are needed")
    values = np.ascontiguousarray(values, np.float64)
    if values.shape != (size,):
        raise CostError(f"{name} has shape {values.shape}: one dual for each of the {size} lines is needed, [{size}]")
    is_wrong = np.isinf(values) if may_be_unknown else ~np.isfinite(values)
    if is_wrong.any():
        place = int(np.flatnonzero(is_wrong)[0])
        unless = ", or NaN where unknown" if may_be_unknown else ""
        raise CostError(f"{name}[{place}] is {values[place]}: seed duals have to be finite{unless}")
    return values


def infeasible(matrix: Matrix) -> InfeasibleError:
    """State why no matching of the whole smaller side exists: how many can be matched, and which lines compete."""
    start, columns = bipartite.edges_of(matrix.allowed())
    return infeasible_edges(start, columns, matrix.cost.shape[1], transposed=matrix.transposed)


def infeasible_edges(
    start: NDArray[np.int64], columns: NDArray[np.int32], num_columns: int, *, transposed: bool
) -> InfeasibleError:
    """State the same of allowed entries that are listed by rows, of which there are no more than columns.

    By a largest matching (Hopcroft and Karp) and the lines that alternating paths from an unmatched one reach (Hall).
    """
    column_of, row_of = bipartite.largest_matching(start, columns, num_columns)
    matched = int((column_of >= 0).sum())
    reached = bipartite.competing(start, columns, row_of, int(np.flatnonzero(column_of < 0)[0]))
    many, few = (np.flatnonzero(lines).tolist() for lines in reached)
    lines, others = ("column", "row") if transposed else ("row", "column")
    message = (
        f"cost matrix is infeasible: no matching of all {column_of.size} {lines}s over the allowed entries: at most "
        f"{matched} can be matched; {_named(lines, many)} {'is' if len(many) == 1 else 'are'} allowed "
        f"{_allowed(others, few, len(many))}; allow more of their entries, or leave them out"
    )
    return InfeasibleError(message, matched, *((few, many) if transposed else (many, few)))


def _named(line: str, numbers: list[int]) -> str:
    return f"{line} {numbers[0]}" if len(numbers) == 1 else f"{line}s {_listed(numbers)}"


def _allowed(line: str, few: list[int], wanted: int) -> str:
    """Say which lines are allowed, and that they are fewer than are wanted."""
    if not few:
        return f"no {line} at all"
    return f"only {_named(line, few)}, and {wanted} need {wanted} different {line}s"


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:NUMBERS_SHOWN]))
    return f"[{shown}{', ...' if len(numbers) > NUMBERS_SHOWN else ''}]"
