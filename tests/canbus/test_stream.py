"""Streams of files: the messages of `read_recording`, in chunks, also of a log that is still being written."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, RecordingError, follow_file, read_recording, stream_recording, write_recording
from kdgat.canbus.messages import BadRow
from kdgat.canbus.stream import MessageStream
from tests.canbus.log_files import MULTI_CHANNEL_WRITERS, WRITERS, merged
from tests.canbus.recording_files import FORMATS, assert_same_traffic, joined, random_messages, write_text

TIMEOUT_S = 30.0


def assert_same_recording(chunks: Sequence[Messages], read: Messages) -> None:
    """Compare chunks with the same recording read at once."""
    together = joined(chunks)
    assert_same_traffic(together, read)
    np.testing.assert_array_equal(together.label, read.label)
    assert (together.name, together.scenario, together.labelled) == (read.name, read.scenario, read.labelled)


@pytest.mark.parametrize("name", [*FORMATS, *WRITERS, "a.parquet", "a.log.gz"])
@pytest.mark.processes
def test_chunks_are_the_messages_of_the_recording(tmp_path: Path, name: str) -> None:
    written = random_messages(5000)
    path = tmp_path / name
    if name in WRITERS:
        WRITERS[name][0](path, written)
    elif name == "a.parquet":
        write_recording(path, written)
    elif name == "a.log.gz":
        path.write_bytes(gzip.compress(write_text(tmp_path / "b.log", written, "candump.log").read_bytes()))
    else:
        write_text(path, written, name)
    stream = stream_recording(path, 700)
    chunks = list(stream)
    assert max(len(chunk) for chunk in chunks) <= 700
    assert len(chunks) > 5
    assert_same_recording(chunks, read_recording(path))
    assert (stream.status.num_messages, stream.status.num_bad_rows) == (5000, 0)


@pytest.mark.parametrize("name", MULTI_CHANNEL_WRITERS)
@pytest.mark.processes
def test_chunks_of_one_channel_are_its_messages(tmp_path: Path, name: str) -> None:
    write, channels = MULTI_CHANNEL_WRITERS[name]
    path = write(tmp_path / name, merged(random_messages(1500, 1), random_messages(700, 2)))
    for channel in channels:
        assert_same_recording(list(stream_recording(path, 100, channel=channel)), read_recording(path, channel=channel))
    with pytest.raises(RecordingError, match="holds 2 channels"):
        list(stream_recording(path, 100))
    with pytest.raises(RecordingError, match="channel='9': holds no message of it"):
        list(stream_recording(path, 100, channel=9))


def test_interfaces_of_candump_that_come_late_are_counted_over_all_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    first = "".join(f"({row}.0) can0 {row % 2048:03X}#11\n" for row in range(9000))
    second = "".join(f"({row}.0) can{row % 2} {row % 2048:03X}#11\n" for row in range(9001, 18_000))
    path.write_text(first + second)
    assert_same_recording(list(stream_recording(path, 100, channel="can1")), read_recording(path, channel="can1"))
    assert_same_recording(list(stream_recording(path, 100, channel="can0")), read_recording(path, channel="can0"))


def test_damage_is_counted_with_its_lines_and_refused_at_the_end(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.log", random_messages(10_000), "candump.log")
    lines = path.read_text().splitlines()
    for number in (10, 9000):
        lines[number - 1] = "(x) can0 123#11"
    path.write_text("\n".join(lines) + "\n")
    stream = stream_recording(path, 100)
    assert_same_recording(list(stream), read_recording(path))
    assert stream.status.num_bad_rows == 2
    assert stream.status.bad_rows == read_recording(path).bad_rows
    path.write_text("\n".join(lines[:100] + ["(x) can0 123#11"] * 50) + "\n")
    with pytest.raises(RecordingError, match=r"51 of 150 rows are bad"):
        list(stream_recording(path, 10))


@pytest.mark.parametrize("name", ["a.blf", "a.log.gz"])
def test_chunks_of_a_log_that_is_cut_off_are_what_stands_before(tmp_path: Path, name: str) -> None:
    written = random_messages(20_000)
    path = tmp_path / name
    if name == "a.blf":
        content = WRITERS[name][0](path, written).read_bytes()
    else:
        content = gzip.compress(write_text(tmp_path / "b.log", written, "candump.log").read_bytes())
    path.write_bytes(content[: len(content) // 2])
    stream = stream_recording(path, 1000)
    assert_same_recording(list(stream), read_recording(path))
    assert stream.status.bad_rows == read_recording(path).bad_rows
    assert stream.status.num_bad_rows == 1


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is no file"):
        stream_recording(tmp_path / "none.log")
    with pytest.raises(RecordingError, match="is no file"):
        follow_file(tmp_path / "none.log")
    (tmp_path / "a.log").write_text("hello\n")
    with pytest.raises(RecordingError, match="unknown format"):
        list(stream_recording(tmp_path / "a.log"))
    with pytest.raises(RecordingError, match="unknown format"):
        list(follow_file(tmp_path / "a.log", stop_at_end=True))
    blf = WRITERS["a.blf"][0](tmp_path / "a.blf", random_messages(10))
    with pytest.raises(RecordingError, match="Vector BLF file, which cannot be followed"):
        follow_file(blf)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"(1.0) can0 123#11\n"))
    with pytest.raises(RecordingError, match="is packed by gzip, and cannot be followed"):
        follow_file(tmp_path / "a.gz")
    with pytest.raises(ValueError, match="size=0"):
        stream_recording(blf, 0)


@pytest.mark.parametrize("name", [*FORMATS, "a.asc", "a.trc"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_followed_to_its_end_a_log_is_the_recording(tmp_path: Path, name: str, end: str) -> None:
    written = random_messages(3000)
    path = tmp_path / name
    if name in WRITERS:
        WRITERS[name][0](path, written)
        path.write_bytes(path.read_bytes().rstrip() + end.encode())
    else:
        write_text(path, written, name, end=end)
    stream = follow_file(path, 500, stop_at_end=True)
    assert_same_recording(list(stream), read_recording(path))
    assert stream.status.num_messages == 3000


class Writer:
    """Write to a log piece by piece, each when the reader has taken what it could take before."""

    def __init__(self, path: Path, stream: MessageStream) -> None:
        self.path = path
        self.stream = stream
        self.chunks: list[Messages] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            self.chunks.extend(self.stream)
        except Exception as error:
            self.error = error

    def append(self, text: bytes) -> None:
        with self.path.open("ab") as log:
            log.write(text)

    def wait_for(self, num_messages: int) -> None:
        give_up_at = time.monotonic() + TIMEOUT_S
        while self.stream.status.num_messages < num_messages:
            assert time.monotonic() < give_up_at, self.stream.status
            assert self._thread.is_alive(), self.error
            time.sleep(0.005)

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    path = write_text(tmp_path / "whole" / "a.log", random_messages(400), "candump.log")
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[tuple[Writer, threading.Event]]:
    path = tmp_path / "live" / "a.log"
    path.parent.mkdir()
    path.touch()
    stop = threading.Event()
    writer = Writer(path, follow_file(path, stop=stop))
    yield writer, stop
    stop.set()
    writer.join()


def test_log_that_grows_is_read_as_it_grows(
    followed: tuple[Writer, threading.Event], lines: list[bytes], tmp_path: Path
) -> None:
    writer, stop = followed
    writer.append(lines[0])
    writer.wait_for(1)
    writer.append(b"".join(lines[1:100]))
    writer.wait_for(100)
    writer.append(lines[100][:20])
    time.sleep(0.1)
    assert writer.stream.status.num_messages == 100
    writer.append(lines[100][20:] + b"(x) can0 123#11\n")
    writer.wait_for(101)
    writer.append(b"".join(lines[101:]) + b"(1.0) can0 123#1122")
    writer.wait_for(400)
    stop.set()
    writer.join()
    assert_same_traffic(joined(writer.chunks), read_recording(tmp_path / "whole" / "a.log"))
    status = writer.stream.status
    assert (status.num_messages, status.num_bad_rows, status.num_reconnects) == (400, 1, 0)
    assert [row.line for row in status.bad_rows] == [102]


def test_log_that_is_replaced_is_begun_anew(followed: tuple[Writer, threading.Event], lines: list[bytes]) -> None:
    writer, stop = followed
    writer.append(b"".join(lines[:100]))
    writer.wait_for(100)
    writer.path.rename(writer.path.with_suffix(".1"))
    time.sleep(0.05)
    with writer.path.with_suffix(".1").open("ab") as log:  # whoever writes has not noticed yet
        log.write(lines[100])
    writer.wait_for(101)
    writer.append(b"".join(lines[101:]))
    writer.wait_for(400)
    stop.set()
    writer.join()
    assert writer.stream.status.num_reconnects == 1
    assert "replaced by another file" in writer.stream.status.last_error
    assert len(joined(writer.chunks)) == 400


def test_log_that_is_truncated_is_begun_anew(followed: tuple[Writer, threading.Event], lines: list[bytes]) -> None:
    writer, stop = followed
    writer.append(b"".join(lines[:200]) + lines[200][:20])
    writer.wait_for(200)
    time.sleep(0.1)
    writer.path.write_bytes(b"".join(lines[200:300]))
    writer.wait_for(300)
    stop.set()
    writer.join()
    assert writer.stream.status.num_reconnects == 1
    assert "was truncated" in writer.stream.status.last_error
    assert writer.stream.status.bad_rows == [BadRow(201, "last line is cut off")]


def test_csv_that_grows_waits_until_its_columns_are_clear(tmp_path: Path) -> None:
    whole = write_text(tmp_path / "whole" / "a.csv", random_messages(400), "survival-padded.csv")
    content = whole.read_bytes()
    path = tmp_path / "live" / "a.csv"
    path.parent.mkdir()
    path.write_bytes(content[:100])
    writer = Writer(path, follow_file(path, idle_s=2.0))
    writer.append(content[100:20_000])
    writer.append(content[20_000:])
    writer.wait_for(400)
    writer.join()
    assert_same_traffic(joined(writer.chunks), read_recording(whole))
    np.testing.assert_array_equal(joined(writer.chunks).label, read_recording(whole).label)


def test_second_interface_in_a_followed_log_is_an_error_unless_one_is_chosen(
    followed: tuple[Writer, threading.Event], lines: list[bytes]
) -> None:
    writer, _ = followed
    writer.append(b"".join(lines[:10]))
    writer.wait_for(10)
    writer.append(lines[10].replace(b"vcan0", b"vcan1"))
    writer.join()
    assert isinstance(writer.error, RecordingError)
    assert "2 channels: vcan0 (10 messages), vcan1 (1 messages)" in str(writer.error)


def test_closed_stream_ends(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "b.log"
    path.write_bytes(b"".join(lines))
    with follow_file(path) as stream:
        assert len(next(stream)) > 0
    assert list(stream) == []
    chunks = stream_recording(path, 10)
    next(chunks)
    chunks.close()
    assert list(chunks) == []
