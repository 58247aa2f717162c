"""From scores to decisions without test labels: one rule, its false-alarm rate, and where its threshold lies.

The threshold comes from a budget, and windows that hold no attack. A budget is a number of benign windows in alarm by
the network, per hour and per vehicle. Recordings of the vehicle say how many windows an hour
has, so the budget is a share of windows, and the tail of their scores says which threshold that share reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from kdgat.base import Config, UserError
from kdgat.can.models.scaling import LOGIT_LIMIT, Scaling, logit, sigmoid
from kdgat.run.results import Count, Finite, Value

MIN_WINDOWS: Final = 1000  # of clean traffic: twenty peaks
# What is more likely benign than not is no alarm, however quiet the minutes were: the next drive is another one.
LOWEST_LOGIT: Final = 0.0
# Nor is the threshold higher, whatever vehicles that did not train would need: hardly anything is found there.
HIGHEST_LOGIT: Final = 3.0
CONFIDENCE: Final = 0.95  # of intervals of a share of windows, taken as independent
SECONDS_PER_HOUR: Final = 3600.0
LONGEST_WINDOWS: Final = 20.0  # median ones of its recording: a window that lasts longer holds a pause
LEVEL: Final = 0.98  # quantile from which on scores are tail: fifty windows give one peak
FEWEST_OF_A_VEHICLE: Final = 50  # windows: one peak; of several vehicles no single one decides
SMALLEST_SCALE: Final = 1e-9  # of a tail whose peaks are all at the level
EXPONENTIAL: Final = 1e-6  # shapes below it: the limit of the formula is used


class DecisionRule(Scaling):
    """Turn logits into probabilities and alarms; the same rule for every recording of every vehicle.

    `budget`: alarm if the calibrated probability reaches `threshold`, which a budget of false alarms has set (see
    `OperatingPoint`), or if the habits of identifiers say so.
    `fixed`: alarm if the calibrated probability reaches `threshold`.
    `per_recording`: the threshold may move inside a recording to the valley between two separate groups of its own
    windows (Otsu, IEEE Trans. SMC 9, 1979, on calibrated logits clipped to [lowest_logit, highest_logit]).  Otsu alone
    invents attacks in clean recordings, because it always finds two groups.  So it moves only if the fixed rule already
    raised `min_alarms`, the groups explain `min_separation` of the variance (a single bell gives 0.64, a flat
    distribution 0.75), and, when it moves down, at most as many alarms are added as there were: a recording without
    alarms stays without, and false alarms never more than double.
    """

    kind: Literal["fixed", "per_recording", "budget"] = "fixed"
    threshold: float = Field(default=0.5, gt=0, lt=1)
    habits: bool = Field(default=False, description="the habits of identifiers raise alarms, too")
    lowest_logit: float = Field(default=-2.0, allow_inf_nan=False)
    highest_logit: float = Field(default=4.0, allow_inf_nan=False)
    min_alarms: int = Field(default=5, ge=1)
    min_separation: float = Field(default=0.85, ge=0, le=1)

    @classmethod
    def of_budget(cls, threshold: float, *, habits: bool) -> Self:
        """Return the rule whose threshold is a calibrated logit; one beyond LOGIT_LIMIT no score is told from."""
        limited = np.clip(threshold, -LOGIT_LIMIT, LOGIT_LIMIT)
        return cls(kind="budget", threshold=float(sigmoid(limited)), habits=habits)

    def apply(
        self, logits: ArrayLike, recording: ArrayLike | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the calibrated probability float64 [G], and the alarms bool [G] of the network alone.

        recording int [G] groups windows. What the habits add is in `Detector.decide`.
        """
        calibrated = self.calibrated(logits)
        return sigmoid(calibrated), calibrated >= self._thresholds_per_window(calibrated, recording)

    def probability_thresholds(self, logits: ArrayLike, recording: ArrayLike) -> dict[int, float]:
        """Return the probability from which each recording's windows are alarms, by recording index."""
        owner = np.asarray(recording)
        thresholds = self._thresholds_per_window(self.calibrated(logits), owner)
        indices, first = np.unique(owner, return_index=True)
        return dict(zip(indices.tolist(), sigmoid(thresholds[first]).tolist(), strict=True))

    def sentence(self) -> str:
        """State the rule in words."""
        scale = f"logit / {self.temperature:.4g} {'+' if self.bias >= 0 else '-'} {abs(self.bias):.4g}"
        is_plain = self.temperature == 1.0 and self.bias == 0.0  # the logits come calibrated
        formula = "" if is_plain else f", sigmoid({scale}),"
        habits = ", or if the habits of identifiers say so" if self.habits else ""
        text = f"A window is an alarm if its attack probability{formula} is at least {self.threshold:.4g}{habits}."
        if self.kind == "per_recording":
            text += (
                f" In a recording with at least {self.min_alarms} alarms whose windows form two groups, the threshold"
                f" moves to the valley between them, within logits {self.lowest_logit:g} to {self.highest_logit:g};"
                " it never more than doubles the alarms."
            )
        return text

    def _thresholds_per_window(
        self, calibrated: NDArray[np.float64], recording: ArrayLike | None
    ) -> NDArray[np.float64]:
        fixed = float(logit(self.threshold))
        thresholds = np.full(calibrated.shape, fixed)
        if self.kind != "per_recording":
            return thresholds
        owner = np.zeros(calibrated.size, np.int64) if recording is None else np.asarray(recording)
        if owner.shape != calibrated.shape:
            raise UserError(f"recording {owner.shape} and logits {calibrated.shape} must have the same length")
        for index in np.unique(owner).tolist():
            rows = owner == index
            thresholds[rows] = self._adapted(calibrated[rows], fixed)
        return thresholds

    def _adapted(self, calibrated: NDArray[np.float64], fixed: float) -> float:
        num_alarms = int(np.count_nonzero(calibrated >= fixed))
        if num_alarms < self.min_alarms:
            return fixed
        valley, separation = otsu(np.clip(calibrated, self.lowest_logit, self.highest_logit))
        if separation < self.min_separation:
            return fixed
        added = int(np.count_nonzero(calibrated >= valley)) - num_alarms
        return fixed if added > num_alarms else valley


