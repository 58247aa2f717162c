"""Tables with a header by which their tool is known: what the columns are called, and how they count."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from kdgat.canbus.messages import MAX_PAYLOAD_BYTES
from kdgat.canbus.readers.rows import RowStatus
from kdgat.canbus.readers.tools.frames import (
    DAY_S,
    SKIPPED,
    TOO_FEW,
    Frame,
    ReadLine,
    Wrap,
    decode_base64,
    decode_text,
    decode_words,
    judge_frame,
    read_clock,
    read_integer,
    read_length,
    read_seconds,
    read_ticks,
)

_NUM_PREFACE_LINES: Final = 60  # that may stand above a header
_SEPARATORS: Final = ",;\t"
_MICROSECONDS: Final = 1e6
_MILLISECONDS: Final = 1e3


@dataclass(frozen=True, slots=True)
class Table:
    """Name a tool's columns in small letters; `others` are those by which alone the header is known."""

    tool: str
    time: str
    identifier: str
    payload: str  # or the first of its columns
    others: tuple[str, ...]
    more: str = ""  # pattern of all other names: a label must not pass for a column of the tool
    channel: str = ""
    length: str = ""
    remote: str = ""
    error: str = ""
    is_in_columns: bool = False
    is_decimal: bool = False  # ids without `0x`, unless one of them has a letter
    decode: Callable[[str], bytes | RowStatus] = decode_text
    read_time: Callable[[str], float] = read_seconds
    period_s: float = math.inf  # after which the clock begins anew


TABLES: Final = (
    Table(
        "GVRET",
        "time stamp",
        "id",
        "d1",
        ("extended", "bus", "len"),
        more=r"dir|d\d+",
        channel="bus",
        length="len",
        is_in_columns=True,
        read_time=partial(read_ticks, per_second=_MICROSECONDS),
        period_s=(1 << 32) / _MICROSECONDS,
    ),
    Table("Cabana", "time", "addr", "data", ("bus",), channel="bus", is_decimal=True),
    Table("panda", "time", "messageid", "message", ("bus", "messagelength"), channel="bus", length="messagelength"),
    Table(
        "python-can",
        "timestamp",
        "arbitration_id",
        "data",
        ("extended", "remote", "error", "dlc"),
        more="channel",
        channel="channel",
        length="dlc",
        remote="remote",
        error="error",
        decode=decode_base64,
    ),
    Table(
        "CANopen Magic",
        "time (ms)",
        "id",
        "data (hex)",
        ("message number",),
        more=".*",
        read_time=partial(read_seconds, per_second=_MILLISECONDS),
    ),
    Table(
        "PP2CAN",
        "time/ms",
        "arb. id",
        "data",
        ("ex", "rt"),
        remote="rt",
        is_in_columns=True,
        read_time=partial(read_seconds, per_second=_MILLISECONDS),
    ),
    Table(
        "IXXAT MiniLog",
        "time",
        "identifier (hex)",
        "data (hex)",
        ("format",),
        more=".*",
        read_time=read_clock,
        period_s=DAY_S,
    ),
)
_CSS_NAMES: Final = ("timestamp", "type", "id", "data")


def find_table(lines: Sequence[str]) -> Callable[[], ReadLine] | None:
    """Find the table that lines hold, by its header; return what makes its reader."""
    for number, line in enumerate(lines[:_NUM_PREFACE_LINES]):
        if line.startswith("# Logger type: CL"):
            return LoggerOfCss
        for separator in _SEPARATORS:
            names = _names(line, separator)
            if set(_CSS_NAMES) <= set(names) and separator == ";":
                return LoggerOfCss
            for table in TABLES:
                known = {table.time, table.identifier, table.payload, *table.others}
                if known <= set(names) and all(re.fullmatch(table.more, name) for name in set(names) - known - {""}):
                    base = _base_of_ids(table, names, separator, lines[number + 1 :])
                    return partial(TableLines, table, tuple(names), separator, base)
    return None


def _names(line: str, separator: str) -> list[str]:
    return [" ".join(name.strip(' "\r\t').lower().split()) for name in line.split(separator)]


def _base_of_ids(table: Table, names: Sequence[str], separator: str, lines: Sequence[str]) -> int:
    if not table.is_decimal:
        return 16
    place = names.index(table.identifier)
    rows = [line.split(separator) for line in lines]
    ids = [row[place].strip().lower() for row in rows if len(row) > place]
    with_letter = [text for text in ids if not text.startswith("0x") and set(text) & set("abcdef")]
    return 16 if len(with_letter) > len(ids) / 10 else 10  # fewer are damage


