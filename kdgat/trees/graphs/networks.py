"""Networks with loops, of which a store holds several spanning trees: one label, one draw, one measurement of all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdgat.graphs import GraphColumns

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Networks:
    """Know which trees of a store span the same network: without loops each tree is a network of its own.

    Attributes:
        first: [W] place of each network's first tree; its others stand behind it.
        count: [W] trees of each network.
    """

    first: Places
    count: Places

    @classmethod
    def of(cls, columns: GraphColumns) -> Networks:
        """Find the networks of a store: neighbours with one place in its list of names."""
        name = np.asarray(columns["tree"])
        first = np.flatnonzero(np.diff(name, prepend=-1))
        return cls(first, np.diff(first, append=len(name)))

    def __len__(self) -> int:
        """Return W."""
        return len(self.first)

    def trees_of(self, chosen: Places) -> Places:
        """Return the places of all trees of some networks, in their order."""
        counts = self.count[chosen]
        starts = np.cumsum(counts) - counts
        return np.repeat(self.first[chosen] - starts, counts) + np.arange(counts.sum())

    def mean(self, rows: NDArray[np.float64], chosen: Places | None = None) -> NDArray[np.float64]:
        """Return the means [W, F] of the rows [G, F] of each network's trees, of all networks or of some."""
        counts = self.count if chosen is None else self.count[chosen]
        return np.add.reduceat(rows, np.cumsum(counts) - counts, axis=0) / counts[:, None]
