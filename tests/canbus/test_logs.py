"""Readers: every format gives the same messages, and damage is reported where it is."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdgat.canbus import Messages, ReadLimits, RecordingError, read_recording, write_recording
from kdgat.canbus.messages import BadRow
from tests.canbus.recording_files import (
    FORMATS,
    LABELLED_FORMATS,
    REAL_DATA,
    UNLABELLED_FORMATS,
    assert_same_traffic,
    random_messages,
    write_text,
)

LENIENT = ReadLimits(max_bad_fraction=1.0)


@pytest.mark.parametrize("text_format", FORMATS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_text_format_gives_the_messages_that_were_written(tmp_path: Path, text_format: str, newline: str) -> None:
    written = random_messages()
    read = read_recording(write_text(tmp_path / "train_a" / text_format, written, text_format, newline))
    assert_same_traffic(read, written)
    assert read.labelled == (text_format in LABELLED_FORMATS)
    np.testing.assert_array_equal(read.label, written.label if read.labelled else 0)
    assert (read.num_bad_rows, read.scenario, read.name) == (0, "train_a", text_format.rpartition(".")[0])
    assert read.content_hash() == written.content_hash()


@pytest.mark.parametrize("text_format", FORMATS)
def test_blank_lines_byte_order_mark_and_missing_last_newline_are_harmless(tmp_path: Path, text_format: str) -> None:
    written = random_messages(50)
    path = write_text(tmp_path / text_format, written, text_format, end="")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join([*lines[:10], b"", b"  ", *lines[10:]]))
    read = read_recording(path)
    assert_same_traffic(read, written)
    assert read.num_bad_rows == 0


def test_parquet_round_trip_keeps_everything(tmp_path: Path) -> None:
    written = random_messages(1000)
    path = tmp_path / "train_a__drive.parquet"
    write_recording(path, written)
    read = read_recording(path)
    assert_same_traffic(read, written)
    np.testing.assert_array_equal(read.label, written.label)
    assert (read.scenario, read.name, read.labelled) == ("train_a", "drive", True)
    assert pl.read_parquet(path).columns == ["timestamp", "id", "data_field", "label", "source_file"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_unlabelled_recording_stays_unlabelled_in_parquet(tmp_path: Path) -> None:
    log = read_recording(write_text(tmp_path / "a.log", random_messages(), "candump.log"))
    write_recording(tmp_path / "s__a.parquet", log)
    assert not read_recording(tmp_path / "s__a.parquet").labelled


def test_scenario_argument_replaces_the_one_in_the_path(tmp_path: Path) -> None:
    write_recording(tmp_path / "train_a__drive.parquet", random_messages())
    assert read_recording(tmp_path / "train_a__drive.parquet", scenario="other").scenario == "other"


def test_parquet_without_its_suffix_is_recognised(tmp_path: Path) -> None:
    write_recording(tmp_path / "x.parquet", random_messages())
    (tmp_path / "x.parquet").rename(tmp_path / "x.log")
    assert len(read_recording(tmp_path / "x.log")) == 200


# (line that replaces line 3, reason)
CSV_DAMAGE = [
    ("abc,0A1,00FF,0", "timestamp is no finite number"),
    ("nan,0A1,00FF,0", "timestamp is no finite number"),
    ("inf,0A1,00FF,0", "timestamp is no finite number"),
    ("1e999,0A1,00FF,0", "timestamp is no finite number"),
    (",0A1,00FF,0", "timestamp is no finite number"),
    (
        "1500000000000000000,0A1,00FF,0",
        "timestamp is beyond 1e11 seconds; is it in ms or ns (--time-unit)?",
    ),
    ("1.5.0,0A1,00FF,0", "timestamp is no finite number"),
    ("1.5,xyz,00FF,0", "id is no hexadecimal number"),
    ("1.5,,00FF,0", "id is no hexadecimal number"),
    ("1.5,20000000,00FF,0", "id is beyond 29 bits"),
    ("1.5,FFFFFFFFFFFFFFFFFFFF,00FF,0", "id is beyond 29 bits"),
    ("1.5,0A1,00F,0", "payload has an odd number of hex digits"),
    ("1.5,0A1,00GG,0", "payload is no hexadecimal text"),
    ("1.5,0A1,nan,0", "payload is no hexadecimal text"),
    ("1.5,0A1,001122334455667788,0", "payload is longer than 8 bytes"),
    ("1.5,0A1,00FF,2", "label is none of 0, 1, R, T, nor a word such as Normal or Attack"),
    ("1.5,0A1,00FF,", "label is none of 0, 1, R, T, nor a word such as Normal or Attack"),
    ("1.5,0A1,00FF", "too few fields"),
    ("1.5", "too few fields"),
    ("1.5,0A1,00FF,0,7", "too many fields"),
]


@pytest.mark.parametrize(("damaged", "reason"), CSV_DAMAGE)
def test_bad_csv_row_is_dropped_and_reported_with_line_and_reason(tmp_path: Path, damaged: str, reason: str) -> None:
    written = random_messages(200)
    path = write_text(tmp_path / "a.csv", written, "can-train-and-test.csv")
    lines = path.read_text().split("\n")
    lines[2] = damaged  # the third line as an editor counts, the second message
    path.write_text("\n".join(lines))
    read = read_recording(path)
    assert read.bad_rows == [BadRow(3, reason)]
    assert_same_traffic(read, written.select(np.arange(200) != 1))


BYTES_DAMAGE = [
    ("1.5,0316,9,01,R", "data length code is no number from 0 to 8"),
    ("1.5,0316,x,01,R", "data length code is no number from 0 to 8"),
    ("1.5,0316,2,01,R", "data length code and payload bytes differ"),
    ("1.5,0316,2,01,02,03,R", "data length code and payload bytes differ"),
    ("1.5,0316,2,01,zz,R", "payload is no hexadecimal text"),
    ("1.5,0316,2,01,123,R", "payload is no hexadecimal text"),
    ("1.5,0316,2,01,02,Q", "label is none of 0, 1, R, T, nor a word such as Normal or Attack"),
    ("1.5,0316,2,01,02", "too few fields"),
    ("1.5,0316", "too few fields"),
    ("1.5,0316,2,01,02,R,T", "too many fields"),
]


@pytest.mark.parametrize(("damaged", "reason"), BYTES_DAMAGE)
def test_bad_row_of_bytes_and_flag_is_reported(tmp_path: Path, damaged: str, reason: str) -> None:
    path = write_text(tmp_path / "a.csv", random_messages(200), "car-hacking.csv")
    lines = path.read_text().split("\n")
    lines[4] = damaged
    path.write_text("\n".join(lines))
    assert read_recording(path).bad_rows == [BadRow(5, reason)]


CANDUMP_DAMAGE = [
    ("(1.5) can0 044#AAB", "payload has an odd number of hex digits"),
    ("(1.5) can0 0x#AABB", "id is no hexadecimal number"),
    ("(1.5) can0 40000004#0000000000000000", "id is beyond 29 bits"),
    ("(oops) can0 044#AABB", "timestamp is no finite number"),
    ("can0 044#AABB", "timestamp is no finite number"),
    ("(1.5) can0", "too few fields"),
    (" (1.5)  can0  044  [3]  00 11", "data length code and payload bytes differ"),
]


@pytest.mark.parametrize(("damaged", "reason"), CANDUMP_DAMAGE)
def test_bad_candump_line_is_reported(tmp_path: Path, damaged: str, reason: str) -> None:
    path = write_text(tmp_path / "a.log", random_messages(200), "candump.log")
    lines = path.read_text().split("\n")
    lines[0] = damaged
    path.write_text("\n".join(lines))
    assert read_recording(path).bad_rows == [BadRow(1, reason)]


CAN_FD_LINES = (
    "(1.5) can0 044##1AABB",
    " (1.5)  can0  044  [12]  00 11 22 33 44 55 66 77 88 99 AA BB",
)


@pytest.mark.parametrize("line", CAN_FD_LINES)
def test_frames_of_can_fd_are_counted_and_are_no_damage(tmp_path: Path, line: str) -> None:
    path = write_text(tmp_path / "a.log", random_messages(20), "candump.log")
    path.write_text(path.read_text() + f"{line}\n" * 30)
    read = read_recording(path)
    assert (len(read), read.num_bad_rows, read.passed_over) == (20, 0, {"CAN FD frame": 30})


def test_remote_and_extended_candump_frames_are_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "(1.0) can0 123#R\n(2.0) can0 123#R8\n(3.0) can0 1ABCDEF0#11.22.33\n(4.0) can0 044#\n"
        "(5.0) can0 044#AA R\n (6.0)  can0  12345678   [2]  AB CD   '..'\n (7.0)  can0  123   [2]  remote request\n"
    )
    read = read_recording(path)
    assert read.identifier.tolist() == [0x123, 0x123, 0x1ABCDEF0, 0x44, 0x44, 0x12345678, 0x123]
    assert read.length.tolist() == [0, 0, 3, 0, 1, 2, 0]
    assert bytes(read.payload[2, :3]) == b"\x11\x22\x33"


HCRL_TEXT_DAMAGE = [
    ("Timestamp: x        ID: 0350    000    DLC: 1    05", "timestamp is no finite number"),
    ("Timestamp: 1.5        ID: 03g0    000    DLC: 1    05", "id is no hexadecimal number"),
    ("Timestamp: 1.5        ID: 0350    000    DLC: 9    05", "data length code is no number from 0 to 8"),
    ("Timestamp: 1.5        ID: 0350    000    DLC: 2    05", "data length code and payload bytes differ"),
    ("Timestamp: 1.5        ID: 0350    000    DLC: 1    05 06", "data length code and payload bytes differ"),
    ("Timestamp: 1.5        ID: 0350", "too few fields"),
]


@pytest.mark.parametrize(("damaged", "reason"), HCRL_TEXT_DAMAGE)
def test_bad_line_of_hcrl_text_is_reported(tmp_path: Path, damaged: str, reason: str) -> None:
    path = write_text(tmp_path / "a.txt", random_messages(200), "attack-free.txt")
    lines = path.read_text().split("\n")
    lines[7] = damaged
    path.write_text("\n".join(lines))
    assert read_recording(path).bad_rows == [BadRow(8, reason)]


@pytest.mark.parametrize("text_format", FORMATS)
def test_line_cut_off_in_the_middle_is_reported_as_such(tmp_path: Path, text_format: str) -> None:
    written = random_messages(200)
    written.length[-1] = 8
    path = write_text(tmp_path / text_format, written, text_format)
    start_of_last = path.read_bytes().rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(path.read_bytes()[: start_of_last + 29])  # behind timestamp and id, within the payload
    read = read_recording(path)
    # A payload without a stated length can be cut at a byte, and nothing shows; all other formats notice.
    if text_format != "candump.log" or read.num_bad_rows:
        assert [row.reason for row in read.bad_rows] == ["last line is cut off"]
        assert len(read) == 199


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_csv_reads_like_a_plain_python_reader(tmp_path: Path, data: st.DataObject) -> None:
    written = random_messages(40, seed=data.draw(st.integers(0, 1000)))
    path = write_text(tmp_path / "a.csv", written, "can-train-and-test.csv")
    content = bytearray(path.read_bytes())
    header = content.index(b"\n") + 1
    for _ in range(data.draw(st.integers(0, 12))):
        place = data.draw(st.integers(header, len(content) - 1))
        content[place] = data.draw(st.sampled_from(list(b"0123456789abcdefXyz,.\n-+eE #RT")))
    path.write_bytes(bytes(content))
    expected, bad_lines = _read_plainly(bytes(content).decode())
    if not expected:
        with pytest.raises(RecordingError):
            read_recording(path, limits=LENIENT)
        return
    read = read_recording(path, limits=ReadLimits(max_bad_fraction=1.0, max_listed_bad_rows=1000))
    found = [
        (time, identifier, bytes(payload[:length]), label)
        for time, identifier, payload, length, label in zip(
            read.timestamp.tolist(),
            read.identifier.tolist(),
            read.payload,
            read.length,
            read.label.tolist(),
            strict=True,
        )
    ]
    assert found == expected
    assert [row.line for row in read.bad_rows] == bad_lines


def _read_plainly(text: str) -> tuple[list[tuple[float, int, bytes, int]], list[int]]:
    messages, bad_lines = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if number == 1 or not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        try:
            while len(cells) > 4 and not cells[-1]:
                cells.pop()
            time_text, identifier_text, payload_text, label_text = cells
            time = float(time_text)
            identifier = int(identifier_text, 16)
            payload = bytes.fromhex(payload_text)
            label = {"0": 0, "1": 1, "R": 0, "T": 1, "y": 1}[label_text]
            if not math.isfinite(time) or abs(time) > 1e11 or len(payload) > 8 or identifier_text[:1] in "+-":
                raise ValueError(line)
            if not 0 <= identifier < 1 << 29:
                raise ValueError(line)
        except (ValueError, KeyError):
            bad_lines.append(number)
            continue
        messages.append((time, identifier, payload, label))
    return messages, bad_lines


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.decimals(min_value=0, max_value=4_000_000_000, places=9, allow_nan=False, allow_infinity=False))
def test_timestamps_are_read_to_the_last_bit(tmp_path: Path, value: object) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{value},0A1,00,0\n")
    assert abs(read_recording(path).timestamp[0] - float(str(value))) <= np.spacing(float(str(value)))


def test_too_many_bad_rows_refuse_the_file_and_name_it(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.csv", random_messages(100), "can-train-and-test.csv")
    path.write_text(path.read_text() + "x,0A1,00,0\n" * 2)
    with pytest.raises(RecordingError, match=r"a\.csv: 2 of 102 rows are bad .*line 102: timestamp"):
        read_recording(path)
    assert read_recording(path, limits=ReadLimits(max_bad_fraction=0.02)).num_bad_rows == 2


def test_bad_rows_are_all_counted_but_not_all_listed(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.csv", random_messages(100), "can-train-and-test.csv")
    path.write_text(path.read_text() + "x,0A1,00,0\n" * 50)
    read = read_recording(path, limits=ReadLimits(max_bad_fraction=0.5, max_listed_bad_rows=3))
    assert (read.num_bad_rows, [row.line for row in read.bad_rows]) == (50, [102, 103, 104])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n  \n", "holds nothing but blank lines"),
        (b"hello world\n", "unknown format"),
        (b"timestamp,arbitration_id,data_field,attack\n", "holds a header and no message"),
        (b"when,who,what,bad\n1.0,0A1,00,0\n", "has the header 'when,who,what,bad', which is not known"),
        (b"timestamp,arbitration_id,data_field,verdict\n1.0,0A1,00,0\n", "which is not known"),
        (
            b"timestamp,arbitration_id,data_field,attack\nx,0A1,00,0\ny,0A1,00,0\n",
            "none of its 2 rows is a CAN message",
        ),
        (b"1.0,2,3,4,5,6,7,8,9,10,11,12,13,14\n", "columns that are not known"),
        (b"(1.0) can0 044##1AABB\n", r"holds no message of classic CAN, only 1 CAN FD frame"),
        (bytes(range(256)) * 4, "a.csv: "),
    ],
)
def test_unusable_file_is_refused_with_its_name_and_a_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=message) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", ["hello world\n", "when,who,what,bad\n1.0,0A1,00,0\n"])
def test_what_is_no_known_format_is_refused_briefly(tmp_path: Path, content: str) -> None:
    """With what was seen, what may be given instead, and where all formats are listed."""
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(RecordingError) as caught:
        read_recording(tmp_path / "a.csv")
    assert content.splitlines()[0] in caught.value.problem
    assert "timestamp,arbitration_id,data_field" in caught.value.problem
    assert "docs/recordings.md" in caught.value.problem
    assert len(caught.value.problem) < 220


def test_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"nowhere\.csv: is no file"):
        read_recording(tmp_path / "nowhere.csv")


def test_csv_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Label,Data Field,note,CAN ID,DLC,Time\n1,AABB,hi,0x7FF,2,1.5\n0,,ho,001,0,2.5\n")
    read = read_recording(path)
    assert (read.timestamp.tolist(), read.identifier.tolist()) == ([1.5, 2.5], [0x7FF, 1])
    assert (read.length.tolist(), read.label.tolist()) == ([2, 0], [1, 0])


def test_csv_that_names_two_buses_is_refused_until_one_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "timestamp,id,interface,data_field,label,bus\n1.5,7FF,x,AA,1,0\n2.5,123,x,BB,0,1\n2.75,7FF,x,CC,0,0"
    )
    with pytest.raises(RecordingError, match=r"holds 2 channels: 0 \(2 messages\), 1 \(1 messages\); choose one"):
        read_recording(path)
    read = read_recording(path, channel=0)
    assert (read.timestamp.tolist(), read.label.tolist()) == ([1.5, 2.75], [1, 0])
    assert read.num_bad_rows == 0


def test_csv_may_name_its_only_bus_and_half_of_its_name_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("timestamp,id,dlc,data0,data1,channel\n" + "1.5,7FF,2,AA,01,can0\n" * 200 + "1.75,7FF,2,AA,01,ca")
    read = read_recording(path)
    assert not read.labelled
    assert (len(read), read.bad_rows) == (200, [BadRow(202, "last line is cut off")])


def test_csv_bytes_may_be_written_with_0x(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content in ("time,id,data\n1.5,0x7FF,0xAA01\n", "time,id,b0,b1\n1.5,0x7FF,0xaa,0x1\n"):
        path.write_text(content)
        read = read_recording(path)
        assert (int(read.length[0]), bytes(read.payload[0, :2])) == (2, b"\xaa\x01")
    pl.DataFrame({"timestamp": [1.5], "id": ["0x7FF"], "data_field": ["0xAA01"]}).write_parquet(path)
    assert bytes(read_recording(path).payload[0, :2]) == b"\xaa\x01"


@pytest.mark.parametrize(
    "date", ["2020-11-19 13:42:02.37", "19.11.2020 13:42:02", "11/19/2020 01:42 PM", "13:42:02.37"]
)
def test_csv_with_dates_is_told_to_write_seconds(tmp_path: Path, date: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"timestamp,id,data_field\n{date},7FF,AA01\n")
    with pytest.raises(RecordingError, match=r"has dates where its times stand .*; write seconds"):
        read_recording(path)


def test_csv_with_bytes_in_columns_needs_no_length(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,timestamp,b0,b1,b2,attack\n7ff,1.5,AA,0,1,1\n001,2.5,AA,,,0\n001,3.5,,,,0\n")
    read = read_recording(path)
    assert (read.length.tolist(), read.label.tolist()) == ([3, 1, 0], [1, 0, 0])
    assert bytes(read.payload[0, :3]) == b"\xaa\x00\x01"


def test_damaged_row_does_not_decide_the_format(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.csv", random_messages(100), "can-train-and-test-without-header.csv")
    path.write_text("1.5,0A1,0,0\n" + path.read_text())
    assert read_recording(path).bad_rows == [BadRow(1, "payload has an odd number of hex digits")]


def test_csv_without_label_column_is_unlabelled(tmp_path: Path) -> None:
    (tmp_path / "named.csv").write_text("timestamp,arbitration_id,data_field\n1.5,001,AABB\n")
    (tmp_path / "bare.csv").write_text("1.5,001,AABB\n")
    (tmp_path / "bytes.csv").write_text("1.5,0001,2,AA,BB\n")
    assert [read_recording(tmp_path / name).labelled for name in ("named.csv", "bare.csv", "bytes.csv")] == [False] * 3


def test_backward_timestamps_keep_file_order_and_are_counted(tmp_path: Path) -> None:
    written = random_messages(100)
    written.timestamp[[20, 21, 60, 61]] = written.timestamp[[21, 20, 61, 60]]
    read = read_recording(write_text(tmp_path / "a.csv", written, "can-train-and-test.csv"))
    assert_same_traffic(read, written)
    assert read.num_backward == 2


def _parquet(path: Path, **columns: pl.Series | list[object]) -> Path:
    frame = {
        "timestamp": [1.0, 2.0, 3.0, 4.0],
        "id": [1, 2, 3, 4],
        "data_field": ["AA", "", "0011223344556677", "ff"],
        "label": [0, 1, 0, 1],
    }
    pl.DataFrame({name: value for name, value in (frame | columns).items() if value is not None}).write_parquet(path)
    return path


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"timestamp": [1.0, float("nan"), 3.0, 4.0]}, "timestamp is no finite number"),
        ({"timestamp": [1.0, None, 3.0, 4.0]}, "timestamp is no finite number"),
        ({"timestamp": [1.0, float("-inf"), 3.0, 4.0]}, "timestamp is no finite number"),
        ({"id": [1, 1 << 29, 3, 4]}, "id is beyond 29 bits"),
        ({"id": [1, None, 3, 4]}, "id is no hexadecimal number"),
        ({"id": ["1", "0xZ", "3", "4"]}, "id is no hexadecimal number"),
        ({"data_field": ["AA", "ABC", "", "ff"]}, "payload has an odd number of hex digits"),
        ({"data_field": ["AA", "ZZ", "", "ff"]}, "payload is no hexadecimal text"),
        ({"data_field": ["AA", "éé", "", "ff"]}, "payload is no hexadecimal text"),
        ({"data_field": ["AA", "+A", "", "ff"]}, "payload is no hexadecimal text"),  # a number to others
        ({"data_field": ["AA", "001122334455667788", "", "ff"]}, "payload is longer than 8 bytes"),
        ({"label": [0, 7, 0, 1]}, "label is none of 0, 1, R, T, nor a word such as Normal or Attack"),
        ({"label": [0.0, 0.5, 0.0, 1.0]}, "label is none of 0, 1, R, T, nor a word such as Normal or Attack"),
        ({"label": [0, None, 0, 1]}, "label is none of 0, 1, R, T, nor a word such as Normal or Attack"),
        ({"label": ["R", "x", "R", "T"]}, "label is none of 0, 1, R, T, nor a word such as Normal or Attack"),
    ],
)
def test_bad_parquet_row_is_reported(tmp_path: Path, columns: dict[str, list[object]], reason: str) -> None:
    read = read_recording(_parquet(tmp_path / "a.parquet", **columns), limits=LENIENT)
    assert read.bad_rows == [BadRow(2, reason)]
    assert (read.timestamp.tolist(), read.label.tolist()) == ([1.0, 3.0, 4.0], [0, 0, 1])


def test_parquet_with_other_accepted_names_and_types_is_read(tmp_path: Path) -> None:
    pl.DataFrame(
        {"Time": [1, 2], "Arbitration_ID": ["0x1F", "7ff"], "payload": ["aabb", None], "attack": ["R", "T"]}
    ).write_parquet(tmp_path / "a.parquet")
    read = read_recording(tmp_path / "a.parquet")
    assert (read.identifier.tolist(), read.length.tolist(), read.label.tolist()) == ([0x1F, 0x7FF], [2, 0], [0, 1])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamp": None}, "no timestamp; rename"),
        ({"label": None, "verdict": [0, 1, 0, 1]}, "no label; rename"),
        ({"timestamp": ["a", "b", "c", "d"]}, "column timestamp holds String"),
        ({"id": [1.5, 2.0, 3.0, 4.0]}, "column id holds Float64"),
        ({"data_field": [1, 2, 3, 4]}, "column data_field holds Int64"),
        ({"label": [[0], [1], [0], [1]]}, "column label holds"),
    ],
)
def test_parquet_with_wrong_columns_is_refused(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        read_recording(_parquet(tmp_path / "a.parquet", **columns))


def test_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "a.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordingError, match="no readable Parquet file"):
        read_recording(path)


def test_failed_write_leaves_the_earlier_recording(tmp_path: Path) -> None:
    path = tmp_path / "s__a.parquet"
    write_recording(path, random_messages(10))
    broken = random_messages(10)
    broken.label = broken.label[:5]
    with pytest.raises(pl.exceptions.ShapeError):
        write_recording(path, broken)
    assert len(read_recording(path)) == 10
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022])
def test_a_recording_may_be_read_by_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_recording(tmp_path / "s__a.parquet", random_messages(10))
    finally:
        os.umask(before)
    assert (tmp_path / "s__a.parquet").stat().st_mode & 0o777 == 0o666 & ~umask


def test_content_hash_ignores_labels_and_names_but_no_message() -> None:
    messages, relabelled, changed = (random_messages() for _ in range(3))
    relabelled.label[:] = 0
    relabelled.name = "other"
    changed.payload[7, 0] ^= 1
    assert messages.content_hash() == relabelled.content_hash() != changed.content_hash()


def test_selecting_messages_keeps_their_order_and_counts_backward_steps_anew() -> None:
    messages = random_messages(10)
    reversed_messages: Messages = messages.select(np.arange(10)[::-1])
    assert reversed_messages.num_backward == 9
    assert len(messages.select(slice(2, 5))) == 3


@pytest.mark.parametrize("text_format", UNLABELLED_FORMATS)
def test_text_without_labels_has_no_attacks(tmp_path: Path, text_format: str) -> None:
    assert read_recording(write_text(tmp_path / text_format, random_messages(), text_format)).num_attacks == 0


@pytest.mark.skipif(not (REAL_DATA / "set_01").is_dir(), reason="needs ../shared/data/set_01")
def test_real_recording_has_its_published_counts() -> None:
    path = REAL_DATA / "set_01" / "train_02_with_attacks__targeted_payload_fuzzing-2.parquet"
    read = read_recording(path)
    assert (len(read), read.num_attacks, read.num_backward, read.num_bad_rows) == (300_936, 936, 56, 0)
    frame = pl.read_parquet(path)
    assert [bytes(p[:n]).hex().upper() for p, n in zip(read.payload[:500], read.length[:500], strict=True)] == frame[
        "data_field"
    ][:500].to_list()


def test_parquet_timestamps_that_are_no_numbers_are_dropped_and_reported(tmp_path: Path) -> None:
    messages = random_messages(300)
    messages.timestamp[[7, 9]] = np.nan, np.inf
    write_recording(tmp_path / "x.parquet", messages)
    found = read_recording(tmp_path / "x.parquet")
    assert (len(found), [row.line for row in found.bad_rows]) == (298, [8, 10])