def otsu(values: ArrayLike) -> tuple[float, float]:
    """Split values in two groups with the largest variance between them.

    Returns the middle of the gap between the groups, and the share of the variance that the split explains (0 if all
    values are equal).
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cuts = np.flatnonzero(ordered[1:] > ordered[:-1])  # a cut lies between cuts and cuts + 1
    if not cuts.size:
        return (float(ordered[0]) if ordered.size else 0.0), 0.0
    centred = ordered - ordered.mean()
    below = np.cumsum(centred)[cuts]  # the sum above is the same with the other sign
    num_below = cuts + 1.0
    between = below**2 / num_below + below**2 / (ordered.size - num_below)
    best = int(np.argmax(between))
    cut = int(cuts[best])
    total = float(np.dot(centred, centred))  # 0 if the values differ by less than their squares can show
    return float((ordered[cut] + ordered[cut + 1]) / 2), min(1.0, float(between[best]) / total) if total else 0.0


def mean_over_seeds(logits: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Return the logits [G] of the detector that averages the logits of one member per seed.

    Calibrate the members first: averaging logits of different temperatures lets the loudest one decide.
    """
    if not len(logits):
        raise UserError("the mean of no detectors is undefined; give the logits of at least one seed")
    members = [np.asarray(member, dtype=np.float64) for member in logits]
    if len({member.shape for member in members}) != 1:
        raise UserError(f"seeds scored different windows: {[member.shape for member in members]}")
    return np.stack(members).mean(axis=0)


class FalseAlarmRate(Config):
    """Share of benign windows that raise an alarm, with its confidence interval, and the same in words."""

    rate: float
    low: float
    high: float
    confidence: float
    num_false_alarms: int
    num_windows: int
    sentence: str


