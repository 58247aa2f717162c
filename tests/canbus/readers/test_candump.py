"""Every line that candump and python-can's printer write, whatever the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import can
import pytest

from kdgat.canbus import Messages, ReadLimits, RecordingError, read_recording, stream_recording
from kdgat.canbus.messages import BadRow

LENIENT = ReadLimits(max_bad_fraction=1.0)
BYTES = "11 22 33 44 55 66 77 88"


def _read(path: Path, text: str, channel: str | None = None) -> Messages:
    path.write_bytes(text.encode())
    return read_recording(path, limits=LENIENT, channel=channel)


def _frames(messages: Messages) -> list[tuple[float, int, str]]:
    rows = zip(
        messages.timestamp.tolist(), messages.identifier.tolist(), messages.payload, messages.length, strict=True
    )
    return [(time, identifier, payload[:length].tobytes().hex()) for time, identifier, payload, length in rows]


ONE_FRAME = {
    "-L": ("(1.5) can0 123#1122", 1.5),
    "-L -x": ("(1.5) can0 123#1122 R", 1.5),
    "-L -tz": ("(000.000000) can0 123#1122", 0.0),
    "-L -tA": ("(2020-11-19 13:42:02.000370) can0 123#1122", 1605793322.00037),
    "-tA": (" (2020-11-19 13:42:02.000370)  can0  123   [2]  11 22", 1605793322.00037),
    "-tA on a leap day": (" (2024-02-29 23:59:59.5)  can0  123   [2]  11 22", 1709251199.5),
    "-ta -x": (" (1.5)  can0  TX B E  123   [2]  11 22", 1.5),
    "-ta -a": (" (1.5)  can0  123   [2]  11 22   '.\"'", 1.5),
    "-ta -S": (" (1.5)  can0  123   [2]  22`11", 1.5),
    "-ta -S -a": (' (1.5)  can0  123   [2]  22`11    `".`', 1.5),
    "-ta -i": (" (1.5)  can0  123   [2]  00010001 00100010", 1.5),
    "-ta -i -S": (" (1.5)  can0  123   [2]  00100010`00010001", 1.5),
    "-ta -c": (" (1.5)  \x1b[34m\x1b[1mcan0\x1b[0m  123   [2]  11 22", 1.5),
    "-ta -c -c": (" (1.5)  \x1b[34m\x1b[1mcan0  123   [2]  11 22\x1b[0m", 1.5),
    "-ta -c -c -c": ("\x1b[34m\x1b[1m (1.5)  can0  123   [2]  11 22\x1b[0m", 1.5),
}


@pytest.mark.parametrize("options", ONE_FRAME)
def test_frame_is_read_whatever_the_options_of_candump(tmp_path: Path, options: str) -> None:
    line, time = ONE_FRAME[options]
    read = _read(tmp_path / "a.log", f"{line}\n{line}\n", channel="can0")
    assert _frames(read) == [(time, 0x123, "1122")] * 2
    assert (read.num_bad_rows, read.passed_over) == (0, {})


def test_raw_length_codes_of_classic_frames_mean_8_bytes(tmp_path: Path) -> None:
    text = (
        f"(1.0) can0 123#1122334455667788_D\n(2.0) can0 6F0#R8_9\n (3.0)  can0  123   {{F}}  {BYTES}\n"
        f" (4.0)  can0  123   {{8}}  {BYTES}   '.\"3DUfw.'\n (5.0)  can0  6F0   {{9}}  remote request\n"
        "(6.0) can0 123#1122_9\n(7.0) can0 123#1122334455667788_8\n (8.0)  can0  123   {Q}  11\n"
    )
    read = _read(tmp_path / "a.log", text)
    assert [payload for _, _, payload in _frames(read)] == [BYTES.replace(" ", ""), ""] + [
        BYTES.replace(" ", "")
    ] * 2 + [""]
    assert [(row.line, row.reason) for row in read.bad_rows] == [
        (6, "data length code and payload bytes differ"),
        (7, "data length code and payload bytes differ"),
        (8, "data length code is no number from 0 to 8"),
    ]


def test_frames_of_other_kinds_are_counted_and_are_no_damage(tmp_path: Path) -> None:
    text = (
        " (1.0)  can0       123   [1]  11\n (1.1)  can0       123  [02]  11 22\n(1.2) can0 123##31122\n"
        " (1.3)  can0       123 [0003] (45|81:00:12345678) 11 22 33\n(1.4) can0 45123#81:00:12345678#11223344.556677\n"
        "(1.5) can0 20000088#0000900000000000\nDROPCOUNT: dropped 3 CAN frames on 'can0' socket (total drops 3)\n"
    )
    read = _read(tmp_path / "a.log", text)
    assert (len(read), read.num_bad_rows) == (1, 0)
    assert read.passed_over == {"CAN FD frame": 2, "CAN XL frame": 2, "error frame": 1, "event of the tool": 1}


def test_explanations_below_error_frames_are_no_damage_also_where_a_log_begins_with_them(tmp_path: Path) -> None:
    error = (
        " (1.0)  can0  RX - -  20000088   [8]  00 00 90 00 00 00 80 00   ERRORFRAME\n"
        "\tprotocol-violation{{tx-recessive-bit-error,error-on-tx}{}}\n\tlost-arbitration{at bit 5}\n"
        "        bus-error\n\terror-counter-tx-rx{{128}{0}}\n"
    )
    text = error * 60 + " (2.0)  can0  RX - -  123   [1]  11\nbus-error\n\tno remark of candump\n"
    read = _read(tmp_path / "a.log", text)
    assert (len(read), read.passed_over) == (1, {"error frame": 60, "line without a message": 240})
    assert [row.line for row in read.bad_rows] == [302, 303]


@pytest.mark.parametrize(
    "date", ["2020-13-19 13:42:02.0", "2020-11-19 24:42:02.0", "2020-11-19 13:42:0x", "2020-11-19", "x"]
)
def test_date_that_is_none_is_a_bad_row(tmp_path: Path, date: str) -> None:
    read = _read(tmp_path / "a.log", f"(2020-11-19 13:42:02.0) can0 123#11\n({date}) can0 123#11\n")
    assert (len(read), read.bad_rows) == (1, [BadRow(2, "timestamp is no finite number")])


@pytest.mark.parametrize(
    "line",
    [
        "  can0  123   [2]  11 22",
        "  can0  RX - -  12345678   [2]  11 22   ',\"'",
        "  can0       123 [0003] (45|81:00:12345678) 11 22 33",
        f"  can0  123   {{D}}  {BYTES}",
        "can0 123#1122",
        "<0x123> [2] 11 22",
    ],
)
def test_candump_without_times_is_refused_with_how_to_record_them(tmp_path: Path, line: str) -> None:
    with pytest.raises(RecordingError, match=r"candump shows without times .*record it again by `candump -L can0"):
        _read(tmp_path / "a.log", f"{line}\n" * 3)


def _printed(time: float, data: str = "", channel: str | None = "can0", **options: Any) -> str:
    options = {"is_extended_id": False, "data": bytes.fromhex(data), "channel": channel} | options
    return f"{can.Message(timestamp=time, arbitration_id=0x123, **options)}\n"


def test_messages_that_python_can_prints_are_understood_as_it_means_them() -> None:
    words = "Timestamp: 1.500000 ID: 123 S Rx DL: 2 11 22 Channel: can0"
    assert _printed(1.5, "1122").split() == words.split()


PRINTED = (
    "Connected to SocketcanBus: socketcan channel 'can0'\nCan Logger (Started on 2020-11-19 13:42:02.000370)\n"
    + _printed(1.5, "1122")
    + _printed(1.6, "6162", is_rx=False, is_extended_id=True)
    + _printed(1.7, "00" * 8, is_error_frame=True)
    + _printed(1.8, is_remote_frame=True, dlc=8)
    + _printed(1.9, "11" * 12, is_fd=True, bitrate_switch=True, error_state_indicator=True)
    + _printed(2.0, channel=None).replace("DL:", "DLC:").replace("Rx", "")
    + _printed(2.1, "1122", channel="can1")
    + _printed(2.2, "1122").replace("11 22", "11 22 33")
)


def test_messages_that_python_can_has_printed_are_read(tmp_path: Path) -> None:
    read = _read(tmp_path / "a.txt", PRINTED, channel="can0")
    assert _frames(read) == [(1.5, 0x123, "1122"), (1.6, 0x123, "6162"), (1.8, 0x123, ""), (2.0, 0x123, "")]
    assert read.bad_rows == [BadRow(10, "data length code and payload bytes differ")]
    assert read.passed_over == {
        "error frame": 1,
        "CAN FD frame": 1,
        "message of other channels": 1,
        "line without a message": 2,
    }
    with pytest.raises(RecordingError, match=r"holds 2 channels: can0 \(3 messages\), can1 \(1 messages\)"):
        _read(tmp_path / "a.txt", PRINTED)


def test_remote_frame_of_the_named_form_asks_for_bytes_and_has_none(tmp_path: Path) -> None:
    line = "Timestamp: {}        ID: 0164    {}    DLC: 8{}\n"
    text = line.format(1.5, "100", "") + line.format(1.6, "000", "    " + BYTES) + line.format(1.7, "000", "")
    read = _read(tmp_path / "a.txt", text)
    assert _frames(read) == [(1.5, 0x164, ""), (1.6, 0x164, BYTES.replace(" ", ""))]
    assert read.bad_rows == [BadRow(3, "data length code and payload bytes differ")]


@pytest.mark.parametrize("newline", ["\r", "\r\n", "\r\r\n"])
def test_lines_of_other_systems_are_read_also_in_chunks(tmp_path: Path, newline: str) -> None:
    lines = [f"({row}.5) can0 {row % 2048:03X}#11" for row in range(8000)]
    (tmp_path / "a.log").write_bytes((newline.join(lines) + newline).encode())
    read = read_recording(tmp_path / "a.log")
    assert (len(read), read.num_bad_rows, sum(read.passed_over.values())) == (8000, 0, 0)
    chunks = list(stream_recording(tmp_path / "a.log", 100))
    assert [row for chunk in chunks for row in chunk.identifier.tolist()] == read.identifier.tolist()
