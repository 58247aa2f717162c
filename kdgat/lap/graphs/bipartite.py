"""The graph of one instance: each row joined to its nearest columns and each column to its nearest rows.

Nodes are the rows, then the columns. The edges into a row come from its R nearest columns, those into a column from
its K nearest rows, so that every node has a fixed number of neighbours and memory is n (R + K), never n^2. A node with
fewer allowed entries has its list filled up with copies of its first edge, marked as not present.

A labelled graph also has W witnesses for each row: the entries that optimal duals leave the least slack. Networks do
not see them; the loss does, because duals that no listed edge forbids can still violate an entry far off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment import CostError
from kdgat.graphs import CORE, EDGE_ATTR, Column, GraphColumns, Schema
from kdgat.lap.graphs.scaling import Scaling, unit_of
from kdgat.lap.sections import GraphConfig

# Columns of x. The target is the dual that the solver found, as normalised; 0 without labels. Models read the rest.
IS_COLUMN, TARGET = 0, 1
NODE_FEATURES = ("is_column", "target")
# Columns of edge_attr: the normalised cost, and what the edge is: 1 = seen by networks, 0 = it only fills a list.
COST, PRESENT = 0, 1
WITNESS = -1.0  # in place of present
EDGE_FEATURES = ("cost", "present")
SCHEMA = Schema(
    (
        *CORE,
        EDGE_ATTR,
        Column("instance", "graph", "int64"),  # its place in what was prepared
        Column("size", "graph", "int32"),  # rows
    )
)
SMALLEST_UNIT = 1e-30  # float32, in which neighbours are kept, has no digits left for differences below


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Hold the nearest entries of a cost matrix [n, m], n <= m, and what was taken off it."""

    row_columns: NDArray[np.int32]  # [n, R] -1 = none
    row_costs: NDArray[np.float32]  # [n, R] C - base, rising, inf = none
    column_rows: NDArray[np.int32]  # [m, K]
    column_costs: NDArray[np.float32]  # [m, K]
    scaling: Scaling


def find_neighbours(cost: NDArray[np.floating], mask: NDArray[np.bool_] | None, config: GraphConfig) -> Neighbours:
    """Find the nearest entries of a cost matrix [n, m] with n <= m, finite where allowed; mask True = forbidden."""
    from kdgat.lap.graphs.neighbours import NO_MASK, column_base, nearest  # needs numba, which a training node may lack

    num_rows, num_columns = cost.shape
    forbidden = NO_MASK if mask is None else mask
    level = 0.0
    if num_rows == num_columns:
        base = column_base(cost, forbidden)
    else:  # the same for all columns, and given back to the rows: what is left is float32, which a level would eat up
        level = float(np.min(cost, initial=np.inf, where=True if mask is None else ~mask))
        level = level if np.isfinite(level) else 0.0
        base = np.full(num_columns, level)
    row_base, row_columns, row_costs, column_rows, column_costs = nearest(
        cost, forbidden, base, min(config.row_neighbours, num_columns), min(config.column_neighbours, num_rows)
    )
    unit = unit_of(row_costs)
    unit = unit if unit > SMALLEST_UNIT else 0.0
    scaling = Scaling(row_base.astype(np.float64) + level, base - level, unit)
    return Neighbours(row_columns, row_costs, column_rows, column_costs, scaling)


def build_graph(
    cost: NDArray[np.floating],
    mask: NDArray[np.bool_] | None = None,
    u: NDArray[np.float64] | None = None,
    v: NDArray[np.float64] | None = None,
    config: GraphConfig | None = None,
    instance: int = 0,
) -> GraphColumns:
    """Return the graph of one instance with n <= m, labelled with optimal duals where they are given.

    The number of neighbours is that of `config` even where the matrix is smaller: lists are filled up. `instance` is
    kept in the column of that name.
    """
    config = config or GraphConfig()
    num_rows, num_columns = cost.shape
    if num_rows > num_columns:
        raise CostError(f"cost: {num_rows} rows and {num_columns} columns: transpose it, rows must not be more")
    found = find_neighbours(cost, mask, config)
    places = costs = None
    if u is not None and v is not None and config.witnesses:
        places, costs = _witnesses(cost, mask, u, v, found.scaling, config.witnesses)
    return graph_of(found, u, v, config, instance, places, costs)


