"""Logs of vendors: what was written is read, whatever the format, and damage costs only what it hit."""

from __future__ import annotations

import gzip
import re
import struct
import subprocess
import sys
import zlib
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import dpkt
import numpy as np
import pytest

from kdgat.canbus import Messages, ReadLimits, RecordingError, read_recording
from kdgat.canbus.messages import list_passed_over
from kdgat.canbus.readers import mf4
from tests.canbus.log_files import (
    MULTI_CHANNEL_WRITERS,
    WRITERS,
    cooked,
    error_frame,
    fd_frame,
    frames,
    merged,
    mf4_whose_reader,
    remote_frame,
    socketcan,
    write_log,
    write_pcap,
    write_pcapng,
)
from tests.canbus.recording_files import assert_same_traffic, random_messages, write_text

LENIENT = ReadLimits(max_bad_fraction=1.0)
WITH_REMOTE_FRAMES = ("a.asc", "a.blf", "a.mf4", "a.pcap", "a.pcapng")


def assert_same_within(read: Messages, written: Messages, resolution_s: float) -> None:
    """Compare with what was written; times may count from the beginning of the log."""
    offset = written.timestamp[0] if read.timestamp[0] < 1.0 else 0.0
    np.testing.assert_allclose(read.timestamp, written.timestamp - offset, rtol=0, atol=1.01 * resolution_s)
    read.timestamp = written.timestamp
    assert_same_traffic(read, written)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.processes
def test_every_log_gives_the_messages_that_were_written(tmp_path: Path, name: str) -> None:
    write, resolution_s = WRITERS[name]
    written = random_messages(1000)
    read = read_recording(write(tmp_path / name, written))
    assert (read.num_bad_rows, read.labelled, read.scenario) == (0, False, tmp_path.name)
    assert_same_within(read, written, resolution_s)


@pytest.mark.processes
def test_format_is_found_without_the_suffix_and_with_one_in_capitals(tmp_path: Path) -> None:
    written = random_messages(50)
    for name, (write, resolution_s) in WRITERS.items():
        path = write(tmp_path / name, written)
        for other in ("no suffix at all", "a drive.LOG", f"A{Path(name).suffix.upper()}"):
            path = path.rename(tmp_path / other)
            assert_same_within(read_recording(path), written, resolution_s)


@pytest.mark.parametrize("name", ["a.asc", "a.trc", "a-1.0.trc"])
def test_other_line_ends_change_nothing(tmp_path: Path, name: str) -> None:
    path = WRITERS[name][0](tmp_path / name, random_messages(100))
    expected = read_recording(path)
    lines = path.read_bytes().replace(b"\r\n", b"\n")
    for content in (lines, lines.replace(b"\n", b"\r\n")):
        path.write_bytes(content)
        assert_same_traffic(read_recording(path), expected)


@pytest.mark.parametrize("name", WITH_REMOTE_FRAMES)
@pytest.mark.processes
def test_remote_frame_is_a_message_and_error_frame_is_passed_over(tmp_path: Path, name: str) -> None:
    written = random_messages(300)
    end = float(written.timestamp[-1])
    extra = [remote_frame(end + 0.1), error_frame(end + 0.2), fd_frame(end + 0.3), remote_frame(end + 0.4, 0x124)]
    log = chain(frames(written), extra)
    path = tmp_path / name
    if path.suffix == ".pcap":
        write_pcap(path, log)
    elif path.suffix == ".pcapng":
        write_pcapng(path, log)
    else:
        write_log(path, log)
    read = read_recording(path)
    assert (len(read), read.num_bad_rows) == (302, 0)
    assert list_passed_over(read.passed_over) == ["1 CAN FD frame", "1 error frame"]
    assert read.identifier[-2:].tolist() == [0x123, 0x124]
    assert read.length[-2:].tolist() == [0, 0]


def test_error_frames_of_candump_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(
        "(1.0) can0 123#11\n(2.0) can0 20000080#0000000000000000\n"
        " (3.0)  can0  20000004   [8]  00 01 00 00 00 00 00 00   ERRORFRAME\n"
    )
    read = read_recording(path)
    assert (len(read), read.passed_over["error frame"], read.num_bad_rows) == (1, 2, 0)


