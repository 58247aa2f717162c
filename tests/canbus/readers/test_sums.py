"""Messages, bad rows and what is passed over add up to what a file holds, also a damaged one, at once and in chunks."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, ReadLimits, RecordingError, read_recording, stream_recording
from kdgat.canbus.messages import OTHER_CHANNEL
from tests.canbus.log_files import (
    WRITERS,
    error_frame,
    fd_frame,
    frames,
    remote_frame,
    write_log,
    write_pcap,
    write_pcapng,
)
from tests.canbus.recording_files import FORMATS, random_messages, write_text

LENIENT = ReadLimits(max_bad_fraction=1.0)
NUM_GARBLED = 40  # of each log
FORMS = {
    "screen.log": [
        " (1.0)  can0  RX - -  20000088   [8]  00 00 90 00 00 00 80 00   ERRORFRAME",
        "\tprotocol-violation{{}{}}",
        "\tbus-error",
        " (1.1)  can0  TX - -  123   [8]  11 22 33 44 55 66 77 88",
        " (1.2)  can0  RX B E  123  [12]  11 22",
        " (1.3)  can0  RX - -  123   {D}  11 22 33 44 55 66 77 88   '.\"3DUfw.'",
        " (1.4)  can0  RX - -  123   [0]  remote request",
        " (1.5)  can0  RX - -  123 [0003] (45|81:00:12345678) 11 22 33",
        "DROPCOUNT: dropped 3 CAN frames on 'can0' socket",
        "",
        " (1.6)  can0  RX - -  123   [2]  22`11",
        " (1.7)  can0  RX - -  123   [2]  00100010 00010001",
    ],
    "date.log": [
        " (2020-11-19 13:42:02.000370)  can0  123   [2]  11 22",
        "(2020-11-19 13:42:02.000370) can0 123#1122 R",
    ],
    "colours.log": [
        "\x1b[34m\x1b[1m (1.5)  can0  123   [1]  11\x1b[0m",
        " (1.6)  \x1b[34m\x1b[1mcan0\x1b[0m  123   [1]  11",
    ],
    "kinds.log": [
        "(1.5) can0 123#11",
        "(1.6) can0 123##31122",
        "(1.7) can0 45123#81:00:12345678#1122",
        "(1.8) can0 6F0#R8_9",
        "(1.9) can0 1#1122334455667788_D",
    ],
    "old-mac.log": ["(1.5) can0 123#11\r(1.6) can0 124#11\r(1.7) can0 125#11\r"],
    "named.asc": [
        "date Fri Apr 6 10:12:20.005 am 2018\r",
        "base hex  timestamps absolute\r",
        "   0.000000 Start of measurement\r",
        "0.1 1  DAB  Rx   d 1 01  Length = 160000 BitCount = 84 ID = 416\r",
        "0.2 CAN 1 Status:chip status error active\r",
        "0.3 1  Engine  Rx   d 2 01 02  Length = 160000 BitCount = 84 ID = 416\r",
        "0.4 1  ErrorFrame\r",
        "0.5 1  Statistic: D 0 R 0\r",
        "0.6 1  12345678x  Tx   r 4\r",
        "End TriggerBlock\r",
    ],
    "comma.asc": [
        "base dec timestamps relative",
        "0,1 1  123  Rx   d 1 1",
        "0,2 CANXL 1 Rx CBFF 230000 120 a1 Name 2 2 01 02 7f3a 0 0",
        "0,3 CANXL 1 Rx XLFF 984438 4656 432 Name e0 0 1fe 511",
        "0,4 CANFD 1 Rx 123 Name 0 0 2 2 1 2 0 0 0 0",
    ],
    "a.trc": [
        ";$FILEVERSION=2.1",
        ";$COLUMNS=N,O,T,B,I,d,R,L,D",
        " 1 1.0 DT 1 0300 Rx - 2 00 01",
        " 2 2.0 RR 1 0301 Rx - 4",
        " 3 3.0 ER 1 - Rx - 5 04 00 02 00 00",
        " 4 4.0 FB 1 0300 Rx - 12 01",
        " 5 5.0 ST 1 - Rx - 4 00 00 00 08",
    ],
    "printed.txt": [
        *map(str, frames(random_messages(3))),
        *map(str, (remote_frame(1.0), error_frame(1.0), fd_frame(1.0))),
    ],
}
PIECES = [*(bytes([byte]) for byte in b"\n\r\t \0#()[{,-x\xff"), b"", b"\x1b[0m", b"1e9", b"ID = "]


def garbled(content: bytes, random: np.random.Generator) -> bytes:
    """Cut a log, or replace, repeat, take out and put in some of its bytes."""
    data = bytearray(content)
    for _ in range(random.integers(1, 6)):
        place = int(random.integers(0, len(data) + 1))
        end = place + int(random.integers(0, 12))
        piece = PIECES[random.integers(len(PIECES))]
        match random.integers(5):
            case 0:
                data[place : place + 1] = piece
            case 1:
                data[place:place] = piece
            case 2:
                data[place:place] = data[place:end]
            case 3:
                del data[place:end]
            case _:
                del data[max(place, len(data) // 2) :]
    return bytes(data)


def count_lines(content: bytes) -> int:
    lines = content.split(b"\n" if b"\n" in content or b"\r" not in content else b"\r")
    return len(lines) - (not lines[-1])


def total(messages: Messages) -> int:
    return len(messages) + messages.num_bad_rows + sum(messages.passed_over.values())


def read_both_ways(path: Path) -> int | None:
    """Read at once and in chunks, and return how many entries both count; None where the file is refused."""
    channel = None
    try:
        read = read_recording(path, limits=LENIENT)
    except RecordingError as error:
        several = re.search(r"\(--channel (\S+)\)", str(error))
        if several is None:
            with pytest.raises(RecordingError), stream_recording(path, 3, limits=LENIENT) as stream:
                list(stream)
            return None
        channel = several[1]
        read = read_recording(path, limits=LENIENT, channel=channel)
    with stream_recording(path, 3, limits=LENIENT, channel=channel) as stream:
        assert sum(len(chunk) for chunk in stream) == len(read)
    assert (stream.status.num_bad_rows, stream.status.passed_over) == (read.num_bad_rows, read.passed_over)
    return total(read)


def logs(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in FORMATS:
        yield name, write_text(folder / name, random_messages(8), name).read_bytes()
    for name in ("a.asc", "a.trc", "a-1.0.trc"):
        yield f"written {name}", WRITERS[name][0](folder / name, random_messages(8)).read_bytes()
    for name, lines in FORMS.items():
        yield name, ("\n" * (name != "old-mac.log")).join([*lines, ""]).encode()


def test_lines_of_text_add_up_whatever_happens_to_them(tmp_path: Path) -> None:
    for seed, (name, content) in enumerate(logs(tmp_path)):
        random = np.random.default_rng(seed)
        path = tmp_path / "garbled.log"
        path.write_bytes(content)
        assert read_both_ways(path) == count_lines(content), name
        num_read = 0
        for _ in range(NUM_GARBLED):
            damaged = garbled(content, random)
            path.write_bytes(damaged or b"\n")
            counted = read_both_ways(path)
            assert counted in (None, count_lines(damaged)), (name, damaged)
            num_read += counted is not None
        assert num_read > NUM_GARBLED // 8, name


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_blank_lines_are_of_no_channel(newline: str, tmp_path: Path) -> None:
    """Whatever lay in the memory that their channels are kept in before."""
    path = tmp_path / "two.log"
    lines = [f"(1.{row:03}) can{row % 2} 123#11{newline * 40}" for row in range(200)]
    path.write_bytes("".join(lines).encode())
    kept = [np.full(1 << 13, 1, np.uint8) for _ in range(50)]
    del kept
    read = read_recording(path, channel="can0")
    assert (len(read), read.passed_over[OTHER_CHANNEL]) == (100, 100)


def test_every_cut_of_a_capture_is_one_bad_row(tmp_path: Path) -> None:
    end = 2e9
    kinds = [remote_frame(end), error_frame(end), fd_frame(end)]
    for write, suffix in ((write_pcap, "pcap"), (write_pcapng, "pcapng")):
        path = write(tmp_path / f"a.{suffix}", chain(frames(random_messages(5)), kinds))
        content = path.read_bytes()
        assert read_both_ways(path) == 8
        counts = []
        for size in range(len(content) // 2, len(content)):
            path.write_bytes(content[:size])
            counts.append(read_both_ways(path))
        assert counts == sorted(counts)
        assert {*counts} <= {*range(1, 9)}
        assert counts[-1] == 8  # seven packets, and the one that is cut off


@pytest.mark.parametrize("name", ["a.blf", "a.pcap", "a.pcapng"])
def test_damaged_binary_logs_are_read_alike_at_once_and_in_chunks(tmp_path: Path, name: str) -> None:
    content = WRITERS[name][0](tmp_path / name, random_messages(20)).read_bytes()
    random = np.random.default_rng(0)
    num_read = 0
    for _ in range(NUM_GARBLED):
        (tmp_path / name).write_bytes(content[:150] + garbled(content[150:], random))
        num_read += read_both_ways(tmp_path / name) is not None
    assert num_read


def test_objects_of_blf_add_up_and_one_that_is_cut_off_is_a_bad_row(tmp_path: Path) -> None:
    log = chain(frames(random_messages(5)), [remote_frame(2e9), error_frame(2e9), fd_frame(2e9)])
    content = write_log(tmp_path / "a.blf", log).read_bytes()
    assert read_both_ways(tmp_path / "a.blf") == 8
    objects = zlib.decompress(content[144 + 32 :])
    marker = struct.pack("<4sHHII24x", b"LOBJ", 32, 1, 40, 65)
    logs = ((objects + marker, 9, 0), (objects[:-5], 8, 1), (objects + marker[:9], 9, 1))
    for unpacked, num_objects, num_bad in logs:
        size = 32 + len(unpacked)  # of a container whose content is as it is
        container = struct.pack("<4sHHII8xI4x", b"LOBJ", 16, 1, size, 10, len(unpacked)) + unpacked + bytes(size % 4)
        (tmp_path / "a.blf").write_bytes(content[:144] + container)
        read = read_recording(tmp_path / "a.blf", limits=LENIENT)
        assert (total(read), read.num_bad_rows) == (num_objects, num_bad)
        assert read.passed_over["event of the tool"] == (unpacked == objects + marker)


@pytest.mark.parametrize("num_padding", range(8))
def test_objects_of_blf_are_found_behind_any_padding_and_errors_of_can_fd_are_counted(
    tmp_path: Path, num_padding: int
) -> None:
    content = write_log(tmp_path / "a.blf", frames(random_messages(5))).read_bytes()
    container = content[144 : 144 + struct.unpack_from("<I", content, 144 + 8)[0]]
    error = struct.pack("<4sHHII24x", b"LOBJ", 32, 1, 40, 104)
    padding = bytes(num_padding)
    content = content[:16] + struct.pack("<Q", 0) + content[24:144]  # a size that is not known
    (tmp_path / "a.blf").write_bytes(content + container + padding + error + padding + container + padding)
    read = read_recording(tmp_path / "a.blf")
    assert (len(read), read.num_bad_rows, read.passed_over) == (10, 0, {"error frame": 1})


@pytest.mark.processes
def test_frames_of_mf4_add_up(tmp_path: Path) -> None:
    log = chain(frames(random_messages(5)), [remote_frame(2e9), error_frame(2e9), fd_frame(2e9)])
    assert total(read_recording(write_log(tmp_path / "a.mf4", log))) == 8
