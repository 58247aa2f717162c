"""Logs and exports of tools: each is written here from random messages, and read to the same numbers."""

from __future__ import annotations

import sqlite3
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, ReadLimits, RecordingError, read_recording
from kdgat.canbus.messages import BadRow
from kdgat.canbus.readers.text import LineParser, find_start
from kdgat.canbus.stream import follow_file, stream_recording
from tests.canbus.log_files import error_frame, fd_frame, frames, remote_frame, write_log
from tests.canbus.recording_files import hex_bytes, random_messages

CASES = Path(__file__).parents[4] / "shared" / "cases" / "can"
"""Logs in the form of each tool, of 365 messages each, where the machine has them."""
ANY_DAMAGE = ReadLimits(max_bad_fraction=1.0)
START_S = 1_605_793_322.0  # 2020-11-19 13:42:02 UTC

Row = Callable[[Messages, int, float], str]


def _padded(m: Messages, row: int) -> list[str]:
    return [f"{byte:02X}" for byte in m.payload[row]]


def _clock(time: float, digits: int, separator: str) -> str:
    ticks = round(time * 10**digits)
    seconds, fraction = divmod(ticks, 10**digits)
    return f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{separator}{fraction:0{digits}d}"


def _gvret(m: Messages, row: int, time: float) -> str:
    ticks = round(time * 1e6) % (1 << 32)
    extended = "true" if m.identifier[row] > 0x7FF else "false"
    return f"{ticks},{m.identifier[row]:08X},{extended},Rx,0,{m.length[row]},{','.join(_padded(m, row))},"


def _old_gvret(m: Messages, row: int, time: float) -> str:
    fields = _gvret(m, row, time).split(",")
    return ",".join([*fields[:3], *fields[4 : 6 + m.length[row]]])  # without a direction, and without padding


def _cabana(m: Messages, row: int, time: float) -> str:
    return f"{time:.6f},{m.identifier[row]},0,{''.join(hex_bytes(m, row))}"


def _new_cabana(m: Messages, row: int, time: float) -> str:
    return f"{time:.3f},0x{m.identifier[row]:x},0,0x{''.join(hex_bytes(m, row)).upper()}"


def _panda(m: Messages, row: int, time: float) -> str:
    return f"0,0x{m.identifier[row]:x},0x{''.join(hex_bytes(m, row))},{m.length[row]},{time!r}"


def _magic(m: Messages, row: int, time: float) -> str:
    data = " ".join(hex_bytes(m, row)) + " "
    return (
        f'"{row}","{time * 1000:.3f}","8:09:42:48.7953090\'",43447.7,"","0x{m.identifier[row]:03X}","",'
        f'"Default: PDO","","TPDO 2, of a node","","{data}",". ! ","U:0 S:0","{m.length[row]}","{data}"'
    )


def _pp2can(m: Messages, row: int, time: float) -> str:
    extended = "x" if m.identifier[row] > 0x7FF else " "
    return f"{round(time * 1000)};{m.identifier[row]:08X};{extended}; ;{';'.join(hex_bytes(m, row))}"


def _ixxat(m: Messages, row: int, time: float) -> str:
    return f'"{_clock(time, 3, ".")}","{m.identifier[row]:X}","Std","","{" ".join(hex_bytes(m, row))} "'


def _css(m: Messages, row: int, time: float) -> str:
    moment = datetime.fromtimestamp(round(START_S + time, 3), UTC)
    digits = f"{moment:%dT%H%M%S}{round(moment.microsecond / 1000):03d}"
    return f"{digits};{int(m.identifier[row] > 0x7FF)};{m.identifier[row]:x};{''.join(hex_bytes(m, row))}"


def _busmaster(m: Messages, row: int, time: float) -> str:
    kind = "x" if m.identifier[row] > 0x7FF else "s"
    data = " ".join(hex_bytes(m, row)).upper()
    return f"{_clock(time + 86_340.0, 4, ':')} Rx 1 0x{m.identifier[row]:03X} {kind} {m.length[row]} {data} "


