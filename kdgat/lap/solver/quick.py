"""The quick way into the solver: one compiled call for a problem that is small, or of which most is one constant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.lap.solver.assignment import Assignment, Counters
from kdgat.lap.solver.background import SHARE, solve_listed
from kdgat.lap.solver.kernels import no_mask
from kdgat.lap.solver.small import SOLVED, solve_one

MAX_ENTRIES = 800 * 800  # from about here on, short lists of candidates are faster than whole rows
MIN_LISTED = 150 * 150  # entries from which on a background is looked for
FLOAT64 = np.dtype(np.float64)
NO_MASK = no_mask()
FORBIDS = {False: (0, 0), True: (0x7FF0000000000000, -0x0010000000000000)}  # bits of +inf and -inf, where these forbid
SEED = "column minima"  # of a rectangle: none


def attempt(
    cost: Any, mask: Any, maximize: bool, allow_infinity: bool, *, with_small: bool = True
) -> tuple[Any, ...] | None:
    """Solve a small matrix, or one that has a background; return (rows, u and v, pairs, result of the kernel).

    Without `with_small`, only what has a background: there no given duals are worth a pass over the matrix.
    None leaves the problem to the general solver: sizes, types and costs that need its care, and wrong input.
    """
    if type(cost) is not np.ndarray or cost.ndim != 2 or not cost.size > 0 or cost.dtype.kind not in "fiub":
        return None
    is_small = with_small and cost.size <= MAX_ENTRIES
    if not (is_small or cost.size >= MIN_LISTED):
        return None
    flags = cost.flags
    if cost.dtype is not FLOAT64 or not (flags.c_contiguous and flags.writeable and flags.aligned):
        if cost.dtype.itemsize > FLOAT64.itemsize or not (is_small or is_likely(cost)):
            return None
        cost = np.array(cost, np.float64, order="C")  # numba would compile all for another type
    if mask is None:
        forbidden = NO_MASK
    elif type(mask) is np.ndarray and mask.dtype == np.bool_ and mask.shape == cost.shape:
        forbidden = np.require(mask, None, ["C", "W"]).view(np.uint8)
    else:
        return None
    n, m = cost.shape
    numbers = np.empty(n + m)
    pairs = np.empty((2, n if n < m else m), np.int64)
    sign, forbids = -1.0 if maximize else 1.0, FORBIDS[allow_infinity][maximize]
    if cost.size >= MIN_LISTED:
        result = solve_listed(cost, forbidden, sign, forbids, numbers, pairs)
        if result[0] == SOLVED:
            return n, numbers, pairs, result
    if is_small:
        result = solve_one(cost, forbidden, sign, forbids, numbers, pairs)
        if result[0] == SOLVED:
            return n, numbers, pairs, result
    return None


def assignment_of(n: int, numbers: NDArray[np.float64], pairs: NDArray[np.int64], result: Any) -> Assignment:
    """Return what `attempt` found as an Assignment."""
    _, total, bound, seed_bound, matches, searches, looked_at = result
    # Written at once: what a frozen dataclass does for each of its fields takes longer than a small problem.
    counters, made = object.__new__(Counters), object.__new__(Assignment)
    counters.__dict__.update(
        seed=SEED,
        greedy_matches=matches,
        augmentations=searches,
        scanned_columns=looked_at,
        core_edges=0,
        repairs=0,
    )
    made.__dict__.update(
        rows=pairs[0],
        columns=pairs[1],
        cost=total,
        u=numbers[:n],
        v=numbers[n:],
        dual_bound=bound,
        seed_bound=seed_bound,
        counters=counters,
    )
    return made


def is_likely(cost: NDArray[Any]) -> bool:
    """Return whether one value dominates a sample of the entries, so that a copy of the matrix is worth it."""
    rows, columns = (max(1, size // 8 + 1 - size // 8 % 2) for size in cost.shape)
    sample = cost[::rows, ::columns]
    _, counts = np.unique(sample, return_counts=True)
    return bool(counts.max() >= SHARE * sample.size)
