"""Logs through pipes: what a file gives, as it comes, and an end whenever it is asked for."""

from __future__ import annotations

import dataclasses
import gzip
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, RecordingError, follow_file, make_vehicle, read_recording, simulate, stream_recording
from kdgat.canbus.inspection import inspect_file
from tests.canbus.log_files import WRITERS
from tests.canbus.packed_files import LENIENT, PACK, str_or_nothing
from tests.canbus.recording_files import FORMATS, assert_same_traffic, joined, random_messages, write_text

TIMEOUT_S = 30.0


@contextmanager
def piped(folder: Path, *pieces: bytes, pause_s: float = 0.0) -> Iterator[Path]:
    """Yield a FIFO into which the pieces are written, one after the other."""
    fifo = folder / "drive.fifo"
    os.mkfifo(fifo)

    def write() -> None:
        with fifo.open("wb", buffering=0) as stream:
            for piece in pieces:
                try:
                    stream.write(piece)
                except BrokenPipeError:  # it was refused
                    return
                time.sleep(pause_s)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield fifo
    finally:
        thread.join(TIMEOUT_S)
        fifo.unlink()
    assert not thread.is_alive()


@pytest.mark.parametrize("name", [*FORMATS, "a.asc", "a.trc"])
def test_text_through_a_pipe_is_the_text_of_the_file(tmp_path: Path, name: str) -> None:
    written = random_messages(2000)
    path = WRITERS[name][0](tmp_path / name, written) if name in WRITERS else write_text(tmp_path / name, written, name)
    expected = read_recording(path)
    with piped(tmp_path, path.read_bytes()) as fifo:
        assert_same_traffic(read_recording(fifo), expected)
    for open_stream in (stream_recording, follow_file):
        with piped(tmp_path, path.read_bytes()) as fifo:
            assert_same_traffic(joined(list(open_stream(fifo, 300))), expected)


@pytest.mark.parametrize("how", PACK)
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_packed_text_through_a_pipe_is_that_of_the_file(tmp_path: Path, how: str, share: float) -> None:
    content = PACK[how](write_text(tmp_path / "a.log", random_messages(2000), "candump.log").read_bytes())
    path = tmp_path / "packed"
    path.write_bytes(content[: int(share * len(content))])
    expected = read_recording(path, limits=LENIENT)
    with piped(tmp_path, path.read_bytes()) as fifo:
        assert_same_traffic(read_recording(fifo, limits=LENIENT), expected)
    with piped(tmp_path, path.read_bytes()) as fifo:
        stream = stream_recording(fifo, 300, limits=LENIENT)
        assert_same_traffic(joined(list(stream)), expected)
    assert stream.status.num_bad_rows == expected.num_bad_rows == (share < 1.0)


def test_lines_are_handed_on_as_they_come_and_half_a_line_waits(tmp_path: Path) -> None:
    came: list[tuple[float, int]] = []
    begin = time.monotonic()
    with piped(tmp_path, b"(1.0) can0 123#11\n(2.0) can0 1", b"24#11\n", b"(3.0) can0 125#", pause_s=0.7) as fifo:
        for chunk in stream_recording(fifo):
            came += [(time.monotonic() - begin, int(one)) for one in chunk.identifier]
    assert [one for _, one in came] == [0x123, 0x124, 0x125]
    assert came[0][0] < came[1][0] - 0.3 < came[2][0] - 0.6


@pytest.mark.parametrize("newline", [b"\r", b"\r\n"])
def test_lines_come_one_by_one_however_they_end(tmp_path: Path, newline: bytes) -> None:
    lines = [b"(1.0) can0 123#11", b"(2.0) can0 124#11", b"(3.0) can0 125#11"]
    pieces = [newline.join([*lines[:2], b""])[:-1], newline[-1:] + lines[2], newline]
    came: list[tuple[float, int]] = []
    begin = time.monotonic()
    with piped(tmp_path, *pieces, pause_s=0.7) as fifo:
        for chunk in stream_recording(fifo):
            came += [(time.monotonic() - begin, int(one)) for one in chunk.identifier]
    assert [one for _, one in came] == [0x123, 0x124, 0x125]
    assert came[0][0] < came[1][0] - 0.3 < came[2][0] - 0.6


@pytest.mark.parametrize(("name", "said"), [("plain.csv", "identifiers are decimal"), ("a.asc", "")])
def test_a_look_at_a_pipe_knows_what_one_at_the_file_does(tmp_path: Path, name: str, said: str) -> None:
    """Of a table, that ids may be decimal; of a slow log whose format counts seconds, that they are."""
    messages = simulate(make_vehicle(5), 3.0)
    if name in WRITERS:
        slow = np.round(1e3 * (messages.timestamp - messages.timestamp[0]))
        path = WRITERS[name][0](tmp_path / name, dataclasses.replace(messages, timestamp=slow))
    else:
        path = tmp_path / name
        rows = zip(messages.timestamp, messages.identifier, messages.payload, strict=True)
        lines = [f"{time:.6f},{identifier},{bytes(payload).hex()}" for time, identifier, payload in rows]
        path.write_text("\n".join(["timestamp,id,data_field", *lines, ""]))
    with piped(tmp_path, path.read_bytes()) as fifo:
        found = inspect_file(fifo)
    assert found.num_messages == len(messages)
    assert found.problem == inspect_file(path).problem
    assert found.problem.startswith(said) if said else not found.problem


def test_a_pipe_that_nobody_writes_to_ends_when_it_is_told_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    stop = threading.Event()
    found: list[list[Messages]] = []
    for open_stream in (stream_recording, follow_file):
        stop.clear()
        thread = threading.Thread(target=lambda: found.append(list(open_stream(tmp_path / "fifo", stop=stop))))  # noqa: B023
        thread.start()
        time.sleep(0.2)
        stop.set()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert found == [[], []]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "brought nothing"),
        (b"LOGG" + bytes(200), "brings a Vector BLF log, which cannot be read from a pipe; write it to a file"),
        (b"PAR1" + bytes(200), "brings a Parquet log, which cannot be read from a pipe; write it to a file"),
        (gzip.compress(b"PAR1" + bytes(200)), "is a Parquet file inside gzip"),
        (gzip.compress(gzip.compress(b"x")), "is gzip inside gzip"),
        (b"hello, what is this?\n" * 9, "has the header"),
        (b"; a comment and no more\n" * 9, "unknown format"),
    ],
    ids=str_or_nothing,
)
def test_what_no_pipe_can_bring_is_refused_with_what_to_do(tmp_path: Path, content: bytes, words: str) -> None:
    for read in (read_recording, lambda path: list(stream_recording(path)), lambda path: list(follow_file(path))):
        with piped(tmp_path, content) as fifo, pytest.raises(RecordingError) as caught:
            read(fifo)
        assert words in str(caught.value)


def test_a_finished_pipe_is_refused_for_what_a_file_is_refused_for(tmp_path: Path) -> None:
    content = b"(1.0) can0 123#11\n" * 9 + b"(x) can0 123#11\n"
    with piped(tmp_path, content) as fifo, pytest.raises(RecordingError, match="1 of 10 rows are bad"):
        list(stream_recording(fifo))
    with piped(tmp_path, content) as fifo:
        assert sum(len(chunk) for chunk in follow_file(fifo)) == 9