def graph_of(
    found: Neighbours,
    u: NDArray[np.float64] | None,
    v: NDArray[np.float64] | None,
    config: GraphConfig,
    instance: int = 0,
    witnesses: NDArray[np.int32] | None = None,
    witness_costs: NDArray[np.floating] | None = None,
) -> GraphColumns:
    """Return the graph of neighbours that were found before, with witnesses [n, W] of rows; see `build_graph`."""
    num_rows, num_columns, scaling = len(found.row_columns), len(found.column_rows), found.scaling
    of_rows = _edges(
        found.row_columns,
        scaling.in_units(found.row_costs),
        config.row_neighbours,
        num_rows,
        0,
        witnesses,
        witness_costs,
    )
    of_columns = _edges(found.column_rows, scaling.in_units(found.column_costs), config.column_neighbours, 0, num_rows)
    x = np.zeros((num_rows + num_columns, len(NODE_FEATURES)), np.float32)
    x[num_rows:, IS_COLUMN] = 1.0
    if u is not None and v is not None:
        x[:, TARGET] = np.concatenate(scaling.normalise(u, v))
    edge_index = np.concatenate([of_rows[0], of_columns[0]], axis=1)
    return GraphColumns(
        SCHEMA,
        node_ptr=np.array([0, len(x)], np.int64),
        edge_ptr=np.array([0, edge_index.shape[1]], np.int64),
        x=x,
        edge_index=edge_index,
        edge_attr=np.concatenate([of_rows[1], of_columns[1]]),
        instance=np.array([instance], np.int64),
        size=np.array([num_rows], np.int32),
    )


def _witnesses(
    cost: NDArray[np.floating],
    mask: NDArray[np.bool_] | None,
    u: NDArray[np.float64],
    v: NDArray[np.float64],
    scaling: Scaling,
    count: int,
) -> tuple[NDArray[np.int32], NDArray[np.floating]]:
    """Return the columns [n, W] of least slack of each row and their normalised costs, one block of rows at a time."""
    num_rows, num_columns = cost.shape
    places = np.zeros((num_rows, count), np.int32)
    found = min(count, num_columns)
    for start in range(0, num_rows, 256):
        rows = slice(start, start + 256)
        slack = cost[rows] - u[rows, None] - v
        if mask is not None:
            slack[mask[rows]] = np.inf
        nearest = np.argpartition(slack, found - 1, axis=1)[:, :found]
        best = slack.argmin(axis=1)[:, None]  # in place of entries that are forbidden or do not exist
        nearest = np.where(np.isfinite(np.take_along_axis(slack, nearest, axis=1)), nearest, best)
        places[rows, :found], places[rows, found:] = nearest, best
    costs = np.take_along_axis(cost, places.astype(np.int64), axis=1) - scaling.row_base[:, None]
    return places, scaling.in_units(costs - scaling.column_base[places])


def _edges(
    indices: NDArray[np.int32],
    costs: NDArray[np.floating],
    width: int,
    shift: int,
    first_node: int,
    witnesses: NDArray[np.int32] | None = None,
    witness_costs: NDArray[np.floating] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return edges [2, N * width] into consecutive nodes and their features, lists filled up and sorted by source."""
    count = len(indices)
    sources = np.zeros((count, width), np.int32)
    attributes = np.zeros((count, width, len(EDGE_FEATURES)), np.float32)
    found = indices.shape[1]
    present = indices >= 0
    first = np.where(present[:, :1], indices[:, :1], 0)
    sources[:] = first
    sources[:, :found] = np.where(present, indices, first)
    first_cost = np.where(present[:, 0], costs[:, 0], 0.0)
    attributes[:, :, COST] = first_cost[:, None]
    attributes[:, :found, COST] = np.where(present, costs, first_cost[:, None])
    attributes[:, :found, PRESENT] = present
    if witnesses is not None and witness_costs is not None:
        of_witnesses = np.stack([witness_costs, np.full(witness_costs.shape, WITNESS)], axis=2).astype(np.float32)
        sources = np.concatenate([sources, witnesses], axis=1)
        attributes = np.concatenate([attributes, of_witnesses], axis=1)
        width += witnesses.shape[1]
    order = np.argsort(sources, axis=1, kind="stable")
    sources = np.take_along_axis(sources, order, axis=1) + np.int32(shift)
    attributes = np.take_along_axis(attributes, order[:, :, None], axis=1)
    destinations = np.repeat(np.arange(first_node, first_node + count, dtype=np.int32), width)
    return np.stack([sources.reshape(-1), destinations]), attributes.reshape(-1, len(EDGE_FEATURES))
