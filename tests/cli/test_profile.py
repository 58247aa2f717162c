"""`kdgat profile` as a person types it: a profile that `detect` uses, that grows, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import write_recording
from tests.canbus.profile.car import SPEED, Row, drive, rows_of
from tests.support.command_line import kdgat

QUIET, ALARMS, MISTAKE = 0, 3, 1


def _forged(rows: list[Row]) -> list[Row]:
    places = [place for place, row in enumerate(rows) if row[1] == SPEED]
    for place in places[200::100]:
        time_s, identifier, payload = rows[place]
        value = (int.from_bytes(payload[:2], "big") + 20000) % 40000
        rows[place] = (time_s, identifier, value.to_bytes(2, "big") + payload[2:])
    return rows


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_recording(folder / "monday.parquet", drive(rows_of(70.0, 1)))
    write_recording(folder / "tuesday.parquet", drive(rows_of(20.0, 2)))
    write_recording(folder / "forged.parquet", drive(_forged(rows_of(20.0, 3))))
    write_recording(folder / "other.parquet", drive([(time, one + 1, data) for time, one, data in rows_of(20.0, 4)]))
    random = np.random.default_rng(0)
    flood = [(float(one), SPEED, bytes(8)) for one in 5.0 + np.cumsum(random.uniform(0.001, 0.003, 5000))]
    write_recording(folder / "flooded.parquet", drive(rows_of(20.0, 5) + [row for row in flood if row[0] < 15.0]))
    return folder


@pytest.fixture(scope="module")
def profile(logs: Path) -> Path:
    kdgat("profile", logs / "monday.parquet", "--out", logs / "car.json", status=QUIET)
    return logs / "car.json"


def test_forged_values_are_found_with_a_profile_and_not_without(logs: Path, profile: Path) -> None:
    kdgat("detect", logs / "forged.parquet", status=QUIET)
    found = kdgat("detect", logs / "forged.parquet", "--profile", profile, "--format", "json", status=ALARMS)
    alarms = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(alarms) >= 7  # of eight
    assert {one["identifiers"][0]["id"] for one in alarms} == {f"{SPEED:03X}"}
    reasons = [one["identifiers"][0]["reasons"] for one in alarms]
    assert all("value far off for one message" in one for one in reasons)
    assert all(any(reason.startswith("bits ") and reason.endswith(" to 15") for reason in one) for one in reasons)
    kdgat("detect", logs / "tuesday.parquet", "--profile", profile, status=QUIET)


def test_messages_and_signals_have_the_names_of_a_database(logs: Path, profile: Path, tmp_path: Path) -> None:
    database = tmp_path / "car.dbc"
    signals = ' SG_ VehicleSpeed : 7|16@0+ (0.01,0) [0|400] "km/h" X\n SG_ Noise : 31|8@0+ (1,0) [0|255] "" X\n'
    database.write_text(f'VERSION ""\n\nNS_ :\n\nBS_:\n\nBU_: X\n\nBO_ {SPEED} Dynamics: 8 X\n{signals}\n')
    options = (logs / "forged.parquet", "--profile", profile, "--dbc", database)
    found = kdgat("detect", *options, "--format", "json", status=ALARMS)
    named = [json.loads(line)["identifiers"][0] for line in found.stdout.splitlines()]
    assert {one["name"] for one in named} == {"Dynamics"}
    assert all("VehicleSpeed" in one["reasons"] and "Noise" not in one["reasons"] for one in named)
    assert (
        "153 Dynamics (value far off for one message, VehicleSpeed" in kdgat("detect", *options, status=ALARMS).stdout
    )
    database.write_text("what is this")
    refused = kdgat("detect", *options, status=MISTAKE)
    assert "describes no message" in refused.stderr
    assert "is no file" in kdgat("detect", *options[:-1], tmp_path / "none.dbc", status=MISTAKE).stderr


def test_what_was_learned_is_said_and_grows(logs: Path, profile: Path, tmp_path: Path) -> None:
    grown = tmp_path / "grown.json"
    said = kdgat("profile", logs / "tuesday.parquet", "--grow", profile, "--out", grown, status=QUIET)
    assert said.stdout.startswith("2 recordings, 90.")
    assert "6 come evenly" in said.stdout
    kdgat("detect", logs / "forged.parquet", "--profile", grown, status=ALARMS)
    again = kdgat("profile", logs / "tuesday.parquet", "--grow", grown, "--out", grown, status=1)
    assert "was learned already: leave it out" in again.stderr
    short = kdgat("profile", logs / "tuesday.parquet", "--out", tmp_path / "short.json", status=QUIET)
    assert "that takes a minute of driving" in short.stdout


def test_minutes_that_look_attacked_are_refused(logs: Path, tmp_path: Path) -> None:
    refused = kdgat("profile", logs / "flooded.parquet", "--out", tmp_path / "no.json", status=1)
    assert "looks attacked" in refused.stderr
    assert "--trust" in refused.stderr
    assert not (tmp_path / "no.json").exists()


def test_a_profile_of_another_car_is_refused(logs: Path, profile: Path, tmp_path: Path) -> None:
    detected = kdgat("detect", logs / "other.parquet", "--profile", profile, status=MISTAKE)
    assert "expects 6 identifiers at even intervals, and 0 of them come so" in detected.stderr
    before = profile.read_bytes()
    grown = kdgat("profile", logs / "other.parquet", "--grow", profile, "--out", profile, status=1)
    assert "of another vehicle" in grown.stderr
    assert profile.read_bytes() == before


@pytest.mark.parametrize("content", ["", "{}x", '{"schema_version": 2}', '{"drives": 3}'])
def test_a_file_that_is_no_profile_is_refused_with_what_makes_one(content: str, logs: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text(content)
    found = kdgat("detect", logs / "tuesday.parquet", "--profile", tmp_path / "broken.json", status=MISTAKE)
    assert "broken.json" in found.stderr


def test_a_recording_is_not_replaced_by_its_profile(logs: Path) -> None:
    found = kdgat("profile", logs / "tuesday.parquet", "--out", logs / "tuesday.parquet", status=1)
    assert "which it would replace" in found.stderr


def test_a_moment_of_driving_makes_no_profile(logs: Path, tmp_path: Path) -> None:
    write_recording(tmp_path / "moment.parquet", drive(rows_of(0.05, 1)))
    refused = kdgat("profile", tmp_path / "moment.parquet", "--out", tmp_path / "car.json", status=1)
    assert "give a minute of driving" in refused.stderr
    assert not (tmp_path / "car.json").exists()
