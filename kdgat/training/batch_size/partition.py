"""Cut a batch into parts when it does not fit the GPU; the gradient stays that of the whole batch."""

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
    free_memory(reason_of(error), 2 * num_parts)
    return 2 * num_parts


def reason_of(error: torch.OutOfMemoryError) -> str:
    """Return the first line of an error, and let go of what its frames hold: the tensors of the failed attempt."""
    error.__traceback__ = None
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def free_memory(reason: str, num_parts: int) -> None:
    """Free what a failed attempt left cached, and say in how many parts batches go through the model now."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    logger.warning("GPU memory is short (%s): batches are cut into %d parts from now on", reason, num_parts)


class StepStart:
    """What a training step changes before its gradient is complete, put back when the step is done again in parts.

    Buffers of the module and torch's random states. Those of Python and numpy are left alone: they take longer to copy
    than a small step takes, and models draw from torch.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._places = [(one._buffers, name) for one in module.modules() for name in one._buffers]
        self._buffers: list[tuple[Tensor | None, Tensor | None]] = []
        self._random: list[Tensor] = []

    def note(self) -> None:
        """Remember how it is now."""
        with torch.no_grad():
            found = [buffers[name] for buffers, name in self._places]
            self._buffers = [(buffer, None if buffer is None else buffer.clone()) for buffer in found]
        self._random = [torch.get_rng_state()]
        if self._device is not None:
            self._random.append(torch.cuda.get_rng_state(self._device))

    def put_back(self) -> None:
        """Make it as it was."""
        with torch.no_grad():
            for (buffers, name), (buffer, values) in zip(self._places, self._buffers, strict=True):
                if buffer is not None and values is not None:
                    buffer.copy_(values)
                buffers[name] = buffer
        torch.set_rng_state(self._random[0])
        if self._device is not None:
            torch.cuda.set_rng_state(self._random[1], self._device)
