"""The quick way into the solver: one compiled call for a problem that is small, or of which most is one constant."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.constant_background import SHARE, solve_listed
from kdgat.assignment.rows import no_mask
from kdgat.assignment.small import SOLVED, solve_one

MAX_ENTRIES = 1024 * 1024  # from about here on, bids on short lists are always faster than on whole rows
MIN_LISTED = 150 * 150  # entries from which on a background is looked for
empty, ndarray = np.empty, np.ndarray
FLOAT64 = np.dtype(np.float64)
INT64, BOOL = np.dtype(np.int64), np.dtype(np.bool_)
NO_MASK = no_mask().view(np.bool_)
NUM_SUMS = 6  # at the end of what a kernel writes

# Each thing that is done here takes a tenth of the time that a problem of ten rows does.


def attempt(
    cost: Any, mask: Any, maximize: bool, may_forbid: bool, *, with_small: bool = True
) -> tuple[int, int, NDArray[np.int64]] | None:
    """Solve a small matrix, or one that has a background; return (rows, columns, what a `PackedAssignment` holds).

    Without `with_small`, only what has a background: there no given duals are worth a pass over the matrix.
    None leaves the problem to the general solver: sizes, types and costs that need its care, and wrong input.
    """
    if type(cost) is not ndarray or cost.ndim != 2:
        return None
    n, m = cost.shape
    size = n * m
    is_small = with_small and 0 < size <= MAX_ENTRIES
    if not (is_small or size >= MIN_LISTED):
        return None
    if cost.dtype is not FLOAT64 or not cost.flags.carray:
        if cost.dtype.kind not in "fiub" or cost.dtype.itemsize > FLOAT64.itemsize or not (is_small or is_likely(cost)):
            return None
        cost = np.array(cost, np.float64, order="C")  # numba would compile all for another type
    if mask is None:
        forbidden = NO_MASK
    elif type(mask) is np.ndarray and mask.dtype is BOOL and mask.shape == (n, m):
        forbidden = mask if mask.flags.carray else np.array(mask, order="C")
    else:
        return None
    if maximize is not False:
        maximize = bool(maximize)
    packed = empty(n + m + 2 * (n if n < m else m) + NUM_SUMS, INT64)
    if size >= MIN_LISTED and solve_listed(cost, forbidden, maximize, may_forbid, packed) == SOLVED:
        return n, m, packed
    if is_small and enter(cost, forbidden, maximize, may_forbid, packed) == SOLVED:
        return n, m, packed
    return None


def enter_first(*arguments: Any) -> int:
    """Solve by the kernel for small problems; from now on without numba's look at the types, a tenth of a short call.

    `attempt` gives it one type of each argument only. If there were others, the dispatcher goes on choosing.
    """
    global enter
    state: int = solve_one(*arguments)
    if len(solve_one.overloads) == 1:
        enter = next(iter(solve_one.overloads.values())).entry_point
    return state


enter: Callable[..., int] = enter_first


def is_likely(cost: NDArray[Any]) -> bool:
    """Return whether one value dominates a sample of the entries, so that a copy of the matrix is worth it."""
    rows, columns = (max(1, size // 8 + 1 - size // 8 % 2) for size in cost.shape)
    sample = cost[::rows, ::columns]
    _, counts = np.unique(sample, return_counts=True)
    return bool(counts.max() >= SHARE * sample.size)
