"""Evidence that adds up: identifiers that are a little suspicious again and again, found at a stated false-alarm rate.

An e-detector in the form of Shiryaev and Roberts, after Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric
framework for sequential change detection", 2022: M = (M + seconds) L for every identifier. L is a bet against "it is as
it always was" whose mean is at most one while that holds, so that M grows by no more than time passes, on average: M
reaches A seconds once in A seconds at most, whatever the evidence is distributed as. All identifiers of a recording
share its time, so it is A for all of them together.

* **Evidence** is what the network says of one identifier in one window; only what one in a thousand benign nodes reach
  counts (`Reference`), the rest is a bet that was lost. Its p-value is the largest of three: among benign validation
  windows, among all identifiers of this recording so far, and in the identifier's own past.
* **Windows that follow each other are alike.** Bets within a block of time are averaged, which holds under any
  dependence. Of each block's bet the square root is taken: by Cauchy and Schwarz the product over all blocks then pays
  no more than those over every second one, so that blocks may depend on their neighbours.
* **What is suspicious does not teach.** Evidence becomes part of the past when the doubt is over, after a minute, or
  when its alarm ends: what repeats needs more. An identifier's own past fades, for what vehicles do drifts.

The rate is what it is designed for, and holds for evidence that is as rare as it was in validation, and independent
from one block to the next but one. Vehicles that do something new for some seconds are neither; docs/alarms.md says
how often that was.
"""

from __future__ import annotations

from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from kdgat.base import Config

HIGHEST_SHARE: Final = 1e-3  # of benign nodes that are evidence at all
NUM_LEVELS: Final = 20  # of evidence; each is half as common as the one two below
MIN_NODES: Final = 3000  # of a reference: three of them are evidence


class Reference(Config):
    """What benign nodes score: from `scores[k]` on evidence has level k + 1, which `shares[k]` of them reach."""

    scores: tuple[float, ...] = Field(min_length=NUM_LEVELS, max_length=NUM_LEVELS)
    shares: tuple[float, ...] = Field(min_length=NUM_LEVELS, max_length=NUM_LEVELS)
    num_nodes: int = Field(ge=MIN_NODES, description="of the smallest source")

    @classmethod
    def of_benign(cls, sources: list[NDArray[np.floating]]) -> Self | None:
        """Learn from the node scores [N] of benign windows of one source or several; None if one of them is too small.

        The shares are those of the source in which scores are highest: virtual vehicles stand for unknown ones.
        """
        if not sources or min(len(one) for one in sources) < MIN_NODES:
            return None
        ordered = [np.sort(rounded(one)) for one in sources]
        wanted = HIGHEST_SHARE * 2.0 ** (-0.5 * np.arange(NUM_LEVELS))
        scores = np.max([one[len(one) - np.maximum(np.floor(wanted * len(one)), 1).astype(int)] for one in ordered], 0)
        counts = [len(one) - np.searchsorted(one, scores, side="left") for one in ordered]
        shares = np.max([(1.0 + count) / (1.0 + len(one)) for count, one in zip(counts, ordered, strict=True)], 0)
        smallest = min(len(one) for one in ordered)
        return cls(scores=tuple(scores.tolist()), shares=tuple(shares.tolist()), num_nodes=smallest)

    def levels(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Return the level [N] of node scores [N]: 0 is no evidence."""
        return np.searchsorted(self.scores, rounded(scores), side="right")


class Accumulation(Config):
    """Say when evidence that adds up is an alarm."""

    reference: Reference
    hours_between_false_episodes: float = Field(24.0, gt=0.0, allow_inf_nan=False)

    def sentence(self) -> str:
        """State the rule, and what it is designed for, in words."""
        return (
            f"Evidence of single identifiers that adds up over windows is an alarm of its own: by design one false one "
            f"in {self.hours_between_false_episodes:g} hours of traffic."
        )


def rounded(scores: ArrayLike) -> NDArray[np.float64]:
    """Round node scores [N] to what is kept of them for evaluation, so that both rank alike."""
    return np.asarray(scores, np.float64).astype(np.float16).astype(np.float64)
