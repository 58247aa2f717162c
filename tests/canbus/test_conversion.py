"""What is said of a recording turns it into what it means, whatever the unit of its stamps and the base of its ids."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, RecordingError, read_recording, stream_recording
from kdgat.canbus.messages import ReadOptions
from tests.canbus.recording_files import random_messages, write_text


def table(path: Path, messages: Messages, stamps: list[str], form: str = "{:X}", byte: str = "{:02X}") -> Path:
    """Write a table with stamps, ids and bytes in some form."""
    rows = zip(stamps, messages.identifier.tolist(), messages.length, messages.payload, strict=True)
    lines = [
        f"{stamp},{form.format(identifier)},{length},{','.join(byte.format(one) for one in payload[:length])}"
        for stamp, identifier, length, payload in rows
    ]
    path.write_text("\n".join(["timestamp,id,dlc,data0,data1,data2,data3,data4,data5,data6,data7", *lines, ""]))
    return path


def assert_same(read: Messages, written: Messages, within_s: float) -> None:
    assert np.abs(read.timestamp - written.timestamp).max() <= within_s
    for column in ("identifier", "payload", "length"):
        assert np.array_equal(getattr(read, column), getattr(written, column)), column


@pytest.mark.parametrize(("unit", "per_s", "decimals"), [("s", 1, 6), ("ms", 1e3, 3), ("us", 1e6, 0), ("ns", 1e9, 0)])
def test_stamps_in_any_unit_become_seconds(tmp_path: Path, unit: str, per_s: float, decimals: int) -> None:
    written = random_messages(300)
    path = table(tmp_path / "a.csv", written, [f"{time * per_s:.{decimals}f}" for time in written.timestamp])
    assert_same(read_recording(path, options=ReadOptions(time_unit=unit)), written, 1e-6)  # type: ignore[arg-type]


def test_a_packed_log_in_another_unit_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    written = random_messages(3000)
    path = table(tmp_path / "a.csv", written, [f"{time * 1e3:.3f}" for time in written.timestamp])
    packed = gzip.compress(path.read_bytes())
    path.write_bytes(packed[: len(packed) // 2])
    read = read_recording(path, options=ReadOptions(time_unit="ms"))
    assert read.num_bad_rows == 1
    assert_same(read, written.select(slice(0, len(read))), 1e-6)
    with stream_recording(path, 100, options=ReadOptions(time_unit="ms")) as stream:
        assert np.array_equal(np.concatenate([chunk.timestamp for chunk in stream]), read.timestamp)


def test_differences_add_up_whatever_lies_between_and_in_portions_as_in_one(tmp_path: Path) -> None:
    written = random_messages(3000)
    steps = np.diff(written.timestamp, prepend=written.timestamp[0])
    lines = [f"({step:.6f}) can0 123#{number:04X}" for number, step in enumerate(steps)]
    lines[7] = f"({steps[7]:.6f}) can0 123##1AABB"  # its time counts, too
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines) + "\n")
    options = ReadOptions(time_unit="differences")
    read = read_recording(path, options=options)
    expected = np.delete(written.timestamp - written.timestamp[0], 7)
    assert np.abs(read.timestamp - expected).max() < 3e-3  # of rounded steps
    with stream_recording(path, 100, options=options) as stream:
        assert np.array_equal(np.concatenate([chunk.timestamp for chunk in stream]), read.timestamp)


@pytest.mark.parametrize(("start_s", "per_s"), [(0.0, 1.0), (1.6e9, 1.0), (0.0, 1e3)])
def test_times_are_not_added_up_as_differences(tmp_path: Path, start_s: float, per_s: float) -> None:
    written = random_messages(300)
    times = written.timestamp - written.timestamp[0]
    times[70] = times[60]  # a step back
    path = table(tmp_path / "a.csv", written, [f"{per_s * (start_s + time):.6f}" for time in times])
    options = ReadOptions(time_unit="differences")
    words = r"a\.csv: time_unit='differences': its times grow from row to row, .*: leave --time-unit out, or say"
    with pytest.raises(RecordingError, match=words):
        read_recording(path, options=options)
    with pytest.raises(RecordingError, match=words), stream_recording(path, 10, options=options) as stream:
        list(stream)


@pytest.mark.parametrize("steps", [[0.01], [0.01] * 99 + [0.011], [0.0, 0.001, 0.002, 0.0, 0.003], [0.01, 0.02]])
def test_differences_of_any_rhythm_are_added_up(tmp_path: Path, steps: list[float]) -> None:
    written = random_messages(600)
    stamps = ["1600000000", *(f"{steps[row % len(steps)]}" for row in range(599))]
    read = read_recording(table(tmp_path / "a.csv", written, stamps), options=ReadOptions(time_unit="differences"))
    assert len(read) == 600


def test_decimal_ids_and_bytes_are_read_as_such_and_0x_means_hexadecimal(tmp_path: Path) -> None:
    written = random_messages(300)
    stamps = [f"{time:.6f}" for time in written.timestamp]
    options = ReadOptions(identifiers="decimal", payload="decimal")
    path = table(tmp_path / "a.csv", written, stamps, "{:d}", "{:d}")
    assert_same(read_recording(path, options=options), written, 1e-6)
    path = table(tmp_path / "b.csv", written, stamps, "0x{:x}", "{:d}")
    assert_same(read_recording(path, options=options), written, 1e-6)


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_echoes_are_left_out_and_counted_and_what_comes_twice_by_itself_is_not(tmp_path: Path, size: int) -> None:
    lines, kept = [], []
    for number in range(200):
        payload = f"{number // 2:04X}"  # each twice, 10 ms apart
        lines += [f"({number * 0.01:.6f}) can0 123#{payload}", f"({number * 0.01 + 2e-5:.6f}) can0 123#{payload}"]
        kept.append(number * 0.01)
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines) + "\n")
    assert len(read_recording(path)) == 400
    read = read_recording(path, options=ReadOptions(drop_echo=True))
    assert np.allclose(read.timestamp, kept)
    with stream_recording(path, size, options=ReadOptions(drop_echo=True)) as stream:
        assert np.array_equal(np.concatenate([chunk.timestamp for chunk in stream]), read.timestamp)
    assert read.passed_over == stream.status.passed_over == Counter({"echoed message": 200})


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("asc", ReadOptions(time_unit="ms"), r"time_unit='ms': its format states the unit of its times; leave"),
        (
            "candump.log",
            ReadOptions(identifiers="decimal"),
            r"identifiers='decimal' is for tables, and this is candump",
        ),
        ("candump.log", ReadOptions(label_column="bad"), r"label_column='bad' is for tables"),
    ],
)
def test_what_a_format_states_itself_is_not_said_again(
    tmp_path: Path, name: str, options: ReadOptions, problem: str
) -> None:
    if name == "asc":
        path = tmp_path / "a.asc"
        path.write_text("base hex timestamps absolute\n   0.015991 1  123  Rx   d 2 01 02\n")
    else:
        path = write_text(tmp_path / "a.log", random_messages(20), name)
    with pytest.raises(RecordingError, match=problem):
        read_recording(path, options=options)
