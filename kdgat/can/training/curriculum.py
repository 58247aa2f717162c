"""Curriculum: from balanced and easy to the plain network's mixture, a little further every epoch.

Three things move: the number of benign windows per attacked one; the percentile of the autoencoder's score from which a
benign window counts as hard, as in the published system, where the loader was made once and so neither ever did; and
the share of the attacked windows, easiest first, that are drawn from (competence, Platanios et al. 2019, eq. 7). An
attack is the harder, the fewer of its messages a window holds. Recorded and injected windows are mixed as the plain
network has them, so that the order is all in which both differ. Everything is a function of (seed, epoch, scores), so a
resumed run plans the same batches.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.can.data.pool import PooledStores
from kdgat.can.sections import CurriculumConfig, SamplingConfig
from kdgat.can.training.sampling import PoolSource, apportion, draw
from kdgat.canbus.features import INJECTED
from kdgat.training import TrainingConfig


class CurriculumEpoch(NamedTuple):
    """Where the curriculum stands in an epoch."""

    ratio: float
    percentile: float
    hard_fraction: float
    threshold: float  # score from which a benign window is hard
    competence: float  # share of the attacked windows, easiest first, that are drawn from
    num_attack: int
    num_benign: int


class CurriculumSource(PoolSource):
    """Windows of an epoch by ratio and difficulty."""

    def __init__(
        self,
        pool: PooledStores,
        scores: NDArray[np.float64],
        curriculum: CurriculumConfig,
        sampling: SamplingConfig,
        config: TrainingConfig,
        seed: int,
    ) -> None:
        """Hold the pool and the autoencoder's score [G] of each of its windows."""
        super().__init__(pool, np.arange(pool.num_graphs), config, seed, shuffle=True)
        if scores.shape != (pool.num_graphs,):
            raise UserError(f"{scores.shape} scores for {pool.num_graphs} windows; score the same stores")
        self.curriculum = curriculum
        self.attacks = np.flatnonzero(pool.labels == 1)
        self.benign = np.flatnonzero(pool.labels == 0)
        for name, indices in (("attacked", self.attacks), ("benign", self.benign)):
            if len(indices) == 0:
                raise UserError(f"a curriculum needs {name} windows and the training stores have none")
        self.scores = scores
        self.benign_scores = scores[self.benign]
        counts = np.concatenate([np.asarray(part["attack_count"]) for part in pool.parts])
        self.mixture = _mixture(pool, sampling)
        self.plain_ratio = sum(self.mixture[0].values()) / sum(self.mixture[1].values())
        # Of each origin, the attacked windows with the most injected messages first.
        self.easiest_first = {}
        for origin in self.mixture[1]:
            own = self.attacks[np.isin(self.attacks, pool.indices_of(origin))]
            self.easiest_first[origin] = own[np.argsort(-counts[own], kind="stable")]

    def curriculum_epoch(self, epoch: int) -> CurriculumEpoch:
        """Return ratio, difficulty and sizes of an epoch."""
        curriculum = self.curriculum
        ramp = max(1.0, curriculum.ramp_fraction * (self.config.max_epochs - 1))
        progress = min(1.0, epoch / ramp)

        def between(start: float, end: float) -> float:
            return start + progress * (end - start)

        end_ratio = self.plain_ratio if curriculum.end_ratio is None else curriculum.end_ratio
        ratio = between(curriculum.start_ratio, end_ratio)
        first = curriculum.start_competence**2
        competence = float(np.sqrt(first + progress * (1.0 - first)))
        percentile = between(curriculum.start_percentile, curriculum.end_percentile)
        if curriculum.graphs_per_epoch is None:
            num_attack = len(self.attacks)
            num_benign = min(round(num_attack * ratio), len(self.benign))
        else:
            num_attack = max(1, round(curriculum.graphs_per_epoch / (1.0 + ratio)))
            num_benign = max(1, curriculum.graphs_per_epoch - num_attack)
        threshold = float(np.percentile(self.benign_scores, percentile))
        hard = between(curriculum.start_hard_fraction, curriculum.end_hard_fraction)
        return CurriculumEpoch(ratio, percentile, hard, threshold, competence, num_attack, num_benign)

    def describe(self, epoch: int) -> dict[str, float]:
        """Return where the curriculum stands in an epoch, each number under `curriculum_<name>`."""
        return {f"curriculum_{name}": float(value) for name, value in self.curriculum_epoch(epoch)._asdict().items()}

    def largest_epoch(self) -> int:
        """Return the first of the epochs with the most windows."""
        epochs = (self.curriculum_epoch(epoch) for epoch in range(self.config.max_epochs))
        return int(np.argmax([epoch.num_attack + epoch.num_benign for epoch in epochs]))

    def epoch_graphs(self, epoch: int) -> NDArray[np.int64]:
        """Draw the windows of an epoch: attacks, hard benign windows, and benign windows of any kind."""
        now = self.curriculum_epoch(epoch)
        generator = np.random.default_rng([self.seed, epoch, 2])
        parts = []
        for origin, count in _divide(now.num_attack, self.mixture[1]).items():
            known = self.easiest_first[origin]
            parts.append(draw(known[: max(1, round(now.competence * len(known)))], count, generator))
        for origin, count in _divide(now.num_benign, self.mixture[0]).items():
            own = self.benign[np.isin(self.benign, self.pool.indices_of(origin))]
            hard = own[self.scores[own] >= now.threshold]
            num_hard = round(now.hard_fraction * count) if len(hard) else 0
            vehicles = self.pool.vehicles
            parts.append(draw(hard, num_hard, generator, vehicles[hard]))
            parts.append(draw(own, count - num_hard, generator, vehicles[own]))
        return np.concatenate(parts)


def _mixture(pool: PooledStores, sampling: SamplingConfig) -> tuple[dict[str, float], dict[str, float]]:
    """Return, for benign and for attacked windows, which share of the plain network's epoch is of each store."""
    sizes = {name: len(pool.indices_of(name)) for name in pool.names}
    shares = {name: size / pool.num_graphs for name, size in sizes.items()}
    if sampling.injected_fraction is not None and INJECTED in shares and len(shares) > 1:
        others = 1.0 - shares[INJECTED]
        shares = {
            name: sampling.injected_fraction
            if name == INJECTED
            else share * (1.0 - sampling.injected_fraction) / others
            for name, share in shares.items()
        }
    mixture: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for name, share in shares.items():
        labels = pool.labels[pool.indices_of(name)]
        attacked = 0.5 if sampling.balanced and labels.any() and not labels.all() else float(labels.mean())
        for label, part in ((0, share * (1.0 - attacked)), (1, share * attacked)):
            if part > 0.0:
                mixture[label][name] = part
    return mixture


def _divide(count: int, shares: dict[str, float]) -> dict[str, int]:
    """Split a number of windows by shares, so that the parts sum to it."""
    return dict(zip(shares, apportion(count, [share / sum(shares.values()) for share in shares.values()]), strict=True))
