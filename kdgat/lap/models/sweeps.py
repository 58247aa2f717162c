"""Duals from sweeps over nearest neighbours, without any training: what a network on the same graph has to beat.

One sweep gives every row, then every column, a soft minimum of the reduced costs of its stored neighbours at a falling
temperature: Sinkhorn's iteration in the log domain (Cuturi 2013) on n (R + K) entries instead of n^2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import compiled
from kdgat.lap.graphs.bipartite import find_neighbours
from kdgat.lap.sections import GraphConfig

NUM_SWEEPS = 12
FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.5, 0.02  # in units of the instance's scale
FAR = 20.0  # temperatures: what lies further above the minimum adds nothing that float64 sums would show


@compiled
def _soft_minima(indices, costs, other, own, temperature):  # type: ignore[no-untyped-def]
    """Write the soft minimum of costs [n, R] - other[indices] of every node to own [n]; -1 ends a list."""
    for node in range(indices.shape[0]):
        least = np.inf
        count = 0
        for place in range(indices.shape[1]):
            neighbour = indices[node, place]
            if neighbour < 0:
                break
            least = min(least, costs[node, place] - other[neighbour])
            count += 1
        if count == 0:
            continue
        total = 0.0
        for place in range(count):
            above = (costs[node, place] - other[indices[node, place]] - least) / temperature
            if above < FAR:
                total += math.exp(-above)
        own[node] = least - temperature * math.log(total)


@compiled
def _sweep(row_columns, row_costs, column_rows, column_costs, u, v, temperatures, is_bounded):  # type: ignore[no-untyped-def]
    for temperature in temperatures:
        _soft_minima(row_columns, row_costs, v, u, temperature)
        _soft_minima(column_rows, column_costs, u, v, temperature)
        if is_bounded:
            for column in range(len(v)):
                v[column] = min(v[column], 0.0)


def neighbour_sweeps(
    cost: NDArray[np.floating],
    mask: NDArray[np.bool_] | None = None,
    num_sweeps: int = NUM_SWEEPS,
    graph: GraphConfig | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return duals u [n], v [m] of a cost matrix [n, m] with n <= m, not feasible yet; mask True = forbidden."""
    found = find_neighbours(np.ascontiguousarray(cost), mask, graph or GraphConfig())
    unit = found.scaling.unit
    u, v = np.zeros(cost.shape[0]), np.zeros(cost.shape[1])
    temperatures = unit * np.geomspace(FIRST_TEMPERATURE, LAST_TEMPERATURE, num_sweeps)
    is_bounded = cost.shape[0] < cost.shape[1]
    _sweep(found.row_columns, found.row_costs, found.column_rows, found.column_costs, u, v, temperatures, is_bounded)
    return u + found.scaling.row_base, v + found.scaling.column_base
