"""Recordings as text: which format a file has, seen from its first lines, and its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import MAX_PAYLOAD_BYTES, ReadOptions, RecordingError
from kdgat.canbus.names import recording_suffix
from kdgat.canbus.readers.asc import ASC_BASE, ASC_LINE, find_asc_base, parse_asc
from kdgat.canbus.readers.candump import parse_candump, parse_named
from kdgat.canbus.readers.csv import find_columns, parse_separated
from kdgat.canbus.readers.detect import NOTHING_SAID, SHOWN_CHARACTERS, require_table, require_text
from kdgat.canbus.readers.numbers import count_lines
from kdgat.canbus.readers.rows import MAX_CHANNELS, NO_CHANNEL, Rows, RowStatus, damaged_row, join_rows
from kdgat.canbus.readers.trc import TRACE_LINE, TRACE_VERSION, find_trace_roles, parse_trace

NUM_SNIFFED_LINES = 200
"""Lines looked at to find the format: enough that a few damaged ones do not decide."""
SNIFFED_BYTES = 1 << 16
BASES = {"hexadecimal": 16, "decimal": 10}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

KNOWN_FORMATS = (
    "Parquet (timestamp, id, data_field, label)",
    "CSV timestamp,arbitration_id,data_field,attack (can-train-and-test)",
    "CSV timestamp,id,dlc,byte,...,byte,flag (HCRL Car-Hacking, HCRL Survival; R regular, T injected)",
    "text `Timestamp: 1479121434.850202  ID: 0350  000  DLC: 8  05 28 ...` (HCRL attack-free)",
    "candump `(1436509052.249713) vcan0 044#2A366C2BBA`",
    "Vector ASC and BLF, PEAK TRC, MF4 with bus logging, PCAP and pcapng of SocketCAN",
)


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
    payload_base: int = 16
    unit: str | None = "s"  # of the times, where the format states it


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
        """Parse the lines from `start` on, with a status each; line numbers and channels continue over the blocks."""
        layout = self.layout
        num_lines = count_lines(data, start)
        timestamp = np.zeros(num_lines)
        identifier = np.zeros(num_lines, dtype=np.uint32)
        payload = np.zeros((num_lines, MAX_PAYLOAD_BYTES), dtype=np.uint8)
        length = np.zeros(num_lines, dtype=np.uint8)
        label = np.zeros(num_lines, dtype=np.uint8)
        status = np.zeros(num_lines, dtype=np.uint8)
        columns = (timestamp, identifier, payload, length)
        channel = None
        if layout.text_format is TextFormat.SEPARATED:
            parse_separated(
                data, start, ord(layout.separator), self._roles, layout.labelled, layout.base, layout.payload_base,
                *columns, label, status,
            )  # fmt: skip
        elif layout.text_format is TextFormat.NAMED:
            parse_named(data, start, *columns, status)
        else:
            channel = np.empty(num_lines, dtype=np.uint8)
            names = np.zeros((MAX_CHANNELS, 2), dtype=np.int64)
            if layout.text_format is TextFormat.CANDUMP:
                num_names = parse_candump(data, start, names, *columns, channel, status)
            elif layout.text_format is TextFormat.ASC:
                num_names, self._clock = parse_asc(
                    data, start, layout.base, layout.is_relative, self._clock, names, *columns, channel, status
                )
            else:
                num_names = parse_trace(data, start, self._roles, names, *columns, channel, status)
            channel = self._over_blocks(channel, [data[a:b].tobytes().decode("latin-1") for a, b in names[:num_names]])
        num_header_lines = self.layout.num_header_lines if self._num_lines == self.layout.num_header_lines else 0
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
            num_header_lines,
            layout.unit,
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
        last = len(self._channels) - 1  # for all further names
        index_of[: len(names)] = [self._channels.index(n) if n in self._channels else last for n in names]
        return index_of[channel]


def read_text(
    path: Path,
    data: NDArray[np.uint8] | None = None,
    *,
    damaged: bool = False,
    options: ReadOptions = NOTHING_SAID,
) -> Rows:
    """Read all lines with the status of each. Raise RecordingError for a format or a header that is not known.

    `data` is what the file holds, where that is not its bytes; it may be known to end before its end.
    """
    if data is None:
        data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    head = data[:SNIFFED_BYTES].tobytes()
    layout, start = find_start(path, head, is_whole=len(head) == len(data), options=options)
    parser = LineParser(layout)
    rows = parser.parse(data, start)
    return join_rows([rows, parser.damage()]) if damaged else rows


def find_start(path: Path, head: bytes, *, is_whole: bool, options: ReadOptions = NOTHING_SAID) -> tuple[Layout, int]:
    """Find the format from the first bytes of a file, and where its first row starts."""
    offset = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    lines = head[offset:].decode("latin-1").split("\n")
    layout = find_layout(path, (lines if is_whole else lines[:-1])[:NUM_SNIFFED_LINES], options)
    return layout, offset + sum(len(line) + 1 for line in lines[: layout.num_header_lines])


def find_layout(path: Path, lines: Sequence[str], options: ReadOptions = NOTHING_SAID) -> Layout:
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
        require_text(path, lines)
        raise RecordingError(
            path, f"has an unknown format (it starts with {first!r}); known are: {'; '.join(KNOWN_FORMATS)}"
        )
    if text_format is TextFormat.SEPARATED:
        bases = (BASES[options.identifiers or "hexadecimal"], BASES[options.payload])
        return Layout(text_format, *find_columns(path, lines, options), base=bases[0], payload_base=bases[1], unit=None)
    require_table(path, options, f"{text_format} text")
    if text_format is TextFormat.ASC:
        base, is_relative = find_asc_base(lines)
        return Layout(text_format, base=base, is_relative=is_relative)
    roles = find_trace_roles(path, lines) if text_format is TextFormat.TRACE else ()
    unit = None if text_format in (TextFormat.CANDUMP, TextFormat.NAMED) else "s"
    return Layout(text_format, roles=roles, unit=unit)


def _find_format(lines: Sequence[str]) -> TextFormat | None:
    if any(TRACE_VERSION.match(line) for line in lines):
        return TextFormat.TRACE
    if any(ASC_BASE.match(line.strip()) for line in lines):
        return TextFormat.ASC
    formats = Counter(found for line in lines if line.strip() and (found := _format_of_line(line)) is not None)
    return formats.most_common(1)[0][0] if formats else None


def _format_of_line(line: str) -> TextFormat | None:
    tokens = line.split()
    if TRACE_LINE.match(line):
        return TextFormat.TRACE
    if ASC_LINE.match(line):
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
