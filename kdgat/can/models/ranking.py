"""Windows ranked by score, and the areas under the curves that follow: numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.base import UserError


@dataclass(frozen=True)
class RankedCounts:
    """Alarms at every distinct score, from the highest score down; ties share one entry."""

    score: NDArray[np.floating]  # [K] decreasing
    true_positives: NDArray[np.int64]  # [K] attacks with score >= score[k]
    false_positives: NDArray[np.int64]  # [K] benign windows with score >= score[k]
    num_attacks: int
    num_benign: int


def checked(score: ArrayLike, label: ArrayLike) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Return score float[N] and label bool[N], or raise UserError if they cannot be compared."""
    scores, labels = np.asarray(score), np.asarray(label)
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise UserError(f"score {scores.shape} and label {labels.shape} must be vectors of the same length")
    if not np.issubdtype(scores.dtype, np.floating):
        scores = scores.astype(np.float64)
    num_bad = int(np.count_nonzero(~np.isfinite(scores)))
    if num_bad:
        raise UserError(f"score holds {num_bad} NaN or infinite of {scores.size} windows; did the model diverge?")
    if labels.dtype != np.bool_ and not np.isin(labels, (0, 1)).all():
        raise UserError(f"label must be 0 (benign) or 1 (attack), found {np.unique(labels)[:5].tolist()}")
    return scores, labels.astype(np.bool_)


def rank(score: ArrayLike, label: ArrayLike) -> RankedCounts:
    """Count hits and false alarms at every distinct score.  O(N log N)."""
    scores, labels = checked(score, label)
    order = np.argsort(scores)[::-1]
    scores, labels = scores[order], labels[order]
    last_of_tie = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)) if scores.size else np.empty(0, np.int64)
    hits = np.cumsum(labels, dtype=np.int64)[last_of_tie]
    num_attacks = int(np.count_nonzero(labels))
    return RankedCounts(scores[last_of_tie], hits, last_of_tie + 1 - hits, num_attacks, int(labels.size - num_attacks))


def area_under_roc(counts: RankedCounts) -> float | None:
    """Return the area under the ROC curve; ties count one half.  None if a class is missing."""
    if not counts.num_attacks or not counts.num_benign:
        return None
    width = np.diff(counts.false_positives, prepend=0).astype(np.float64)
    height = (counts.true_positives + np.append(0, counts.true_positives[:-1])).astype(np.float64)
    return float(np.dot(width, height) / (2.0 * counts.num_attacks * counts.num_benign))


def partial_area(counts: RankedCounts, false_positive_rate: float) -> float | None:
    """Return the mean recall over all false-positive rates up to this one; None if a class is missing.

    The part of the ROC curve where a detector works, and no function of how many windows are attacked.
    """
    if not counts.num_attacks or not counts.num_benign:
        return None
    rates = np.append(0.0, counts.false_positives / counts.num_benign)
    recalls = np.append(0.0, counts.true_positives / counts.num_attacks)
    inside = rates <= false_positive_rate
    end = float(np.interp(false_positive_rate, rates, recalls))
    rates, recalls = np.append(rates[inside], false_positive_rate), np.append(recalls[inside], end)
    return float(np.trapezoid(recalls, rates) / false_positive_rate)
