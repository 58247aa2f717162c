"""What hides behind F1 and AUC: by intensity and kind of attack, per hour, per attack, and how sure the numbers are."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.evaluation.calibration import wilson_interval
from kdgat.can.evaluation.operating_point import SECONDS_PER_HOUR, covered_seconds
from kdgat.can.evaluation.results import COUNT_NAMES, Breakdown, ConfidenceInterval, Episodes, Found, VehicleAlarms
from kdgat.can.evaluation.score_tables import ScoreTable
from kdgat.canbus.features import ATTACK_KINDS

SMALLEST_COUNTS: Final = (0, 1, 2, 4, 10)  # injected messages from which each of COUNT_NAMES begins
MERGED_S: Final = 1.0  # attacked windows that are less far apart belong to one attack
BLOCK_WINDOWS: Final = 64  # consecutive windows that are drawn together: neighbours are alike
FEWEST_BLOCKS: Final = 10
NUM_DRAWS: Final = 1000
CONFIDENCE: Final = 0.95


def break_down(table: ScoreTable, decision: NDArray[np.bool_]) -> Breakdown:
    """Say of decisions [G] what their metrics do not; episodes are those of recorded windows."""
    is_attacked = table.label == 1
    benign = ~is_attacked
    hours = covered_seconds(table.start_time[benign], table.end_time[benign], table.recording[benign])
    hours /= SECONDS_PER_HOUR
    num_false = int(np.count_nonzero(decision & benign))
    f1_interval, false_alarm_interval = bootstrap_intervals(table, decision)
    recorded = ~table.is_virtual
    return Breakdown(
        recall_by_count=recall_by_count(table, decision),
        recall_by_kind=recall_by_kind(table, decision),
        benign_hours=hours,
        false_alarms_per_hour=num_false / hours if hours > 0.0 else None,
        episodes=attack_episodes(table.select(recorded), decision[recorded]) if recorded.any() else None,
        vehicles=false_alarms_by_vehicle(table.select(recorded), decision[recorded]),
        f1_interval=f1_interval,
        false_alarm_interval=false_alarm_interval,
    )


def false_alarms_by_vehicle(table: ScoreTable, decision: NDArray[np.bool_]) -> dict[str, VehicleAlarms]:
    """Count the false alarms of each known vehicle; nothing where fewer than two are."""
    names = np.array([*table.vehicles, ""])[np.minimum(table.recording, len(table.vehicles))]
    found = {}
    for vehicle in sorted(set(names.tolist()) - {""}):
        benign = (names == vehicle) & (table.label == 0)
        start, end, recording = table.start_time[benign], table.end_time[benign], table.recording[benign]
        alarms = decision[benign]
        num_episodes = 0
        for index in np.unique(recording).tolist():
            rows = recording == index
            num_episodes += len(_episodes(alarms[rows], start[rows], end[rows]))
        found[vehicle] = VehicleAlarms(
            num_windows=alarms.size,
            num_false_alarms=int(alarms.sum()),
            num_false_episodes=num_episodes,
            hours=covered_seconds(start, end, recording) / SECONDS_PER_HOUR,
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
    for index in np.unique(table.recording).tolist():
        rows = np.flatnonzero(table.recording == index)
        for first, last in _episodes(table.label[rows] == 1, table.start_time[rows], table.end_time[rows]):
            num_episodes += 1
            alarms = rows[first : last + 1][decision[rows[first : last + 1]]]
            if alarms.size:
                delays.append(max(0.0, float(table.end_time[alarms[0]] - table.start_time[rows[first]])))
    return Episodes(
        num_episodes=num_episodes,
        num_found=len(delays),
        median_delay_s=float(np.median(delays)) if delays else None,
        worst_delay_s=max(delays, default=None),
    )


def _episodes(
    is_attacked: NDArray[np.bool_], start: NDArray[np.float64], end: NDArray[np.float64]
) -> list[tuple[int, int]]:
    """Return the first and the last window of each attack on one recording, or of what else windows say."""
    edges = np.diff(np.concatenate(([0], is_attacked.astype(np.int8), [0])))
    merged: list[tuple[int, int]] = []
    for first, after in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        if merged and start[first] - end[merged[-1][1]] < MERGED_S:
            merged[-1] = (merged[-1][0], after - 1)
        else:
            merged.append((first, after - 1))
    return merged


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
