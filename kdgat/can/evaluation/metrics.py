"""Binary detection metrics over windows, and what hides behind them: by kind of attack, per hour, per attack, how sure.

Ties and corner cases are treated as scikit-learn treats them.
Written in numpy because evaluation is a stage, and a stage runs where only the training dependencies are installed.
A quantity the data cannot define (recall without attacks, AUC of one class) is None, never 0 or 1 by convention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.base import UserError
from kdgat.can.evaluation.calibration import SECONDS_PER_HOUR, covered_seconds, wilson_interval
from kdgat.can.evaluation.results import COUNT_NAMES, Breakdown, ConfidenceInterval, Episodes, Found, VehicleAlarms
from kdgat.can.evaluation.scores import ScoreTable
from kdgat.can.models.ranking import RankedCounts, area_under_roc, checked, rank
from kdgat.canbus.features import ATTACK_KINDS

FALSE_POSITIVE_RATES = (0.05, 0.01, 0.001)
MAX_CURVE_POINTS = 400

# The quantities that are worth a mean and a spread over seeds.
SPREAD_METRICS = ("f1", "precision", "recall", "accuracy", "mcc", "auc", "pr_auc", "false_alarm_rate")
SMALLEST_COUNTS: Final = (0, 1, 2, 4, 10)  # injected messages from which each of COUNT_NAMES begins
MERGED_S: Final = 1.0  # attacked windows that are less far apart belong to one attack
BLOCK_WINDOWS: Final = 64  # consecutive windows that are drawn together: neighbours are alike
FEWEST_BLOCKS: Final = 10
FEWEST_WINDOWS: Final = FEWEST_BLOCKS * BLOCK_WINDOWS  # for an interval
NUM_DRAWS: Final = 1000
CONFIDENCE: Final = 0.95

Curve = dict[str, list[float | None]]  # columns of equal length


def average_precision(counts: RankedCounts) -> float | None:
    """Return sum_k (recall_k - recall_{k-1}) precision_k, the step-wise area; None if a class is missing."""
    if not counts.num_attacks or not counts.num_benign:
        return None
    precision = counts.true_positives / (counts.true_positives + counts.false_positives)
    # Divided last, so that a perfect ranking gives 1 and not 0.9999999999999998.
    return float(np.dot(np.diff(counts.true_positives, prepend=0).astype(np.float64), precision) / counts.num_attacks)


def detection_rate(counts: RankedCounts, false_positive_rate: float) -> float | None:
    """Return the largest recall of any threshold with at most this false-positive rate; None if a class is missing."""
    if not counts.num_attacks or not counts.num_benign:
        return None
    num_allowed = int(np.searchsorted(counts.false_positives / counts.num_benign, false_positive_rate, side="right"))
    return float(counts.true_positives[num_allowed - 1] / counts.num_attacks) if num_allowed else 0.0


def binary_metrics(
    score: ArrayLike, label: ArrayLike, threshold: float | None, *, decision: ArrayLike | None = None
) -> dict[str, Any]:
    """Return every metric of one detector over one set of windows, in the shape of `results.WindowMetrics`.

    score float[N]: larger means attack, probability or logit (prefer logits: saturated float32 probabilities tie).
    label [N] in {0, 1}.  A window is an alarm if score >= threshold, or where decision bool[N] says so (a rule with a
    threshold per recording).  Raises UserError for NaN, for shapes that differ, or neither threshold nor decision.
    """
    scores, labels = checked(score, label)
    if decision is not None:
        alarms = np.asarray(decision).astype(np.bool_)
        if alarms.shape != labels.shape:
            raise UserError(f"decision {alarms.shape} and label {labels.shape} must have the same length")
    elif threshold is not None:
        alarms = scores >= threshold
    else:
        raise UserError("give a threshold, or the decision per window")
    counts = rank(scores, labels)
    num_windows, num_attacks, num_benign = int(labels.size), counts.num_attacks, counts.num_benign
    hits = int(np.count_nonzero(alarms & labels))
    false_alarms = int(np.count_nonzero(alarms)) - hits
    misses, rejections = num_attacks - hits, num_benign - false_alarms

    def ratio(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    recall, specificity = ratio(hits, num_attacks), ratio(rejections, num_benign)
    both_classes = bool(num_attacks and num_benign)
    return {
        "num_windows": num_windows,
        "num_attack_windows": num_attacks,
        "threshold": None if threshold is None else float(threshold),
        "accuracy": ratio(hits + rejections, num_windows),
        # Without attacks a precision of 0 would only repeat that there was nothing to find.
        "precision": ratio(hits, hits + false_alarms) if num_attacks else None,
        "recall": recall,
        "f1": ratio(2 * hits, 2 * hits + false_alarms + misses) if num_attacks else None,
        "specificity": specificity,
        "false_alarm_rate": ratio(false_alarms, num_benign),
        "balanced_accuracy": (recall + specificity) / 2 if recall is not None and specificity is not None else None,
        "mcc": matthews_correlation(hits, false_alarms, misses, rejections) if both_classes else None,
        "auc": area_under_roc(counts),
        "pr_auc": average_precision(counts),
        "detection_rate_at_fpr": {f"{rate:g}": detection_rate(counts, rate) for rate in FALSE_POSITIVE_RATES},
        "confusion_matrix": [[rejections, false_alarms], [misses, hits]],
    }


def matthews_correlation(hits: int, false_alarms: int, misses: int, rejections: int) -> float:
    """Return the Matthews correlation; 0 if every window got the same decision, as scikit-learn does."""
    alarms, quiet = hits + false_alarms, misses + rejections
    product = float(alarms) * float(quiet) * float(hits + misses) * float(false_alarms + rejections)
    return float(hits * rejections - false_alarms * misses) / product**0.5 if product else 0.0


def per_recording_metrics(
    score: ArrayLike,
    label: ArrayLike,
    threshold: float | None,
    recording: ArrayLike,
    recording_names: Sequence[str],
    *,
    decision: ArrayLike | None = None,
) -> dict[str, dict[str, Any]]:
    """Return `binary_metrics` of each recording by name.  recording int[N] indexes recording_names."""
    scores, labels = checked(score, label)
    owner = np.asarray(recording)
    if owner.shape != labels.shape:
        raise UserError(f"recording {owner.shape} and label {labels.shape} must have the same length")
    alarms = None if decision is None else np.asarray(decision)
    result = {}
    for index in np.unique(owner).tolist():
        rows = np.flatnonzero(owner == index)
        result[recording_names[index]] = binary_metrics(
            scores[rows], labels[rows], threshold, decision=None if alarms is None else alarms[rows]
        )
    return result


def thinned(x: NDArray[np.float64], y: NDArray[np.float64], max_points: int) -> NDArray[np.intp]:
    """Return at most max_points indices, evenly spread along the curve's own length, both ends included."""
    if x.size <= max_points:
        return np.arange(x.size)
    length = np.concatenate(([0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))))
    kept = np.searchsorted(length, np.linspace(0.0, length[-1], max_points - 1))
    return np.unique(np.append(kept, x.size - 1))