def _crtd(m: Messages, row: int, time: float) -> str:
    bits = 29 if m.identifier[row] > 0x7FF else 11
    return f"{time:.6f} 1{'RT'[row % 2]}{bits} {m.identifier[row]:03X} {' '.join(hex_bytes(m, row))}"


def _canhacker(m: Messages, row: int, time: float) -> str:
    return f"{time % 60:06.3f} {m.identifier[row]:08X} {m.length[row]} {' '.join(hex_bytes(m, row)):23s} ab  c"


def _lawicel(m: Messages, row: int, time: float) -> str:
    kind, digits = ("T", 8) if m.identifier[row] > 0x7FF else ("t", 3)
    data = "".join(hex_bytes(m, row)).upper()
    return f"{kind}{m.identifier[row]:0{digits}X}{m.length[row]}{data}{round(time * 1000) % 60_000:04X}"


def _microchip(m: Messages, row: int, time: float) -> str:
    data = "".join(f"0x{byte.upper()};" for byte in hex_bytes(m, row))
    return f"{round(time * 1000)};RX;0x{m.identifier[row]:08X};{m.length[row]};{data}"


def _avisaro(m: Messages, row: int, time: float) -> str:
    moment = datetime.fromtimestamp(round(START_S + time, 3), UTC)
    fraction = round(moment.microsecond / 1000)
    return f"{moment:%Y/%m/%d,%H:%M:%S},{fraction:03d}, $C1, {m.identifier[row]:08x}, {m.length[row]}, " + ", ".join(
        _padded(m, row)
    )


CSS_HEADING = """# Logger type: CL2000
# HW rev: 7.xx
# Time: 20201119T134202
# Value separator: ";"
# Time format: 4
# Time and date separator: "T"
Timestamp;Type;ID;Data
"""
BUSMASTER_HEADING = """***BUSMASTER Ver 3.2.2***
***PROTOCOL CAN***
***NOTE: PLEASE DO NOT EDIT THIS DOCUMENT***
***[START LOGGING SESSION]***
***START DATE AND TIME 5:10:2020 23:59:0:0***
***HEX***
***SYSTEM MODE***
***<Time><Tx/Rx><Channel><CAN ID><Type><DLC><DataBytes>***
"""
MAGIC_HEADING = (
    "CANopen Magic Pro\n\nExported\n\n"
    '"Message Number","Time (ms)","Time","Excel Time","Count","ID","Flags","Message Type","Node","Details",'
    '"Process Data","Data (Hex)","Data (Text)","Data (Decimal)","Length","Raw Message"\n'
)
MICROCHIP_HEADING = (
    "//-----\nMicrochip Technology Inc.\nCAN BUS Analyzer\nLogging Started: 23/9/2015 22:17:43\n//-----\n"
)

# Name -> (heading, line, what is added to times, their resolution)
FORMATS: dict[str, tuple[str, Row, float, float]] = {
    "gvret.csv": ("Time Stamp,ID,Extended,Dir,Bus,LEN,D1,D2,D3,D4,D5,D6,D7,D8\n", _gvret, 4200.0, 1e-6),
    "old-gvret.csv": ("Time Stamp,ID,Extended,Bus,LEN,D1,D2,D3,D4,D5,D6,D7,D8\n", _old_gvret, 4200.0, 1e-6),
    "cabana.csv": ("time,addr,bus,data\n", _cabana, 240.0, 1e-6),
    "new-cabana.csv": ("time,addr,bus,data\n", _new_cabana, 240.0, 1e-3),
    "panda.csv": ("Bus,MessageID,Message,MessageLength,Time\n", _panda, 0.0, 1e-6),
    "magic.csv": (MAGIC_HEADING, _magic, 0.0, 1e-6),
    "pp2can.csv": ("Time/ms;Arb. ID ;Ex;Rt;Data\n", _pp2can, 0.0, 1e-3),
    "ixxat.csv": (
        'ASCII Trace IXXAT MiniLog V1\nDate: 1:1:2020\n"Time","Identifier (hex)","Format","Flags","Data (hex)"\n',
        _ixxat,
        86_340.0,
        1e-3,
    ),
    "css.txt": (CSS_HEADING, _css, 0.0, 1e-3),
    "busmaster.log": (BUSMASTER_HEADING, _busmaster, 0.0, 1e-4),
    "ovms.crtd": ("0.000000 CXX Info Type:crtd;\n", _crtd, 0.0, 1e-6),
    "canhacker.trc": ("Time   ID     DLC Data                    Comment\n", _canhacker, 3.0, 1e-3),
    "lawicel.txt": ("", _lawicel, 3.0, 1e-3),
    "microchip.log": (MICROCHIP_HEADING, _microchip, 166.0, 1e-3),
    "avisaro.txt": ("", _avisaro, 0.0, 1e-3),
}
OFFSETS_S = {"css.txt": START_S, "avisaro.txt": START_S, "busmaster.log": 86_340.0}
"""What a format adds to its times: a date, or the time of the day."""

