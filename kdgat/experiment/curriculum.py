"""A curriculum of one's own: which samples an epoch brings, as a function of the epoch and of all metrics before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.experiment.declaration import ExperimentError
from kdgat.training import GraphSource

Curriculum = Callable[[int, list[dict[str, float]], Any], Any]  # (epoch, metrics so far, Samples)


class CurriculumSource(GraphSource):
    """Samples drawn by weights, or in an order, that a function returns for each epoch.

    The metrics of all epochs are its state: an epoch that is resumed asks the function the same.
    """

    def __init__(self, curriculum: Curriculum, *given: Any) -> None:
        """Take the function, and what a `GraphSource` takes."""
        super().__init__(*given)
        self._curriculum = curriculum
        self._metrics: list[dict[str, float]] = []

    def epoch_graphs(self, epoch: int) -> NDArray[np.int64]:
        """Return the samples of an epoch: an order as it is, weights as that many draws with replacement."""
        found = np.asarray(self._curriculum(epoch, [dict(row) for row in self._metrics], self.store))
        num_samples = len(self.chosen)
        name = getattr(self._curriculum, "__qualname__", "curriculum")
        if found.ndim != 1 or not found.size or found.dtype.kind not in "fiu":
            raise ExperimentError(
                f"{name}, epoch {epoch}: returned {found.dtype} {found.shape}: return weights, a number per sample "
                f"[{num_samples}], or the numbers of samples in the order in which they come"
            )
        if found.dtype.kind in "iu":
            if found.min() < 0 or found.max() >= num_samples:
                raise ExperimentError(f"{name}, epoch {epoch}: samples are 0 to {num_samples - 1}, not {found.max()}")
            return found.astype(np.int64)
        if len(found) != num_samples or not np.isfinite(found).all() or found.min() < 0 or not found.any():
            raise ExperimentError(
                f"{name}, epoch {epoch}: {len(found)} weights between {found.min():g} and {found.max():g} for "
                f"{num_samples} samples: return one for each, finite, none below 0 and not all 0"
            )
        generator = np.random.default_rng([self.seed, epoch, 3])
        return generator.choice(num_samples, num_samples, p=found / found.sum())

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics of the epochs so far."""
        return {"metrics": self._metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self._metrics = [dict(row) for row in state["metrics"]]

    def describe(self, epoch: int) -> dict[str, float]:
        """Return how many different samples an epoch brings."""
        return {"curriculum_samples": float(len(np.unique(self.epoch_graphs(epoch))))}

    def on_epoch_end(self, epoch: int, metrics: dict[str, float]) -> None:
        """Keep the metrics of an epoch."""
        self._metrics.append(dict(metrics))
