"""What grows without end when it is read is refused, with what to do; what logs are is read."""

import gzip
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kdgat.base import MIB
from kdgat.canbus import ReadLimits, RecordingError, read_recording, stream_recording
from kdgat.canbus.readers import limits
from kdgat.canbus.readers.detect import find_format
from tests.canbus.log_files import WRITERS, mf4_whose_reader
from tests.canbus.recording_files import random_messages, write_text

TOO_LARGE = "and no log is compressed more than 100 times: export it again"
LINE = b"(1436509052.249713) can0 044#2A366C2BBA\n"


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few MiB be too much: what is tested takes its time otherwise."""
    monkeypatch.setattr(limits, "LEAST_UNPACKED_BYTES", 4 * MIB)


def with_bomb(head: bytes, num_bytes: int = 16 * MIB, fill: bytes = b"\n") -> bytes:
    return gzip.compress(head + fill * num_bytes)


@pytest.mark.parametrize(
    "content",
    [
        with_bomb(LINE * 3),
        with_bomb(LINE, fill=b"\0"),
        with_bomb(LINE, 3 * MIB) * 4,  # several members, each of them small enough
        with_bomb(LINE)[:-4] + b"\1\0\0\0",  # its trailer says: one byte
        with_bomb(b"Timestamp: 1.5        ID: 0350    000    DLC: 0\n"),
    ],
)
def test_a_compressed_log_that_is_nearly_nothing_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train_a__bomb.log.gz"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=TOO_LARGE):
        read_recording(path, limits=ReadLimits(max_bad_fraction=1.0))
    with pytest.raises(RecordingError, match=TOO_LARGE), stream_recording(path) as stream:
        list(stream)


@pytest.mark.parametrize("name", ["a.blf", "a.pcap"])
def test_a_binary_log_inside_gzip_is_held_to_the_same(tmp_path: Path, name: str) -> None:
    if name not in WRITERS:
        pytest.skip(f"nothing here writes {name}")
    content = WRITERS[name][0](tmp_path / name, random_messages(50)).read_bytes()
    path = tmp_path / f"{name}.gz"
    packet = struct.pack("<IIII", 1, 0, 16 * MIB, 16 * MIB)  # of a capture; of BLF it is damage
    path.write_bytes(gzip.compress(content + packet + bytes(16 * MIB)))
    if name == "a.pcap":
        with pytest.raises(RecordingError, match=TOO_LARGE):
            read_recording(path)
    else:
        assert len(read_recording(path, limits=ReadLimits(max_bad_fraction=1.0))) == 50


def test_a_container_of_blf_is_not_unpacked_beyond_the_limit(tmp_path: Path) -> None:
    path = WRITERS["a.blf"][0](tmp_path / "a.blf", random_messages(50))
    body = struct.pack("<H6xL4x", 2, 16 * MIB) + zlib.compress(bytes(16 * MIB))
    container = struct.pack("<4sHHLL", b"LOBJ", 16, 1, 16 + len(body), 10) + body
    path.write_bytes(path.read_bytes() + container)
    with pytest.raises(RecordingError, match=TOO_LARGE):
        read_recording(path)


def test_a_parquet_file_of_few_bytes_and_many_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train_a__bomb.parquet"
    rows = 500_000
    frame = pl.DataFrame({"timestamp": np.zeros(rows), "id": np.zeros(rows, np.uint32)})
    frame.with_columns(pl.lit("").alias("data_field"), pl.lit(0).alias("label")).write_parquet(path)
    assert path.stat().st_size < 20_000
    with pytest.raises(RecordingError, match=TOO_LARGE):
        read_recording(path)
    long_payload = pl.DataFrame({"timestamp": [0.0], "id": [1], "data_field": ["0" * (16 * MIB)], "label": [0]})
    long_payload.write_parquet(path)
    with pytest.raises(RecordingError, match=TOO_LARGE):
        read_recording(path)


def test_a_log_of_one_message_again_and_again_is_read(tmp_path: Path) -> None:
    lines = [f"Timestamp: {1479121434 + i:.6f}        ID: 0350    000    DLC: 0\n" for i in range(100_000)]
    path = tmp_path / "train_a__constant.txt.gz"
    path.write_bytes(gzip.compress("".join(lines).encode(), 9))
    assert len(read_recording(path)) == len(lines)


def test_gzip_inside_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(gzip.compress(LINE)))
    with pytest.raises(RecordingError, match="is gzip inside gzip; unpack it by `gunzip` first"):
        read_recording(path)


@pytest.mark.parametrize("place", [10, 11, 12, 20])
def test_damage_in_the_first_bytes_of_a_compressed_log_is_an_error_of_the_file(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.log.gz"
    content = bytearray(gzip.compress(os.urandom(50) + LINE * 100))
    content[place : place + 8] = b"\xff" * 8
    path.write_bytes(content)
    for read in (find_format, read_recording):
        try:
            read(path)
        except RecordingError:
            continue


def test_garbage_behind_a_compressed_log_is_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    write_text(tmp_path / "a.log", random_messages(100), "candump.log")
    path.write_bytes(gzip.compress((tmp_path / "a.log").read_bytes()) + b"garbage")
    messages = read_recording(path, limits=ReadLimits(max_bad_fraction=0.1))
    assert (len(messages), messages.num_bad_rows) == (100, 1)


@pytest.mark.processes
def test_a_process_that_reads_has_memory_and_time_for_its_file(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from kdgat.canbus.readers import limits\n"
        "limits.LEAST_MEMORY = 1 << 26\n"
        "print(limits.limit_process(0, 2))\n"
        "try:\n    bytearray(1 << 28)\nexcept MemoryError:\n    print('no memory', flush=True)\n"
        "while True:\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["64 MiB of memory and 2 s of processor time", "no memory"]
    assert done.returncode < 0


@pytest.mark.processes
def test_an_mf4_file_that_takes_memory_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mf4_whose_reader("everything = bytearray(1 << 40)", tmp_path, monkeypatch)
    with pytest.raises(RecordingError, match=r"takes more than .* of memory and 60 s"):
        read_recording(path)
