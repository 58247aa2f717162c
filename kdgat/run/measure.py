"""Single numbers of a run that it can be compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kdgat.run.interval import Interval


@dataclass(frozen=True)
class Measure:
    """One number of a run: what users get, and, where several seeds tell, how far it can be trusted.

    >>> Measure("F1 test_01", 0.9989).text
    '0.9989'
    >>> Measure("growth", 0.52, Interval(mean=0.53, low=0.5, high=0.56, count=3), is_higher_better=False).text
    '0.5200 (0.5300 +- 0.0300)'
    """

    name: str
    value: float
    seeds: Interval | None = None  # of the same number for single seeds
    is_higher_better: bool = True
    by_seed: Mapping[int, float] = field(default_factory=dict)  # where it is known of each

    @classmethod
    def over_seeds(cls, name: str, by_seed: Mapping[int, float], *, is_higher_better: bool = True) -> Measure:
        """Return the mean of one value per seed, with its interval."""
        interval = Interval.of(list(by_seed.values()))
        return cls(name, interval.mean, interval, is_higher_better, by_seed)

    def change_to(self, after: Measure) -> Interval | None:
        """Return by how much another measure is larger, seed by seed; None with fewer than two seeds in common.

        What a seed does to both of them alike is in neither mean nor interval of the differences.

        >>> before = Measure.over_seeds("F1", {0: 0.90, 1: 0.96})
        >>> before.change_to(Measure.over_seeds("F1", {0: 0.91, 1: 0.97})).text
        '0.010 (0.010 to 0.010)'
        """
        common = [seed for seed in self.by_seed if seed in after.by_seed]
        if len(common) < 2:
            return None
        return Interval.of([after.by_seed[seed] - self.by_seed[seed] for seed in common])

    @property
    def text(self) -> str:
        """Write the value, and behind it mean and half interval of seeds if there are several."""
        if self.seeds is None or self.seeds.count < 2:
            return f"{self.value:.4f}"
        return f"{self.value:.4f} ({self.seeds.mean:.4f} +- {self.seeds.half:.4f})"