CHANNELS = {"gvret.csv": "0", "old-gvret.csv": "0", "cabana.csv": "0", "new-cabana.csv": "0", "panda.csv": "0"} | {
    "busmaster.log": "1",
    "ovms.crtd": "1",
    "avisaro.txt": "C1",
}


def slow_messages(seed: int = 0) -> Messages:
    """Draw messages over some two minutes: midnight, a minute and 32 bits of microseconds pass in them."""
    messages = random_messages(120, seed)
    messages.timestamp = np.cumsum(np.random.default_rng(seed).exponential(1.0, len(messages)))
    return messages


def text_of(name: str, messages: Messages) -> str:
    """Write messages in a format."""
    heading, line, begin_s, _ = FORMATS[name]
    rows = [line(messages, row, float(messages.timestamp[row] + begin_s)) for row in range(len(messages))]
    return heading + "\n".join(rows) + "\n"


def same_frames(read: Messages, messages: Messages) -> None:
    """Compare all but the times."""
    np.testing.assert_array_equal(read.identifier, messages.identifier)
    np.testing.assert_array_equal(read.length, messages.length)
    np.testing.assert_array_equal(read.payload, messages.payload)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_to_the_messages_it_was_written_from(tmp_path: Path, name: str) -> None:
    path, messages = tmp_path / name, slow_messages()
    path.write_text(text_of(name, messages))
    read = read_recording(path)
    same_frames(read, messages)
    _, _, begin_s, resolution_s = FORMATS[name]
    wanted = messages.timestamp + begin_s + OFFSETS_S.get(name, 0.0)
    np.testing.assert_allclose(read.timestamp, wanted, rtol=0, atol=0.51 * resolution_s + 5e-7)
    num_lines = path.read_text().count("\n")
    assert len(read) + read.num_bad_rows + sum(read.passed_over.values()) == num_lines
    assert (read.num_bad_rows, read.labelled) == (0, False)


@pytest.mark.parametrize("name", FORMATS)
def test_lines_in_portions_are_read_as_the_whole(tmp_path: Path, name: str) -> None:
    content = text_of(name, slow_messages(1)).replace("\n", "\r\n").encode()
    path = tmp_path / name
    layout, start = find_start(path, content, is_whole=True)
    whole = LineParser(layout).parse(np.frombuffer(content, np.uint8), start)
    parser, lines = LineParser(layout), content[start:].splitlines(keepends=True)
    portions = [parser.parse(np.frombuffer(b"".join(lines[k : k + 7]), np.uint8)) for k in range(0, len(lines), 7)]
    for column in ("timestamp", "identifier", "payload", "length", "status"):
        parts = [getattr(portion, column) for portion in portions]
        np.testing.assert_array_equal(np.concatenate(parts), getattr(whole, column))
    assert portions[-1].channels == whole.channels
    assert portions[1].line_of(np.array([0])).tolist() == [8]