@pytest.mark.parametrize("name", MULTI_CHANNEL_WRITERS)
@pytest.mark.processes
def test_channels_are_told_apart(tmp_path: Path, name: str) -> None:
    write, channels = MULTI_CHANNEL_WRITERS[name]
    written = random_messages(150, 1), random_messages(70, 2)
    path = write(tmp_path / name, merged(*written))
    with pytest.raises(RecordingError, match="holds 2 channels") as caught:
        read_recording(path)
    for channel, messages in zip(channels, written, strict=True):
        assert f"{channel} ({len(messages)} messages)" in str(caught.value)
        read = read_recording(path, channel=channel)
        np.testing.assert_allclose(np.diff(read.timestamp), np.diff(messages.timestamp), rtol=0, atol=2.01e-6)
        read.timestamp = messages.timestamp
        assert_same_traffic(read, messages)
    with pytest.raises(RecordingError, match="channel='can9': holds no message of it"):
        read_recording(path, channel="can9")


def test_interfaces_of_candump_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"({row}.0) can{row % 3 // 2} {row:03X}#11\n" for row in range(30)))
    with pytest.raises(RecordingError, match=r"2 channels: can0 \(20 messages\), can1 \(10 messages\); choose one"):
        read_recording(path)
    assert read_recording(path, channel="can1").identifier.tolist() == list(range(2, 30, 3))
    assert len(read_recording(path, channel="can0")) == 20


def test_damaged_interface_names_are_bad_rows_and_no_channels(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("(1.0) can0 123#11\n(2.0) canQ#\n(3.0) x 1G3#11\n")
    assert len(read_recording(path, limits=LENIENT)) == 1


def test_more_interfaces_than_are_told_apart_share_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"({row}.0) can{row} {row:03X}#11\n" for row in range(300)))
    assert read_recording(path, channel="can253").identifier.tolist() == [253]
    assert read_recording(path, channel="can254").identifier.tolist() == list(range(254, 300))


def test_channel_of_a_file_that_names_none_is_refused(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.csv", random_messages(), "can-train-and-test.csv")
    with pytest.raises(RecordingError, match="channel='can0': the file names no channels; leave it out"):
        read_recording(path, channel="can0")


@pytest.mark.parametrize("name", ["a.blf", "a.pcap", "a.pcapng"])
def test_log_that_is_cut_off_keeps_what_stands_before(tmp_path: Path, name: str) -> None:
    write, _ = WRITERS[name]
    written = random_messages(20_000)
    path = write(tmp_path / name, written)
    content = path.read_bytes()
    for share in (0.3, 0.7):
        path.write_bytes(content[: int(share * len(content)) + 3])
        read = read_recording(path)
        assert 0.6 * share * 20_000 < len(read) < 20_000
        assert [row.reason for row in read.bad_rows] == ["the file is cut off or damaged from here on"]
        assert read.bad_rows[0].line == len(read) + 1
        np.testing.assert_array_equal(read.identifier, written.identifier[: len(read)])
        np.testing.assert_array_equal(read.payload, written.payload[: len(read)])


def test_damaged_block_of_blf_ends_what_is_read(tmp_path: Path) -> None:
    path = WRITERS["a.blf"][0](tmp_path / "a.blf", random_messages(20_000))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 50] = bytes(50)
    path.write_bytes(content)
    read = read_recording(path)
    assert 0 < len(read) < 20_000
    assert read.num_bad_rows == 1


@pytest.mark.parametrize("name", ["a.blf", "a.pcap", "a.pcapng", "a.mf4"])
@pytest.mark.processes
def test_log_without_a_whole_beginning_is_refused(tmp_path: Path, name: str) -> None:
    path = WRITERS[name][0](tmp_path / name, random_messages(100))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(RecordingError, match=r"is no readable|none of its 1 rows|holds no message") as caught:
        read_recording(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".asc", ".blf", ".trc", ".mf4", ".pcap", ".pcapng"])
@pytest.mark.parametrize("content", [b"(1.0) can0 123#11\n", b"\x8aPNG\r\n\x1a\n" + bytes(100), b"hello\n"])
def test_file_that_is_not_what_its_suffix_says_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=rf"a{suffix}: is named {suffix}, but is no .*name it after its format"):
        read_recording(path)


def test_blf_that_ends_behind_its_header_is_refused_as_cut_off(tmp_path: Path) -> None:
    path = WRITERS["a.blf"][0](tmp_path / "a.blf", random_messages(10))
    path.write_bytes(path.read_bytes()[:144])
    with pytest.raises(RecordingError, match=r"cut off or damaged from here on\); copy or export it again"):
        read_recording(path)


def test_capture_of_something_else_is_refused(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "a.pcap", frames(random_messages(10)), link=1)
    with pytest.raises(RecordingError, match=r"without CAN frames \(link type 1\)"):
        read_recording(path)


