"""`kdgat data`, as a user calls it."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from kdgat.canbus import read_recording, write_recording
from tests.canbus.log_files import error_frame, frames, write_log
from tests.canbus.recording_files import FORMATS, LABELLED_FORMATS, assert_same_traffic, random_messages, write_text
from tests.support.command_line import Answer, kdgat


def _kdgat(*words: object, status: int = 0) -> Answer:
    return kdgat("data", *words, status=status)


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    _kdgat("synth", "--out", root, "--size", "tiny", "--seed", 5)
    return root


@pytest.fixture
def own_root(data_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(data_root, tmp_path / "own")
    return tmp_path / "own"


def test_list_shows_datasets_with_their_recordings(data_root: Path) -> None:
    rows = {row["name"]: row for row in json.loads(_kdgat("list", "--data-root", data_root, "--json").stdout)}
    assert (rows["synthetic"]["num_recordings"], rows["hcrl_sa"]["num_recordings"]) == (20, 0)
    assert len(rows["synthetic"]["scenarios"]) == 6
    text = _kdgat("list", "--data-root", data_root).stdout
    assert "hcrl_ch" in text
    assert "https://ocslab.hksecurity.net/Datasets/car-hacking-dataset (research use, cite)\n" in text
    assert "\x1b" not in text


def test_list_refuses_a_data_root_that_is_no_folder_and_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for place, kind in (("file", "is no folder"), ("nosuch", "no such folder")):
        for more in ((), ("--json",)):
            answer = _kdgat("list", "--data-root", place, *more, status=1)
            assert answer.stdout == ""
            assert answer.stderr.startswith(f"error: --data-root {place}: {kind}; name the one that holds one folder")
            assert answer.stderr.count("\n") == 1
    assert "hcrl_ch" in _kdgat("list").stdout


def test_list_shows_folders_without_an_entry_and_leaves_out_other_folders(own_root: Path) -> None:
    write_recording(own_root / "mine" / "train_a__x.parquet", random_messages())
    (own_root / "papers").mkdir()
    names = [row["name"] for row in json.loads(_kdgat("list", "--data-root", own_root, "--json").stdout)]
    assert "mine" in names
    assert "papers" not in names


def _inspect(*words: object, status: int = 0) -> dict[str, dict[str, Any]]:
    rows = json.loads(_kdgat("inspect", *words, "--json", status=status).stdout)
    return {f"{row['scenario']}/{row['name']}": row for row in rows}


def test_inspect_dataset_says_what_is_in_it(data_root: Path) -> None:
    row = _inspect("--dataset", "synthetic", "--data-root", data_root)["train_02_with_attacks/DoS-alder"]
    messages = read_recording(Path(row["path"]))
    assert (row["num_messages"], row["num_attacks"], row["role"], row["vehicle"]) == (
        len(messages),
        messages.num_attacks,
        "train",
        "alder",
    )
    assert row["attack_share"] == pytest.approx(messages.num_attacks / len(messages))


def test_inspect_marks_copies_damage_and_unlabelled_attacks(own_root: Path) -> None:
    folder = own_root / "synthetic"
    shutil.copy(folder / "train_01_attack_free__attack-free-alder.parquet", folder / "train_02_with_attacks__x.parquet")
    silent = random_messages(100, 1, "masquerade-timed-1", "test_06")
    silent.label[:] = 0
    write_recording(folder / "test_06__masquerade-timed-1.parquet", silent)
    damaged = write_text(folder / "test_07" / "damaged.csv", random_messages(100), "can-train-and-test.csv")
    damaged.write_text(damaged.read_text() + "x,1,00,0\n" * 9)
    (folder / "test_07" / "nonsense.csv").write_text("a,b\n1,2\n")
    rows = _inspect("--dataset", "synthetic", "--data-root", own_root, status=1)
    assert rows["train_02_with_attacks/x"]["notes"] == ["same messages as train_01_attack_free/attack-free-alder"]
    assert rows["test_06/masquerade-timed-1"]["notes"] == ["named after an attack, but every label is 0"]
    assert not rows["test_07/damaged"]["usable"]
    assert rows["test_07/damaged"]["bad_rows"][0] == {"line": 102, "reason": "timestamp is no finite number"}
    assert not rows["test_07/nonsense"]["usable"]
    text = _kdgat("inspect", folder, status=1).stdout
    assert f"{damaged}:102: timestamp is no finite number" in text
    assert "\x1b" not in text


def test_inspect_one_file(data_root: Path) -> None:
    path = data_root / "synthetic" / "train_01_attack_free__attack-free-birch.parquet"
    assert list(_inspect(path)) == ["train_01_attack_free/attack-free-birch"]


@pytest.mark.parametrize("text_format", FORMATS)
def test_import_brings_every_format_into_the_layout(tmp_path: Path, text_format: str) -> None:
    written = random_messages()
    source = write_text(tmp_path / text_format, written, text_format)
    _kdgat("import", source, "--dataset", "mine", "--scenario", "train_x", "--name", "a", "--data-root", tmp_path)
    read = read_recording(tmp_path / "mine" / "train_x__a.parquet")
    assert_same_traffic(read, written)
    assert read.labelled == (text_format in LABELLED_FORMATS)


def test_log_of_several_channels_is_inspected_and_imported_one_by_one(tmp_path: Path) -> None:
    log = [*frames(random_messages(60, 1), 0), *frames(random_messages(40, 2), 1), error_frame(2e9)]
    source = write_log(tmp_path / "a drive.BLF", log)
    (refused,) = _inspect(source, status=1).values()
    assert "holds 2 channels: 1 (60 messages), 2 (40 messages); choose one" in refused["notes"][0]
    (row,) = _inspect(source, "--channel", "2").values()
    assert row["num_messages"] == 40
    where = ("--dataset", "mine", "--scenario", "train_x", "--data-root", tmp_path)
    assert "--channel 1" in _kdgat("import", source, *where, status=1).stderr
    _kdgat("import", source, *where, "--channel", "1")
    assert_same_traffic(
        read_recording(tmp_path / "mine" / "train_x__a drive.parquet"), read_recording(source, channel=1)
    )
    assert "options of reading" in _kdgat("inspect", tmp_path / "mine", "--channel", "1", status=2).stderr


def test_import_takes_the_times_of_attacks_and_words_that_are_attacks(tmp_path: Path) -> None:
    source = write_text(tmp_path / "a.log", random_messages(200), "candump.log")
    times = tmp_path / "times.csv"
    times.write_text("0.05,0.1\n")
    where = ("--dataset", "mine", "--scenario", "test_x", "--data-root", tmp_path)
    _kdgat("import", source, *where, "--attacks", times)
    read = read_recording(tmp_path / "mine" / "test_x__a.parquet")
    inside = (read.timestamp >= read.timestamp[0] + 0.05) & (read.timestamp <= read.timestamp[0] + 0.1)
    assert read.num_attacks > 0
    assert read.label.tolist() == inside.tolist()
    assert "no such file" in _kdgat("import", source, *where, "--attacks", tmp_path / "no.csv", status=1).stderr
    assert (
        "--attacks is a table of one"
        in _kdgat("import", source, *where, "--attacks", times, "--attack-free", status=2).stderr
    )
    table = tmp_path / "b.csv"
    table.write_text("time,id,data,verdict\n" + "0.1,1F3,00,ok\n0.2,1F3,00,flood\n" * 30)
    said = ("--label-column", "verdict", "--attack-labels", "flood,fuzz")
    answer = _kdgat("import", table, *where, *said)
    assert "30 attacks" in answer.stdout
    assert "all count as benign" not in answer.stderr
    misspelt = ("--label-column", "verdict", "--attack-labels", "flod", "--replace")
    assert "no row is labelled flod, so all count as benign" in _kdgat("import", table, *where, *misspelt).stderr


def test_import_reports_dropped_rows_with_file_and_line(tmp_path: Path) -> None:
    source = write_text(tmp_path / "a.csv", random_messages(200), "can-train-and-test.csv")
    source.write_text(source.read_text() + "x,1,00,0\n")
    where = ("--dataset", "mine", "--scenario", "train_x", "--data-root", tmp_path)
    assert f"{source}:202: timestamp is no finite number" in _kdgat("import", source, *where).stderr
    assert "exists already; give another --name, or --replace" in _kdgat("import", source, *where, status=1).stderr
    _kdgat("import", source, *where, "--replace")
    refused = _kdgat("import", source, *where, "--name", "b", "--max-bad-fraction", "0", status=1)
    assert "1 of 201 rows are bad" in refused.stderr
    assert not (tmp_path / "mine" / "train_x__b.parquet").exists()


def test_import_can_declare_a_source_attack_free_unless_it_holds_attacks(tmp_path: Path) -> None:
    where = ("--dataset", "mine", "--scenario", "train_x", "--data-root", tmp_path, "--attack-free")
    text = write_text(tmp_path / "free.txt", random_messages(), "attack-free.txt")
    _kdgat("import", text, *where)
    assert read_recording(tmp_path / "mine" / "train_x__free.parquet").labelled
    attacked = write_text(tmp_path / "attacked.csv", random_messages(), "car-hacking.csv")
    assert "labelled attacks; drop --attack-free" in _kdgat("import", attacked, *where, status=1).stderr


@pytest.mark.parametrize("scenario", ["a/b", "a__b", " ", ".hidden"])
def test_import_refuses_a_scenario_that_cannot_stand_in_a_file_name(tmp_path: Path, scenario: str) -> None:
    source = write_text(tmp_path / "a.csv", random_messages(), "can-train-and-test.csv")
    result = _kdgat("import", source, "--dataset", "mine", "--scenario", scenario, "--data-root", tmp_path, status=1)
    assert f"scenario='{scenario}'" in result.stderr


def test_synth_with_the_same_seed_gives_the_same_dataset(data_root: Path, tmp_path: Path) -> None:
    _kdgat("synth", "--out", tmp_path, "--dataset", "again", "--size", "tiny", "--seed", 5, "--quiet")
    for path in (data_root / "synthetic").iterdir():
        again = read_recording(tmp_path / "again" / path.name)
        assert again.content_hash() == read_recording(path).content_hash()


def test_user_mistakes_are_one_line_without_a_traceback(data_root: Path) -> None:
    for words in (
        ("inspect", "--dataset", "synthetik", "--data-root", data_root),
        ("synth", "--out", data_root, "--size", "huge"),
        ("synth", "--out", data_root),
    ):
        result = _kdgat(*words, status=1)
        assert result.stderr.startswith("error: ")
        assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("dataset", ["../evil", "/tmp/evil", " ", "a/b", "..", ".hidden", "a\x1bb"])
def test_a_dataset_whose_name_leaves_the_data_root_is_neither_imported_simulated_nor_inspected(
    tmp_path: Path, dataset: str
) -> None:
    source = write_text(tmp_path / "a.csv", random_messages(), "can-train-and-test.csv")
    root = tmp_path / "data"
    root.mkdir()
    for words in (
        ("import", source, f"--dataset={dataset}", "--scenario", "train_x", "--data-root", root),
        ("synth", f"--dataset={dataset}", "--out", root, "--size", "tiny"),
        ("inspect", f"--dataset={dataset}", "--data-root", root),
    ):
        answer = _kdgat(*words, status=1)
        assert answer.stderr.count("\n") == 1
        assert "cannot be part of a file name, and names a folder of the data root; use letters" in answer.stderr
    assert sorted(tmp_path.rglob("*")) == [source, root]


def test_a_folder_is_inspected_and_imported_with_every_file_that_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "found" / "train_a"
    for seed, name in enumerate(("can.log", "can.log.1")):
        write_text(folder / name, random_messages(50, seed), "candump.log")
    (folder / "notes.pdf").write_bytes(b"%PDF-1.7\n\1\2")
    (folder / "README.md").write_text("about the car")
    broken = folder / "broken.csv"
    broken.write_text("what,is,this,file\n1,2,3,4\n")
    stray = write_text(tmp_path / "found" / "stray.log", random_messages(50, 7), "candump.log")
    answer = _kdgat("inspect", tmp_path / "found", status=1)
    for text in (f"{broken}: has the header", f"{stray}: no scenario in its name; rename it to <scenario>__stray.log"):
        assert text in answer.stdout
    assert f"passed over: {folder / 'notes.pdf'} (no recording: is an image or a document" in answer.stdout
    assert "passed over, by their names: README.md" in answer.stdout
    rows = json.loads(_kdgat("inspect", tmp_path / "found", "--json", status=1).stdout)
    assert [(row["name"], row["usable"]) for row in rows] == [
        ("stray", False),
        ("broken", False),
        ("can", True),
        ("can.log.1", True),
    ]
    words = ("--dataset", "cars", "--scenario", "train_a", "--data-root", tmp_path / "data")
    answer = _kdgat("import", tmp_path / "found", *words, status=1)
    assert f"refused: {broken}: has the header" in answer.stderr
    assert "1 of 4 recordings were refused" in answer.stderr
    assert "notes.pdf (no recording" in answer.stderr
    assert sorted(path.name for path in (tmp_path / "data" / "cars").iterdir()) == [
        "train_a__stray.parquet",
        "train_a__train_a-can.log.1.parquet",
        "train_a__train_a-can.parquet",
    ]


def test_a_pipe_is_imported_under_the_name_it_is_given(tmp_path: Path) -> None:
    log = write_text(tmp_path / "a.log", random_messages(50), "candump.log")
    os.mkfifo(tmp_path / "fifo")
    words = ("import", tmp_path / "fifo", "--dataset", "cars", "--scenario", "a", "--data-root", tmp_path / "data")
    assert "give --name" in kdgat("data", *words, status=2).stderr
    writer = threading.Thread(target=lambda: (tmp_path / "fifo").write_bytes(log.read_bytes()))
    writer.start()
    _kdgat(*words, "--name", "drive")
    writer.join()
    assert_same_traffic(read_recording(tmp_path / "data" / "cars" / "a__drive.parquet"), read_recording(log))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.log", "", "is empty (0 bytes)"),
        ("a.log", "\n\n", "holds nothing but blank lines"),
        ("a.csv", "timestamp,arbitration_id,data_field,attack\n", "holds a header and no message"),
        ("a.asc", "date Mon Nov 2 10:00:00 2020\nbase hex  timestamps absolute\n", "holds a header and no message"),
        ("a.log", "(2.0) can0 20000080#0000000000000000\n", "holds no message of classic CAN, only 1 error frame"),
        (
            "a.asc",
            "base hex  timestamps absolute\n   0.1 1  Statistic: D 0 R 0 XD 0 XR 0 E 0 O 0 B 0.00%\n",
            "holds no message of classic CAN, only 1 event of the tool",
        ),
    ],
)
def test_what_a_file_without_messages_holds_is_said(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    answer = _kdgat("inspect", tmp_path / name, status=1)
    assert words in answer.stdout
    assert not content or "remove" not in answer.stdout
