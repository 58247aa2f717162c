"""What a solved assignment problem is: matching, duals, proof and work done."""

from collections.abc import Callable
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


Take = Callable[[int, int, NDArray[np.int64]], Any]


class Part:
    """A field of a `PackedAssignment`, taken out of its array when somebody first asks for it."""

    def __init__(self, take: Take) -> None:
        self.take = take

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, packed: "PackedAssignment", owner: type) -> Any:
        """Return the part, and leave it where it is found before this is asked."""
        part = packed.__dict__[self.name] = self.take(*packed.packed)
        return part


def number(place: int) -> Take:
    """Return what takes one of the numbers at the end: cost, bounds, and the work."""
    return lambda n, m, packed: packed.view(np.float64).item(place)


def counted(n: int, m: int, packed: NDArray[np.int64]) -> Counters:
    """Return the work that was done."""
    matches, searches, looked_at = packed.view(np.float64)[-3:].tolist()
    return Counters(COLUMN_MINIMA, int(matches), int(searches), int(looked_at))


class PackedAssignment(Assignment):
    """An `Assignment` as the compiled solver left it: one array, of which a part is taken when somebody asks for it.

    Making eight objects for an answer takes longer than finding one of ten rows. Its only attribute is `packed`: n, m
    and an array [2 k + n + m + 6] of rows and columns [k], then, as numbers, u [n], v [m], cost, bounds, and the work.
    """

    __slots__ = ("packed",)
    packed: tuple[int, int, NDArray[np.int64]]

    rows = Part(lambda n, m, packed: packed[: min(n, m)])
    columns = Part(lambda n, m, packed: packed[min(n, m) : 2 * min(n, m)])
    u = Part(lambda n, m, packed: packed[2 * min(n, m) :].view(np.float64)[:n])
    v = Part(lambda n, m, packed: packed[2 * min(n, m) + n :].view(np.float64)[:m])
    cost, dual_bound, seed_bound = Part(number(-6)), Part(number(-5)), Part(number(-4))
    counters = Part(counted)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as an `Assignment`."""
        return Assignment, tuple(getattr(self, name) for name in Assignment.__dataclass_fields__)
