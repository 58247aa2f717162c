"""A cascade: the cheapest member of a detector scores every window, all members those of which it is unsure.

Unsure is a calibrated logit within a margin of the detector's threshold, one below it and one above. They are learned
from validation windows, recorded and virtual ones, on which the first member alone would not decide as the detector:

* The furthest of those on a side is the smallest margin at which all decisions of validation are the same. Were it the
  margin, one window like those of validation in as many as there are would still be decided otherwise.
* Distances of such windows fall off exponentially at least: the furthest of d is about ln d times their scale, so
  that a margin `SAFETY` times as wide leaves d**(1 - SAFETY) of what it leaves: a twelfth where d is 150.
* Few windows may lie beside the threshold at all. Both logits differ elsewhere, too: no margin is below
  `MIN_DEVIATIONS` standard deviations of their difference.

Nothing of that holds for a vehicle of which the first member is sure and wrong, as it is on no validation window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kdgat.base.configuration import Config
from kdgat.can.evaluation.calibration import logit
from kdgat.can.evaluation.turns import Unsure
from kdgat.can.models.names import ENSEMBLE_MEMBERS
from kdgat.run.results import Count

if TYPE_CHECKING:
    from kdgat.can.evaluation.decision import DefaultDetector, Tables
    from kdgat.can.evaluation.results import DetectorScenario

SAFETY: Final = 1.5  # times the distance of the furthest window that the first member alone would decide otherwise
MIN_DEVIATIONS: Final = 3.0  # of the difference of both logits
MIN_WINDOWS: Final = 500  # of validation, with and without attack each: of fewer, the furthest says nothing of others

Member = tuple[int, str]  # seed and model


class CascadeError(ValueError):
    """A detector has no cascade; the text names the option, and what to do instead."""


class Cascade(Config):
    """Which member scores every window, and for which of its scores all others do."""

    model: str = Field(description="that scores every window")
    seed: int
    num_members: Count = Field(description="of the detector, that one among them")
    below: float = Field(description="margin of its calibrated logit below the threshold, in which all members score")
    above: float = Field(description="margin above the threshold")
    lowest: float = Field(description="its raw score at the lower end")
    highest: float = Field(description="its raw score at the upper end")
    num_differing: Count = Field(description="validation windows that it alone decides otherwise than the detector")
    num_validation_windows: Count
    num_validation_windows_of_all: Count = Field(description="validation windows within the margin")

    @property
    def unsure(self) -> Unsure:
        """Return the raw scores of the first member at which all members score."""
        return Unsure(self.lowest, self.highest)

    def goes_on(self, tables: Tables) -> NDArray[np.bool_]:
        """Return the windows [G] that all members score."""
        return self.unsure.holds(tables[self.seed].scores[self.model])

    def sentence(self) -> str:
        """State it in words."""
        return (
            f"{self.model} of seed {self.seed} alone scores windows whose calibrated logit it puts further than "
            f"{self.below:.3g} below or {self.above:.3g} above the threshold; all {self.num_members} networks score "
            "the others."
        )


def check_cascade(detector: DefaultDetector, validation: Tables, calibration: object = None) -> None:
    """Refuse a detector that has no cascade, or one with a vehicle's calibration: CascadeError."""
    label = validation[next(iter(detector.scalings))].label
    counts = [int(np.count_nonzero(label == value)) for value in (0, 1)]
    members = [name for columns in detector.scalings.values() for name in columns]
    others = [name for name in members if name not in ENSEMBLE_MEMBERS]
    reason = ""
    if others:
        reason = f"{others[0]} is no attention network, and only those score in turn"
    elif len(members) < 2:
        reason = f"the detector is {members[0]} alone, so that there is nothing to save"
    elif detector.rule.kind == "per_recording":
        reason = "evaluation.rule=per_recording sets thresholds by the scores of all windows of a recording"
    elif calibration is not None:
        reason = "--calibration gives a threshold and evidence of minutes that all members have scored"
    elif min(counts) < MIN_WINDOWS:
        reason = (
            f"validation has {counts[0]:,} windows without and {counts[1]:,} with attack, and {MIN_WINDOWS} of each "
            "are needed to learn when a network is sure"
        )
    if reason:
        raise CascadeError(f"cascade=true: {reason}; evaluate without --cascade")


def learn_cascade(detector: DefaultDetector, validation: Tables, num_parameters: Mapping[Member, int]) -> Cascade:
    """Let the member with the fewest parameters go first; of equal ones, that which needs the others least often.

    CascadeError where `check_cascade` refuses the detector. `validation` holds the scores of all members.
    """
    check_cascade(detector, validation)
    fewest = min(num_parameters[member] for member in num_parameters)
    found = [
        _cascade(detector, validation, member, len(num_parameters))
        for member, count in num_parameters.items()
        if count == fewest
    ]
    return min(found, key=lambda one: one.num_validation_windows_of_all)  # the first of equals


def cascade_notes(detector: DefaultDetector, scenarios: Mapping[str, DetectorScenario]) -> list[str]:
    """Say who scored what; nothing without a cascade."""
    if detector.cascade is None:
        return []
    return [
        f"cascade: {detector.cascade.sentence()}",
        *(
            f"cascade: {name}: {row.num_windows_of_all or 0:,} of {row.num_windows:,} windows went on to all networks"
            for name, row in scenarios.items()
        ),
    ]


def _cascade(detector: DefaultDetector, validation: Tables, member: Member, num_members: int) -> Cascade:
    seed, model = member
    threshold = float(logit(detector.rule.threshold))
    alone, mean = detector.logits_of(validation, seed, model), detector.logits(validation)
    differs = (alone >= threshold) != (mean >= threshold)  # of the networks: the clock may decide the same by chance
    distance, least = alone - threshold, MIN_DEVIATIONS * float(np.std(alone - mean))
    below = max(least, SAFETY * float((-distance[differs]).max(initial=0.0)))
    above = max(least, SAFETY * float(distance[differs].max(initial=0.0)))
    scaling = detector.scalings[seed][model]
    lowest, highest = (
        (threshold + side - scaling.bias) * scaling.temperature for side in (-below, above)
    )  # of raw scores: every process compares the same numbers
    return Cascade(
        model=model,
        seed=seed,
        num_members=num_members,
        below=below,
        above=above,
        lowest=lowest,
        highest=highest,
        num_differing=int(np.count_nonzero(differs)),
        num_validation_windows=len(alone),
        num_validation_windows_of_all=int(
            np.count_nonzero(Unsure(lowest, highest).holds(validation[seed].scores[model]))
        ),
    )
