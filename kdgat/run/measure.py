"""Single numbers of a run that it can be compared by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from kdgat.base import Config

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond, the normal one is near enough.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class Interval(Config):
    """Mean over seeds and draws of labels, with the 95 % interval of the mean over seeds."""

    mean: _Finite
    low: _Finite
    high: _Finite
    count: Annotated[int, Field(ge=0)]
    unheld_half: _Finite | None = Field(
        None, exclude_if=lambda half: half is None, description="half of it before it was held within 0 and 1"
    )

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the interval of Student's t; with one value the interval is that value.

        >>> Interval.of([0.5, 0.7]).count
        2
        """
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls.of_moments(statistics.fmean(values), deviation, len(values))

    @classmethod
    def of_moments(cls, mean: float, deviation: float, count: int) -> Interval:
        """Return the same from the mean and the sample deviation of `count` values."""
        if count < 2:
            return cls(mean=mean, low=mean, high=mean, count=count)
        half = _quantile(count) * deviation / math.sqrt(count)
        return cls(mean=mean, low=mean - half, high=mean + half, count=count)

    @classmethod
    def pooled(cls, parts: Sequence[Interval]) -> Interval:
        """Return the interval over the seeds of several intervals, none of which is in two of them.

        >>> parts = [Interval.of([0.1, 0.2]), Interval.of([0.6])]
        >>> round(Interval.pooled(parts).high, 9) == round(Interval.of([0.1, 0.2, 0.6]).high, 9)
        True
        """
        count = sum(one.count for one in parts)
        if count < 2:
            return next(one for one in parts if one.count == count)
        mean = sum(one.mean * one.count for one in parts) / count
        squares = sum((one.count - 1) * one.deviation**2 + one.count * (one.mean - mean) ** 2 for one in parts)
        return cls.of_moments(mean, math.sqrt(squares / (count - 1)), count)

    def of_share(self) -> Interval:
        """Return the same held within 0 and 1, which no share leaves.

        >>> Interval.of([0.0, 0.5, 0.0]).of_share().low
        0.0
        """
        low, high = max(0.0, self.low), min(1.0, self.high)
        is_held = (low, high) != (self.low, self.high)
        return Interval(
            mean=self.mean, low=low, high=high, count=self.count, unheld_half=self.half if is_held else None
        )

    @property
    def half(self) -> float:
        """Return how far it reaches from the mean where nothing holds it."""
        return (self.high - self.low) / 2 if self.unheld_half is None else self.unheld_half

    @property
    def deviation(self) -> float:
        """Return the sample deviation that the interval was made of; 0 of a single value."""
        return 0.0 if self.count < 2 else self.half * math.sqrt(self.count) / _quantile(self.count)

    @property
    def text(self) -> str:
        """Write mean and interval."""
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})" if self.count > 1 else f"{self.mean:.3f}"


def _quantile(count: int) -> float:
    return _T[count - 2] if count - 2 < len(_T) else 1.96


@dataclass(frozen=True)
class Measure:
    """One number of a run: what users get, and, where several seeds tell, how far it can be trusted.

    >>> Measure("F1 test_01", 0.9989).text
    '0.9989'
    >>> Measure("growth", 0.52, Interval(mean=0.53, low=0.5, high=0.56, count=3), is_higher_better=False).text
    '0.5200 (0.5300 +- 0.0300)'
    >>> Measure.over_seeds("F1", {0: 0.5, 1: 0.5}).text
    '0.5000 +- 0.0000'
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
        """Write the value, with half the interval of seeds if there are several, and their mean where it is another."""
        if self.seeds is None or self.seeds.count < 2:
            return f"{self.value:.4f}"
        of_seeds = f"{self.seeds.mean:.4f} +- {self.seeds.half:.4f}"
        return of_seeds if self.value == self.seeds.mean else f"{self.value:.4f} ({of_seeds})"
