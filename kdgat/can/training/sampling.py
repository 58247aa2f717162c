"""Which windows an epoch is made of, as sources for `kdgat.training.fit`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

from kdgat.can.sections import SamplingConfig
from kdgat.can.training.pool import PooledStores
from kdgat.canbus.features import INJECTED, TRAIN
from kdgat.training.config import TrainingConfig
from kdgat.training.limit import BatchLimit, GraphSizes
from kdgat.training.source import StatelessSource


class SamplingError(ValueError):
    """The stores cannot give the sample that was asked for."""


class PoolSource(StatelessSource):
    """Batches of a fixed set of windows of a pool, shuffled anew each epoch or in order."""

    def __init__(
        self, pool: PooledStores, indices: NDArray[np.int64], config: TrainingConfig, seed: int, shuffle: bool
    ) -> None:
        self.pool = pool
        self.indices = indices
        self.config = config
        self.limit = BatchLimit.of(config)
        self.graph_sizes = GraphSizes(pool.node_counts, pool.edge_counts)
        self.seed = seed
        self.shuffle = shuffle

    def graphs(self) -> NDArray[np.int64]:
        """Return every window that some epoch may bring."""
        return self.indices

    def windows(self, epoch: int) -> NDArray[np.int64]:
        """Return the windows of an epoch: a pure function of seed and epoch."""
        return self.indices

    def plan(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch."""
        return self.limit.plan(self.windows(epoch), self.graph_sizes, self.seed, epoch, self.shuffle)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return one batch."""
        return self.pool.gather(indices)


class SampledSource(PoolSource):
    """A fresh sample each epoch from recorded and injected windows, in fixed proportions."""

    def __init__(
        self,
        pool: PooledStores,
        sampling: SamplingConfig,
        config: TrainingConfig,
        seed: int,
        chosen: NDArray[np.bool_] | None = None,
    ) -> None:
        """Draw from the windows marked in `chosen` [G], or from all."""
        chosen = np.ones(pool.num_graphs, bool) if chosen is None else chosen
        super().__init__(pool, np.flatnonzero(chosen), config, seed, shuffle=True)
        self.sampling = sampling
        self.groups = _groups(pool, sampling, chosen)

    def graphs(self) -> NDArray[np.int64]:
        """Return every window that some epoch may draw."""
        if self.sampling == SamplingConfig():
            return self.indices
        return np.unique(np.concatenate([indices for _, indices in self.groups]))

    def windows(self, epoch: int) -> NDArray[np.int64]:
        """Draw the windows of an epoch."""
        if self.sampling == SamplingConfig():
            return self.indices
        generator = np.random.default_rng([self.seed, epoch, 1])
        total = self.sampling.graphs_per_epoch or len(self.indices)
        counts = apportion(total, [share for share, _ in self.groups])
        return np.concatenate(
            [draw(indices, count, generator) for (_, indices), count in zip(self.groups, counts, strict=True)]
        )


def draw(indices: NDArray[np.int64], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` windows: each one equally often as far as that goes, the rest without replacement."""
    if count == 0:
        return np.zeros(0, np.int64)
    repeats, rest = divmod(count, len(indices))
    return np.concatenate([np.tile(indices, repeats), generator.choice(indices, rest, replace=False)])


def _groups(
    pool: PooledStores, sampling: SamplingConfig, chosen: NDArray[np.bool_]
) -> list[tuple[float, NDArray[np.int64]]]:
    """Return (share of an epoch, windows) for each group that an epoch draws from."""
    is_injected = np.zeros(pool.num_graphs, bool)
    is_injected[pool.indices_of(INJECTED)] = True
    fraction = sampling.injected_fraction
    if fraction is None:
        fraction = float(is_injected[chosen].mean())
    groups: list[tuple[float, NDArray[np.int64]]] = []
    for name, share, origin in ((INJECTED, fraction, is_injected), (TRAIN, 1.0 - fraction, ~is_injected)):
        members = chosen & origin
        if share == 0.0:
            continue
        if not members.any():
            raise SamplingError(
                f"sampling.injected_fraction={sampling.injected_fraction} asks for windows of the {name} store and it "
                "has none: change injected_fraction, or the injection"
            )
        if not sampling.balanced:
            groups.append((share, np.flatnonzero(members)))
            continue
        classes = [np.flatnonzero(members & (pool.labels == label)) for label in (0, 1)]
        present = [indices for indices in classes if len(indices)]
        groups += [(share / len(present), indices) for indices in present]
    return groups


def apportion(total: int, shares: list[float]) -> list[int]:
    """Split `total` by shares that sum to 1, so that the parts sum to `total`."""
    edges = np.rint(np.cumsum([0.0, *shares]) * total).astype(int)
    edges[-1] = total
    return np.diff(edges).tolist()
