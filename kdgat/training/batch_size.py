"""Cut a batch into parts when it does not fit the GPU; the gradient stays that of the whole batch."""

import logging

import numpy as np
import torch
from numpy.typing import NDArray

logger = logging.getLogger(__name__)


def cut(indices: NDArray[np.int64], num_parts: int) -> list[NDArray[np.int64]]:
    """Cut a batch into at most `num_parts` parts of nearly equal numbers of graphs, none of them empty."""
    if num_parts == 1:
        return [indices]
    return list(np.array_split(indices, min(num_parts, len(indices))))


def double_parts(num_parts: int, num_graphs: int, error: torch.OutOfMemoryError) -> int:
    """Return twice the number of parts and free what the failed attempt left cached.

    Raises:
        torch.OutOfMemoryError: the one given, if a part is a single graph already.
    """
    if num_parts >= num_graphs:
        raise error
    # The exception's frames hold the tensors of the failed attempt.
    error.__traceback__ = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    logger.warning("GPU memory is short (%s): batches are cut into %d parts from now on", first_line, 2 * num_parts)
    return 2 * num_parts
