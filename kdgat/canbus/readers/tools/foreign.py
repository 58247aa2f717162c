"""Files that are known and not read: what each is, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kdgat.canbus.messages import RecordingError

_EXPORT = "export the raw messages there as Vector ASC or BLF"
_IMAGE = "is an image or a document; name a log of CAN messages"
_UNPACK = "unpack it, and name the log in it"

_BY_FIRST_BYTES: Final = {
    b"\x89HDF\r\n\x1a\n": f"is an HDF5 file (of MATLAB 7.3, pandas or Ford's OpenXC, say); {_EXPORT}, or as CSV",
    b"MATLAB 5.0 MAT": f"is a MATLAB file; {_EXPORT}, or write its columns as CSV",
    b"\x93NUMPY": "is an array of numpy; write its columns as CSV",
    b"ARROW1": "is an Arrow (Feather) file; write it as Parquet",
    b"Obj\x01": "is an Avro file; write it as Parquet",
    b"TDSm": f"is a TDMS file of LabVIEW; {_EXPORT}, or as CSV",
    b"#ROSBAG V": "is a bag of ROS; write its CAN frames as candump lines",
    b"\x89MCAP0\r\n": "is an MCAP file; write its CAN frames as candump lines",
    b"\xd0\xcf\x11\xe0\xa1\xb1": "is an old Excel or Office file; save the table as CSV (UTF-8)",
    b"\x89PNG\r\n": _IMAGE,
    b"\xff\xd8\xff": _IMAGE,
    b"GIF8": _IMAGE,
    b"%PDF-": _IMAGE,
    b"7z\xbc\xaf\x27\x1c": f"is a 7z archive; {_UNPACK}",
    b"Rar!\x1a\x07": f"is a RAR archive; {_UNPACK}",
    b"\x7fELF": "is a program; name a log of CAN messages",
}
_KVASER_SUFFIX: Final = ".kme"  # .kme24, .kme25, .kme40, .kme50
_RAW_LOGS: Final = ("rlog", "qlog")

_BY_LINE: Final = (
    (
        r'"?Line"?,.*\b(?:Abs Time|Arb ?ID)',
        f"is a table of Vehicle Spy, which is not read; {_EXPORT} (File, Save As), or MDF 4",
    ),
    (
        r"\s*(?:Chn|Ch(?:annel)?)[\s,;]+(?:Identifier|ID)[\s,;]+Fl(?:g|ags)",
        "is a text of Kvaser, whose ids may be decimal or hexadecimal and do not say which; convert it by Kvaser's "
        "converter to Vector ASC or MF4",
    ),
    (
        r'"?(?:Time|Counter)"?[,;].*"?(?:Flags|Flg)"?[,;].*"?DLC"?[,;].*"?(?:Counter|AbsTime)',
        "is a CSV of Kvaser, whose ids may be decimal or hexadecimal and do not say which; convert it by Kvaser's "
        "converter to Vector ASC or MF4",
    ),
    (
        r"@ TEXT @",
        "is a trace of CARBUS Analyzer, which is not read; export it there as PEAK TRC or candump",
    ),
    (
        r"\*\*\*PROTOCOL (?!CAN)",
        "is a BUSMASTER log of another protocol than CAN; log CAN there",
    ),
    (
        r"(?!.*(?:time|\bts\b))ID(?:\s*$|\s*[,;]\s*(?:data|bit))",
        "has no column of times (CICIoV2024 is one such): without them no interval can be judged; take a log with "
        "times, one message a line",
    ),
    (
        r"(?:[tr][0-7][0-9A-F]{2}|[TR][01][0-9A-F]{7})[0-8](?:[0-9A-F]{2})*\s*$",
        "is a log of a Lawicel adapter (slcan) without times; switch them on there (Z1)",
    ),
    (
        r'VERSION "|BU_:|BO_ \d+ \w+:|NS_ ?:',
        "is a DBC file: it says what messages mean, and holds none; name a log of messages",
    ),
    (r"\s*<(?:\?xml|!DOCTYPE|html)", "is XML or a web page (ARXML, KCD, say), and no log; name a log of messages"),
    (
        r'\s*[\[{]\s*(?:$|[\]}]|"|\{)',
        "is JSON, which is not read: its names say nothing of units; write the columns "
        "timestamp,arbitration_id,data_field as CSV",
    ),
)
_PATTERNS: Final = [(re.compile(pattern, re.IGNORECASE), problem) for pattern, problem in _BY_LINE]
_NUM_LINES: Final = 5  # in which what is foreign shows


def refuse_foreign_bytes(path: Path, head: bytes) -> None:
    """Raise RecordingError for a file that is known by its first bytes, or its name, and not read."""
    for magic, problem in _BY_FIRST_BYTES.items():
        if head.startswith(magic):
            raise RecordingError(path, problem)
    if path.suffix.lower().startswith(_KVASER_SUFFIX):
        raise RecordingError(
            path, "is a log of a Kvaser Memorator; convert it by Kvaser's converter to Vector ASC or MF4"
        )
    if path.name.partition(".")[0].rpartition("--")[2] in _RAW_LOGS and b"\0" in head:
        raise RecordingError(path, "is a log of openpilot; write its CAN messages by Cabana (File, Export to CSV)")


def refuse_foreign(path: Path, lines: Sequence[str]) -> None:
    """Raise RecordingError for text that is known by its first lines, and not read."""
    written = [line for line in lines if line.strip()][:_NUM_LINES]
    for pattern, problem in _PATTERNS:
        if any(map(pattern.match, written)):
            raise RecordingError(path, problem)
