"""Recordings as text: which format a file has, seen from its first lines, and its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import ALL_STATED, MAX_PAYLOAD_BYTES, ReadOptions, RecordingError, Stated
from kdgat.canbus.names import recording_suffix
from kdgat.canbus.readers.asc import ASC_BASE, ASC_LINE, find_asc_base, has_names, parse_asc
from kdgat.canbus.readers.candump import CANDUMP_LINE, EXPLANATION, TIMELESS_LINE, parse_candump
from kdgat.canbus.readers.csv import FORMATS_PAGE, PLAIN_COLUMNS, ROLE_LABEL, find_columns, parse_separated
from kdgat.canbus.readers.detect import NO_OPTIONS, SHOWN_CHARACTERS, require_table, require_text
from kdgat.canbus.readers.labels import count_words, label_words
from kdgat.canbus.readers.named import parse_named
from kdgat.canbus.readers.numbers import as_plain_lines, count_lines
from kdgat.canbus.readers.rows import MAX_CHANNELS, NO_CHANNEL, Rows, RowStatus, damaged_row, join_rows
from kdgat.canbus.readers.tools import ReadLine, ToolLines, find_tool, refuse_foreign
from kdgat.canbus.readers.trc import TRACE_LINE, TRACE_VERSION, find_trace_roles, parse_trace

NUM_SNIFFED_LINES = 200
"""Lines looked at to find the format: enough that a few damaged ones do not decide."""
SNIFFED_BYTES = 1 << 16
MOST_COUNTED = 100_000  # rows of one block whose label is looked at again, because it is no known word
BASES = {"hexadecimal": 16, "decimal": 10}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextFormat(StrEnum):
    """Name the families of text recordings."""

    SEPARATED = "separated"
    NAMED = "named"
    CANDUMP = "candump"
    TIMELESS = "candump without times"
    ASC = "Vector ASC"
    TRACE = "PEAK TRC"
    TOOL = "tool"


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
    attack_labels: tuple[str, ...] = ()  # words; without any those that are known
    base: int = 16
    is_relative: bool = False
    payload_base: int = 16
    stated: Stated = ALL_STATED
    is_named: bool = False  # it names messages instead of saying their ids
    newline: str = "\n"
    is_coloured: bool = False
    tool: Callable[[], ReadLine] | None = None  # makes what reads the lines of a tool


class LineParser:
    """Parse the lines of one text recording, a block of whole lines after the other."""

    def __init__(self, layout: Layout) -> None:
        """Begin behind the header lines of the layout."""
        self.layout = layout
        self._roles = np.array(layout.roles, dtype=np.int64)
        self._num_lines = layout.num_header_lines
        self._channels: list[str] = []
        self._clock = 0.0
        self._tool = None if layout.tool is None else ToolLines(layout.tool())

    def parse(self, data: NDArray[np.uint8], start: int = 0) -> Rows:
        """Parse the lines from `start` on, with a status each; line numbers and channels continue over the blocks."""
        layout = self.layout
        if layout.newline != "\n" or layout.is_coloured:
            data = as_plain_lines(data, layout.newline != "\n")
        if self._tool is not None:
            rows = self._tool.parse(data, start)
            self._num_lines += len(rows.status)
            self._channels = list(rows.channels)
            return rows
        num_lines = count_lines(data, start)
        timestamp = np.zeros(num_lines)
        identifier = np.zeros(num_lines, dtype=np.uint32)
        payload = np.zeros((num_lines, MAX_PAYLOAD_BYTES), dtype=np.uint8)
        length = np.zeros(num_lines, dtype=np.uint8)
        label = np.zeros(num_lines, dtype=np.uint8)
        status = np.zeros(num_lines, dtype=np.uint8)
        columns = (timestamp, identifier, payload, length)
        channel = np.full(num_lines, NO_CHANNEL, dtype=np.uint8)
        names = np.zeros((MAX_CHANNELS, 2), dtype=np.int64)
        if layout.text_format is TextFormat.SEPARATED:
            words = label_words(layout.attack_labels)
            num_names = parse_separated(
                data, start, ord(layout.separator), self._roles, layout.labelled, words, layout.base,
                layout.payload_base, names, *columns, channel, label, status,
            )  # fmt: skip
        elif layout.text_format is TextFormat.NAMED:
            num_names = parse_named(data, start, names, *columns, channel, status)
        elif layout.text_format is TextFormat.CANDUMP:
            num_names = parse_candump(data, start, names, *columns, channel, status)
        elif layout.text_format is TextFormat.ASC:
            form = (layout.base, layout.is_relative, layout.is_named)
            num_names, self._clock = parse_asc(data, start, *form, self._clock, names, *columns, channel, status)
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
            layout.stated,
            self._unknown_labels(data, start, status),
        )

    def _unknown_labels(self, data: NDArray[np.uint8], start: int, status: NDArray[np.uint8]) -> Counter[str]:
        """Count the words that are no labels, where a label should be."""
        bad = np.flatnonzero(status == RowStatus.LABEL)
        if not bad.size:
            return Counter()
        roles = self.layout.roles
        column = roles.index(ROLE_LABEL) if ROLE_LABEL in roles else -1
        ends = np.flatnonzero(data[start:] == ord("\n")) + start
        bounds = np.concatenate([[start], ends + 1, [len(data)]])
        lines = (data[bounds[row] : bounds[row + 1]].tobytes() for row in bad[:MOST_COUNTED])
        return count_words(lines, self.layout.separator, column)

    def damage(self, status: RowStatus = RowStatus.DAMAGED) -> Rows:
        """Return a bad row behind the lines that were parsed: the file ends here before its end."""
        return damaged_row(self._num_lines + 1, tuple(self._channels), status, self.layout.stated)

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
    options: ReadOptions = NO_OPTIONS,
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


def find_start(path: Path, head: bytes, *, is_whole: bool, options: ReadOptions = NO_OPTIONS) -> tuple[Layout, int]:
    """Find the format from the first bytes of a file, and where its first row starts."""
    offset = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    newline = "\n" if b"\n" in head or b"\r" not in head else "\r"
    lines = head[offset:].decode("latin-1").split(newline)
    seen = (lines if is_whole else lines[:-1])[:NUM_SNIFFED_LINES]
    plain = [_COLOUR.sub("", line) for line in seen]
    layout = replace(find_layout(path, plain, options), newline=newline, is_coloured=plain != seen)
    return layout, offset + sum(len(line) + 1 for line in lines[: layout.num_header_lines])


def find_layout(path: Path, lines: Sequence[str], options: ReadOptions = NO_OPTIONS) -> Layout:
    """Find the format from the first lines of a file; a damaged line among them does not matter."""
    promised = FORMAT_OF_SUFFIX.get(recording_suffix(path))
    if promised in (None, TextFormat.TRACE) and (tool := find_tool(lines)):  # CANHacker calls its logs .trc, too
        require_table(path, options, "the log of a tool")
        return Layout(TextFormat.TOOL, tool=tool)
    refuse_foreign(path, lines)
    text_format = _find_format(lines)
    first = next((line.strip() for line in lines if line.strip()), "")[:SHOWN_CHARACTERS]
    if not first:
        raise RecordingError(path, "holds nothing but blank lines; export the recording again")
    if promised is not None and text_format is not promised:
        raise RecordingError(
            path,
            f"is named {path.suffix}, but is no {promised} log (it starts with {first!r}); name it after its format",
        )
    if text_format is TextFormat.TIMELESS:
        raise RecordingError(
            path,
            f"is what candump shows without times (it starts with {first!r}), and traffic is judged by its times; "
            "record it again by `candump -L can0 > drive.log`, or with times on the screen, `candump -ta can0`",
        )
    if text_format is None:
        require_text(path, lines)
        raise RecordingError(
            path,
            f"has an unknown format (it starts with {first!r}); known are candump, ASC, BLF, TRC, MF4, PCAP, Parquet, "
            f"a table {PLAIN_COLUMNS}, and those of {FORMATS_PAGE}",
        )
    if text_format is TextFormat.SEPARATED:
        return Layout(
            text_format,
            *find_columns(path, lines, options),
            attack_labels=options.attack_labels,
            base=BASES[options.identifiers or "hexadecimal"],
            payload_base=BASES[options.payload],
            stated=Stated(unit=False, base=False),
        )
    require_table(path, options, f"{text_format} text")
    if text_format is TextFormat.ASC:
        base, is_relative = find_asc_base(lines)
        return Layout(text_format, base=base, is_relative=is_relative, is_named=has_names(lines, base))
    roles = find_trace_roles(path, lines) if text_format is TextFormat.TRACE else ()
    return Layout(text_format, roles=roles, stated=Stated(unit=text_format is TextFormat.TRACE, base=True))


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
    if CANDUMP_LINE.match(line):
        return TextFormat.CANDUMP
    if EXPLANATION.match(line):
        return None
    if TIMELESS_LINE.match(line):
        return TextFormat.TIMELESS
    if any(separator in line for separator in ",;\t"):
        return TextFormat.SEPARATED
    return None
