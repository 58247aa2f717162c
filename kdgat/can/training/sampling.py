"""Which windows an epoch is made of, as sources for `kdgat.training.fit.fit`."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.can.data.pool import PooledStores
from kdgat.can.sections import SamplingConfig
from kdgat.canbus.features import INJECTED, TRAIN
from kdgat.training import BatchLimit, GraphSizes, GraphSource, TrainingConfig
from kdgat.training.graph_source import Store

MOST_REPEATS: Final = 10  # of a window of an epoch, where its vehicle has few, unless all together are too few


class PoolSource(GraphSource):
    """Batches of a fixed set of windows of a pool, shuffled anew each epoch or in order."""

    def __init__(
        self,
        pool: PooledStores,
        indices: NDArray[np.int64],
        config: TrainingConfig,
        seed: int,
        shuffle: bool,
        store: Store | None = None,
    ) -> None:
        """Hold the windows; `store` makes their batches where the pool's own lack something."""
        sizes = GraphSizes(pool.node_counts, pool.edge_counts)
        super().__init__(store or pool, sizes, BatchLimit.of(config), seed, shuffle, indices)
        self.pool, self.config = pool, config


class SampledSource(PoolSource):
    """A fresh sample each epoch from recorded and injected windows, in fixed proportions."""

    def __init__(
        self,
        pool: PooledStores,
        sampling: SamplingConfig,
        config: TrainingConfig,
        seed: int,
        chosen: NDArray[np.bool_] | None = None,
        store: Store | None = None,
    ) -> None:
        """Draw from the windows marked in `chosen` [G], or from all; `store` as of `PoolSource`."""
        chosen = np.ones(pool.num_graphs, bool) if chosen is None else chosen
        super().__init__(pool, np.flatnonzero(chosen), config, seed, shuffle=True, store=store)
        self.sampling = sampling
        self.groups = _groups(pool, sampling, chosen)
        self.draws_all = sampling == SamplingConfig() and len(np.unique(pool.vehicles[pool.indices_of(TRAIN)])) < 2

    def graphs(self) -> NDArray[np.int64]:
        """Return every window that some epoch may draw."""
        if self.draws_all:
            return self.chosen
        return np.unique(np.concatenate([indices for _, indices in self.groups]))

    def epoch_graphs(self, epoch: int) -> NDArray[np.int64]:
        """Draw the windows of an epoch."""
        if self.draws_all:
            return self.chosen
        generator = np.random.default_rng([self.seed, epoch, 1])
        total = self.sampling.graphs_per_epoch or len(self.chosen)
        counts = apportion(total, [share for share, _ in self.groups])
        return np.concatenate(
            [
                draw(indices, count, generator, self.pool.vehicles[indices])
                for (_, indices), count in zip(self.groups, counts, strict=True)
            ]
        )


def draw(
    indices: NDArray[np.int64],
    count: int,
    generator: np.random.Generator,
    vehicles: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Draw `count` windows: each one equally often as far as that goes, the rest without replacement.

    Of several `vehicles` [G], as many windows of each, however many it has, unless that were more than MOST_REPEATS
    times each: then the others have the rest.
    """
    if count == 0:
        return np.zeros(0, np.int64)
    several = np.unique(vehicles) if vehicles is not None else ()
    if len(several) > 1:
        own = [indices[vehicles == vehicle] for vehicle in several]
        counts = _counts_of([len(some) for some in own], count)
        return np.concatenate([draw(some, each, generator) for some, each in zip(own, counts, strict=True)])
    repeats, rest = divmod(count, len(indices))
    return np.concatenate([np.tile(indices, repeats), generator.choice(indices, rest, replace=False)])


def _counts_of(sizes: list[int], count: int) -> list[int]:
    """Return how many windows to draw of each vehicle, which has so many: the same of all that have enough."""
    repeats = max(MOST_REPEATS, -(-count // sum(sizes)))
    counts, asked = [repeats * size for size in sizes], list(range(len(sizes)))
    while asked:
        rest = count - sum(counts[place] for place in range(len(sizes)) if place not in asked)
        even = dict(zip(asked, apportion(rest, [1.0 / len(asked)] * len(asked)), strict=True))
        enough = [place for place in asked if even[place] <= counts[place]]
        if enough == asked:
            for place in asked:
                counts[place] = even[place]
            break
        asked = enough
    return counts


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
            raise UserError(
                f"sampling.injected_fraction={sampling.injected_fraction} asks for windows of the {name} store and it "
                "has none: change injected_fraction, or the injection"
            )
        is_of_several = len(np.unique(pool.vehicles[members])) > 1  # of which few may have been attacked
        if not sampling.balanced and not is_of_several:
            groups.append((share, np.flatnonzero(members)))
            continue
        classes = [np.flatnonzero(members & (pool.labels == label)) for label in (0, 1)]
        present = [indices for indices in classes if len(indices)]
        sizes = [1 if sampling.balanced else len(indices) for indices in present]
        groups += [(share * size / sum(sizes), indices) for size, indices in zip(sizes, present, strict=True)]
    return groups


def apportion(total: int, shares: list[float]) -> list[int]:
    """Split `total` by shares that sum to 1, so that the parts sum to `total`."""
    edges = np.rint(np.cumsum([0.0, *shares]) * total).astype(int)
    edges[-1] = total
    return np.diff(edges).tolist()