def false_alarm_rate(decision: ArrayLike, *, source: str = "benign validation windows") -> FalseAlarmRate:
    """State the false-alarm rate of decisions bool [G] on windows known to be benign (Wilson 1927 interval)."""
    alarms = np.asarray(decision).astype(np.bool_)
    if not alarms.size:
        raise UserError(f"no {source}: a false-alarm rate cannot be stated")
    num_windows, num_alarms = int(alarms.size), int(np.count_nonzero(alarms))
    low, high = wilson_interval(num_alarms, num_windows, CONFIDENCE)
    rate = num_alarms / num_windows
    sentence = (
        f"{num_alarms:,} of {num_windows:,} {source} raise an alarm: {rate:.3%}"
        f" ({CONFIDENCE:.0%} interval {low:.3%} to {high:.3%}, windows taken as independent)."
    )
    return FalseAlarmRate(
        rate=rate,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        num_false_alarms=num_alarms,
        num_windows=num_windows,
        sentence=sentence,
    )


def wilson_interval(num_hits: int, num_trials: int, confidence: float) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion; unlike the normal one it is sound for 0 hits."""
    quantile = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, shrink = num_hits / num_trials, quantile**2 / num_trials
    centre = (share + shrink / 2) / (1 + shrink)
    half = quantile / (1 + shrink) * (share * (1 - share) / num_trials + shrink / (4 * num_trials)) ** 0.5
    low = 0.0 if num_hits == 0 else max(0.0, centre - half)
    high = 1.0 if num_hits == num_trials else min(1.0, centre + half)
    return low, high


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
    alarms_per_hour: Finite = Field(description="the budget: benign windows in alarm, per hour and per vehicle")
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
    def of_benign(
        cls, logits: ArrayLike, seconds: float, budget: float, highest: float, source: str, lowest: float = LOWEST_LOGIT
    ) -> Self:
        """Choose the threshold that keeps the budget on windows without attack.

        Args:
            logits: calibrated logits [G] of benign windows.
            seconds: the time that they cover.
            budget: benign windows in alarm per hour.
            highest: above which the chosen one never lies; it holds where nothing says a better one.
            source: what the windows are, in words.
            lowest: below which it never lies, unless `highest` does.
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
        threshold = float(np.clip(wanted, min(lowest, highest), highest))
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
    def of_vehicle(
        cls, logits: ArrayLike, seconds: float, budget: float, default: float, trained: float, source: str
    ) -> Self:
        """Choose the threshold for one vehicle by minutes of it without attack: lower than without them, or higher.

        Lower costs nothing that the budget does not allow. Higher costs alarms: only where more of these windows reach
        the run's own threshold than the budget allows, beyond chance (CONFIDENCE). One that training has set above
        the default knows other vehicles' windows: it comes down only where fewer do, beyond chance.

        `default` is the threshold of the configuration, `trained` the one that training has set; the rest is as of
        `of_benign`, MIN_WINDOWS at least.
        """
        scores = np.asarray(logits, np.float64)
        usual = trained
        allowed = budget * seconds / SECONDS_PER_HOUR / scores.size
        fewest, most = wilson_interval(int(np.count_nonzero(scores >= usual)), scores.size, CONFIDENCE)
        highest = max(usual, HIGHEST_LOGIT) if fewest > allowed else usual
        lowest = usual if usual > default and most > allowed else min(usual, LOWEST_LOGIT)
        return cls.of_benign(scores, seconds, budget, highest, source, lowest)

    @classmethod
    def of_vehicles(
        cls, vehicles: Mapping[str, tuple[NDArray[np.float64], float]], budget: float, default: float
    ) -> Self:
        """Choose the threshold at which half of the vehicles keep the budget, none of which the network has met.

        The budget of all of them together would be that of the worst one: it alone can need a threshold at which
        nothing is found on the others.

        Args:
            vehicles: calibrated logits [G] of benign windows, and the seconds that they cover, by vehicle.
            budget: benign windows in alarm per hour.
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
            f"The threshold comes from {self.source}: a budget of {self.alarms_per_hour:g} benign windows in alarm "
            f"per hour is {self.share or 0.0:.3%} of the {self.windows_per_hour or 0.0:,.0f} windows of an hour, and "
            f"{expected:.3g} per hour are expected of the network"
        )
        if self.tail is None:
            text += ", over all of these vehicles"
        elif expected > 1.01 * self.alarms_per_hour:
            text += f", more than the budget, because it rises no further than a logit of {self.threshold:.3g}"
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
