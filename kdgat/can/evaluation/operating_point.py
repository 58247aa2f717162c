"""Where the network's threshold lies: from a budget of false alarms per hour, and windows that hold no attack.

A budget is a number of windows in which the network raises a false alarm, per hour and per vehicle. Recordings of the
vehicle say how many windows an hour has, so the budget is a share of windows, and the tail of their scores says which
threshold that share reaches.
"""

from collections.abc import Mapping
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from kdgat.base import Config, UserError
from kdgat.run.results import Count, Finite, Value

MIN_WINDOWS: Final = 1000  # of clean traffic: twenty peaks
# What is more likely benign than not is no alarm, however quiet the minutes were: the next drive is another one.
LOWEST_LOGIT: Final = 0.0
# Nor is the threshold higher, whatever vehicles that did not train would need: hardly anything is found there.
HIGHEST_LOGIT: Final = 3.0
SECONDS_PER_HOUR: Final = 3600.0
LONGEST_WINDOWS: Final = 20.0  # median ones of its recording: a window that lasts longer holds a pause
LEVEL: Final = 0.98  # quantile from which on scores are tail: fifty windows give one peak
FEWEST_OF_A_VEHICLE: Final = 50  # windows: one peak; of several vehicles no single one decides
SMALLEST_SCALE: Final = 1e-9  # of a tail whose peaks are all at the level
EXPONENTIAL: Final = 1e-6  # shapes below it: the limit of the formula is used


class Tail(Config):
    """Hold a fitted upper tail: above `level` lie `share` of the windows, with peaks of this shape and scale.

    Peaks over a level follow a generalised Pareto distribution (Siffer, Fouque, Termier and Largouët, "Anomaly
    detection in streams with extreme value theory", KDD 2017).
    """

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


