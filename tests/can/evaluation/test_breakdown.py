"""What hides behind F1 and AUC."""

from dataclasses import replace

import numpy as np
import pytest

from kdgat.can.evaluation.breakdown import attack_episodes, bootstrap_intervals, break_down
from kdgat.canbus.features import ATTACK_KINDS
from tests.can.evaluation.score_tables import made_table


def test_recall_is_told_by_injected_messages_and_by_kind() -> None:
    dos, suppression = ATTACK_KINDS.index("dos"), ATTACK_KINDS.index("suppression")
    table = made_table(
        [0, 1, 1, 1, 1, 1, 1, 1],
        attack_count=np.array([0, 0, 1, 1, 3, 9, 10, 80], np.int32),
        kind=np.array([0, suppression, 0, 0, dos, dos, dos, dos], np.int8),
    )
    found = break_down(table, np.array([1, 0, 1, 0, 1, 1, 1, 0], bool))
    shares = {name: (row.num_found, row.num_windows) for name, row in found.recall_by_count.items()}
    assert shares == {"0": (0, 1), "1": (1, 2), "2-3": (1, 1), "4-9": (1, 1), "10+": (1, 2)}
    assert {name: row.recall for name, row in found.recall_by_kind.items()} == {
        "dos": 0.75, "suppression": 0.0, "unknown": 0.5,
    }  # fmt: skip


def test_false_alarms_are_counted_per_hour_of_traffic_without_attack() -> None:
    label = np.repeat([0, 1], [3600, 400])  # 360 s without attack
    decision = np.zeros(4000, bool)
    decision[[5, 70, 3999]] = True
    found = break_down(made_table(label), decision)
    assert found.benign_hours == pytest.approx(0.1)
    assert found.false_alarms_per_hour == pytest.approx(20.0)


def test_false_alarms_are_counted_by_vehicle_and_as_episodes() -> None:
    label = np.zeros(40)
    label[35:] = 1
    recording = np.repeat([0, 1, 2, 3], 10).astype(np.int32)
    decision = np.zeros(40, bool)
    decision[[0, 1, 9, 12, 38]] = True  # half a second apart; the last one is right
    table = made_table(label, recording=recording)
    found = break_down(replace(table, vehicles=("kia", "kia", "leaf", "", *[""] * 6)), decision).vehicles
    counts = {name: (one.num_windows, one.num_false_alarms, one.num_false_episodes) for name, one in found.items()}
    assert counts == {"kia": (20, 4, 2), "leaf": (10, 0, 0)}
    assert found["kia"].hours * 3600.0 == pytest.approx(2.0)
    assert break_down(replace(table, vehicles=("kia",) * 10), decision).vehicles == {}
    assert break_down(table, decision).vehicles == {}


def test_attacks_near_each_other_are_one_and_its_delay_ends_with_the_first_window_of_an_alarm() -> None:
    label = np.zeros(60, int)
    label[[10, 11, 15, 30, 31]] = 1  # 10 to 15 lie less than a second apart, 30 more
    decision = np.zeros(60, bool)
    decision[[3, 15, 50]] = True
    found = attack_episodes(made_table(label), decision)
    assert (found.num_episodes, found.num_found) == (2, 1)
    assert found.median_delay_s == pytest.approx(0.6)
    assert found.worst_delay_s == pytest.approx(0.6)


def test_no_attack_reaches_into_another_recording() -> None:
    table = made_table([1, 1, 1, 1], recording=np.array([0, 0, 1, 1], np.int32))
    assert attack_episodes(table, np.ones(4, bool)).num_episodes == 2


def test_episodes_of_virtual_vehicles_are_not_counted_for_their_windows_are_thinned() -> None:
    table = made_table(np.ones(10), is_virtual=np.ones(10, bool))
    assert break_down(table, np.ones(10, bool)).episodes is None


def test_an_interval_over_blocks_is_wider_where_alarms_come_together() -> None:
    label = np.zeros(6400, int)
    together, spread = np.zeros(6400, bool), np.zeros(6400, bool)
    together[640:740] = True
    spread[::64] = True
    widths = []
    for decision in (together, spread):
        _, interval = bootstrap_intervals(made_table(label), decision)
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= 100 / 6400 <= interval.high
        widths.append(interval.high - interval.low)
    assert widths[0] > 2 * widths[1]


def test_no_false_alarm_seen_is_not_taken_for_none_ever() -> None:
    label = np.repeat([0, 1], 1000)
    f1, false_alarms = bootstrap_intervals(made_table(label), label == 1)
    assert f1 is not None
    assert f1.low == 1.0
    assert false_alarms is not None
    assert false_alarms.high == pytest.approx(0.0038, abs=1e-4)


def test_few_windows_have_no_interval() -> None:
    assert bootstrap_intervals(made_table([0, 1] * 20), np.ones(40, bool)) == (None, None)
