"""A batch of bipartite graphs as neighbour lists of fixed width: rows with their columns, columns with their rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.graphs import OnHost, group_sizes, places_of
from kdgat.lap.graphs.bipartite import COST, IS_COLUMN, PRESENT, WITNESS


class NeighbourLists(NamedTuple):
    """Hold n rows and m columns of B instances; indices count rows and columns through the whole batch.

    The lists lie along the first axis, so that a sum over a list adds whole rows of memory. Costs are normalised and
    float32. `is_bounded` marks columns of instances with fewer rows than columns: their duals
    may not be positive. It is None where there is none.
    """

    row_columns: Tensor  # [R, n] int64
    row_costs: Tensor  # [R, n]
    row_present: Tensor  # [R, n] bool
    column_rows: Tensor  # [K, m] int64
    column_costs: Tensor  # [K, m]
    column_present: Tensor  # [K, m] bool
    rows: Tensor  # [n] int64 which nodes of the batch they are
    columns: Tensor  # [m] int64
    row_graph: Tensor  # [n] int64
    column_graph: Tensor  # [m] int64
    row_counts: Tensor  # [B] int64
    column_counts: Tensor  # [B] int64
    is_bounded: Tensor | None  # [m] bool
    witnesses: Tensor  # [W, n] int64 columns whose entries only the bound heeds; W may be 0
    witness_costs: Tensor  # [W, n]


class _Sizes(NamedTuple):
    """Know how large the lists of a batch are, by what the host has of its graphs."""

    rows: int
    columns: int
    row_width: int  # R
    column_width: int  # K
    witnesses: int  # W
    has_fewer_rows: bool  # in one instance at least

    @classmethod
    def of(cls, batch: Batch) -> _Sizes:
        """Read the numbers of nodes of all graphs, and the widths of the lists in the first, which all have."""
        known = OnHost.of(batch)
        graphs, first = known.columns, known.chosen[0]
        rows = known["size"].astype(np.int64)
        columns = graphs.node_ptr[known.chosen + 1] - graphs.node_ptr[known.chosen] - rows
        start, stop = int(graphs.edge_ptr[first]), int(graphs.edge_ptr[first + 1])
        width = int(np.searchsorted(graphs.edge_index[1, start:stop], np.int32(1)))  # edges are sorted by destination
        witnesses = int((graphs.edge_attr[start : start + width, PRESENT] < 0.5 * WITNESS).sum())
        column_width = (stop - start - int(rows[0]) * width) // int(columns[0])
        has_fewer_rows = bool((rows < columns).any())
        return cls(int(rows.sum()), int(columns.sum()), width - witnesses, column_width, witnesses, has_fewer_rows)


def neighbour_lists(batch: Batch) -> NeighbourLists:
    """Take a batch of graphs of `kdgat.lap.graphs.bipartite.build_graph` apart; all have the same list widths."""
    sizes = _Sizes.of(batch)
    is_column = batch.x[:, IS_COLUMN] > 0.5
    num_columns = is_column.long().cumsum(0)
    place = torch.where(is_column, num_columns, torch.arange(1, len(is_column) + 1, device=is_column.device))
    place = torch.where(is_column, place, place - num_columns) - 1  # among its own kind
    source, destination = batch.edge_index
    to_column = is_column[destination]
    is_witness = batch.edge_attr[:, PRESENT] < 0.5 * WITNESS

    def listed(chosen: Tensor, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        edges = places_of(chosen, count * width)
        attributes = batch.edge_attr.index_select(0, edges).float()
        columns = place[source[edges]], attributes[:, COST], attributes[:, PRESENT] > 0.5
        one, other, third = (column.reshape(count, width).t().contiguous() for column in columns)
        return one, other, third

    row_columns, row_costs, row_present = listed(~to_column & ~is_witness, sizes.rows, sizes.row_width)
    column_rows, column_costs, column_present = listed(to_column & ~is_witness, sizes.columns, sizes.column_width)
    witnesses, witness_costs, _ = listed(is_witness, sizes.rows, sizes.witnesses)
    rows, columns = places_of(~is_column, sizes.rows), places_of(is_column, sizes.columns)
    row_graph, column_graph = batch.batch[rows], batch.batch[columns]
    row_counts, column_counts = (group_sizes(graph, batch.num_graphs) for graph in (row_graph, column_graph))
    is_bounded = (row_counts < column_counts)[column_graph] if sizes.has_fewer_rows else None
    return NeighbourLists(
        row_columns, row_costs, row_present, column_rows, column_costs, column_present,
        rows, columns, row_graph, column_graph, row_counts, column_counts, is_bounded, witnesses, witness_costs,
    )  # fmt: skip


class Duals(NamedTuple):
    """Hold normalised duals of a batch: u [n] of rows and v [m] of columns, float32."""

    u: Tensor
    v: Tensor


def tightened(lists: NeighbourLists, v: Tensor) -> Duals:
    """Return what the solver makes of column duals, as far as the edges tell: row duals by their minima, then again v.

    A single column that is too high lowers the rows that want it; the second step gives the difference to others.
    """
    u = row_minima(lists, v)
    return Duals(u, column_minima(lists, u))


def row_minima(lists: NeighbourLists, v: Tensor) -> Tensor:
    """Return u_i = min_j (c_ij - v_j) over all edges at each row, those of columns and witnesses too, [n]; 0 without.

    A column far from every row stands in no row's list: what else is known of it keeps its dual from rising unseen.
    """
    reduced = (lists.row_costs - take(v, lists.row_columns)).masked_fill(~lists.row_present, torch.inf)
    others = (lists.column_costs - v).masked_fill(~lists.column_present, torch.inf)
    smallest = reduced.amin(dim=0)
    smallest = smallest.scatter_reduce(0, lists.column_rows.reshape(-1), others.reshape(-1), "amin")
    if len(lists.witnesses):
        smallest = torch.minimum(smallest, (lists.witness_costs - take(v, lists.witnesses)).amin(dim=0))
    return torch.where(lists.row_present.any(dim=0), smallest, torch.zeros_like(smallest))


def column_minima(lists: NeighbourLists, u: Tensor) -> Tensor:
    """Return v_j = min_i (c_ij - u_i) over all edges at each column, witnesses too, [m]; 0 without.

    Not above 0 where it is bounded.
    """
    reduced = (lists.column_costs - take(u, lists.column_rows)).masked_fill(~lists.column_present, torch.inf)
    smallest = reduced.amin(dim=0)
    if len(lists.witnesses):
        others = (lists.witness_costs - u).reshape(-1)
        smallest = smallest.scatter_reduce(0, lists.witnesses.reshape(-1), others, "amin")
    smallest = torch.where(torch.isfinite(smallest), smallest, torch.zeros_like(smallest))
    return smallest if lists.is_bounded is None else torch.where(lists.is_bounded, smallest.clamp(max=0.0), smallest)


def take(values: Tensor, places: Tensor) -> Tensor:
    """Return values [..., m] at places [R, n], [..., R, n]; its gradient is an index_add, the same in every run."""
    return values.index_select(-1, places.reshape(-1)).view(*values.shape[:-1], *places.shape)


def bound(v: Tensor, u: Tensor, lists: NeighbourLists) -> Tensor:
    """Return sum u + sum v of each instance, [B]: its dual bound where no entry is violated."""
    total = v.new_zeros(len(lists.row_counts))
    return total.index_add(0, lists.column_graph, v).index_add(0, lists.row_graph, u)
