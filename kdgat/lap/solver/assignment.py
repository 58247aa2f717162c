"""What a solved assignment problem is: matching, duals, proof and work done."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMN_MINIMA = "column minima"  # of a rectangle: none


@dataclass(frozen=True)
class Counters:
    """Work that a solve did, in units that do not depend on the machine."""

    seed: str  # "prediction", "column minima" or "row minima": the one with the best dual bound
    greedy_matches: int  # rows matched on tight entries before any search
    augmentations: int  # shortest-path searches, one per row that was left
    scanned_columns: int  # entries of the matrix looked at in the searches
    core_edges: int = 0  # entries kept in candidate lists (method "core")
    repairs: int = 0  # rows whose candidate list had to be made longer (method "core")


@dataclass(frozen=True, repr=False)
class Assignment:
    """An optimal matching with the duals that prove it.

    For a minimum, u_i + v_j <= C_ij on allowed entries, with equality on matched ones; if one side is larger, its
    duals are <= 0, and 0 where unmatched. For a maximum all inequalities turn round. `cost` equals `dual_bound` up to
    rounding.
    """

    rows: NDArray[np.int64]  # [k], ascending
    columns: NDArray[np.int64]  # [k]
    cost: float
    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [m]
    dual_bound: float
    seed_bound: float  # dual bound of the seed that was used, before any search
    counters: Counters

    def __repr__(self) -> str:
        """Return one line: cost, proof and size, without the arrays."""
        return (
            f"Assignment(cost={self.cost:.12g}, dual_bound={self.dual_bound:.12g}, {len(self.rows)} pairs of "
            f"{len(self.u)} rows and {len(self.v)} columns)"
        )

    @property
    def gap(self) -> float:
        """Return |cost - dual bound|: rounding only."""
        return abs(self.cost - self.dual_bound)


class PackedAssignment(Assignment):
    """An `Assignment` as the compiled solver left it: one array, taken apart when somebody asks for more than it.

    Making eight objects for an answer takes longer than finding one of ten rows. Its only attribute is `packed`: n, m
    and an array [2 k + n + m + 6] of rows and columns [k], then, as numbers, u [n], v [m], cost, bounds, and the work.
    """

    __slots__ = ("packed",)
    packed: tuple[int, int, NDArray[np.int64]]

    def __getattr__(self, name: str) -> Any:
        """Take the array apart, once."""
        known = self.__dict__
        if name in Assignment.__dataclass_fields__ and not known:
            n, m, packed = self.packed
            k = min(n, m)
            numbers = packed[2 * k :].view(np.float64)
            cost, bound, seed_bound, matches, searches, looked_at = numbers[n + m :].tolist()
            known.update(
                rows=packed[:k],
                columns=packed[k : 2 * k],
                cost=cost,
                u=numbers[:n],
                v=numbers[n : n + m],
                dual_bound=bound,
                seed_bound=seed_bound,
                counters=Counters(COLUMN_MINIMA, int(matches), int(searches), int(looked_at)),
            )
        if name in known:
            return known[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as an `Assignment`."""
        return Assignment, tuple(getattr(self, name) for name in Assignment.__dataclass_fields__)
