"""What evidence that adds up finds beside single windows, and what its false alarms are."""

from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.accumulated_evidence import (
    accumulated_windows,
    describe_accumulated,
    learn_accumulation,
    node_mean,
    with_accumulated,
)
from kdgat.can.evaluation.calibration import DecisionRule
from kdgat.can.evaluation.decision import DefaultDetector, scenario_of_detector
from kdgat.can.evaluation.scores import NodeScores, ScoreTable, read_node_scores, write_node_scores
from kdgat.can.models.scaling import Scaling
from kdgat.can.sections import EvaluationConfig
from tests.can.evaluation.score_tables import WINDOW_S, made_table

NUM_IDS, SUSPICIOUS = 8, 3.6
DETECTOR = DefaultDetector("normal", {0: {"normal": Scaling()}}, DecisionRule(threshold=0.88))


def scored(label: np.ndarray, seed: int, **columns: object) -> tuple[ScoreTable, NodeScores]:
    """Return windows in which no single one is an alarm, and nodes of which one is a little suspicious if attacked."""
    scores = np.random.default_rng(seed).normal(size=(len(label), NUM_IDS))
    scores[label == 1, 2] = SUSPICIOUS
    table = made_table(label, scores={"normal": np.full(len(label), -3.0, np.float32)}, **columns)
    return table, nodes_of(scores)


def nodes_of(scores: np.ndarray) -> NodeScores:
    return NodeScores(
        node_ptr=NUM_IDS * np.arange(len(scores) + 1),
        node_id=np.tile(np.arange(NUM_IDS, dtype=np.int32), len(scores)),
        scores={"normal": scores.astype(np.float16).ravel()},
    )


@pytest.fixture(scope="module")
def validation() -> tuple[ScoreTable, NodeScores]:
    is_virtual = np.arange(4000) >= 2000
    return scored(np.where(np.arange(4000) % 2000 >= 1500, 1, 0), 0, is_virtual=is_virtual)


def attacked() -> np.ndarray:
    label = np.zeros(4000, int)
    label[2000:2200] = 1
    return label


def test_attacks_are_found_that_no_window_shows(validation: tuple[ScoreTable, NodeScores]) -> None:
    accumulation = learn_accumulation(DETECTOR, {0: validation[0]}, {0: validation[1]}, EvaluationConfig())
    assert accumulation is not None
    table, nodes = scored(attacked(), 1)
    found = accumulated_windows(DETECTOR, {0: table}, {0: nodes}, accumulation)
    evidence = describe_accumulated(DETECTOR, {0: table}, found, accumulation, is_counted=False)
    assert evidence.alone == evidence.with_windows
    assert evidence.alone is not None
    assert (evidence.alone.num_episodes, evidence.alone.num_found) == (1, 1)
    assert evidence.alone.median_delay_s is not None
    assert evidence.alone.median_delay_s < 10.0
    assert evidence.num_false_episodes == 0
    assert evidence.hours == pytest.approx(3800 * WINDOW_S / 3600.0)
    assert evidence.designed_false_episodes_per_hour == pytest.approx(1.0 / 24.0)
    assert evidence.num_added_windows == np.count_nonzero(found & (table.label == 1)) > 100


def test_its_windows_count_where_that_is_asked_for(validation: tuple[ScoreTable, NodeScores]) -> None:
    accumulation = learn_accumulation(DETECTOR, {0: validation[0]}, {0: validation[1]}, EvaluationConfig())
    assert accumulation is not None
    table, nodes = scored(attacked(), 1)
    found = accumulated_windows(DETECTOR, {0: table}, {0: nodes}, accumulation)
    alone, *_ = scenario_of_detector(DETECTOR, {0: table})
    both, scores, _ = scenario_of_detector(DETECTOR, {0: table}, found)
    assert alone.recall == 0.0
    assert both.recall == pytest.approx(np.mean(found[table.label == 1]))
    assert scores.decision is not None
    assert scores.decision.tolist() == found.tolist()
    evidence = describe_accumulated(DETECTOR, {0: table}, found, accumulation, is_counted=True)
    breakdown = with_accumulated(both, evidence).breakdown
    assert breakdown is not None
    assert breakdown.accumulated == evidence