class OperatingPoint(Config):
    """A threshold on calibrated logits, and what it was made from."""

    threshold: Finite = Field(description="on the calibrated logit")
    source: str = Field(description="the windows that it comes from, or `default`")
    reason: str = Field(default="", description="why it is the default one")
    alarms_per_hour: Finite = Field(description="the budget: windows with a false alarm, per hour and per vehicle")
    windows_per_hour: Value = None
    share: Value = Field(default=None, description="the budget as a share of windows")
    expected_alarms_per_hour: Value = Field(default=None, description="of the network, by the fitted tail")
    num_windows: Count = 0
    hours: Finite = 0.0
    tail: Tail | None = None

    @classmethod
    def default(cls, threshold: float, budget: float, reason: str) -> Self:
        """Return the threshold that holds where nothing says a better one."""
        return cls(threshold=threshold, source="default", reason=reason, alarms_per_hour=budget)

    @classmethod
    def of_benign(cls, logits: ArrayLike, seconds: float, budget: float, highest: float, source: str) -> Self:
        """Choose the threshold that keeps the budget on windows without attack.

        Args:
            logits: calibrated logits [G] of benign windows.
            seconds: the time that they cover.
            budget: windows with a false alarm per hour.
            highest: the default threshold, above which the chosen one never lies; nor below LOWEST_LOGIT.
            source: what the windows are, in words.
        """
        scores = np.asarray(logits, np.float64)
        if scores.size < MIN_WINDOWS:
            return cls.default(highest, budget, f"{source}: {scores.size:,} windows, {MIN_WINDOWS:,} are needed")
        if seconds <= 0.0:
            return cls.default(highest, budget, f"{source}: no time passes in them")
        hours = seconds / SECONDS_PER_HOUR
        windows_per_hour = scores.size / hours
        share = min(budget / windows_per_hour, 1.0)
        tail, wanted = _reached_by(scores, share)
        threshold = float(np.clip(wanted, min(LOWEST_LOGIT, highest), highest))
        above = tail.share_above(threshold) if threshold > tail.level else float(np.mean(scores >= threshold))
        return cls(
            threshold=threshold,
            source=f"{source}, {scores.size:,} windows",
            alarms_per_hour=budget,
            windows_per_hour=windows_per_hour,
            share=share,
            expected_alarms_per_hour=above * windows_per_hour,
            num_windows=scores.size,
            hours=hours,
            tail=tail,
        )

    @classmethod
    def of_vehicles(
        cls, vehicles: Mapping[str, tuple[NDArray[np.float64], float]], budget: float, default: float
    ) -> Self:
        """Choose the threshold at which half of the vehicles keep the budget, none of which the network has met.

        The budget of all of them together would be that of the worst one: it alone can need a threshold at which
        nothing is found on the others.

        Args:
            vehicles: calibrated logits [G] of benign windows, and the seconds that they cover, by vehicle.
            budget: windows with a false alarm per hour.
            default: the threshold where nothing says a better one.
        """
        judged = [one for one in vehicles.values() if one[0].size >= FEWEST_OF_A_VEHICLE and one[1] > 0.0]
        scores = np.concatenate([np.zeros(0), *(own for own, _ in judged)])
        source, count = (
            f"benign validation windows of {len(judged)} vehicles that did not train",
            f"{scores.size:,} windows",
        )
        if len(judged) < 2 or scores.size < MIN_WINDOWS:
            return cls.default(
                default, budget, f"{source}: {count}; two vehicles and {MIN_WINDOWS:,} windows are needed"
            )
        shares = [min(budget * seconds / SECONDS_PER_HOUR / own.size, 1.0) for own, seconds in judged]
        wanted = [_reached_by(own, share)[1] for (own, _), share in zip(judged, shares, strict=True)]
        threshold = float(np.clip(np.median(wanted), LOWEST_LOGIT, HIGHEST_LOGIT))
        hours = sum(seconds for _, seconds in judged) / SECONDS_PER_HOUR
        return cls(
            threshold=threshold,
            source=f"{source}, half of which keep it, {count}",
            alarms_per_hour=budget,
            windows_per_hour=scores.size / hours,
            share=budget * hours / scores.size,
            expected_alarms_per_hour=float(np.count_nonzero(scores >= threshold)) / hours,
            num_windows=scores.size,
            hours=hours,
        )

    def sentence(self) -> str:
        """State in words where the threshold comes from and what is to be expected of it."""
        if self.reason:
            return f"The threshold is the default one ({self.reason})."
        expected = self.expected_alarms_per_hour or 0.0
        text = (
            f"The threshold comes from {self.source}: a budget of {self.alarms_per_hour:g} false alarms per hour is "
            f"{self.share or 0.0:.3%} of the {self.windows_per_hour or 0.0:,.0f} windows of an hour, and "
            f"{expected:.3g} per hour are expected of the network"
        )
        if self.tail is None:
            text += ", over all of these vehicles"
        elif expected > 1.01 * self.alarms_per_hour:
            text += ", more than the budget, because the threshold never lies above the default one"
        return f"{text}."


def _reached_by(scores: NDArray[np.float64], share: float) -> tuple[Tail, float]:
    """Fit the tail of scores [G]; return it with the score that a share of them reaches."""
    tail = Tail.fit(scores)
    return tail, tail.score_at(share) if share < tail.share else float(np.quantile(scores, 1.0 - share))


def covered_seconds(
    start_time: NDArray[np.float64], end_time: NDArray[np.float64], recording: NDArray[np.int32]
) -> float:
    """Return how much time windows [G] in file order cover; where they overlap it counts once.

    A window counts for LONGEST_WINDOWS median ones of its recording at most: a log that pauses for a night is not
    driven all night, and alarms are per hour of traffic.
    """
    if not len(start_time):
        return 0.0
    lengths = np.asarray(end_time, np.float64) - start_time
    for number in np.unique(recording):
        rows = recording == number
        lengths[rows] = np.minimum(lengths[rows], LONGEST_WINDOWS * np.median(lengths[rows]))
    end = start_time + lengths
    follows = (recording[1:] == recording[:-1]) & (start_time[1:] >= start_time[:-1])  # time stamps may run backwards
    end[:-1] = np.where(follows, np.minimum(end[:-1], start_time[1:]), end[:-1])
    return float(np.maximum(end - start_time, 0.0).sum())
