"""Input standardisation that travels with the weights."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

# Rows read at a time: features are memory-mapped and may be larger than memory.
CHUNK_ROWS = 262_144


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
    arrays: list[NDArray[np.float32]], minimum: float = 1e-6
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and population deviation per column over the rows of all arrays [N, F].

    A column that never varies gets deviation 1, so that it maps to zero instead of to noise. Raises ValueError when
    there is no row at all.
    """
    num_rows = sum(len(array) for array in arrays)
    if num_rows == 0:
        raise ValueError("the training store holds no rows, so there is nothing to standardise by; check the data")
    num_columns = arrays[0].shape[1]
    total = np.zeros(num_columns)
    for chunk in _chunks(arrays):
        total += chunk.sum(axis=0, dtype=np.float64)
    mean = total / num_rows
    squares = np.zeros(num_columns)
    for chunk in _chunks(arrays):
        squares += np.square(chunk - mean).sum(axis=0)  # two passes: a sum of squares alone cancels for timestamps
    deviation = np.sqrt(squares / num_rows)
    deviation[deviation < minimum] = 1.0
    return mean, deviation


def _chunks(arrays: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    return [array[start : start + CHUNK_ROWS] for array in arrays for start in range(0, len(array), CHUNK_ROWS)]