def corners(x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indices of a staircase where its direction changes; the rest lies on straight lines."""
    if x.size < 3:
        return np.arange(x.size)
    turn = (np.diff(x, 2) != 0) | (np.diff(y, 2) != 0)
    return np.flatnonzero(np.concatenate(([True], turn, [True])))


def roc_curve(score: ArrayLike, label: ArrayLike, *, max_points: int = MAX_CURVE_POINTS) -> Curve | None:
    """Return false_positive_rate, true_positive_rate and threshold from (0, 0) to (1, 1); None if a class is missing.

    The first threshold is None: it stands for no alarm at all.
    """
    counts = rank(score, label)
    if not counts.num_attacks or not counts.num_benign:
        return None
    kept = corners(counts.false_positives, counts.true_positives)
    x = np.append(0.0, counts.false_positives[kept] / counts.num_benign)
    y = np.append(0.0, counts.true_positives[kept] / counts.num_attacks)
    shown = thinned(x, y, max_points)
    return {
        "false_positive_rate": x[shown].tolist(),
        "true_positive_rate": y[shown].tolist(),
        "threshold": [None, *counts.score[kept][shown[1:] - 1].tolist()],
    }


def precision_recall_curve(score: ArrayLike, label: ArrayLike, *, max_points: int = MAX_CURVE_POINTS) -> Curve | None:
    """Return recall (increasing from 0), precision and threshold lists; None if a class is missing.

    The first point (recall 0, precision 1, threshold None) is scikit-learn's convention for no alarm at all.
    """
    counts = rank(score, label)
    if not counts.num_attacks or not counts.num_benign:
        return None
    # Beyond full recall only false alarms are added: as scikit-learn's plots, keep the first such point.
    num_kept = int(np.searchsorted(counts.true_positives, counts.num_attacks)) + 1
    hits, alarms = counts.true_positives[:num_kept], (counts.true_positives + counts.false_positives)[:num_kept]
    recall, precision = np.append(0.0, hits / counts.num_attacks), np.append(1.0, hits / alarms)
    shown = thinned(recall, precision, max_points)
    return {
        "recall": recall[shown].tolist(),
        "precision": precision[shown].tolist(),
        "threshold": [None, *counts.score[shown[1:] - 1].tolist()],
    }


def spread(values: Iterable[float | None]) -> dict[str, Any]:
    """Return mean, sample standard deviation, min, max and count of the defined values; None where undefined."""
    defined = np.array([value for value in values if value is not None], dtype=np.float64)
    if not defined.size:
        return {"mean": None, "std": None, "min": None, "max": None, "count": 0}
    return {
        "mean": float(defined.mean()),
        "std": float(defined.std(ddof=1)) if defined.size > 1 else None,
        "min": float(defined.min()),
        "max": float(defined.max()),
        "count": int(defined.size),
    }


def spread_over_seeds(metrics: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return {metric: spread, with the single values in order} over one dict of `binary_metrics` per seed."""
    columns = {name: [row[name] for row in metrics] for name in SPREAD_METRICS}
    return {name: {**spread(values), "values": values} for name, values in columns.items()}


def break_down(table: ScoreTable, decision: NDArray[np.bool_]) -> Breakdown:
    """Say of decisions [G] what their metrics do not; episodes are those of recorded windows."""
    is_attacked = table.label == 1
    benign = ~is_attacked
    hours = covered_seconds(table.start_time[benign], table.end_time[benign], table.recording[benign])
    hours /= SECONDS_PER_HOUR
    num_false = int(np.count_nonzero(decision & benign))
    f1_interval, false_alarm_interval = bootstrap_intervals(table, decision)
    recorded = ~table.is_virtual
    on_recorded = table.select(recorded), decision[recorded]
    return Breakdown(
        recall_by_count=recall_by_count(table, decision),
        recall_by_kind=recall_by_kind(table, decision),
        benign_hours=hours,
        false_alarms_per_hour=num_false / hours if hours > 0.0 else None,
        num_false_episodes=count_false_episodes(*on_recorded) if recorded.any() else None,
        episodes=attack_episodes(*on_recorded) if recorded.any() else None,
        vehicles=false_alarms_by_vehicle(*on_recorded),
        f1_interval=f1_interval,
        false_alarm_interval=false_alarm_interval,
    )


def false_alarms_by_vehicle(table: ScoreTable, decision: NDArray[np.bool_]) -> dict[str, VehicleAlarms]:
    """Count the false alarms of each known vehicle; nothing where fewer than two are."""
    names = np.array([*table.vehicles, ""])[np.minimum(table.recording, len(table.vehicles))]
    found = {}
    for vehicle in sorted(set(names.tolist()) - {""}):
        benign = (names == vehicle) & (table.label == 0)
        windows, alarms = table.select(benign), decision[benign]
        hours = covered_seconds(windows.start_time, windows.end_time, windows.recording) / SECONDS_PER_HOUR
        found[vehicle] = VehicleAlarms(
            num_windows=alarms.size,
            num_false_alarms=int(alarms.sum()),
            num_false_episodes=sum(1 for _ in _episodes(windows, alarms)),
            hours=hours,
        )
    return found if len(found) > 1 else {}


def recall_by_count(table: ScoreTable, decision: NDArray[np.bool_]) -> dict[str, Found]:
    """Return the recall of attacked windows by how many injected messages they hold."""
    bins = np.searchsorted(SMALLEST_COUNTS, table.attack_count, side="right") - 1
    is_attacked = table.label == 1
    chosen = {name: is_attacked & (bins == place) for place, name in enumerate(COUNT_NAMES)}
    return {name: _found(decision[rows]) for name, rows in chosen.items() if rows.any()}


def recall_by_kind(table: ScoreTable, decision: NDArray[np.bool_]) -> dict[str, Found]:
    """Return the recall of attacked windows by kind of attack; one that the recording does not tell is unknown."""
    unknown = ATTACK_KINDS.index("unknown")
    kind = np.where(table.kind == ATTACK_KINDS.index("none"), unknown, table.kind)
    is_attacked = table.label == 1
    chosen = {name: is_attacked & (kind == place) for place, name in enumerate(ATTACK_KINDS)}
    return {name: _found(decision[rows]) for name, rows in chosen.items() if rows.any()}


def attack_episodes(table: ScoreTable, decision: NDArray[np.bool_]) -> Episodes:
    """Find the attacks of each recording, and when the first alarm of each is there: at the end of its window."""
    num_episodes, delays = 0, []
    for rows in _episodes(table, table.label == 1):
        num_episodes += 1
        alarms = rows[decision[rows]]
        if alarms.size:
            delays.append(max(0.0, float(table.end_time[alarms[0]] - table.start_time[rows[0]])))
    return Episodes(
        num_episodes=num_episodes,
        num_found=len(delays),
        median_delay_s=float(np.median(delays)) if delays else None,
        worst_delay_s=max(delays, default=None),
    )


def count_false_episodes(table: ScoreTable, decision: NDArray[np.bool_]) -> int:
    """Count the alarms that meet no attack; one that outlasts its attack is not another alarm."""
    return sum(not (table.label[rows] == 1).any() for rows in _episodes(table, decision))


def _episodes(table: ScoreTable, is_one: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    """Yield the windows of each attack, or alarm, recording after recording; those near each other are one."""
    for index in np.unique(table.recording).tolist():
        rows = np.flatnonzero(table.recording == index)
        start, end = table.start_time[rows], table.end_time[rows]
        edges = np.diff(np.concatenate(([0], is_one[rows].astype(np.int8), [0])))
        merged: list[tuple[int, int]] = []
        for first, after in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
            if merged and start[first] - end[merged[-1][1]] < MERGED_S:
                merged[-1] = (merged[-1][0], after - 1)
            else:
                merged.append((first, after - 1))
        yield from (rows[first : last + 1] for first, last in merged)


def bootstrap_intervals(
    table: ScoreTable, decision: NDArray[np.bool_]
) -> tuple[ConfidenceInterval | None, ConfidenceInterval | None]:
    """Return intervals of F1 and of the false-alarm rate, by drawing blocks of consecutive windows again.

    Windows of one stretch are alike, so they are drawn together. A bootstrap of a rate that was never seen is 0 to 0:
    the false-alarm rate's ends are never within those of Wilson's interval. None with few blocks or where undefined.
    """
    is_attacked = table.label == 1
    block = _blocks(table.recording)
    num_blocks = int(block[-1]) + 1 if block.size else 0
    if num_blocks < FEWEST_BLOCKS:
        return None, None
    parts = (decision & is_attacked, decision & ~is_attacked, ~decision & is_attacked, ~is_attacked)
    counts = np.stack([np.bincount(block, part, num_blocks) for part in parts], axis=1)  # [B, 4]
    drawn = np.random.default_rng(0).multinomial(num_blocks, np.full(num_blocks, 1.0 / num_blocks), NUM_DRAWS) @ counts
    hits, false_alarms, misses, benign = drawn.T
    f1_interval = false_interval = None
    if is_attacked.any():
        defined = (2 * hits + false_alarms + misses) > 0
        f1_interval = _percentiles((2 * hits / np.maximum(2 * hits + false_alarms + misses, 1))[defined])
    num_benign, num_false = int(counts[:, 3].sum()), int(counts[:, 1].sum())
    if num_benign:
        low, high = wilson_interval(num_false, num_benign, CONFIDENCE)
        drawn_interval = _percentiles((false_alarms / np.maximum(benign, 1))[benign > 0])
        false_interval = ConfidenceInterval(
            low=min(drawn_interval.low or 0.0, low), high=max(drawn_interval.high or 0.0, high)
        )
    return f1_interval, false_interval


def _blocks(recording: NDArray[np.int32]) -> NDArray[np.int64]:
    """Number blocks of windows in file order [G]; none spans two recordings."""
    if not recording.size:
        return np.zeros(0, np.int64)
    begins = np.concatenate(([True], recording[1:] != recording[:-1]))
    first = np.maximum.accumulate(np.where(begins, np.arange(recording.size), 0))
    starts_block = (np.arange(recording.size) - first) % BLOCK_WINDOWS == 0
    return np.cumsum(starts_block, dtype=np.int64) - 1


def _percentiles(values: NDArray[np.float64]) -> ConfidenceInterval:
    low, high = np.quantile(values, [(1.0 - CONFIDENCE) / 2, (1.0 + CONFIDENCE) / 2])
    return ConfidenceInterval(low=float(low), high=float(high))


def _found(decision: NDArray[np.bool_]) -> Found:
    num_found = int(np.count_nonzero(decision))
    return Found(num_windows=decision.size, num_found=num_found, recall=num_found / decision.size)