def test_link_type_of_a_capture_stands_in_its_lower_16_bits(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "a.pcap", frames(random_messages(10)), link=0x30000000 | 227)
    assert len(read_recording(path)) == 10


@pytest.mark.processes
def test_measurement_without_frames_is_refused(tmp_path: Path) -> None:
    asammdf = pytest.importorskip("asammdf")
    with asammdf.MDF() as measurement:
        measurement.append(asammdf.Signal(np.arange(5.0), np.arange(5.0), name="speed"))
        measurement.save(tmp_path / "a.mf4")
    with pytest.raises(RecordingError, match="measurement without CAN frames"):
        read_recording(tmp_path / "a.mf4")


@pytest.mark.parametrize("name", ["a.log", "a.csv", "a.asc", "a.blf", "a.pcap"])
def test_compressed_log_reads_as_the_log_itself(tmp_path: Path, name: str) -> None:
    written = random_messages(3000)
    path = tmp_path / name
    if name in WRITERS:
        WRITERS[name][0](path, written)
    else:
        write_text(path, written, "candump.log" if name == "a.log" else "can-train-and-test.csv")
    compressed = tmp_path / f"train_x__drive{path.suffix.upper()}.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    read = read_recording(compressed)
    assert_same_traffic(read, read_recording(path))
    assert (read.scenario, read.name) == ("train_x", "drive")


@pytest.mark.parametrize("name", ["a.log", "a.blf"])
def test_compressed_log_that_is_cut_off_keeps_what_stands_before(tmp_path: Path, name: str) -> None:
    written = random_messages(20_000)
    path = tmp_path / name
    if name == "a.blf":
        WRITERS[name][0](path, written)
    else:
        write_text(path, written, "candump.log")
    content = gzip.compress(path.read_bytes())
    compressed = tmp_path / f"{name}.gz"
    compressed.write_bytes(content[: len(content) // 2])
    read = read_recording(compressed)
    assert 5000 < len(read) < 15_000
    assert [row.reason for row in read.bad_rows] == ["the file is cut off or damaged from here on"]
    np.testing.assert_array_equal(read.identifier, written.identifier[: len(read)])


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.log.gz"])
def test_what_is_compressed_but_no_log_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"PAR1" + bytes(100)) if "parquet" in name else b"\x1f\x8b nonsense")
    with pytest.raises(RecordingError, match=r"unpack it by `gunzip` first|is damaged from its beginning on"):
        read_recording(path)


@pytest.mark.parametrize(("name", "library"), [("a.blf", "can"), ("a.pcap", "dpkt")])
def test_missing_library_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    path = WRITERS[name][0](tmp_path / name, random_messages(10))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RecordingError, match=r"file, which .* reads; .*pip install 'kdgat\[logs\]'"):
        read_recording(path)


@pytest.mark.processes
def test_missing_reader_of_mf4_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mf4_whose_reader("raise ImportError('it is not here')", tmp_path, monkeypatch)
    with pytest.raises(RecordingError, match=r"MF4 file, which asammdf reads; .*kdgat\[logs\].*it is not here"):
        read_recording(path)


@pytest.mark.processes
def test_reader_of_mf4_that_dies_is_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mf4_whose_reader("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", tmp_path, monkeypatch)
    with pytest.raises(RecordingError, match=r"a\.mf4: is no readable .*\(asammdf failed: it crashed, signal 11\)"):
        read_recording(path)


@pytest.mark.processes
def test_reader_of_mf4_that_finds_no_end_is_an_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mf4_whose_reader("while True:\n    pass\n", tmp_path, monkeypatch)
    monkeypatch.setattr(mf4, "LEAST_S", 2)
    with pytest.raises(RecordingError, match="found no end in 2 s of processor time"):
        read_recording(path)


def test_wide_text_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("(1.0) can0 123#11\n", encoding="utf-16")
    with pytest.raises(RecordingError, match="UTF-16, as PowerShell writes it; save it as UTF-8"):
        read_recording(tmp_path / "a.log")


