"""Recordings brought into a dataset chunk after chunk: what was read, or nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import RecordingError, make_vehicle, read_recording, simulate, write_recording
from kdgat.canbus.importing import import_recording
from kdgat.canbus.look import require_judgeable
from kdgat.canbus.messages import AttackCampaign, ReadOptions
from tests.canbus.recording_files import assert_same_traffic, random_messages, write_text


def test_chunks_are_written_as_the_recording(tmp_path: Path) -> None:
    written = dataclasses.replace(
        random_messages(150_000), campaigns=(AttackCampaign("suppression", 1.5e9, 1.5e9 + 3.0, (0x123,)),)
    )
    write_recording(tmp_path / "a.parquet", written)
    target, found = import_recording(tmp_path / "a.parquet", tmp_path / "mine", "test_a")
    read = read_recording(target)
    assert read.content_hash() == written.content_hash()
    np.testing.assert_array_equal(read.label, written.label)
    assert (read.campaigns, read.scenario, read.name) == (written.campaigns, "test_a", "a")
    assert (found.num_messages, found.num_attacks) == (150_000, written.num_attacks)


def test_recording_without_times_is_not_imported(tmp_path: Path) -> None:
    messages = simulate(make_vehicle(5), 2.0)
    messages.timestamp = np.round(1e3 * (messages.timestamp - messages.timestamp[0]), 3)
    source = write_text(tmp_path / "a.log", messages, "candump.log")
    with pytest.raises(RecordingError, match="say --time-unit ms "):
        import_recording(source, tmp_path / "mine", "train_a", attack_free=True)
    assert not list((tmp_path / "mine").iterdir())
    target, _ = import_recording(
        source, tmp_path / "mine", "train_a", attack_free=True, options=ReadOptions(time_unit="ms")
    )
    seconds = dataclasses.replace(messages, timestamp=messages.timestamp / 1e3)
    assert_same_traffic(read_recording(target), seconds)


def test_what_a_person_has_said_of_times_is_remembered_by_the_dataset(tmp_path: Path) -> None:
    messages = simulate(make_vehicle(5), 2.0)
    messages.timestamp = np.round(1e3 * (messages.timestamp - messages.timestamp[0]), 3)
    write_recording(tmp_path / "plain.parquet", messages)
    with pytest.raises(RecordingError, match="say --time-unit ms "):
        require_judgeable(tmp_path / "plain.parquet", read_recording(tmp_path / "plain.parquet"))
    options = ReadOptions(time_unit="s")  # it is as slow as that
    target, found = import_recording(tmp_path / "plain.parquet", tmp_path / "mine", "train_a", options=options)
    assert require_judgeable(target, read_recording(target)).usual_interval_s == found.findings.usual_interval_s
    again, _ = import_recording(target, tmp_path / "other", "train_a")
    assert_same_traffic(read_recording(again), messages)


def test_attacks_are_not_imported_as_attack_free(tmp_path: Path) -> None:
    write_recording(tmp_path / "a.parquet", random_messages())
    with pytest.raises(RecordingError, match="messages are labelled attacks; drop --attack-free"):
        import_recording(tmp_path / "a.parquet", tmp_path, "train_a", attack_free=True)
    assert not (tmp_path / "train_a__a.parquet").exists()