class TableLines:
    """Read the lines of a table, header and what stands above it included."""

    def __init__(self, table: Table, names: Sequence[str], separator: str, base: int) -> None:
        """Begin before the first line of a file."""
        self._table = table
        self._names = list(names)
        self._separator = separator
        self._base = base
        self._has_begun = False
        self._wrap = Wrap(table.period_s)
        self._time, self._identifier, self._payload = map(names.index, (table.time, table.identifier, table.payload))
        self._channel, self._length, self._remote, self._error = (
            names.index(name) if name in names else None
            for name in (table.channel, table.length, table.remote, table.error)
        )
        last_place = self._payload - 1 if table.is_in_columns else self._payload  # a frame may have no bytes
        self._least_fields = 1 + max(
            self._time, self._identifier, last_place, self._channel or 0, self._length or 0, self._error or 0
        )

    def __call__(self, line: str) -> Frame:
        """Return what one line holds."""
        fields = split_fields(line, self._separator)
        if not self._has_begun or fields[0].strip().lower() == self._names[0]:
            self._has_begun |= _names(line, self._separator) == self._names
            return SKIPPED
        if len(fields) < self._least_fields:
            return TOO_FEW
        table = self._table
        length = None if self._length is None else fields[self._length].strip()
        if table.is_in_columns:
            num_bytes = MAX_PAYLOAD_BYTES if length is None else max(read_length(length), 0)
            words = fields[self._payload : self._payload + num_bytes]
            payload = decode_words([word for word in words if word.strip()])
        else:
            payload = table.decode(fields[self._payload])
        return judge_frame(
            self._wrap(table.read_time(fields[self._time])),
            read_integer(fields[self._identifier], self._base),
            payload,
            length,
            None if self._channel is None else fields[self._channel].strip(),
            is_remote=self._remote is not None and _is_set(fields[self._remote]),
            is_error=self._error is not None and _is_set(fields[self._error]),
        )


def split_fields(line: str, separator: str) -> list[str]:
    """Divide a line, whose fields may stand in quotes and then hold the separator."""
    if '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error:
        return [""]


def _is_set(field: str) -> bool:
    return field.strip().lower() in ("1", "x", "true", "t")


class LoggerOfCss:
    """Read a CL1000 or CL2000: the lines above the header say what divides fields, and when the log begins."""

    def __init__(self) -> None:
        """Begin before the first line of a file."""
        self._separator = ";"
        self._names: list[str] = []
        self._last = 0.0
        self._has_time = False
        self._dates: dict[str, float] = {}

    def __call__(self, line: str) -> Frame:
        """Return what one line holds."""
        if line.startswith("#"):
            self._learn(*line[1:].partition(":")[::2])
            return SKIPPED
        if not self._names or line.lower().startswith(self._names[0]):
            separator = self._separator if self._separator in line else ";"
            names = _names(line, separator)
            if set(_CSS_NAMES) <= set(names):
                self._separator, self._names = separator, names
                return SKIPPED
            return TOO_FEW
        fields = dict(zip(self._names, line.split(self._separator), strict=False))
        if "data" not in fields:
            return TOO_FEW
        return judge_frame(
            self._time(fields["timestamp"]),
            read_integer(fields["id"]),
            decode_text(fields["data"]),
            fields["length"].strip() if "length" in fields else None,
        )

    def _learn(self, name: str, value: str) -> None:
        value = value.strip()
        if name.strip() == "Value separator" and value.strip('"'):
            self._separator = value.strip('"')
        elif name.strip() == "Time" and math.isfinite(_date(value[:8])):
            self._last = _date(value[:8]) + max(_time_of_day(value[-6:] + "000"), 0.0)

    def _time(self, text: str) -> float:
        """Continue the last time by one that lacks what changes seldom: digits of (YYYY)(MM)(DD)(hh)(mm)(ss)mmm."""
        digits = "".join(character for character in text if "0" <= character <= "9")
        num_digits = len(digits)
        if num_digits in (3, 5, 7, 9):
            period = (1, 60, 3600, DAY_S)[(num_digits - 3) // 2]
            time = _time_of_day(digits.zfill(9))
            periods = (self._last - time) / period  # the first message is written at most a little before its header
            if self._has_time:
                time += period * round(periods)
            elif self._last:
                time += period * math.ceil(periods - min(0.25, 10 / period))
        elif num_digits in (11, 13, 17):
            date = digits[:-9]
            if date not in self._dates:
                self._dates = {date: self._date(date)}
            time = self._dates[date] + _time_of_day(digits[-9:])
        else:
            return math.nan
        if math.isfinite(time):
            self._last, self._has_time = time, True
        return round(time, 3)

    def _date(self, digits: str) -> float:
        """Return the day that is meant: of those that its digits may be, the nearest to the last time."""
        last = datetime.fromtimestamp(self._last, UTC)
        months = [(last.year + (last.month + step) // 12, (last.month + step) % 12 + 1) for step in (-2, -1, 0)]
        whole = {
            2: [f"{year:04d}{month:02d}{digits}" for year, month in months],
            4: [f"{year:04d}{digits}" for year in (last.year - 1, last.year, last.year + 1)],
            8: [digits],
        }[len(digits)]
        dates = [date for date in map(_date, whole) if math.isfinite(date)]
        return min(dates, key=lambda date: abs(date - self._last), default=math.nan)


def _date(digits: str) -> float:
    """Return when a day begins, YYYYMMDD in UTC, NaN where there is none that a log can be of."""
    try:
        date = datetime.strptime(digits, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return math.nan
    return date.timestamp() if 1970 <= date.year < 2200 else math.nan


def _time_of_day(digits: str) -> float:
    """Return the seconds of hhmmssmmm."""
    if not (len(digits) == 9 and digits.isascii() and digits.isdigit()):
        return math.nan
    return ((int(digits[:2]) * 60 + int(digits[2:4])) * 60 + int(digits[4:6])) + int(digits[6:]) / 1000
