"""Attention over edges sorted by target, on a CPU: sums over sorted edges, and no intermediate per edge and channel.

A layer with H heads of C channels sums E * H products of one number and C channels. As a product of a sparse matrix
[N * H, N * H], which holds the attention, and the values [N * H, C], each channel is read once and written once; the
gradient of the values is the product with the transpose, that of the attention a product that is computed only where
the matrix has entries. All sums run in the order of the edges, on one thread or several: results repeat bit for bit.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

SMALLEST_SUM = 1e-16  # of a softmax, as in PyG


class _Pattern(NamedTuple):
    """Where a sparse matrix [N * H, N * H] has its entries; row i * H + h is head h of node i."""

    row_ptr: Tensor  # [N * H + 1]
    column: Tensor  # [E * H]
    entry: Tensor  # [E * H] which of the numbers [E, H] each entry is


class SortedEdges:
    """Edges of a batch sorted by target, arranged once for all layers."""

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        """Sort edges [2, E] between N nodes; those that are sorted stay as they are."""
        source, target = edge_index[0], edge_index[1]
        self.order: Tensor | None = None  # [E] from the given edges
        if len(target) and not bool((target[1:] >= target[:-1]).all()):
            self.order = torch.argsort(target, stable=True)
            source, target = source.index_select(0, self.order), target.index_select(0, self.order)
        self.source, self.target, self.num_nodes = source.contiguous(), target.contiguous(), num_nodes
        self.ptr = _offsets(self.target, num_nodes)  # [N + 1] edges into each node
        self._by_source: tuple[Tensor, Tensor] | None = None
        self._patterns: dict[tuple[int, bool], _Pattern] = {}

    def sort(self, values: Tensor | None) -> Tensor | None:
        """Bring values [E, ...] of the given edges into their order here."""
        return values if values is None or self.order is None else values.index_select(0, self.order)

    def by_source(self) -> tuple[Tensor, Tensor]:
        """Return the edges [E] in the order of their sources, and where those of each node begin [N + 1]."""
        if self._by_source is None:
            self._by_source = torch.argsort(self.source, stable=True), _offsets(self.source, self.num_nodes)
        return self._by_source

    def pattern(self, heads: int, *, transposed: bool = False) -> _Pattern:
        """Return the pattern of the attention, whose rows are targets, or that of its transpose."""
        key = (heads, transposed)
        if key not in self._patterns:
            edges = torch.arange(len(self.source))
            if transposed:
                order, ptr = self.by_source()
                place = torch.empty_like(edges).index_copy_(0, order, edges)
                self._patterns[key] = _pattern(self.source, self.target, place, ptr, heads)
            else:
                self._patterns[key] = _pattern(self.target, self.source, edges, self.ptr, heads)
        return self._patterns[key]


def _offsets(node: Tensor, num_nodes: int) -> Tensor:
    return functional.pad(torch.bincount(node, minlength=num_nodes).cumsum(0), (1, 0))


def _pattern(row: Tensor, column: Tensor, place: Tensor, ptr: Tensor, heads: int) -> _Pattern:
    """Spread edges [E], of which `place` [E] says where they stand in the order of their rows, over the heads."""
    head = torch.arange(heads)
    first, count = ptr[:-1], ptr[1:] - ptr[:-1]
    row_ptr = torch.cat([(first.unsqueeze(1) * heads + count.unsqueeze(1) * head).flatten(), ptr[-1:] * heads])
    start = place + first.index_select(0, row) * (heads - 1)
    entry_place = (start.unsqueeze(1) + count.index_select(0, row).unsqueeze(1) * head).flatten()  # [E * H]
    columns = (column.unsqueeze(1) * heads + head).flatten()
    entry = torch.empty_like(entry_place).index_copy_(0, entry_place, torch.arange(len(entry_place)))
    return _Pattern(row_ptr, columns.index_select(0, entry), entry)


def _reduced(values: Tensor, how: str, ptr: Tensor) -> Tensor:
    """Reduce the rows [E, H] of each group, which begins at `ptr` [N + 1]; where there is no row at all, to zero."""
    if not len(values):  # torch refuses
        return values.new_zeros(len(ptr) - 1, values.shape[1])
    return torch.segment_reduce(values, how, offsets=ptr, axis=0)


def softmax_of_edges(score: Tensor, edges: SortedEdges) -> Tensor:
    """Normalise scores [E, H] over the edges into each node."""
    largest = _reduced(score, "max", edges.ptr)
    weight = (score - largest.index_select(0, edges.target)).exp_()
    total = _reduced(weight, "sum", edges.ptr)
    return weight.div_(total.add_(SMALLEST_SUM).index_select(0, edges.target))


class _Attention(torch.autograd.Function):
    """Softmax of scores over the edges into each node, and the sum of the values weighted by it."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, values: Tensor, score: Tensor, edges: SortedEdges, slope: float, kept: Tensor | None
    ) -> Tensor:
        values, heads = values.contiguous(), score.shape[1]
        attention = softmax_of_edges(functional.leaky_relu(score, slope), edges)
        used = attention if kept is None else attention * kept
        ctx.save_for_backward(values, score, attention, *(() if kept is None else (kept,)))
        ctx.edges, ctx.slope = edges, slope
        result = _weighted_sum(used, values.view(len(values) * heads, -1), edges.pattern(heads))
        return torch.ops.aten._unsafe_view(result, values.shape)  # no view to autograd: what follows adds in place

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(  # type: ignore[override]  # once_differentiable hides that it takes the same
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        values, score, attention, *rest = ctx.saved_tensors
        edges, heads = ctx.edges, score.shape[1]
        rows = (len(values) * heads, -1)
        gradient = gradients[0].contiguous().view(rows)
        used = attention * rest[0] if rest else attention
        of_values = _weighted_sum(used, gradient, edges.pattern(heads, transposed=True)).view_as(values)
        of_score = _products(gradient, values.view(rows), edges.pattern(heads)).view_as(score)
        if rest:
            of_score.mul_(rest[0])
        of_score.mul_(attention)
        mean = _reduced(of_score, "sum", edges.ptr)
        of_score.addcmul_(attention, mean.index_select(0, edges.target), value=-1.0)
        return of_values, torch.ops.aten.leaky_relu_backward(of_score, score, ctx.slope, False), None, None, None


class _EndScores(torch.autograd.Function):
    """What sources and targets, [N, H] each, add to the scores [E, H] of their edges."""

    @staticmethod
    def forward(ctx: Any, of_source: Tensor, of_target: Tensor, edges: SortedEdges) -> Tensor:
        ctx.edges = edges
        return of_source.index_select(0, edges.source).add_(of_target.index_select(0, edges.target))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        edges, gradient = ctx.edges, gradients[0].contiguous()
        order, ptr = edges.by_source()
        of_source = _reduced(gradient.index_select(0, order), "sum", ptr)
        return of_source, _reduced(gradient, "sum", edges.ptr), None


def score_edges(of_source: Tensor, of_target: Tensor, edges: SortedEdges) -> Tensor:
    """Return the sum [E, H] of what source and target, [N, H] each, add to the score of an edge."""
    result: Tensor = _EndScores.apply(of_source, of_target, edges)  # type: ignore[no-untyped-call]
    return result


def attend(values: Tensor, score: Tensor, edges: SortedEdges, slope: float, kept: Tensor | None = None) -> Tensor:
    """Sum values [N, H * C] over the edges into each node, weighted by the softmax of leaky_relu(score), [N, H * C].

    `kept` [E, H] multiplies the weights: dropout. Computed in single precision, under autocast too.
    """
    result: Tensor = _Attention.apply(values, score, edges, slope, kept)  # type: ignore[no-untyped-call]
    return result


def _weighted_sum(weight: Tensor, values: Tensor, pattern: _Pattern) -> Tensor:
    """Multiply the matrix with the numbers [E, H] by values [N * H, C]."""
    return torch.sparse.mm(_matrix(weight.view(-1).index_select(0, pattern.entry), pattern), values, "sum")


def _products(left: Tensor, right: Tensor, pattern: _Pattern) -> Tensor:
    """Return the product of rows of left and right, [N * H, C] each, at every entry of the matrix, as [E * H]."""
    empty = _matrix(left.new_zeros(len(pattern.entry)), pattern)
    products = torch.sparse.sampled_addmm(empty, left, right.t(), beta=0.0).values()
    return torch.empty_like(products).index_copy_(0, pattern.entry, products)


def _matrix(entries: Tensor, pattern: _Pattern) -> Tensor:
    return sparse_rows(pattern.row_ptr, pattern.column, entries, len(pattern.row_ptr) - 1)


def sparse_rows(row_ptr: Tensor, column: Tensor, entries: Tensor, num_columns: int) -> Tensor:
    """Return a sparse matrix [R, num_columns] from its rows' offsets [R + 1] and its entries [M] with their columns."""
    _announce()
    shape = (len(row_ptr) - 1, num_columns)
    return torch.sparse_csr_tensor(row_ptr, column, entries, shape, check_invariants=False)


@cache
def _announce() -> None:
    """Let torch say once, to nobody, that its sparse matrices are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))
