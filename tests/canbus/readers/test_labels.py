"""Words that label messages."""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kdgat.canbus import Messages, RecordingError, read_recording
from kdgat.canbus.messages import ReadOptions
from kdgat.canbus.readers.csv import ROLE_LABEL, find_columns
from kdgat.canbus.readers.detect import NO_OPTIONS
from kdgat.canbus.readers.labels import count_words, refuse_unknown_words, value_of
from tests.canbus.recording_files import random_messages

PAIRS = [
    ("Normal", "Attack"),
    ("benign", "malicious"),
    ("False", "True"),
    ("0.0", "1.0"),
    ("no", "YES"),
    ("Attack-free", "ATTACK"),
    ("R", "T"),
]


def _write(path: Path, messages: Messages, words: list[str], header: str = "timestamp,id,data,class,kind") -> Path:
    lines = [header] if header else []
    for row, word in enumerate(words):
        payload = bytes(messages.payload[row, : messages.length[row]]).hex()
        lines.append(f"{messages.timestamp[row]:.6f},{messages.identifier[row]:X},{payload},{word}")
        lines[-1] += ",Flooding" if header.endswith(",kind") else ""
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1])
@pytest.mark.parametrize("header", ["timestamp,id,data,class,kind", ""])
def test_known_words_are_labels_whatever_their_case(tmp_path: Path, pair: tuple[str, str], header: str) -> None:
    written = random_messages(60)
    read = read_recording(_write(tmp_path / "a.csv", written, [pair[label] for label in written.label], header))
    assert read.labelled
    assert read.num_bad_rows == 0
    assert read.label.tolist() == written.label.tolist()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1])
def test_words_of_parquet_are_those_of_text(tmp_path: Path, pair: tuple[str, str]) -> None:
    words = [pair[0], pair[1].lower(), pair[1]]
    columns = {"timestamp": [1.0, 2.0, 3.0], "id": [1, 2, 3], "data": ["00"] * 3, "Class": words}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    assert read_recording(tmp_path / "a.parquet").label.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_unknown_words_are_refused_however_rare_with_the_option_that_says_which_are_attacks(
    tmp_path: Path, name: str
) -> None:
    written = random_messages(600)
    words = ["Normal"] * 600
    words[300:302], words[400:403] = ["DoS"] * 2, ["Fuzzy"] * 3  # less than the share of bad rows that is dropped
    if name.endswith(".csv"):
        _write(tmp_path / name, written, words)
    else:
        columns = {"timestamp": written.timestamp, "id": written.identifier, "data": ["00"] * 600, "label": words}
        pl.DataFrame(columns).write_parquet(tmp_path / name)
    fix = "--attack-labels Fuzzy,DoS" if name.endswith(".csv") else "store 0 for benign and 1 for attack"
    with pytest.raises(RecordingError, match=rf"Fuzzy \(3 rows\), DoS \(2 rows\); .*{fix}"):
        read_recording(tmp_path / name)


def test_a_damaged_label_is_a_bad_row(tmp_path: Path) -> None:
    written = random_messages(200)
    words = ["Attack" if label else "Normal" for label in written.label]
    words[7] = "Norxal"
    read = read_recording(_write(tmp_path / "a.csv", written, words))
    assert [row.line for row in read.bad_rows] == [9]
    assert read.num_attacks == np.delete(written.label, 7).sum()


def test_numbers_of_attacks_are_refused_as_words_are(tmp_path: Path) -> None:
    columns = {"timestamp": np.arange(500.0), "id": [1] * 500, "data": ["00"] * 500, "label": [0] * 497 + [1, 2, 2]}
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(RecordingError, match=r"2 \(2 rows\)"):
        read_recording(tmp_path / "a.parquet")


def test_only_words_that_come_again_are_refused() -> None:
    path = Path("a.csv")
    refuse_unknown_words(path, Counter({"Norxal": 1, "": 9, "#?": 9}))
    lines = [b"1,2,00,Gear Box\r\n", b'1,2,00,"Gear Box",\n', b"1,2"]
    words = count_words(lines, ",", -1)
    assert words["Gear Box"] == 2
    with pytest.raises(RecordingError, match=r"--attack-labels 'Gear Box'`"):
        refuse_unknown_words(path, words)
    assert count_words(lines, ",", 3) == Counter({"Gear Box": 2})


def test_words_that_a_user_names_are_the_only_attacks(tmp_path: Path) -> None:
    written = random_messages(60)
    words = ["dos" if label else "Attack" for label in written.label]
    path = _write(tmp_path / "a.csv", written, words, "timestamp,id,data,verdict,kind")
    read = read_recording(path, options=ReadOptions(label_column="Verdict", attack_labels=("DoS", "Fuzzy")))
    assert read.label.tolist() == written.label.tolist()
    assert [value_of(word, ("DoS", "2")) for word in ("dos", "2", "Attack", "1", "")] == [1, 1, 0, 0, -1]


def test_the_column_of_labels_can_be_named() -> None:
    lines = ["Time,ID,Data,Label,Verdict of rig", "0.1,1F3,00,x,Normal"]
    path = Path("a.csv")
    assert find_columns(path, lines, ReadOptions(label_column="verdict OF rig")).roles.index(ROLE_LABEL) == 4
    assert find_columns(path, lines, NO_OPTIONS).roles.index(ROLE_LABEL) == 3
    with pytest.raises(RecordingError, match=r"label_column='truth': its columns are Time, ID, .*--label-column"):
        find_columns(path, lines, ReadOptions(label_column="truth"))
    with pytest.raises(RecordingError, match="it has no header"):
        find_columns(path, lines[1:], ReadOptions(label_column="truth"))


def test_a_header_with_an_unknown_column_is_refused_with_the_option_that_makes_it_the_labels() -> None:
    lines = ["time,id,data,malicious", "0.1,1F3,00,no"]
    with pytest.raises(RecordingError, match="labels: --label-column"):
        find_columns(Path("a.csv"), lines, NO_OPTIONS)


def test_of_two_columns_of_labels_one_must_be_named() -> None:
    lines = ["time,id,data,label,class", "0.1,1F3,00,0,Normal"]
    with pytest.raises(RecordingError, match="its columns label and class may hold labels; choose one"):
        find_columns(Path("a.csv"), lines, NO_OPTIONS)
    assert find_columns(Path("a.csv"), lines, ReadOptions(label_column="class")).labelled
