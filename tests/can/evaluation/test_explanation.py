"""Ranks of attacked identifiers, against orders and chances that can be counted by hand."""

from pathlib import Path

import numpy as np
import pytest

from kdgat.can.data.pool import PooledStores
from kdgat.can.evaluation.explanation import (
    Ranks,
    first_rank,
    flooding,
    random_hit,
    rank_attacked,
    read_ranks,
    score_explanations,
    write_ranks,
)
from kdgat.canbus import windows_to_graphs
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES
from kdgat.canbus.features.graphs import round_features
from tests.can.detection.untrained import WINDOWS, drive

RANKS = Ranks(
    window=np.array([1, 3, 4]),
    num_nodes=np.array([4, 10, 10], np.int32),
    num_attacked=np.array([1, 2, 1], np.int32),
    ranks={"normal": np.array([1, 3, 9], np.int32), "habits": np.array([2, 1, 1], np.int32)},
)


def test_the_rank_is_that_of_the_first_attacked_node_of_each_window() -> None:
    random = np.random.default_rng(0)
    window = np.repeat(np.arange(50), random.integers(1, 9, 50))
    evidence, attacked = random.normal(size=len(window)), random.random(len(window)) < 0.4
    for index in range(50):
        attacked[np.flatnonzero(window == index)[0]] = True
    expected = []
    for index in range(50):
        rows = np.flatnonzero(window == index)
        order = sorted(rows, key=lambda row: -evidence[row])
        expected.append(1 + next(place for place, row in enumerate(order) if attacked[row]))
    np.testing.assert_array_equal(first_rank(evidence, attacked, window, 50), expected)


def test_a_random_order_hits_by_the_share_of_attacked_nodes() -> None:
    assert random_hit(10, 2, 1) == pytest.approx(0.2)
    assert random_hit(10, 2, 3) == pytest.approx(1 - 8 * 7 * 6 / (10 * 9 * 8))
    assert random_hit(2, 1, 3) == 1.0


def test_only_windows_with_an_alarm_are_judged() -> None:
    is_alarm = np.array([True, True, False, True, False])
    scores = score_explanations([RANKS], "normal", is_alarm, np.array([False, False, False, True, True]))
    assert scores is not None
    assert scores.num_attacked_windows == 3
    assert scores.detector.num_windows == 2
    assert scores.detector.hit_at_1 == 0.5
    assert scores.detector.hit_at_3 == 1.0
    assert scores.detector.random_at_1 == pytest.approx((0.25 + 0.2) / 2)
    assert scores.habits is not None
    assert scores.habits.num_windows == 2
    assert scores.habits.hit_at_1 == 1.0


def test_without_an_alarm_nothing_is_hit_nor_missed() -> None:
    scores = score_explanations([RANKS], "normal", np.zeros(5, bool), np.zeros(5, bool))
    assert scores is not None
    assert scores.detector.num_windows == 0
    assert scores.detector.hit_at_1 is None


def test_a_detector_that_judges_no_identifiers_leaves_them_to_the_habits() -> None:
    scores = score_explanations([RANKS], "fusion", np.ones(5, bool), np.ones(5, bool))
    assert scores is not None
    assert scores.named_by == "habits"


def test_ranks_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_ranks(tmp_path / "ranks.npz", RANKS)
    found = read_ranks(tmp_path / "ranks.npz")
    np.testing.assert_array_equal(found.window, RANKS.window)
    assert found.ranks.keys() == RANKS.ranks.keys()
    np.testing.assert_array_equal(found.ranks["normal"], RANKS.ranks["normal"])


def test_the_habits_alone_rank_the_attacked_identifier_first_where_they_name_one() -> None:
    graphs = windows_to_graphs(drive("malfunction", duration_s=25.0), WINDOWS)
    pool = PooledStores([graphs], features=(tuple(NODE_FEATURES), tuple(EDGE_FEATURES)))
    ranks = rank_attacked({}, pool)
    assert ranks is not None
    is_named = graphs["suspect"] >= 0
    scores = score_explanations([ranks], "habits", is_named, is_named)
    assert scores is not None
    assert scores.named_by == "habits"
    assert scores.detector.num_windows > 5
    assert scores.detector.hit_at_1 is not None
    assert scores.detector.hit_at_1 > 0.9
    assert scores.detector.random_at_3 is not None
    assert scores.detector.random_at_3 < 0.5


def test_windows_of_unknown_features_are_not_ranked() -> None:
    graphs = windows_to_graphs(drive("malfunction", duration_s=5.0), WINDOWS)
    other = (("renamed", *NODE_FEATURES[1:]), tuple(EDGE_FEATURES))
    assert rank_attacked({}, PooledStores([graphs], features=other)) is None


@pytest.mark.parametrize("num_messages", [20, 100, 200, 400])
def test_a_quarter_of_the_messages_is_no_flood_and_one_message_more_is(num_messages: int) -> None:
    counts = np.array([num_messages // 4, num_messages // 4 + 1])
    x = np.zeros((2, len(NODE_FEATURES)), np.float32)
    x[:, NODE_FEATURES.index("count")] = np.log2(counts) / 4.0
    x[:, NODE_FEATURES.index("novelty_maximum")] = 1.0
    round_features(x, NODE_FEATURES)
    assert flooding(x, np.full(2, num_messages)).tolist() == [False, True]
