"""Evidence that adds up over the windows of a run: its reference from validation, its alarms, and what they find."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.can.evaluation.accumulation import Accumulation, Reference, rounded
from kdgat.can.evaluation.calibration import SECONDS_PER_HOUR, covered_seconds
from kdgat.can.evaluation.decision import DefaultDetector, Tables
from kdgat.can.evaluation.metrics import MERGED_S, attack_episodes
from kdgat.can.evaluation.results import AccumulatedEvidence, Breakdown, DetectorScenario
from kdgat.can.evaluation.scores import NodeScores, ScoreTable
from kdgat.can.sections import EvaluationConfig

Nodes = Mapping[int, NodeScores]  # seed -> scores of the nodes of the same windows


def node_mean(detector: DefaultDetector, nodes: Nodes) -> NDArray[np.float64] | None:
    """Return the mean [N] of what a detector's members say of each node; None if one of them says nothing of nodes."""
    members = [(seed, column) for seed, columns in detector.scalings.items() for column in columns]
    if any(seed not in nodes or column not in nodes[seed].scores for seed, column in members):
        return None
    return rounded(np.mean([nodes[seed].scores[column].astype(np.float64) for seed, column in members], axis=0))


def learn_accumulation(
    detector: DefaultDetector,
    validation: Tables,
    nodes: Nodes | None,
    config: EvaluationConfig,
    clean: Nodes | None = None,
) -> Accumulation | None:
    """Learn from benign validation windows, recorded and virtual, what counts as evidence.

    Clean minutes, `clean`, are one more source: only what is rare in each of them is evidence. None where it is off,
    where the detector says nothing of identifiers, or where validation is too small.
    """
    scores = None if config.accumulation == "off" or nodes is None else node_mean(detector, nodes)
    if scores is None or nodes is None:
        return None
    first = next(iter(detector.scalings))
    table, counts = validation[first], np.diff(nodes[first].node_ptr)
    benign = table.label == 0
    chosen = (benign & ~table.is_virtual, benign & table.is_virtual)
    sources = [scores[np.repeat(rows, counts)] for rows in chosen if rows.any()]
    of_clean = None if clean is None else node_mean(detector, clean)
    reference = Reference.of_benign(sources if of_clean is None else [*sources, of_clean])
    if reference is None:
        return None
    return Accumulation(reference=reference, hours_between_false_episodes=config.hours_between_false_episodes)


def accumulated_windows(
    detector: DefaultDetector, tables: Tables, nodes: Nodes, accumulation: Accumulation
) -> NDArray[np.bool_]:
    """Return the windows [G] at whose end an identifier's evidence is an alarm."""
    from kdgat.can.evaluation.accumulator import Accumulator  # numba, which a node that trains may not have

    scores = node_mean(detector, nodes)
    if scores is None:  # it was learned from validation, where they were there
        raise UserError(f"nodes were not scored by all of {detector.model}: run the evaluation stage again")
    table = tables[next(iter(detector.scalings))]
    node = nodes[next(iter(detector.scalings))]
    is_alarm = np.zeros(table.num_windows, np.bool_)
    borders = np.flatnonzero(np.diff(table.recording)) + 1
    for first, after in zip([0, *borders.tolist()], [*borders.tolist(), table.num_windows], strict=True):
        rows = slice(int(node.node_ptr[first]), int(node.node_ptr[after]))
        found = Accumulator(accumulation).add(
            table.start_time[first:after],
            table.end_time[first:after],
            node.node_ptr[first : after + 1] - node.node_ptr[first],
            node.node_id[rows],
            scores[rows],
        )
        is_alarm[first:after] = found.is_alarm
    return is_alarm


def describe_accumulated(
    detector: DefaultDetector,
    tables: Tables,
    accumulated: NDArray[np.bool_],
    accumulation: Accumulation,
    *,
    is_counted: bool,
) -> AccumulatedEvidence:
    """Say what evidence that adds up, windows [G], finds beside the decisions about single windows."""
    table, decision = tables[next(iter(detector.scalings))], detector.decide(tables)
    is_attacked = table.label == 1
    benign = ~is_attacked
    hours = covered_seconds(table.start_time[benign], table.end_time[benign], table.recording[benign])
    hours /= SECONDS_PER_HOUR
    num_false = _false_episodes(table, accumulated)
    added = accumulated & ~decision
    return AccumulatedEvidence(
        alone=attack_episodes(table, accumulated),
        with_windows=attack_episodes(table, decision | accumulated),
        num_false_episodes=num_false,
        hours=hours,
        false_episodes_per_hour=num_false / hours if hours > 0.0 else None,
        designed_false_episodes_per_hour=1.0 / accumulation.hours_between_false_episodes,
        num_added_windows=int(np.count_nonzero(added & is_attacked)),
        num_added_false_windows=int(np.count_nonzero(added & benign)),
        is_counted=is_counted,
    )


def with_accumulated(scenario: DetectorScenario, accumulated: AccumulatedEvidence) -> DetectorScenario:
    """Put it into the breakdown of a scenario."""
    breakdown = (scenario.breakdown or Breakdown()).model_copy(update={"accumulated": accumulated})
    return scenario.model_copy(update={"breakdown": breakdown})


def _false_episodes(table: ScoreTable, accumulated: NDArray[np.bool_]) -> int:
    """Count runs of windows that are alarms and touch no attack, nor begin within a second after one."""
    num_false = 0
    for index in np.unique(table.recording).tolist():
        rows = np.flatnonzero(table.recording == index)
        edges = np.diff(np.concatenate(([0], accumulated[rows].astype(np.int8), [0])))
        attacked = rows[table.label[rows] == 1]
        begins, afters = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
        for first, after in zip(begins, afters, strict=True):
            begin_s, end_s = table.start_time[rows[first]], table.end_time[rows[after - 1]]
            touches = (table.start_time[attacked] <= end_s) & (table.end_time[attacked] >= begin_s - MERGED_S)
            num_false += not touches.any()
    return num_false