@pytest.mark.parametrize("name", FORMATS)
def test_garbled_lines_are_counted_and_end_nothing(tmp_path: Path, name: str) -> None:
    path, random = tmp_path / name, np.random.default_rng(0)
    lines = text_of(name, slow_messages(2)).splitlines()
    num_above = FORMATS[name][0].count("\n")
    for row in random.choice(np.arange(num_above, len(lines)), 30, replace=False):
        line = bytearray(lines[row].encode())
        line[random.integers(len(line))] = random.integers(33, 256)
        lines[row] = line[: random.integers(1, len(line) + 1)].decode("latin-1").replace("\n", "")
    path.write_text("\n".join([*lines, "", "  "]) + "\n", encoding="latin-1")
    read = read_recording(path, limits=ANY_DAMAGE, channel=CHANNELS.get(name))
    assert len(read) >= 90
    assert read.num_bad_rows
    assert len(read) + read.num_bad_rows + sum(read.passed_over.values()) == len(lines) + 2


def test_time_of_gvret_counts_microseconds_and_its_bus_is_the_channel(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = "1953613870,000001F3,false,Rx,{bus},2,20,51,00,00,00,00,00,00,\n"
    path.write_text(FORMATS["gvret.csv"][0] + rows.format(bus=0) + rows.format(bus=1) * 2)
    with pytest.raises(RecordingError, match=r"holds 2 channels: 0 \(1 messages\), 1 \(2 messages\)"):
        read_recording(path)
    read = read_recording(path, channel=1)
    assert read.timestamp.tolist() == [1953.61387, 1953.61387]
    assert (read.identifier[0], read.length[0], read.payload[0, :2].tolist()) == (0x1F3, 2, [0x20, 0x51])
    path.write_text(FORMATS["gvret.csv"][0] + rows.format(bus=0).replace("1953613870", "1953.613870"))
    with pytest.raises(RecordingError, match="timestamp is no finite number"):  # seconds, or what else?
        read_recording(path)


def test_ids_of_cabana_are_decimal_unless_one_of_them_has_a_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time,addr,bus,data\n240.1,499,0,2051\n240.2,0x1f3,0,2051\n")
    assert read_recording(path).identifier.tolist() == [499, 0x1F3]
    path.write_text("time,addr,bus,data\n240.1,499,0,2051\n240.2,1a0,0,2051\n")
    assert read_recording(path).identifier.tolist() == [0x499, 0x1A0]


def test_label_beside_the_columns_of_a_tool_is_not_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time,addr,bus,data,label\n240.1,499,0,2051,1\n")
    with pytest.raises(RecordingError, match="has the header 'time,addr,bus,data,label', which is not known"):
        read_recording(path)


def test_sessions_of_busmaster_follow_one_another_in_their_modes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    second = BUSMASTER_HEADING.replace("5:10:2020", "7:10:2020").replace("HEX", "DEC")
    path.write_text(
        BUSMASTER_HEADING + "23:59:59:9990 Rx 1 0x1F3 s 1 20\n0:0:0:0012 Tx 1 0x1F3 sr 8\n9:20:15:2 Rx 1 1F3 s 1 21\n"
        "***[STOP LOGGING SESSION]***\n" + second + "10:00:00:0000 Rx 1 499 s 2 20 255\n"
    )
    read = read_recording(path)
    assert read.timestamp.tolist() == [86_399.999, 86_400.0012, 120_015.002, 208_800.0]
    assert (read.identifier.tolist(), read.length.tolist()) == ([0x1F3] * 4, [1, 0, 1, 2])
    path.write_text(
        BUSMASTER_HEADING.replace("SYSTEM", "RELATIVE") + "0:0:0:5000 Rx 1 0x1 s 0\n0:0:1:2500 Rx 1 0x2 s 0\n"
    )
    assert read_recording(path).timestamp.tolist() == [0.5, 1.75]
    path.write_text(
        BUSMASTER_HEADING.replace("SYSTEM", "ABSOLUTE") + "0:0:0:5000 Rx 1 0x1 s 0\n30:0:0:0 Rx 1 0x2 s 0\n"
    )
    assert read_recording(path).timestamp.tolist() == [0.5, 108_000.0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("23:59 Rx 1 0x1F3 s 1 20", "timestamp is no finite number"),
        (f"23:59:59:{'9' * 5000} Rx 1 0x1F3 s 1 20", "timestamp is no finite number"),
        (f"23:59:59:9990 Rx 1 {'9' * 5000} s 1 20", "id is beyond 29 bits"),
        (f"23:59:59:9990 Rx 1 0x1F3 s {'9' * 5000} 20", "data length code is no number from 0 to 8"),
        ("23:59:59:9990 Rx 1 0x1G3 s 1 20", "id is no hexadecimal number"),
        ("23:59:59:9990 Rx 1 0x3FFFFFFF x 1 20", "id is beyond 29 bits"),
        ("23:59:59:9990 Rx 1 0x1F3 s 9 20", "data length code is no number from 0 to 8"),
        ("23:59:59:9990 Rx 1 0x1F3 s 1 2x", "payload is no hexadecimal text"),
        ("23:59:59:9990 Rx 1 0x1F3 s 2 20", "data length code and payload bytes differ"),
        ("23:59:59:9990 Rx 1", "too few fields"),
    ],
)
def test_damaged_line_names_its_fault(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.log"
    good = "23:59:59:9990 Rx 1 0x1F3 s 1 20\n"
    path.write_text(BUSMASTER_HEADING + good + line + "\n" + good)
    read = read_recording(path, limits=ANY_DAMAGE)
    assert (len(read), read.bad_rows) == (2, [BadRow(10, reason)])


def test_last_line_that_is_cut_off_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.crtd"
    path.write_text("1.000000 1R11 1F3 20 51\n" * 3 + "2.000000 1R11")
    assert read_recording(path, limits=ANY_DAMAGE).bad_rows == [BadRow(4, "last line is cut off")]


def test_what_crtd_and_a_lawicel_log_beside_frames_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.crtd"
    path.write_text("1.0 CXX text\n1.000000 R29 12345678 1 ff\n1.1 1CER intr=0 rxerr=1\n1.2 CBC mode L\n1.3 2T11 7 \n")
    with pytest.raises(RecordingError, match=r"holds 2 channels: 1 .*, 2 "):
        read_recording(path)
    read = read_recording(path, channel="1")
    assert (read.identifier.tolist(), read.payload[0, :2].tolist()) == ([0x12345678], [1, 255])
    assert (read.passed_over["event of the tool"], read.num_bad_rows) == (2, 0)


@pytest.mark.parametrize(
    ("header", "time", "wanted"),
    [
        ("20201231T235959", "235959900", [1_609_459_199.9, 1_609_459_200.1]),
        ("20201231T235959", "5959900", [1_609_459_199.9, 1_609_459_200.1]),
        ("20201231T235959", "31T23:59:59.900", [1_609_459_199.9, 1_609_459_200.1]),
        ("20201231T235959", "12/31T23:59:59.900", [1_609_459_199.9, 1_609_459_200.1]),
        ("20201231T235959", "2020-12-31 235959900", [1_609_459_199.9, 1_609_459_200.1]),
        ("", "59900", [59.9, 60.1]),
    ],
)
def test_time_of_css_is_continued_by_what_it_states(
    tmp_path: Path, header: str, time: str, wanted: list[float]
) -> None:
    path = tmp_path / "a.txt"
    after = {"31": "01", "12/31": "01/01", "2020-12-31": "2021-01-01"}
    date = next((text for text in sorted(after, key=len, reverse=True) if time.startswith(text)), "")
    later = after.get(date, "") + "".join("0" if c.isdigit() else c for c in time[len(date) :])[:-3] + "100"
    above = f'# Logger type: CL1000\n# Time: {header}\n# Value separator: ","\n'
    path.write_text(f"{above}Timestamp,Type,ID,Length,Data\n{time},0,7df,2,0201\n{later},9,18fe1a00,1,03\n")
    read = read_recording(path)
    np.testing.assert_allclose(read.timestamp, wanted, rtol=0, atol=1e-6)
    assert (read.identifier.tolist(), read.length.tolist()) == ([0x7DF, 0x18FE1A00], [2, 1])


@pytest.mark.parametrize("name", ["a.csv", "a.db"])
def test_what_python_can_writes_is_read_with_its_other_frames_by_kind(tmp_path: Path, name: str) -> None:
    messages = random_messages()
    others = [remote_frame(1.6e9), error_frame(1.6e9 + 1), fd_frame(1.6e9 + 2)]
    read = read_recording(write_log(tmp_path / name, [*frames(messages), *others]))
    same_frames(read.select(slice(0, len(messages))), messages)
    np.testing.assert_array_equal(read.timestamp[:-1], messages.timestamp)
    assert (len(read), read.identifier[-1], read.length[-1]) == (len(messages) + 1, 0x123, 0)
    assert (read.passed_over["error frame"], read.passed_over["CAN FD frame"], read.num_bad_rows) == (1, 1, 0)


def test_database_is_streamed_in_chunks(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.db", frames(random_messages(25)))
    with stream_recording(path, 10) as stream:
        assert [len(messages) for messages in stream] == [10, 10, 5]


def test_database_without_messages_or_with_odd_values_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE drives (name TEXT)")
    with pytest.raises(RecordingError, match=r"without a table of messages .* it has the tables drives"):
        read_recording(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE log (ts, arbitration_id, extended, remote, error, dlc, data)")
        rows = [(1.5, 0x123, 0, 0, 0, 1, b"\1"), ("x", 1, 0, 0, 0, 0, b""), (2.5, None, 0, 0, 0, 0, b"")]
        database.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    read = read_recording(path, limits=ANY_DAMAGE)
    assert (len(read), [row.line for row in read.bad_rows]) == (1, [2, 3])
    path.write_bytes(path.read_bytes()[:4096])
    with pytest.raises(RecordingError, match="SQLite database"):
        read_recording(path)


def test_log_of_a_tool_is_followed_while_it_grows(tmp_path: Path) -> None:
    path, messages = tmp_path / "a.log", slow_messages(3)
    path.write_text(text_of("busmaster.log", messages))
    with follow_file(path, stop_at_end=True) as stream:
        identifiers = np.concatenate([chunk.identifier for chunk in stream])
    np.testing.assert_array_equal(identifiers, messages.identifier)


@pytest.mark.parametrize(
    "text",
    [
        "timestamp;arbitration_id;data_field;attack\n0,000370;1F3;2051;0\n1605793322,001369;0A1;20;1\n",
        "0,000370;1F3;2;20;51;R\n1605793322,001369;0A1;1;20;T\n",
        "timestamp\tid\tdata_field\tlabel\n0,000370\t1F3\t2051\t0\n1605793322,001369\t0A1\t20\t1\n",
    ],
)
def test_comma_of_a_german_table_is_a_decimal_point(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    read = read_recording(path)
    assert read.timestamp.tolist() == [0.00037, 1605793322.001369]
    assert (read.identifier.tolist(), read.length.tolist(), read.label.tolist()) == ([0x1F3, 0x0A1], [2, 1], [0, 1])


VEHICLE_SPY = "Line,Abs Time(Sec),Rel Time (Sec),Status,Er,Tx,Description,Network,Node,Arb ID,Remote,Xtd,B1,B2\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (VEHICLE_SPY + "2,2550.3,0.003,67371008,F,F,HS CAN $119,HS CAN,,119,F,F,00,00\n", "Vehicle Spy.*ASC or BLF"),
        ("Chn Identifier Flg   DLC  D0...1...2  Time  Dir\n 0  000000AD  1  FF  154.26 R\n", "Kvaser.*ASC or MF4"),
        ("ID,DATA_0,DATA_1,label\n499,32,81,BENIGN\n", "has no column of times"),
        ("ID,Data Bytes\n4f5,ff 34\n", "has no column of times"),
        ('VERSION ""\n\nNS_ :\nBU_: A B\nBO_ 499 X: 8 A\n', "is a DBC file"),
        ('[{"ts": 1.0, "id": 499}]\n', "is JSON"),
        ('{\n  "ts": 1.0\n}\n', "is JSON"),
        ("<?xml version='1.0'?>\n<x/>\n", "is XML"),
        ("***BUSMASTER Ver 3.2.2***\n***PROTOCOL LIN***\n", "another protocol than CAN"),
        ("@ TEXT @ 3 @ 64 @ 0 @ 1 @ 1 @ 00:00:00.001 @\n", "CARBUS Analyzer"),
        ("time,engine_speed,wheel_fl\n0.01,810.25,0.0\n0.02,811.5,0.1\n", "decoded signals"),
        ("t0A1220511\r\nt1F3120\r\n" * 3, "Lawicel adapter .* without times"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "is an HDF5 file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "is an image"),
        (b"%PDF-1.7\n" + bytes(40), "is an image or a document"),
        (b"MATLAB 5.0 MAT-file" + bytes(40), "is a MATLAB file"),
    ],
)
def test_what_is_known_and_not_read_is_named_with_what_to_do(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RecordingError, match=message):
        read_recording(path)


@pytest.mark.parametrize("name", ["drive.kme50", "2020-11-19--08-00-00--0--rlog"])
def test_binary_log_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\1\2\0\3" * 10)
    with pytest.raises(RecordingError, match=r"Kvaser Memorator|openpilot"):
        read_recording(path)


def test_header_that_is_not_known_is_refused_with_what_columns_must_mean(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("when,who,what,bad\n1.0,0A1,00,0\n")
    with pytest.raises(RecordingError, match=r"seconds \(or say --time-unit\) .*hexadecimal .*\(or say --ids decimal"):
        read_recording(path)


def test_payload_of_base64_that_is_none_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    row = f"1.5,0x123,0,0,0,2,{b64encode(b'ab').decode()}\n"
    path.write_text("timestamp,arbitration_id,extended,remote,error,dlc,data\n" + row + row.replace("=", "!"))
    read = read_recording(path, limits=ANY_DAMAGE)
    assert (len(read), read.bad_rows) == (1, [BadRow(3, "payload is no hexadecimal text")])


IDENTIFIERS = "0A1 0C4 12A 13B 153 1A0 1F3 220 260 2B0 316 329 356 43F 4B1 507 5E4"


@pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared/cases/can")
@pytest.mark.parametrize(
    ("name", "first_s", "resolution_s"),
    [
        ("cabana.csv", 240.00037, 1e-6),
        ("busmaster.log", 86_399.7004, 1e-4),
        ("css_cl2000.txt", 1_577_880_000.0, 1e-3),
        ("crtd.txt", START_S + 0.00037, 1e-6),
        ("microchip.log", 0.0, 1e-3),
        ("python_can.csv", START_S + 0.00037, 1e-6),
        ("python_can.db", START_S + 0.00037, 1e-6),
        ("excel_de.csv", 0.00037, 1e-6),
    ],
)
def test_logs_of_others_are_read_to_the_messages_they_hold(name: str, first_s: float, resolution_s: float) -> None:
    read = read_recording(CASES / name)
    assert (len(read), read.num_bad_rows) == (365, 0)
    assert sorted({f"{identifier:03X}" for identifier in read.identifier}) == IDENTIFIERS.split()
    assert read.timestamp[0] == pytest.approx(first_s, abs=1e-6)
    assert read.duration_s == pytest.approx(0.594219, abs=1.01 * resolution_s)
    assert (read.num_backward, read.identifier[5]) == (0, 0x1A0)
    assert read.payload[0, : read.length[0]].tobytes().hex(" ") == "20 51 16 00 28 00 4f"
    assert read.payload[5].tobytes().hex(" ") == "20 b6 15 00 5b 00 55 8d"
