"""Curriculum: from balanced and easy to natural and hard, a little further every epoch.

Two things move, as in the published system, where the loader was made once and so neither ever did: the number of
benign windows per attacked one, and the percentile of the autoencoder's score from which a benign window counts as
hard. Everything is a function of (seed, epoch, scores), so a resumed run plans the same batches.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.can.sections import CurriculumConfig
from kdgat.can.training.sampling import PoolSource, SamplingError, draw
from kdgat.can.windows.pool import PooledStores
from kdgat.training.config import TrainingConfig


class CurriculumEpoch(NamedTuple):
    """Where the curriculum stands in an epoch."""

    ratio: float
    percentile: float
    hard_fraction: float
    threshold: float  # score from which a benign window is hard
    num_attack: int
    num_benign: int


class CurriculumSource(PoolSource):
    """Windows of an epoch by ratio and difficulty."""

    def __init__(
        self,
        pool: PooledStores,
        scores: NDArray[np.float64],
        curriculum: CurriculumConfig,
        config: TrainingConfig,
        seed: int,
    ) -> None:
        """Hold the pool and the autoencoder's score [G] of each of its windows."""
        super().__init__(pool, np.arange(pool.num_graphs), config, seed, shuffle=True)
        if scores.shape != (pool.num_graphs,):
            raise SamplingError(f"{scores.shape} scores for {pool.num_graphs} windows; score the same stores")
        self.curriculum = curriculum
        self.attacks = np.flatnonzero(pool.labels == 1)
        self.benign = np.flatnonzero(pool.labels == 0)
        for name, indices in (("attacked", self.attacks), ("benign", self.benign)):
            if len(indices) == 0:
                raise SamplingError(f"a curriculum needs {name} windows and the training stores have none")
        self.benign_scores = scores[self.benign]

    def curriculum_epoch(self, epoch: int) -> CurriculumEpoch:
        """Return ratio, difficulty and sizes of an epoch."""
        curriculum = self.curriculum
        ramp = max(1.0, curriculum.ramp_fraction * (self.config.max_epochs - 1))
        progress = min(1.0, epoch / ramp)

        def between(start: float, end: float) -> float:
            return start + progress * (end - start)

        ratio = between(curriculum.start_ratio, curriculum.end_ratio)
        percentile = between(curriculum.start_percentile, curriculum.end_percentile)
        if curriculum.graphs_per_epoch is None:
            num_attack = len(self.attacks)
            num_benign = min(round(num_attack * ratio), len(self.benign))
        else:
            num_attack = max(1, round(curriculum.graphs_per_epoch / (1.0 + ratio)))
            num_benign = max(1, curriculum.graphs_per_epoch - num_attack)
        threshold = float(np.percentile(self.benign_scores, percentile))
        hard = between(curriculum.start_hard_fraction, curriculum.end_hard_fraction)
        return CurriculumEpoch(ratio, percentile, hard, threshold, num_attack, num_benign)

    def describe(self, epoch: int) -> dict[str, float]:
        """Return where the curriculum stands in an epoch, each number under `curriculum_<name>`."""
        return {f"curriculum_{name}": float(value) for name, value in self.curriculum_epoch(epoch)._asdict().items()}

    def largest_epoch(self) -> int:
        """Return the first of the epochs with the most windows."""
        epochs = (self.curriculum_epoch(epoch) for epoch in range(self.config.max_epochs))
        return int(np.argmax([epoch.num_attack + epoch.num_benign for epoch in epochs]))

    def windows(self, epoch: int) -> NDArray[np.int64]:
        """Draw the windows of an epoch: attacks, hard benign windows, and benign windows of any kind."""
        curriculum_epoch = self.curriculum_epoch(epoch)
        generator = np.random.default_rng([self.seed, epoch, 2])
        hard = self.benign[self.benign_scores >= curriculum_epoch.threshold]
        num_hard = round(curriculum_epoch.hard_fraction * curriculum_epoch.num_benign)
        return np.concatenate(
            [
                draw(self.attacks, curriculum_epoch.num_attack, generator),
                draw(hard, num_hard, generator),
                draw(self.benign, curriculum_epoch.num_benign - num_hard, generator),
            ]
        )
