"""Profiles: what minutes without attacks show of a car, how they grow, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.canbus.profile import Profile, learn_profile
from tests.canbus.profile.car import PERIODS_S, SPEED, drive, rows_of

BEGIN_S, END_S = 30.0, 40.0


def _flood() -> list[tuple[float, int, bytes]]:
    random = np.random.default_rng(0)
    times = BEGIN_S + np.cumsum(random.uniform(0.001, 0.003, 5000))
    return [(float(one), SPEED, bytes(8)) for one in times if one < END_S]


def test_who_comes_and_how_evenly_is_learned() -> None:
    profile = learn_profile([("a", drive(rows_of(60.0, 1)))])
    assert set(profile.identifiers) == set(PERIODS_S)
    for identifier, period_s in PERIODS_S.items():
        one = profile.identifiers[identifier]
        assert one.usual_s == pytest.approx(period_s, rel=0.01)
        assert one.evenness > 0.99
        assert one.is_timed
        assert one.is_expected
        assert one.shortest_s[-1] == pytest.approx(32 * period_s, rel=0.01)


def test_a_minute_is_needed_before_others_are_unknown() -> None:
    assert np.isinf(learn_profile([("a", drive(rows_of(20.0, 1)))]).most_others)
    assert np.isfinite(learn_profile([("a", drive(rows_of(60.0, 1)))]).most_others)


def test_it_grows_by_further_drives_to_what_all_of_them_show() -> None:
    first = learn_profile([("a", drive(rows_of(30.0, 1)))])
    without = [row for row in rows_of(40.0, 2) if row[1] != 0x43F]
    grown = learn_profile([("b", drive(without))], first)
    assert [one.name for one in grown.drives] == ["a", "b"]
    assert grown.seconds == pytest.approx(70.0, abs=0.5)
    known, new = first.identifiers[SPEED], grown.identifiers[SPEED]
    assert new.num_messages > known.num_messages
    assert all(later <= earlier for earlier, later in zip(known.shortest_s, new.shortest_s, strict=True))
    assert new.longest_s >= known.longest_s
    assert {one.kind for one in new.fields} == {"smooth", "counter"}
    assert not grown.identifiers[0x43F].is_expected  # it is not there in every drive
    assert grown.identifiers[0x316].is_expected


def test_drives_that_are_given_together_are_what_one_after_the_other_shows_of_times() -> None:
    drives = [(name, drive(rows_of(30.0, seed))) for name, seed in (("a", 1), ("b", 2))]
    together, grown = learn_profile(drives), learn_profile(drives[1:], learn_profile(drives[:1]))
    for identifier in PERIODS_S:
        one, other = together.identifiers[identifier], grown.identifiers[identifier]
        assert one.shortest_s == other.shortest_s
        assert one.longest_s == other.longest_s
        assert one.num_messages == other.num_messages


def test_minutes_that_look_attacked_are_refused_unless_they_are_trusted() -> None:
    attacked = drive(rows_of(60.0, 1) + _flood())
    with pytest.raises(UserError, match=r"day\.log: looks attacked: \d+ alarms? .* the first after 30\..*--trust"):
        learn_profile([("day.log", attacked)])
    assert learn_profile([("day.log", attacked)], is_trusted=True).identifiers[SPEED].shortest_s[-1] < 0.2


def test_a_short_alarm_is_left_out() -> None:
    short = [row for row in _flood() if row[0] < BEGIN_S + 1.0]
    profile = learn_profile([("a", drive(rows_of(60.0, 1) + short))])
    assert profile.drives[0].num_alarms == 1
    assert 0.5 < profile.drives[0].alarm_s < 2.0
    clean = learn_profile([("a", drive(rows_of(60.0, 1)))])
    learned, usual = profile.identifiers[SPEED].shortest_s[-1], clean.identifiers[SPEED].shortest_s[-1]
    assert learned > 0.8 * usual  # but for the first moments, before it was an alarm


def test_a_log_without_messages_is_refused() -> None:
    with pytest.raises(UserError, match="holds no message"):
        learn_profile([("empty", drive(rows_of(10.0, 1)).select(slice(0)))])


def test_a_profile_says_that_a_log_is_of_another_car() -> None:
    profile = learn_profile([("a", drive(rows_of(60.0, 1)))])
    own, other = drive(rows_of(10.0, 5)), drive([(time, 2 * one, data) for time, one, data in rows_of(10.0, 5)])
    assert profile.misfit(own.timestamp, own.identifier) == ""
    assert "expects 6 identifiers at even intervals, and 0 of" in profile.misfit(other.timestamp, other.identifier)
    slower = drive([(3.0 * time, one, data) for time, one, data in rows_of(10.0, 5)])
    assert "expects 6 identifiers at even intervals, and 0 of" in profile.misfit(slower.timestamp, slower.identifier)
    strangers = [(0.1 * count, 0x600 + place, bytes(8)) for count in range(1, 600) for place in range(3)]
    flooded = drive(rows_of(60.0, 5) + _flood() + strangers)
    assert profile.misfit(flooded.timestamp, flooded.identifier) == ""


def test_an_identifier_that_wakes_late_in_some_drive_is_not_expected_from_the_first_second_on() -> None:
    late = [row for row in rows_of(60.0, 2) if row[1] != 0x43F or row[0] > 5.0]
    drives = [("a", drive(rows_of(60.0, 1))), ("b", drive(late))]
    for profile in (learn_profile(drives), learn_profile(drives[1:], learn_profile(drives[:1]))):
        assert not profile.identifiers[0x43F].is_expected
        assert profile.identifiers[0x316].is_expected


def test_a_time_stamp_that_is_off_makes_no_identifier_slower() -> None:
    rows = rows_of(60.0, 1)
    places = [place for place, row in enumerate(rows) if row[1] == 0x43F][100:105]
    messages = drive(rows)
    messages.timestamp[places] = 0.0
    one = learn_profile([("a", messages)]).identifiers[0x43F]
    assert one.longest_s < 0.11
    assert one.is_expected


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    profile = learn_profile([("a", drive(rows_of(30.0, 1)))])
    profile.write(tmp_path / "car.json")
    assert Profile.read(tmp_path / "car.json") == profile
    assert sorted(json.loads((tmp_path / "car.json").read_text())["identifiers"]) == sorted(
        f"{one:03X}" for one in PERIODS_S
    )


@pytest.mark.parametrize(
    ("key", "value"), [("first_bit", 60), ("num_bits", 40), ("step", 1 << 70), ("kind", "sine"), ("first_bit", -1)]
)
def test_a_field_that_no_payload_can_have_is_refused(key: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "car.json"
    learn_profile([("a", drive(rows_of(60.0, 1)))]).write(path)
    content = json.loads(path.read_text())
    content["identifiers"][f"{SPEED:03X}"]["fields"][0][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"car\.json .*identifiers\.153\.fields\.0"):
        Profile.read(path)


def test_a_short_drive_takes_no_counter_away_and_a_quiet_one_makes_no_field_of_what_was_none() -> None:
    first = learn_profile([("a", drive(rows_of(70.0, 1)))])
    grown = learn_profile([("b", drive(rows_of(3.0, 2)))], first)
    assert [one.is_strict for one in grown.identifiers[SPEED].fields if one.kind == "counter"] == [True]
    noisy = [
        (time_s, one, data[:4] + bytes([place * 37 % 256]) + data[5:] if one == SPEED else data)
        for place, (time_s, one, data) in enumerate(rows_of(70.0, 1))
    ]
    counting = [
        (time_s, one, data[:4] + bytes([int(time_s / 0.02) % 256]) + data[5:] if one == SPEED else data)
        for time_s, one, data in rows_of(70.0, 3)
    ]
    places = range(32, 40)
    alone = learn_profile([("b", drive(counting))]).identifiers[SPEED].fields
    assert any(one.first_bit in places for one in alone)
    both = learn_profile([("b", drive(counting))], learn_profile([("a", drive(noisy))])).identifiers[SPEED].fields
    assert not any(one.first_bit in places for one in both)