def test_alarms_that_touch_no_attack_are_false_and_those_that_go_on_after_one_are_not(
    validation: tuple[ScoreTable, NodeScores],
) -> None:
    accumulation = learn_accumulation(DETECTOR, {0: validation[0]}, {0: validation[1]}, EvaluationConfig())
    assert accumulation is not None
    table, _ = scored(attacked(), 1)
    found = np.zeros(4000, bool)
    found[[100, 101, 2150, 2151, 3000]] = True
    found[2190:2230] = True
    evidence = describe_accumulated(DETECTOR, {0: table}, found, accumulation, is_counted=False)
    assert evidence.num_false_episodes == 2
    assert evidence.num_added_false_windows == 3 + 30


def test_recordings_begin_anew(validation: tuple[ScoreTable, NodeScores]) -> None:
    accumulation = learn_accumulation(DETECTOR, {0: validation[0]}, {0: validation[1]}, EvaluationConfig())
    assert accumulation is not None
    recording = np.repeat([0, 1], 2000).astype(np.int32)
    table, nodes = scored(attacked(), 1, recording=recording)
    both = accumulated_windows(DETECTOR, {0: table}, {0: nodes}, accumulation)
    second = nodes.scores["normal"].reshape(-1, NUM_IDS)[2000:]
    alone = accumulated_windows(DETECTOR, {0: table.select(recording == 1)}, {0: nodes_of(second)}, accumulation)
    assert both[2000:].tolist() == alone.tolist()


def test_nothing_adds_up_where_it_is_off_or_nothing_is_known_of_nodes(
    validation: tuple[ScoreTable, NodeScores],
) -> None:
    table, nodes = validation
    config = EvaluationConfig()
    assert learn_accumulation(DETECTOR, {0: table}, {0: nodes}, EvaluationConfig(accumulation="off")) is None
    assert learn_accumulation(DETECTOR, {0: table}, None, config) is None
    fusion = DefaultDetector("fusion", {0: {"fusion": Scaling()}}, DecisionRule())
    assert learn_accumulation(fusion, {0: table}, {0: nodes}, config) is None
    few = table.select(np.arange(4000) < 100)
    assert learn_accumulation(DETECTOR, {0: few}, {0: nodes_of(np.zeros((100, NUM_IDS)))}, config) is None
    accumulation = learn_accumulation(DETECTOR, {0: table}, {0: nodes}, config)
    assert accumulation is not None
    with pytest.raises(UserError, match="run the evaluation stage again"):
        accumulated_windows(fusion, {0: table}, {0: nodes}, accumulation)


def test_clean_minutes_make_it_more_careful_never_less(validation: tuple[ScoreTable, NodeScores]) -> None:
    table, nodes = validation
    random = np.random.default_rng(5)
    for shift in (-3.0, 3.0):
        clean = nodes_of(random.normal(shift, 1.0, (2000, NUM_IDS)))
        own = learn_accumulation(DETECTOR, {0: table}, {0: nodes}, EvaluationConfig())
        both = learn_accumulation(DETECTOR, {0: table}, {0: nodes}, EvaluationConfig(), {0: clean})
        assert own is not None
        assert both is not None
        assert (both.reference == own.reference) == (shift < 0.0)
        assert both.reference.scores[0] >= own.reference.scores[0]


def test_the_mean_is_over_members_and_seeds_and_files_keep_what_they_are_given(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    first, second = (nodes_of(random.normal(size=(50, NUM_IDS))) for _ in range(2))
    detector = DefaultDetector("normal", {0: {"normal": Scaling()}, 1: {"normal": Scaling()}}, DecisionRule())
    found = node_mean(detector, {0: first, 1: second})
    assert found is not None
    expected = (first.scores["normal"].astype(float) + second.scores["normal"].astype(float)) / 2.0
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    assert node_mean(detector, {0: first}) is None
    path = tmp_path / "nodes.npz"
    write_node_scores(path, first)
    again = read_node_scores(path)
    assert again.node_ptr.tolist() == first.node_ptr.tolist()
    assert again.node_id.tolist() == first.node_id.tolist()
    np.testing.assert_array_equal(again.scores["normal"], first.scores["normal"])
