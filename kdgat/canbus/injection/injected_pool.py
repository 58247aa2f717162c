"""The pool of injected windows: virtual recordings, made and thinned one at a time, and the count of what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features.graphs import attacked_windows, build_graphs, window_rows
from kdgat.canbus.injection.injection import Injected, make_variant
from kdgat.canbus.messages import Messages
from kdgat.canbus.settings import InjectionConfig, WindowConfig
from kdgat.canbus.summary import InjectedAttack, InjectionSummary
from kdgat.graphs.columns import GraphColumns

FAINT_COUNT: Final = 4  # injected messages in a window, from which on it is found anyway
FAINT_FACTOR: Final = 2.5  # as often a fainter one is kept


class InjectedPool:
    """Some virtual recordings of a pool, made and built one at a time so that memory holds a single one."""

    def __init__(
        self,
        traffic: Sequence[Messages],
        config: InjectionConfig,
        windows: WindowConfig,
        seed: int,
        variants: range,
    ) -> None:
        """Make these `variants` from attack-free traffic, each by its number and the seed alone."""
        self.traffic = traffic
        self.config = config
        self.windows = windows
        self.seed = seed
        self.variants = variants
        self._attacks: dict[str, Counter[str]] = {}
        self._changes: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    def __iter__(self) -> Iterator[GraphColumns]:
        for variant in self.variants:
            injected = make_variant(self.traffic, self.config, self.seed, variant)
            graphs = build_graphs(injected.messages, self.windows, self._drawn(injected.messages, variant))
            graphs = graphs.select(np.flatnonzero(_is_visible(graphs)))
            self._count(injected, graphs)
            yield graphs

    def _drawn(self, messages: Messages, variant: int) -> NDArray[np.int64]:
        """Draw the windows that are kept, before any is built: of a flood there are many alike, of a message few."""
        y, attack_count = attacked_windows(messages, *window_rows(len(messages), self.windows))
        is_faint = (y == 1) & (attack_count < FAINT_COUNT)
        shares = np.where(is_faint, min(1.0, FAINT_FACTOR * self.config.kept_fraction), self.config.kept_fraction)
        return np.flatnonzero(np.random.default_rng([self.seed, variant, 1]).random(len(y)) < shares)

    def _count(self, injected: Injected, graphs: GraphColumns) -> None:
        self._totals.update(windows=graphs.num_graphs, attack_windows=int(graphs["y"].sum()))
        self._changes.update(set(injected.changes))
        for attack in injected.attacks:
            kind = attack.partition(":")[0]
            counter = self._attacks.setdefault(kind, Counter())
            counter.update(windows=int(graphs["y"].sum()), messages=int(graphs["attack_count"].sum()), recordings=1)

    def counts(self) -> dict[str, Any]:
        """Count what was injected, as plain data; complete once every variant was made."""
        return {"totals": self._totals, "changes": self._changes, "attacks": self._attacks}


def _is_visible(graphs: GraphColumns) -> NDArray[np.bool_]:
    """Say which windows [G] show what they are.

    Where a campaign has begun, and nothing is missing yet, or all that came is in time, nobody could tell.
    """
    node_window = np.repeat(np.arange(graphs.num_graphs), graphs.node_counts)
    return (graphs["y"] == 0) | (np.bincount(node_window, graphs["node_y"], graphs.num_graphs) > 0)


def name_variant(variant: int) -> str:
    """Name a virtual recording in a store."""
    return f"injected/virtual-{variant:05d}"


def summarise_injection(counts: Sequence[Mapping[str, Any]], seed: int, num_variants: int) -> InjectionSummary:
    """State what was injected, by the counts of all parts of a pool."""
    totals: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    attacks: dict[str, Counter[str]] = {}
    for one in counts:
        totals.update(one["totals"])
        changes.update(one["changes"])
        for kind, counted in one["attacks"].items():
            attacks.setdefault(kind, Counter()).update(counted)
    return InjectionSummary(
        enabled=True,
        seed=seed,
        num_virtual_vehicles=num_variants,
        num_windows=totals["windows"],
        num_attack_windows=totals["attack_windows"],
        attacks={
            kind: InjectedAttack(
                num_windows=count["windows"], num_messages=count["messages"], num_recordings=count["recordings"]
            )
            for kind, count in sorted(attacks.items())
        },
        diversity=dict(sorted(changes.items())),
    )
