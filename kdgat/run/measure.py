"""Single numbers of a run that it can be compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    @classmethod
    def over_seeds(cls, name: str, values: Sequence[float], *, is_higher_better: bool = True) -> Measure:
        """Return the mean of one value per seed, with its interval."""
        interval = Interval.of(values)
        return cls(name, interval.mean, interval, is_higher_better)

    @property
    def text(self) -> str:
        """Write the value, and behind it mean and half interval of seeds if there are several."""
        if self.seeds is None or self.seeds.count < 2:
            return f"{self.value:.4f}"
        half = (self.seeds.high - self.seeds.low) / 2
        return f"{self.value:.4f} ({self.seeds.mean:.4f} +- {half:.4f})"
