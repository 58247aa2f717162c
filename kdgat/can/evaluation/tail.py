"""The upper tail of benign scores: peaks over a level follow a generalised Pareto distribution.

From Siffer, Fouque, Termier and Largouët, "Anomaly detection in streams with extreme value theory", KDD 2017.
"""

from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from kdgat.base.configuration import Config
from kdgat.base.errors import UserError

LEVEL: Final = 0.98  # quantile from which on scores are tail: fifty windows give one peak
SMALLEST_SCALE: Final = 1e-9  # of a tail whose peaks are all at the level
EXPONENTIAL: Final = 1e-6  # shapes below it: the limit of the formula is used


class Tail(Config):
    """Hold a fitted tail: above `level` lie `share` of the windows, with peaks of this shape and scale."""

    level: float = Field(allow_inf_nan=False)
    share: float = Field(gt=0.0, lt=1.0)
    shape: float = Field(ge=0.0, lt=1.0)
    scale: float = Field(gt=0.0, allow_inf_nan=False)
    num_peaks: int = Field(ge=0)

    @classmethod
    def fit(cls, scores: ArrayLike, level: float = LEVEL) -> Self:
        """Fit the tail of scores [G] by the moments of their peaks; UserError without enough finite scores.

        A tail that is lighter than exponential is taken as exponential: that it ends somewhere is not to be concluded
        from a few peaks.
        """
        values = np.asarray(scores, np.float64)
        if values.size < 1.0 / (1.0 - level) or not np.isfinite(values).all():
            raise UserError(f"a tail needs at least {1.0 / (1.0 - level):.0f} finite scores, got {values.size}")
        border = float(np.quantile(values, level))
        peaks = values[values > border] - border
        shape, scale = 0.0, SMALLEST_SCALE
        if peaks.size:
            mean, variance = float(peaks.mean()), float(peaks.var())
            squared_ratio = mean * mean / variance if variance > 0.0 else np.inf
            scale = max(mean, SMALLEST_SCALE)
            if squared_ratio < 1.0:
                shape = 0.5 * (1.0 - squared_ratio)
                scale = max(0.5 * mean * (squared_ratio + 1.0), SMALLEST_SCALE)
        share = max(peaks.size, 1) / values.size
        return cls(level=border, share=share, shape=shape, scale=scale, num_peaks=peaks.size)

    def score_at(self, share: float) -> float:
        """Return the score that this share of windows reaches; the level where the share is larger than the tail's."""
        ratio = self.share / share
        if ratio <= 1.0:
            return self.level
        if self.shape < EXPONENTIAL:
            return self.level + self.scale * float(np.log(ratio))
        return self.level + self.scale / self.shape * (ratio**self.shape - 1.0)

    def share_above(self, score: float) -> float:
        """Return the share of windows that reach a score; for one below the level, at least that of the tail."""
        excess = score - self.level
        if excess <= 0.0:
            return self.share
        if self.shape < EXPONENTIAL:
            return self.share * float(np.exp(-excess / self.scale))
        return float(self.share * (1.0 + self.shape * excess / self.scale) ** (-1.0 / self.shape))
