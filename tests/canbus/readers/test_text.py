"""Logs of lines of Vector and PEAK: variants that python-can does not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdgat.canbus import Messages, ReadLimits, RecordingError, read_recording
from kdgat.canbus.messages import BadRow

ASC_HEADER = """date Tue Sep 30 03:06:13.191 pm 2014
base {base}  timestamps {timestamps}
internal events logged
// version 9.0.0
Begin Triggerblock Tue Sep 30 03:06:13.191 pm 2014
   0.000000 Start of measurement
"""


def _read(path: Path, text: str, **options: float) -> Messages:
    path.write_text(text)
    return read_recording(path, limits=ReadLimits(max_bad_fraction=1.0))


def _asc(path: Path, lines: str, base: str = "hex", timestamps: str = "absolute") -> Messages:
    return _read(path / "a.asc", ASC_HEADER.format(base=base, timestamps=timestamps) + lines + "End TriggerBlock\n")


def test_relative_times_of_asc_add_up_over_all_events(tmp_path: Path) -> None:
    lines = (
        "   0.500000 1  123             Rx   d 1 01\n"
        "   0.250000 1  Statistic: D 0 R 0 XD 0 XR 0 E 0 O 0 B 0.00%\n"
        "   0.250000 1  123             Rx   d 1 02\n"
        "   1.000000 1  ErrorFrame\n"
        "   0.500000 1  123             Tx   d 1 03\n"
    )
    read = _asc(tmp_path, lines, timestamps="relative")
    assert read.timestamp.tolist() == [0.5, 1.0, 2.5]
    assert read.passed_over["error frame"] == 1
    assert _asc(tmp_path, lines).timestamp.tolist() == [0.5, 0.25, 0.5]


def test_decimal_asc_is_read_as_such(tmp_path: Path) -> None:
    read = _asc(tmp_path, "0.1 1 291 Rx d 3 1 20 255\n0.2 1 305419896x Rx d 0\n0.3 1 291 Rx d 1 256\n", base="dec")
    assert read.identifier.tolist() == [0x123, 0x12345678]
    assert read.payload[0].tolist() == [1, 20, 255, 0, 0, 0, 0, 0]
    assert [row.reason for row in read.bad_rows] == ["payload is no hexadecimal text"]


def test_events_of_asc_that_are_no_frames_are_passed_over(tmp_path: Path) -> None:
    read = _asc(
        tmp_path,
        "   0.1 1  123             Rx   d 8 01 02 03 04 05 06 07 08  Length = 244015 BitCount = 125 ID = 291\n"
        "// a comment with 1.0 1 123 Rx d 0\n"
        "   0.2 CAN 1 Status:chip status error active\n"
        "   0.3 1  321             TxRq   d 2 01 02\n"
        "   0.4 J1939TP FEE3p 6 0 0 - Rx d 23 A0 0F A6 60 3B D1 40 1F DE 80 E1 00\n"
        "   0.5 1  12345678x       Rx   r 4\n"
        "   0.6 SV: 1 0 1 ::speed = 4\n"
        "   0.7 1  321             Tx   d F 01 02 03 04 05 06 07 08\n",
    )
    assert read.identifier.tolist() == [0x123, 0x12345678, 0x321]
    assert read.length.tolist() == [8, 0, 8]
    assert (read.num_bad_rows, read.passed_over["event of the tool"]) == (0, 4)


def test_classic_frame_of_a_channel_for_can_fd_is_a_message(tmp_path: Path) -> None:
    tail = "0 0 {flags} 0 0 0 0 0"
    read = _asc(
        tmp_path,
        f"0.1 CANFD   1 Rx        123  Name_of_it    0 0 2  2 0A 0B {tail.format(flags='0')}\n"
        f"0.2 CANFD   1 Rx        124  1 0 2  2 0A 0B {tail.format(flags='3000')}\n"
        "0.3 CANFD   1 Rx  ErrorFrame\n"
        f"0.4 CANFD   1 Rx        125x  0 0 4  0 {tail.format(flags='10')}\n"
        f"0.5 CANFD   1 Rx        126  0 0 9 12{' 0C' * 12} {tail.format(flags='0')}\n",
    )
    assert read.identifier.tolist() == [0x123, 0x125]
    assert read.payload[0, :2].tolist() == [10, 11]
    assert read.length.tolist() == [2, 0]
    assert (read.passed_over["error frame"], read.passed_over["CAN FD frame"], read.num_bad_rows) == (1, 2, 0)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ("0.x 1  123             Rx   d 1 01", "timestamp is no finite number"),
        ("0.1 1  1Z3             Rx   d 1 01", "id is no hexadecimal number"),
        ("0.1 1  3FFFFFFFx       Rx   d 1 01", "id is beyond 29 bits"),
        ("0.1 1  123             Rx   d 2 01", "data length code and payload bytes differ"),
        ("0.1 1  123             Rx   d x 01", "data length code is no number from 0 to 8"),
        ("0.1 1  123             Rx   d 1 0x", "payload is no hexadecimal text"),
        ("0.1 1  123             Rx", "too few fields"),
        ("0.1", "too few fields"),
    ],
)
def test_damaged_line_of_asc_is_dropped_and_reported(tmp_path: Path, damaged: str, reason: str) -> None:
    read = _asc(tmp_path, f"0.1 1 123 Rx d 1 01\n{damaged}\n0.2 1 123 Rx d 1 01\n")
    assert (len(read), read.bad_rows) == (2, [BadRow(8, reason)])


def test_line_of_asc_that_is_cut_off_is_reported_as_such(tmp_path: Path) -> None:
    text = ASC_HEADER.format(base="hex", timestamps="absolute") + "0.1 1 123 Rx d 1 01\n0.2 1 123 Rx d 4 01 02"
    assert _read(tmp_path / "a.asc", text).bad_rows == [BadRow(8, "last line is cut off")]


NAMED = "Length = 160000 BitCount = 84"


def test_number_of_a_message_that_asc_names_stands_at_the_end_of_its_line(tmp_path: Path) -> None:
    read = _asc(
        tmp_path,
        f"0.1 1  DAB              Rx   d 1 01  {NAMED} ID = 416\n"
        f"0.2 1  C4               Rx   d 1 01  {NAMED} ID = 196\n"
        f"0.3 1  Engine_01        Rx   d 1 01  {NAMED} ID = 418053360x\n"
        f"0.4 1  Engine_01        Tx   r 4  {NAMED} ID = 418053360x\n"
        f"0.5 1  123              Rx   d 1 01\n"
        f"0.6 1  ACC              Rx   d 1 01\n"
        f"0.7 1  Engine_01        Rx   d 1 01\n"
        f"0.8 1  Engine_01        Rx   d 1 01  {NAMED} ID = 4x1\n",
    )
    assert read.identifier.tolist() == [0x1A0, 0xC4, 418053360, 418053360, 0x123]
    unnamed = "id is a name and its number is not said; export the log with ids instead of symbolic names"
    assert [row.reason for row in read.bad_rows] == [unnamed, unnamed, "id is no hexadecimal number"]


def test_hexadecimal_digits_are_an_id_where_asc_names_no_message(tmp_path: Path) -> None:
    assert _asc(tmp_path, "0.1 1  DAB Rx   d 1 01\n0.2 1  ABCx Rx   d 1 01\n").identifier.tolist() == [0xDAB, 0xABC]


def test_number_behind_a_name_that_is_cut_off_is_no_id(tmp_path: Path) -> None:
    text = (
        ASC_HEADER.format(base="hex", timestamps="absolute")
        + "0.1 1 ACC Rx d 1 01 ID = 416\n0.2 1 ACC Rx d 1 01 ID = 41"
    )
    assert _read(tmp_path / "a.asc", text).bad_rows == [BadRow(8, "last line is cut off")]


def test_classic_frames_of_a_channel_for_can_xl_are_messages(tmp_path: Path) -> None:
    tail = "7f3a {flags} 00000000 000000050005000e"
    read = _asc(
        tmp_path,
        f"0.1 CANXL   1 Rx   CBFF   230000  120  1a0  Its_name  8 8 01 02 03 04 05 06 07 08 {tail.format(flags='0')}\n"
        f"0.2 CANXL   1 Rx   CEFF   230000   120  12345678x  d 8 01 02 03 04 05 06 07 08 {tail.format(flags='0')}\n"
        f"0.3 CANXL   1 Tx   CBFF   230000   120  1a0  A  0 0 {tail.format(flags='0')}\n"
        f"0.4 CANXL   1 Rx   CBFF   230000   120  1a0  4 0 {tail.format(flags='10')}\n"
        f"0.5 CANXL   1 Rx   FBFF   243215   176  1a0  Name  9 12 {'00 ' * 12} a 12345 00001240\n"
        "0.6 CANXL   1 Rx   XLFF   984438   4656  1a0  Name  e0 0  1fe  511 1 1f96 00 00000000 e1 89\n"
        "0.7 CANXL   1 Rx   ErrorFrame\n0.8 CANXL   1 TxRq   CBFF   0   0  1a0  0 0 0 0\n"
        "0.9 CANXL   1 Rx   CBFF   230000   120  1a0  2 2 01\n",
        base="dec",
    )
    assert read.identifier.tolist() == [0x1A0, 0x12345678, 0x1A0, 0x1A0]
    assert read.length.tolist() == [8, 8, 0, 0]
    assert [row.reason for row in read.bad_rows] == ["data length code and payload bytes differ"]
    assert read.passed_over == {
        "CAN FD frame": 1,
        "CAN XL frame": 1,
        "error frame": 1,
        "event of the tool": 1,
        "line without a message": 7,
    }


def test_times_with_a_decimal_comma_are_read(tmp_path: Path) -> None:
    header = ASC_HEADER.format(base="hex", timestamps="absolute").replace("0.000000", "0,000000")
    text = "0,000370 1  1F3 Rx d 1 01\n-0,5 1  1F3 Rx d 1 01\n1,605,5 1  1F3 Rx d 1 01\n"
    read = _read(tmp_path / "a.asc", header + text)
    assert read.timestamp.tolist() == [0.00037, -0.5]
    assert read.bad_rows == [BadRow(9, "timestamp is no finite number")]
    assert _read(tmp_path / "b.asc", text).timestamp.tolist() == [0.00037, -0.5]
    trace = ";$FILEVERSION=1.1\n  1)  1059,9  Rx  0300  1  00\n"
    assert _read(tmp_path / "a.trc", trace).timestamp.tolist() == [1059.9 / 1000]


TRACES = {
    "1.0": (
        "     1)      1059.9  0300  7  00 00 00 00 04 00 00\n"
        "     2)      1283.2  FFFFFFFF  4  00 00 00 08 -- -- -- -- BUSHEAVY\n"
        "     3)      1298.9  12345678  2  01 02\n"
        "     4)      1299.0  0301  4  RTR\n"
        "     5)      1300.0  0008  4  ERROR 00 19 08 08\n"
    ),
    "1.1": (
        "     1)      1059.9  Rx         0300  7  00 00 00 00 04 00 00\n"
        "     2)      1283.2  Warng  FFFFFFFF  4  00 00 00 08  BUSHEAVY\n"
        "     3)      1298.9  Tx     12345678  2  01 02\n"
        "     4)      1299.0  Rx         0301  4  RTR\n"
        "     5)      1300.0  Error      0008  4  00 19 08 08\n"
    ),
    "1.2": "     1)      1059.9 1  Rx         0300  7  00 00 00 00 04 00 00\n"
    "     2)      1298.9 1  Tx     12345678  2  01 02\n     3)  1299.0 1  Rx  0301  4  RTR\n"
    "     4)      1300.0 1  Error      0008  4  00 19 08 08\n",
    "1.3": "     1)      1059.900 1  Rx        0300 -  7    00 00 00 00 04 00 00\n"
    "     2)      1298.900 1  Tx     12345678 -  2  01 02\n     3)  1299.000 1  Rx  0301 -  4    RTR\n"
    "     4)      1300.000 1  Error     0008 -  4    00 19 08 08\n",
    "2.0": "      1      1059.900 DT     0300 Rx 7    00 00 00 00 04 00 00\n"
    "      2      1298.900 DT 12345678 Tx 2    01 02\n      3      1299.000 RR     0301 Rx 4\n"
    "      4      1300.000 ER          Rx 5    04 00 02 00 00\n      5   1300.500 ST   Rx    00 00 00 08\n",
    "2.1": "      1      1059.900 DT 1      0300 Rx -  7    00 00 00 00 04 00 00\n"
    "      2      1298.900 DT 1  12345678 Tx -  2    01 02\n      3      1299.000 RR 1      0301 Rx -  4\n"
    "      4      1300.000 ER 1         - Rx -  5    04 00 02 00 00\n"
    "      5      1301.000 EC 1         - Rx -  2    00 00\n",
}


@pytest.mark.parametrize("version", TRACES)
def test_every_version_of_trace_is_read(tmp_path: Path, version: str) -> None:
    text = f";$FILEVERSION={version}\n;$STARTTIME=37704.5364870833\n;  a remark, with words\n;---+--\n{TRACES[version]}"
    read = _read(tmp_path / "a.trc", text)
    assert read.timestamp.tolist() == [1059.9 / 1000, 1298.9 / 1000, 1.299]
    assert read.identifier.tolist() == [0x300, 0x12345678, 0x301]
    assert read.length.tolist() == [7, 2, 0]
    assert read.payload[0].tolist() == [0, 0, 0, 0, 4, 0, 0, 0]
    assert (read.passed_over["error frame"], read.num_bad_rows) == (1, 0)


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3"])
def test_trace_without_its_header_is_read_by_what_its_lines_look_like(tmp_path: Path, version: str) -> None:
    read = _read(tmp_path / "a.trc", TRACES[version])
    assert (read.identifier.tolist(), read.length.tolist()) == ([0x300, 0x12345678, 0x301], [7, 2, 0])
    assert (read.passed_over["error frame"], read.num_bad_rows) == (1, 0)


def test_trace_of_can_fd_and_damaged_lines(tmp_path: Path) -> None:
    text = (
        ";$FILEVERSION=2.0\n;$COLUMNS=N,O,T,I,d,l,D\n"
        " 1 1.0 DT 0300 Rx 1 01\n 2 2.0 FB 0300 Rx 2 01 02\n 3 x DT 0300 Rx 1 01\n 4 4.0 DT 03Q0 Rx 1 01\n"
        " 5 5.0 DT 0300 Rx 2 01\n 6 6.0 DT\n 7 7.0 DT 0300 Rx 4 01 02"
    )
    read = _read(tmp_path / "a.trc", text)
    assert (len(read), read.passed_over) == (1, {"CAN FD frame": 1, "line without a message": 2})
    assert [(row.line, row.reason) for row in read.bad_rows] == [
        (5, "timestamp is no finite number"),
        (6, "id is no hexadecimal number"),
        (7, "data length code and payload bytes differ"),
        (8, "too few fields"),
        (9, "last line is cut off"),
    ]


def test_trace_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"PEAK trace of version 7\.0 .*known are 1\.0, 1\.1"):
        _read(tmp_path / "a.trc", ";$FILEVERSION=7.0\n 1 1.0 DT 0300 Rx 1 01\n")
