"""Input standardisation that travels with the weights."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kdgat.base import UserError

LEAST_DEVIATION = 1e-2
NO_ROWS = "the training stores hold no rows to standardise by: check the data of this dataset"


class Standardise(nn.Module):
    """Scale features by the training store's mean and deviation, then clamp.

    Mean and deviation are buffers, so a loaded model scales a new recording exactly as in training and nothing of a
    test recording can enter them. The clamp bounds what a single odd message can do to a window.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, num_features: int, limit: float = 8.0) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("deviation", torch.ones(num_features))

    def set_statistics(self, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> None:
        """Set the buffers from `mean` and `deviation` of shape [F]."""
        self.mean.copy_(torch.from_numpy(mean))
        self.deviation.copy_(torch.from_numpy(deviation))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled features [N, F]."""
        return ((x - self.mean) / self.deviation).clamp(-self.limit, self.limit)


def column_statistics(
    chunks: Callable[[], Iterable[NDArray[np.float32]]], scaler: Any | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and population deviation per column over the rows of all chunks [N, F].

    `chunks` is called twice: a sum of squares in one pass alone cancels for columns far from zero. A column that never
    varies gets deviation 1, so that it maps to zero instead of to noise; one that hardly varies gets the least, so
    that a rare event does not reach the clamp at once. Raises UserError when there is no row.

    A `scaler` with scikit-learn's interface (`partial_fit`, `mean_`, `var_`) computes them instead, for that of cuml on
    a GPU: it sums in another order, in double precision still, which the single precision of the buffers hides.
    """
    mean, deviation = _fitted(chunks, scaler) if scaler is not None else _summed(chunks)
    return mean, np.where(deviation < 1e-6, 1.0, np.maximum(deviation, LEAST_DEVIATION))


def _fitted(
    chunks: Callable[[], Iterable[NDArray[np.float32]]], scaler: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    num_rows = 0
    for chunk in chunks():
        num_rows += len(chunk)
        if len(chunk):
            scaler.partial_fit(chunk.astype(np.float64))
    if num_rows == 0:
        raise UserError(NO_ROWS)
    return np.asarray(scaler.mean_, np.float64), np.sqrt(np.asarray(scaler.var_, np.float64))


def _summed(chunks: Callable[[], Iterable[NDArray[np.float32]]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    num_rows = 0
    total = np.zeros(1)
    for chunk in chunks():
        num_rows += len(chunk)
        total = total + chunk.sum(axis=0, dtype=np.float64)
    if num_rows == 0:
        raise UserError(NO_ROWS)
    mean = total / num_rows
    squares = np.zeros_like(mean)
    for chunk in chunks():
        squares += np.square(chunk - mean).sum(axis=0)
    return mean, np.sqrt(squares / num_rows)
