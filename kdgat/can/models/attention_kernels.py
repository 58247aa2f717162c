"""What an attention network computes between its matrix products, node by node: nothing is stored per edge but scores.

Rows are read and written as slices that begin at 0: numba looks whether any other index is negative, element by
element, and a loop that looks is no loop over vectors.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import UNCOUNTED, njit

Rows = NDArray[np.float32]

# Sums in any order, as in the products; what is no number stays none.
OPTIONS: Final[dict[str, Any]] = {
    "cache": True,
    "nogil": True,
    "fastmath": {"contract", "reassoc", "nsz"},
    "error_model": "numpy",
    **UNCOUNTED,
}
NEGATIVE_SLOPE: Final = np.float32(0.2)  # as in kdgat.can.models.convolution
EPSILON: Final = np.float32(1e-5)  # as of torch.nn.LayerNorm
LOWEST: Final = np.float32(-3.0e38)  # before the first value of a maximum
ZERO, ONE = np.float32(0.0), np.float32(1.0)


@njit(**OPTIONS)
def score_edges(
    product: Rows, first: int, of_edge: Rows, edge_first: int, source: NDArray[np.int64], into: NDArray[np.int64],
    scores: Rows,
) -> None:  # fmt: skip
    """Write the attention scores [E, H] less the largest of their node; edges into node n are into[n]:into[n + 1].

    `product` [N, *] has the sources' halves from column `first` on, those of targets behind them; `of_edge` [E, *] has
    the edges' from column `edge_first` on.
    """
    heads = scores.shape[1]
    for node in range(len(into) - 1):
        for head in range(heads):
            here, largest = product[node, first + heads + head], LOWEST
            for edge in range(into[node], into[node + 1]):
                score = product[source[edge], first + head] + here + of_edge[edge, edge_first + head]
                score = NEGATIVE_SLOPE * score if score < ZERO else score
                scores[edge, head] = score
                largest = largest if score <= largest else score
            for edge in range(into[node], into[node + 1]):
                scores[edge, head] -= largest


@njit(**OPTIONS)
def aggregate(
    product: Rows, weights: Rows, source: NDArray[np.int64], into: NDArray[np.int64], skip: Rows, skip_first: int,
    bias: Rows, scale: Rows, shift: Rows, head: Rows, row: Rows, wide: Rows, output: Rows, logits: Rows,
) -> None:  # fmt: skip
    """Write the output [N, W] of a layer: messages by attention, bias and skip, normalised, what is positive of them.

    Args:
        product: [N, *] with messages in the first W columns.
        weights: [E, H] exponentials of scores; normalised here.
        source: [E] node that each edge comes from.
        into: [N + 1] edges into each node.
        skip: [N, *] with what goes past the attention from column `skip_first` on.
        bias, scale, shift: [W] of the attention and of the norm.
        head: [W] weights of the node head for this layer.
        row, wide: [W] to compute in.
        output: [N, W].
        logits: [N] to which the node head's part is added.
    """
    heads, width = weights.shape[1], output.shape[1]
    channels = width // heads
    for node in range(len(into) - 1):
        begin, end = into[node], into[node + 1]
        skipped = skip[node, skip_first : skip_first + width]
        for column in range(width):
            row[column] = bias[column] + skipped[column]
        for one in range(heads):
            total = ZERO
            for edge in range(begin, end):
                total += weights[edge, one]
            for edge in range(begin, end):
                weights[edge, one] /= total
        for edge in range(begin, end):
            for one in range(heads):  # spread, so that the loop below is one over all heads
                part, weight = wide[one * channels : (one + 1) * channels], weights[edge, one]
                for column in range(channels):
                    part[column] = weight
            message = product[source[edge], :width]
            for column in range(width):
                row[column] += wide[column] * message[column]
        written = output[node]
        _norm_relu(row, scale, shift, written)
        logit = ZERO
        for column in range(width):
            logit += written[column] * head[column]
        logits[node] += logit


@njit(**OPTIONS)
def norm_rows(x: Rows, bias: Rows, scale: Rows, shift: Rows, row: Rows) -> None:
    """Add a bias to rows of x [N, W], normalise them, and keep what is positive, in place."""
    for node in range(len(x)):
        values = x[node]
        for column in range(len(row)):
            row[column] = values[column] + bias[column]
        _norm_relu(row, scale, shift, values)


@njit(**OPTIONS)
def _norm_relu(row: Rows, scale: Rows, shift: Rows, output: Rows) -> None:
    width = np.float32(len(row))
    total = ZERO
    for column in range(len(row)):
        total += row[column]
    mean = total / width
    squares = ZERO
    for column in range(len(row)):
        squares += (row[column] - mean) * (row[column] - mean)
    factor = ONE / np.sqrt(squares / width + EPSILON)
    for column in range(len(row)):
        value = (row[column] - mean) * factor * scale[column] + shift[column]
        output[column] = ZERO if value < ZERO else value


@njit(**OPTIONS)
def pool_means(x: Rows, node_ptr: NDArray[np.int64], first: int, pooled: Rows) -> None:
    """Write the mean of each graph's rows of x [N, W] to pooled [G, *], from column `first` on."""
    width = x.shape[1]
    for graph in range(len(node_ptr) - 1):
        begin, end = node_ptr[graph], node_ptr[graph + 1]
        mean = pooled[graph, first : first + width]
        for column in range(width):
            mean[column] = x[begin, column]
        for node in range(begin + 1, end):
            values = x[node]
            for column in range(width):
                mean[column] += values[column]
        factor = ONE / np.float32(end - begin)
        for column in range(width):
            mean[column] *= factor


@njit(**OPTIONS)
def pool_maxima(x: Rows, node_ptr: NDArray[np.int64], first: int, pooled: Rows) -> None:
    """Write the largest of each graph's rows of x [N, W] to pooled [G, *], from column `first` on."""
    width = x.shape[1]
    for graph in range(len(node_ptr) - 1):
        largest = pooled[graph, first : first + width]
        for column in range(width):
            largest[column] = x[node_ptr[graph], column]
        for node in range(node_ptr[graph] + 1, node_ptr[graph + 1]):
            values = x[node]
            for column in range(width):
                value = values[column]
                largest[column] = value if value > largest[column] or value != value else largest[column]
