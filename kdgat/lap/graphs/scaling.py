"""What is taken off a cost matrix and divided out before a network sees it: an affine map that it cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The spread of a row is how far its eighth cheapest entry lies above its cheapest: what a dual has to choose among.
SCALE_RANK = 8


@dataclass(frozen=True, eq=False)
class Scaling:
    """Hold the base potentials and the unit of one instance: normalised cost = (C - row_base - column_base) / unit.

    Column minima come off first, then the minima of what is left in each row, so that normalised costs are >= 0 with a
    zero in each row. For fewer rows than columns the column base is 0, since adding to a column that may stay unmatched
    changes which matching is best. C -> a C + b (a > 0) changes base and unit, and leaves the normalised cost as it is.
    """

    row_base: NDArray[np.float64]  # [n]
    column_base: NDArray[np.float64]  # [m]
    unit: float  # 0 where no row has any spread: all there is to know is in the base

    def normalise(
        self, u: NDArray[np.float64], v: NDArray[np.float64]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return duals of the normalised problem for duals of the original."""
        return self.in_units(u - self.row_base), self.in_units(v - self.column_base)

    def in_units(self, differences: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return differences of costs in units; 0 where the unit is 0."""
        return differences / self.unit if self.unit > 0.0 else np.zeros_like(differences)

    def restore(
        self, u: NDArray[np.floating], v: NDArray[np.floating]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return duals of the original problem for duals of the normalised."""
        return self.row_base + self.unit * u.astype(np.float64), self.column_base + self.unit * v.astype(np.float64)


def unit_of(row_costs: NDArray[np.floating]) -> float:
    """Return the mean spread of rows from their rising reduced costs [n, R], inf where a row has fewer entries.

    A row with fewer than SCALE_RANK entries counts with the last it has. 0 if no row has any spread.
    """
    rank = min(SCALE_RANK, row_costs.shape[1]) - 1
    present = np.isfinite(row_costs[:, : rank + 1])
    last = np.maximum(present.sum(axis=1) - 1, 0)
    chosen = present[:, 0]
    spread = row_costs[chosen, last[chosen]] - row_costs[chosen, 0]
    return float(spread.sum(dtype=np.float64)) / max(len(row_costs), 1)
