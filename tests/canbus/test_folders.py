"""What lies in a dataset's folder: every file is a recording, or is named with the reason why not."""

from __future__ import annotations

import gzip
import lzma
import os
from pathlib import Path

import pytest

from kdgat.canbus.catalog import DatasetError, discover_recordings
from kdgat.canbus.folders import survey_folder
from tests.canbus.recording_files import random_messages, write_text


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    return write_text(tmp_path / "a.log", random_messages(60), "candump.log").read_bytes()


@pytest.fixture
def cars(tmp_path: Path) -> Path:
    (tmp_path / "cars" / "train_a").mkdir(parents=True)
    return tmp_path / "cars"


def test_recordings_of_odd_names_are_used_and_told_apart(cars: Path, log: bytes) -> None:
    names = ("can.log.1", "can.log.2.gz", "can.log_2022-08-27.gz", "can.log_2022-08-28.gz", "x.gz", "nothing", "d.dat")
    for name in names:
        (cars / "train_a" / name).write_bytes(gzip.compress(log) if name.endswith(".gz") else log)
    (cars / "test_a__can.log.3.xz").write_bytes(lzma.compress(log))
    assert [(place.scenario, place.name) for place in discover_recordings(cars)] == [
        ("test_a", "can.log.3"),
        *(("train_a", name) for name in sorted(("can.log.1", "can.log.2", "can.log_2022-08-27", "can.log_2022-08-28"))),
        *(("train_a", name) for name in ("d", "nothing", "x")),
    ]
    assert not list(survey_folder(cars).notes())


def test_one_name_in_two_packings_keeps_both_apart(cars: Path, log: bytes) -> None:
    for name in ("drive.log.gz", "drive.csv.gz"):
        (cars / "train_a" / name).write_bytes(gzip.compress(log))
    assert [place.name for place in discover_recordings(cars)] == ["drive.csv.gz", "drive.log.gz"]


def test_what_is_no_recording_is_named_with_the_reason(cars: Path, log: bytes) -> None:
    folder = cars / "train_a"
    (folder / "drive.log").write_bytes(log)
    (folder / "notes.pdf").write_bytes(b"%PDF-1.7\n\1\2\3")
    (folder / "todo").write_bytes(b"see drive.log, the first of May\n(1.0) can0 123#11\n" + b"to be done, soon\n" * 20)
    (folder / "drive.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    (folder / "copy.log.part").write_bytes(log)
    (folder / "empty").touch()
    (folder / "lost").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    (folder / os.fsdecode(b"caf\xe9.log")).write_bytes(log)
    (cars / "about.txt").write_text("on Monday it rained")
    for name in ("README", "LICENSE.txt", "capture_metadata.json", "sha256sums.txt", ".hidden"):
        (folder / name).write_bytes(log)
    assert [place.name for place in discover_recordings(cars)] == ["drive"]
    *named, beside = survey_folder(cars).notes()
    reasons = (
        ("about.txt", "no scenario in its name"),
        ("caf\\xe9.log", "no text in UTF-8"),
        ("copy.log.part", "what is not finished"),
        ("drive.zst", "is packed by zstd"),
        ("empty", "is empty (0 bytes)"),
        ("fifo", "a pipe, a socket or a device"),
        ("lost", "a link to nothing"),
        ("notes.pdf", "is an image or a document"),
        ("todo", ""),
    )
    found = {line.partition(" (no recording: ")[0].rpartition("/")[2]: line for line in named}
    assert found.keys() == {name for name, _ in reasons}
    for name, reason in reasons:
        assert found[name].startswith("passed over: ")
        assert reason in found[name]
    assert beside.startswith("passed over, by their names: .hidden, LICENSE.txt, README, sha256sums.txt")


def test_a_folder_without_recordings_says_what_it_holds_instead(cars: Path) -> None:
    (cars / "train_a" / "notes.pdf").write_bytes(b"%PDF-1.7\n\1\2\3")
    with pytest.raises(DatasetError, match=r"no recording; expected .*; passed over: .*notes\.pdf \(no recording"):
        discover_recordings(cars)