@pytest.mark.processes
def test_reading_a_parquet_file_loads_no_library_of_logs() -> None:
    program = (
        "import sys, kdgat.canbus.logs, kdgat.canbus.stream, kdgat.canbus.bus\n"
        "print([name for name in ('can', 'asammdf', 'dpkt', 'numba') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_object_of_no_bytes_in_a_blf_file_is_damage_and_does_not_hold_the_reader_for_ever(tmp_path: Path) -> None:
    messages = random_messages(30)
    path = write_log(tmp_path / "train_a__a.blf", frames(messages))
    data = path.read_bytes()
    header, container = data[:144], data[144:]
    content = bytearray(zlib.decompress(container[32:]))
    place = [match.start() for match in re.finditer(b"LOBJ", content)][20]
    content[place + 8 : place + 12] = bytes(4)
    packed = zlib.compress(bytes(content))
    size = 32 + len(packed)
    begin = (
        container[:8] + struct.pack("<I", size) + container[12:24] + struct.pack("<I", len(content)) + container[28:32]
    )
    path.write_bytes(header + begin + packed + bytes(size % 4))
    read = read_recording(path, limits=ReadLimits(max_bad_fraction=1.0))
    assert (len(read), read.num_bad_rows) == (20, 1)


def _packet(identifier: int, length: int, flags: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(">IBBxx", identifier, length, flags) + data


def test_packets_of_all_kinds_are_told_apart(tmp_path: Path) -> None:
    packets = {
        "remote frame without room for its bytes": _packet(0x400006F0, 8),
        "message": _packet(0x123, 2, data=b"\1\2"),
        "error frame": _packet(0x20000004, 8, data=bytes(8)),
        "CAN FD": _packet(0x123, 12, 4, bytes(64)),
        "CAN XL": struct.pack(">IBBHI", 0x123, 0x81, 0, 7, 0x12345678) + bytes(7),
        "message without its last bytes": _packet(0x123, 8, data=b"\1\2"),
        "less than a frame": b"\0\0",
    }
    path = tmp_path / "a.pcap"
    with path.open("wb") as stream:
        writer = dpkt.pcap.Writer(stream, linktype=227)
        for time, packet in enumerate(packets.values()):
            writer.writepkt(packet, ts=time)
    read = read_recording(path, limits=LENIENT)
    assert (read.identifier.tolist(), read.length.tolist()) == ([0x6F0, 0x123], [0, 2])
    assert read.passed_over == {"error frame": 1, "CAN FD frame": 1, "CAN XL frame": 1}
    assert [row.line for row in read.bad_rows] == [6, 7]


def test_packets_of_other_protocols_are_counted(tmp_path: Path) -> None:
    other = struct.pack(">HHH8sH", 0, 1, 6, b"", 0x0800) + bytes(40)
    path = tmp_path / "a.pcap"
    with path.open("wb") as stream:
        writer = dpkt.pcap.Writer(stream, linktype=113)
        for packet in (other, *map(cooked, frames(random_messages(3))), other):
            writer.writepkt(packet, ts=1.0)
    read = read_recording(path)
    assert (len(read), read.passed_over) == (3, {"event of the tool": 2})


def test_packets_of_old_kinds_of_pcapng_are_no_less(tmp_path: Path) -> None:
    path = write_pcapng(tmp_path / "a.pcapng", [])
    frame = socketcan(next(frames(random_messages(1))))
    old = struct.pack("<II HHIIII", 2, 32 + len(frame), 0, 0, 0, 1_500_000, len(frame), len(frame))
    simple = struct.pack("<III", 3, 16 + len(frame), len(frame))
    ends = (struct.pack("<I", 32 + len(frame)), struct.pack("<I", 16 + len(frame)))
    path.write_bytes(path.read_bytes() + old + frame + ends[0] + simple + frame + ends[1])
    read = read_recording(path, limits=LENIENT)
    assert read.timestamp.tolist() == [1.5]
    assert [row.reason for row in read.bad_rows] == ["timestamp is no finite number"]  # it has none


@pytest.mark.processes
def test_mf4_of_local_time_is_the_same_wherever_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asammdf = pytest.importorskip("asammdf")
    path = WRITERS["a.mf4"][0](tmp_path / "a.mf4", random_messages(10))
    start = datetime(2020, 11, 19, 13, 42, 2)
    with asammdf.MDF(path) as measurement:
        measurement.header.start_time = start
        local = measurement.save(tmp_path / "local.mf4")
    reads = []
    for zone in ("UTC", "Asia/Shanghai"):
        monkeypatch.setenv("TZ", zone)
        reads.append(read_recording(local))
    with asammdf.MDF(local) as measurement:
        first = float(measurement.get("CAN_DataFrame", raw=False).timestamps[0])  # from the start
    assert reads[0].timestamp[0] == pytest.approx(start.replace(tzinfo=UTC).timestamp() + first, abs=1e-3)
    assert reads[0].content_hash() == reads[1].content_hash()
