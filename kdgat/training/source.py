"""Where batches come from: an epoch is a list of index arrays, so a position in it is one integer."""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class EpochSource(Protocol):
    """Batches of one split, epoch by epoch.

    What a curriculum knows must be in `state_dict` and may change in `on_epoch_end` only: an epoch that is resumed
    asks for its plan again and must get the same one.
    """

    def plan(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch as index arrays: a pure function of seed, epoch and curriculum state."""
        ...

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Return the batch of these indices; on any device, the trainer moves it if need be."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the curriculum state: plain Python values, tensors and numpy arrays, nested."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def describe(self, epoch: int) -> dict[str, float]:
        """Return numbers that say what the plan of an epoch is made of; they stand in its row of metrics.jsonl."""
        ...

    def on_epoch_end(self, epoch: int, metrics: dict[str, float]) -> None:
        """Move the curriculum on, knowing the metrics of training and validation."""
        ...


class StatelessSource:
    """The rest of a source whose every epoch is made alike and follows from seed and epoch alone."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accept the empty state."""

    def describe(self, epoch: int) -> dict[str, float]:
        """Return nothing."""
        return {}

    def on_epoch_end(self, epoch: int, metrics: dict[str, float]) -> None:
        """Change nothing."""

    def largest_epoch(self) -> int:
        """Return the first epoch: all have as many graphs."""
        return 0


def plan_digest(plan: Sequence[NDArray[np.int64]]) -> str:
    """Hash a plan; a resumed epoch compares it with the plan that it started with."""
    digest = hashlib.sha256()
    for indices in plan:
        digest.update(len(indices).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(indices, dtype=np.int64).tobytes())
    return digest.hexdigest()
