"""Recordings as text: which format a file has, seen from its first lines, and its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import MAX_PAYLOAD_BYTES, RecordingError
from kdgat.canbus.names import recording_suffix
from kdgat.canbus.readers import kernels
from kdgat.canbus.readers.frames import damaged_row, join_rows
from kdgat.canbus.readers.rows import MAX_CHANNELS, NO_CHANNEL, Rows, RowStatus

NUM_SNIFFED_LINES = 200
"""Lines looked at to find the format: enough that a few damaged ones do not decide."""
SNIFFED_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

COLUMN_NAMES = {
    kernels.ROLE_TIMESTAMP: ("timestamp", "time", "time_stamp", "ts"),
    kernels.ROLE_IDENTIFIER: ("id", "arbitration_id", "can_id", "canid"),
    kernels.ROLE_LENGTH: ("dlc", "length", "data_length"),
    kernels.ROLE_PAYLOAD: ("data_field", "data", "payload"),
    kernels.ROLE_LABEL: ("label", "attack", "flag", "class"),
}
"""Role -> accepted header names, compared without case, spaces as underscores."""
_FIRST_BYTE_NAME = re.compile(r"(data|byte|d|b)_?\[?[01]\]?")
_ANY_BYTE_NAME = re.compile(r"(data|byte|d|b)_?\[?[0-8]\]?")

KNOWN_FORMATS = (
    "Parquet (timestamp, id, data_field, label)",
    "CSV timestamp,arbitration_id,data_field,attack (can-train-and-test)",
    "CSV timestamp,id,dlc,byte,...,byte,flag (HCRL Car-Hacking, HCRL Survival; R regular, T injected)",
    "text `Timestamp: 1479121434.850202  ID: 0350  000  DLC: 8  05 28 ...` (HCRL attack-free)",
    "candump `(1436509052.249713) vcan0 044#2A366C2BBA`",
    "Vector ASC and BLF, PEAK TRC, MF4 with bus logging, PCAP and pcapng of SocketCAN",
)

TRACE_COLUMNS = {
    "1.0": "N,O,I,l,D",
    "1.1": "N,O,T,I,l,D",
    "1.2": "N,O,B,T,I,l,D",
    "1.3": "N,O,B,T,I,R,l,D",
    "2.0": "N,O,T,I,d,l,D",
    "2.1": "N,O,T,B,I,d,R,L,D",
}
"""Columns of a PEAK trace by its version; from 2.0 on the file names them, too."""
_TRACE_ROLES = {
    "O": kernels.TRACE_TIME,
    "T": kernels.TRACE_TYPE,
    "B": kernels.TRACE_CHANNEL,
    "I": kernels.TRACE_IDENTIFIER,
    "l": kernels.TRACE_LENGTH,
    "L": kernels.TRACE_LENGTH,
    "D": kernels.TRACE_DATA,
}
SHOWN_CHARACTERS = 60  # of a line that is not understood
MAX_HEADER = 200  # characters of one that is shown: its names say what is missing
_TRACE_VERSION = re.compile(r";\$FILEVERSION=(\S+)")
_TRACE_NAMED_COLUMNS = re.compile(r";\$COLUMNS=(\S+)")
_TRACE_LINE = re.compile(r"\s*\d+\)\s+\d+(\.\d+)?\s")
_ASC_BASE = re.compile(r"base\s+(hex|dec)(?:\s+timestamps\s+(absolute|relative))?", re.IGNORECASE)
_ASC_LINE = re.compile(r"\s*\d+\.\d+\s+((\d+\s+(\S+\s+(Tx|Rx)\s|ErrorFrame))|CANFD\s)", re.IGNORECASE)


Shape = tuple[tuple[int, ...], bool]
"""Roles of the columns, and whether there is a label."""
_FIXED_BYTES = (kernels.ROLE_BYTE,) * MAX_PAYLOAD_BYTES


class TextFormat(StrEnum):
    """Name the families of text recordings."""

    SEPARATED = "separated"
    NAMED = "named"
    CANDUMP = "candump"
    ASC = "Vector ASC"
    TRACE = "PEAK TRC"


FORMAT_OF_SUFFIX = {".asc": TextFormat.ASC, ".trc": TextFormat.TRACE}
"""Suffixes that promise one format."""


@dataclass(frozen=True, slots=True)
class Layout:
    """State how the lines of a file are read."""

    text_format: TextFormat
    num_header_lines: int = 0
    separator: str = ","
    roles: tuple[int, ...] = ()
    labelled: bool = False
    base: int = 16
    is_relative: bool = False


class LineParser:
    """Parse the lines of one text recording, a block of whole lines after the other."""

    def __init__(self, layout: Layout) -> None:
        """Begin behind the header lines of the layout."""
        self.layout = layout
        self._roles = np.array(layout.roles, dtype=np.int64)
        self._num_lines = layout.num_header_lines
        self._channels: list[str] = []
        self._clock = 0.0

    def parse(self, data: NDArray[np.uint8], start: int = 0) -> Rows:
        """Parse the lines from `start` on, with the status of each; line numbers and channels go on over the blocks."""
        layout = self.layout
        num_lines = kernels.count_lines(data, start)
        timestamp = np.zeros(num_lines)
        identifier = np.zeros(num_lines, dtype=np.uint32)
        payload = np.zeros((num_lines, MAX_PAYLOAD_BYTES), dtype=np.uint8)
        length = np.zeros(num_lines, dtype=np.uint8)
        label = np.zeros(num_lines, dtype=np.uint8)
        status = np.zeros(num_lines, dtype=np.uint8)
        columns = (timestamp, identifier, payload, length)
        channel = None
        if layout.text_format is TextFormat.SEPARATED:
            kernels.parse_separated(
                data, start, ord(layout.separator), self._roles, layout.labelled, *columns, label, status
            )
        elif layout.text_format is TextFormat.NAMED:
            kernels.parse_named(data, start, *columns, status)
        else:
            channel = np.empty(num_lines, dtype=np.uint8)
            names = np.zeros((MAX_CHANNELS, 2), dtype=np.int64)
            if layout.text_format is TextFormat.CANDUMP:
                num_names = kernels.parse_candump(data, start, names, *columns, channel, status)
            elif layout.text_format is TextFormat.ASC:
                num_names, self._clock = kernels.parse_asc(
                    data, start, layout.base, layout.is_relative, self._clock, names, *columns, channel, status
                )
            else:
                num_names = kernels.parse_trace(data, start, self._roles, names, *columns, channel, status)
            channel = self._over_blocks(channel, [data[a:b].tobytes().decode("latin-1") for a, b in names[:num_names]])
        first_line = self._num_lines + 1
        self._num_lines += num_lines
        return Rows(
            *columns,
            label,
            status,
            layout.labelled,
            lambda rows: rows + first_line,
            channel if self._channels else None,
            tuple(self._channels),
        )

    def damage(self, status: RowStatus = RowStatus.DAMAGED) -> Rows:
        """Return a bad row behind the lines that were parsed: the file ends here before its end."""
        return damaged_row(self._num_lines + 1, tuple(self._channels), status)

    def _over_blocks(self, channel: NDArray[np.uint8], names: Sequence[str]) -> NDArray[np.uint8]:
        """Turn indices into the names of one block into those of all blocks."""
        self._channels += [name for name in names if name not in self._channels]
        del self._channels[MAX_CHANNELS:]
        if list(names) == self._channels[: len(names)]:
            return channel
        index_of = np.full(256, NO_CHANNEL, dtype=np.uint8)
        last = len(self._channels) - 1  # stands for all further names
        index_of[: len(names)] = [self._channels.index(n) if n in self._channels else last for n in names]
        return index_of[channel]


def read_text(path: Path, data: NDArray[np.uint8] | None = None, *, damaged: bool = False) -> Rows:
    """Read all lines with the status of each. Raise RecordingError for a format or a header that is not known.

    `data` is what the file holds, where that is not its bytes; it may be known to end before its end.
    """
    if data is None:
        data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    head = data[:SNIFFED_BYTES].tobytes()
    layout, start = find_start(path, head, is_whole=len(head) == len(data))
    parser = LineParser(layout)
    rows = parser.parse(data, start)
    return join_rows([rows, parser.damage()]) if damaged else rows


def find_start(path: Path, head: bytes, *, is_whole: bool) -> tuple[Layout, int]:
    """Find the format from the first bytes of a file, and where its first row starts."""
    offset = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    lines = head[offset:].decode("latin-1").split("\n")
    layout = find_layout(path, (lines if is_whole else lines[:-1])[:NUM_SNIFFED_LINES])
    return layout, offset + sum(len(line) + 1 for line in lines[: layout.num_header_lines])


def find_layout(path: Path, lines: Sequence[str]) -> Layout:
    """Find the format from the first lines of a file; a damaged line among them does not matter."""
    text_format = _find_format(lines)
    promised = FORMAT_OF_SUFFIX.get(recording_suffix(path))
    first = next((line.strip() for line in lines if line.strip()), "")[:SHOWN_CHARACTERS]
    if promised is not None and text_format is not promised:
        raise RecordingError(
            path,
            f"is named {path.suffix}, but is no {promised} log (it starts with {first!r}); name it after its format",
        )
    if text_format is None:
        _require_text(path, lines)
        raise RecordingError(
            path, f"has an unknown format (it starts with {first!r}); known are: {'; '.join(KNOWN_FORMATS)}"
        )
    if text_format is TextFormat.SEPARATED:
        return _separated_layout(path, lines)
    if text_format is TextFormat.ASC:
        return _asc_layout(lines)
    return _trace_layout(path, lines) if text_format is TextFormat.TRACE else Layout(text_format)


def _asc_layout(lines: Sequence[str]) -> Layout:
    found = next((match for line in lines if (match := _ASC_BASE.match(line.strip()))), None)
    if found is None:
        return Layout(TextFormat.ASC)
    base, timestamps = found[1].lower(), (found[2] or "").lower()
    return Layout(TextFormat.ASC, base=10 if base == "dec" else 16, is_relative=timestamps == "relative")


def _trace_layout(path: Path, lines: Sequence[str]) -> Layout:
    version = next((match[1] for line in lines if (match := _TRACE_VERSION.match(line))), "1.0")
    named = next((match[1] for line in lines if (match := _TRACE_NAMED_COLUMNS.match(line))), None)
    columns = (named or TRACE_COLUMNS.get(version, "")).split(",")
    if not {"O", "I", "D"} <= set(columns) or not {"l", "L"} & set(columns):
        raise RecordingError(
            path,
            f"is a PEAK trace of version {version} with the columns {','.join(columns) or 'of no known name'}; "
            f"known are {', '.join(TRACE_COLUMNS)}, and from 2.0 on any columns with O, I, l or L, and D",
        )
    roles = [_TRACE_ROLES.get(column, kernels.TRACE_IGNORED) for column in columns]
    return Layout(TextFormat.TRACE, roles=tuple(roles[: roles.index(kernels.TRACE_DATA) + 1]))


def _find_format(lines: Sequence[str]) -> TextFormat | None:
    if any(_TRACE_VERSION.match(line) for line in lines):
        return TextFormat.TRACE
    if any(_ASC_BASE.match(line.strip()) for line in lines):
        return TextFormat.ASC
    formats = Counter(found for line in lines if line.strip() and (found := _format_of_line(line)) is not None)
    return formats.most_common(1)[0][0] if formats else None


def _format_of_line(line: str) -> TextFormat | None:
    tokens = line.split()
    if _TRACE_LINE.match(line):
        return TextFormat.TRACE
    if _ASC_LINE.match(line):
        return TextFormat.ASC
    if line.startswith(";"):  # a comment of a PEAK trace
        return None
    if tokens[0] == "Timestamp:":
        return TextFormat.NAMED
    if tokens[0].startswith("(") and tokens[0].endswith(")"):
        return TextFormat.CANDUMP
    if any(separator in line for separator in ",;\t"):
        return TextFormat.SEPARATED
    return None


def _separated_layout(path: Path, lines: Sequence[str]) -> Layout:
    separator = max(",;\t", key=lambda character: sum(character in line for line in lines))
    table = [[cell.strip(' "\r\t') for cell in line.split(separator)] for line in lines if line.strip()]
    first = next(number for number, line in enumerate(lines) if line.strip())
    if _is_number(table[0][0]):
        roles, labelled = _roles_by_position(path, table)
        return Layout(TextFormat.SEPARATED, 0, separator, roles, labelled)
    if len(table) == 1:
        _require_text(path, lines)
        raise RecordingError(path, "holds a header and no message; remove the file or export the recording again")
    roles, labelled = _roles_by_name(path, table)
    return Layout(TextFormat.SEPARATED, first + 1, separator, roles, labelled)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _roles_by_position(path: Path, table: Sequence[Sequence[str]]) -> Shape:
    """Take timestamp, id, and either hex text and label, or a length, its bytes and a flag."""
    shape = _most_common(_shape_of_row(row) for row in table)
    if shape is not None and kernels.ROLE_BYTES in shape[0]:
        # Whether payloads are padded to 8 bytes shows only where one is shorter.
        shape = _most_common(_shape_of_row(row) for row in table if _is_short(row)) or shape
    if shape is None:
        row = ",".join(table[0])
        raise RecordingError(
            path,
            f"has no header and columns that are not known (it starts with {row[:SHOWN_CHARACTERS]!r}); "
            "write timestamp,arbitration_id,data_field,attack or timestamp,id,dlc,byte,...,flag, or name the columns "
            "in a header",
        )
    return shape


def _most_common(shapes: Iterable[Shape | None]) -> Shape | None:
    votes = Counter(shape for shape in shapes if shape is not None)
    return votes.most_common(1)[0][0] if votes else None


def _shape_of_row(row: Sequence[str]) -> Shape | None:
    if len(row) < 3 or not _is_number(row[0]):
        return None
    leading: tuple[int, ...] = (kernels.ROLE_TIMESTAMP, kernels.ROLE_IDENTIFIER)
    if _is_length(row[2]):  # hex text has an even number of digits, so this is no payload
        leading = (*leading, kernels.ROLE_LENGTH)
        cells = [cell for cell in row[3:] if cell]
        if cells and (len(cells[0]) > 2 or " " in cells[0]):
            tail = (kernels.ROLE_PAYLOAD, kernels.ROLE_LABEL)
            return (*leading, *tail[: len(row) - 3]), len(row) >= 5
        num_bytes = int(row[2])
        if len(cells) - num_bytes in (0, 1):
            return (*leading, kernels.ROLE_BYTES), len(cells) > num_bytes
        if len(cells) in (MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES + 1) and _is_zero_padded(cells, num_bytes):
            labelled = len(cells) > MAX_PAYLOAD_BYTES
            return (*leading, *_FIXED_BYTES, *((kernels.ROLE_LABEL,) if labelled else ())), labelled
        return None
    if len(row) == 3:
        return (*leading, kernels.ROLE_PAYLOAD), False
    if len(row) == 4:
        return (*leading, kernels.ROLE_PAYLOAD, kernels.ROLE_LABEL), True
    return None


def _is_length(text: str) -> bool:
    return len(text) == 1 and text in "012345678"


def _is_short(row: Sequence[str]) -> bool:
    return len(row) > 3 and _is_length(row[2]) and int(row[2]) < MAX_PAYLOAD_BYTES


def _is_zero_padded(cells: Sequence[str], num_bytes: int) -> bool:
    padding = cells[num_bytes:MAX_PAYLOAD_BYTES]
    return bool(padding) and all(cell in ("0", "00") for cell in padding)


def _roles_by_name(path: Path, table: Sequence[Sequence[str]]) -> Shape:
    names = [re.sub(r"[\s\-.]+", "_", name.lower()) for name in table[0]]
    roles = [
        next((role for role, known in COLUMN_NAMES.items() if name in known), kernels.ROLE_IGNORED) for name in names
    ]
    rows = table[1:]
    wider = sum(len(row) > len(names) for row in rows) > len(rows) // 2
    bytes_from = next((k for k, name in enumerate(names) if _FIRST_BYTE_NAME.fullmatch(name)), None)
    if bytes_from is None and wider and kernels.ROLE_LENGTH in roles and kernels.ROLE_PAYLOAD in roles:
        bytes_from = roles.index(kernels.ROLE_PAYLOAD)  # one name above bytes in columns of their own
        names = [*names[:bytes_from], "data0", *names[bytes_from + 1 :]]
    if bytes_from is not None:
        return _roles_with_bytes(path, names, roles, rows, bytes_from)
    repeated = [names[k] for k, role in enumerate(roles) if role and role in roles[:k]]
    required = (kernels.ROLE_TIMESTAMP, kernels.ROLE_IDENTIFIER, kernels.ROLE_PAYLOAD)
    unknown = [name for k, name in enumerate(names) if not roles[k]]
    labelled = kernels.ROLE_LABEL in roles
    # A label under an unknown name must not pass for a recording without labels.
    if repeated or any(role not in roles for role in required) or (unknown and not labelled):
        raise _header_error(path, table[0], rows)
    return tuple(roles), labelled


def _roles_with_bytes(
    path: Path, names: Sequence[str], roles: Sequence[int], rows: Sequence[Sequence[str]], bytes_from: int
) -> Shape:
    leading = (kernels.ROLE_TIMESTAMP, kernels.ROLE_IDENTIFIER, kernels.ROLE_LENGTH)
    bytes_end = bytes_from + sum(bool(_ANY_BYTE_NAME.fullmatch(name)) for name in names[bytes_from:])
    behind = [role for role, name in zip(roles[bytes_end:], names[bytes_end:], strict=True) if name]
    others = [*roles[:bytes_from], *behind]
    labelled = kernels.ROLE_LABEL in others
    if not {kernels.ROLE_TIMESTAMP, kernels.ROLE_IDENTIFIER} <= set(others) or (
        kernels.ROLE_IGNORED in others and not labelled
    ):
        raise _header_error(path, names, rows)
    short = [row for row in rows if _is_short(row)]
    num_padded = sum(len(row) >= bytes_end and _is_zero_padded(row[bytes_from:], int(row[2])) for row in short)
    if tuple(roles[:bytes_from]) != leading or len(behind) > 1 or num_padded > len(short) // 2:
        return (*roles[:bytes_from], *(kernels.ROLE_BYTE,) * (bytes_end - bytes_from), *roles[bytes_end:]), labelled
    # Whether a label follows shows in the rows: files of this kind carry headers of the wrong width.
    num_extra = [
        len([cell for cell in row[3:] if cell]) - int(row[2]) for row in rows if row[2:] and _is_length(row[2])
    ]
    return (*leading, kernels.ROLE_BYTES), sum(extra == 1 for extra in num_extra) > len(num_extra) // 2


def _require_text(path: Path, lines: Sequence[str]) -> None:
    """Refuse lines with control characters, once they are not understood: an image or an archive by another name."""
    if any(character < " " and character not in "\t\r" for line in lines for character in line):
        first = next((line.strip() for line in lines if line.strip()), "")
        shown = "".join(character if character.isprintable() else "." for character in first[:SHOWN_CHARACTERS])
        raise RecordingError(
            path, f"is no text (it starts with {shown!r}): name it after its format, or export the recording again"
        )


def _header_error(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> RecordingError:
    written = ",".join(header)
    _require_text(path, [",".join(row) for row in (header, *rows)])
    shown = repr(written) if len(written) <= MAX_HEADER else f"{written[:MAX_HEADER]!r}..."
    return RecordingError(
        path,
        f"has the header {shown}, which is not known; name the columns timestamp,arbitration_id,"
        "data_field,attack (leave attack and all other columns out for a recording without labels), "
        "or timestamp,id,dlc,data0,...,data7,flag",
    )
