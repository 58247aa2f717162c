"""The pool of injected windows: virtual recordings, made and thinned one at a time, and the count of what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kdgat.can.evaluation.results import InjectedAttack, InjectionSummary
from kdgat.can.recordings.messages import Messages
from kdgat.can.sections import InjectionConfig, WindowConfig
from kdgat.can.virtual.injection import Injected, make_variant
from kdgat.can.windows.graphs import build_graphs
from kdgat.graphs.columns import GraphColumns


class InjectedPool:
    """Virtual recordings, made and built one at a time so that memory holds a single one."""

    def __init__(
        self,
        traffic: Sequence[Messages],
        config: InjectionConfig,
        windows: WindowConfig,
        seed: int,
        num_variants: int,
        progress: Callable[[int, int], None],
    ) -> None:
        """Make `num_variants` recordings from attack-free traffic; `progress` is called with how many are made."""
        self.traffic = traffic
        self.config = config
        self.windows = windows
        self.seed = seed
        self.num_variants = num_variants
        self.progress = progress
        self.names = [f"injected/virtual-{variant:05d}" for variant in range(num_variants)]
        self._attacks: dict[str, Counter[str]] = {}
        self._changes: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    def __iter__(self) -> Iterator[GraphColumns]:
        for variant in range(self.num_variants):
            injected = make_variant(self.traffic, self.config, self.seed, variant)
            graphs = build_graphs(injected.messages, self.windows)
            rng = np.random.default_rng([self.seed, variant, 1])
            kept = np.flatnonzero(rng.random(graphs.num_graphs) < self.config.kept_fraction)
            graphs = graphs.select(kept)
            self._count(injected, graphs)
            if variant % 10 == 9:
                self.progress(variant + 1, self.num_variants)
            yield graphs

    def _count(self, injected: Injected, graphs: GraphColumns) -> None:
        self._totals.update(windows=graphs.num_graphs, attack_windows=int(graphs["y"].sum()))
        self._changes.update(set(injected.changes))
        for attack in injected.attacks:
            kind = attack.partition(":")[0]
            counter = self._attacks.setdefault(kind, Counter())
            counter.update(windows=int(graphs["y"].sum()), messages=int(graphs["attack_count"].sum()), recordings=1)

    def summary(self, seed: int) -> InjectionSummary:
        """State what was injected; complete once every variant was made."""
        return InjectionSummary(
            enabled=True,
            seed=seed,
            num_virtual_vehicles=self.num_variants,
            num_windows=self._totals["windows"],
            num_attack_windows=self._totals["attack_windows"],
            attacks={
                kind: InjectedAttack(
                    num_windows=count["windows"], num_messages=count["messages"], num_recordings=count["recordings"]
                )
                for kind, count in sorted(self._attacks.items())
            },
            diversity=dict(sorted(self._changes.items())),
        )
