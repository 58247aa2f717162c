"""A batch of bipartite graphs as neighbour lists of fixed width: rows with their columns, columns with their rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch

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
    row_graph: Tensor  # [n] int64
    column_graph: Tensor  # [m] int64
    num_graphs: int
    is_bounded: Tensor | None  # [m] bool
    witnesses: Tensor  # [W, n] int64 columns whose entries only the bound heeds; W may be 0
    witness_costs: Tensor  # [W, n]


def neighbour_lists(batch: Batch) -> NeighbourLists:
    """Take a batch of graphs of `kdgat.lap.graphs.bipartite.build_graph` apart; all have the same list widths."""
    is_column = batch.x[:, IS_COLUMN] > 0.5
    num_columns = is_column.long().cumsum(0)
    place = torch.where(is_column, num_columns, torch.arange(1, len(is_column) + 1, device=is_column.device))
    place = torch.where(is_column, place, place - num_columns) - 1  # among its own kind
    source, destination = batch.edge_index
    to_column = is_column[destination]
    num_graphs = int(batch.num_graphs)
    is_witness = batch.edge_attr[:, PRESENT] < 0.5 * WITNESS
    lists: list[Tensor] = []
    for chosen, count in ((~to_column, int((~is_column).sum())), (to_column, int(is_column.sum()))):
        edges = (chosen & ~is_witness).nonzero().squeeze(1)
        attributes = batch.edge_attr.index_select(0, edges).float()
        lists += [
            place[source[edges]].reshape(count, -1).t().contiguous(),
            attributes[:, COST].reshape(count, -1).t().contiguous(),
            (attributes[:, PRESENT] > 0.5).reshape(count, -1).t().contiguous(),
        ]
    edges = is_witness.nonzero().squeeze(1)
    num_rows = lists[0].shape[1]
    witnesses = place[source[edges]].reshape(num_rows, -1).t().contiguous()
    witness_costs = batch.edge_attr[edges, COST].float().reshape(num_rows, -1).t().contiguous()
    row_graph, column_graph = batch.batch[~is_column], batch.batch[is_column]
    fewer = torch.bincount(row_graph, minlength=num_graphs) < torch.bincount(column_graph, minlength=num_graphs)
    is_bounded = fewer[column_graph] if bool(fewer.any()) else None
    row_columns, row_costs, row_present, column_rows, column_costs, column_present = lists
    return NeighbourLists(
        row_columns, row_costs, row_present, column_rows, column_costs, column_present,
        row_graph, column_graph, num_graphs, is_bounded, witnesses, witness_costs,
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
    total = v.new_zeros(lists.num_graphs)
    return total.index_add(0, lists.column_graph, v).index_add(0, lists.row_graph, u)
