"""Alarms as people and programs read them: a table, JSON lines, CSV; each is written as soon as it is there."""

from __future__ import annotations

import csv
import io
import json
import shutil
import textwrap
from typing import Final, Literal, TextIO

from kdgat.can.detection.alarms import Alarm, identifier_text

AlarmFormat = Literal["table", "json", "csv"]
CSV_COLUMNS: Final = (
    "begin_s", "end_s", "length_s", "first_message", "windows", "score", "by", "guess", "identifiers", "reasons",
)  # fmt: skip
TABLE_HEADING: Final = f"{'since start':>12} {'length':>9} {'windows':>7} {'score':>6}  {'guess':<28} identifiers"


class AlarmWriter:
    """Write alarms to a stream, a line each, flushed: whoever reads a pipe has them at once."""

    def __init__(self, stream: TextIO, alarm_format: AlarmFormat, has_heading: bool = False) -> None:
        """Write to a stream, which `has_heading` already if there are alarms in it."""
        self._stream, self._format = stream, alarm_format
        self._has_heading = has_heading

    def write(self, alarm: Alarm, start_s: float) -> None:
        """Write one alarm; a table counts seconds on the bus from `start_s`, the others have the log's time."""
        if not self._has_heading:
            self.write_heading()
        if self._format == "json":
            line = json.dumps(alarm.as_json())
        elif self._format == "csv":
            line = _csv_line(_csv_row(alarm))
        else:
            line = _table_line(alarm, start_s)
            if self._stream.isatty():  # which breaks words, into the first column
                line = textwrap.fill(line, shutil.get_terminal_size().columns, subsequent_indent=" " * 13)
        self._stream.write(line + "\n")
        self._stream.flush()

    def write_heading(self) -> None:
        """Write what stands above the alarms, once; a CSV file has it even without alarms."""
        if self._has_heading or self._format == "json":
            return
        self._has_heading = True
        self._stream.write((_csv_line(CSV_COLUMNS) if self._format == "csv" else TABLE_HEADING) + "\n")
        self._stream.flush()


def describe_suspects(alarm: Alarm) -> str:
    """Name identifiers and reasons: `0C1 (too early, payload), 2A0 Engine (overdue)`."""
    names = (" ".join(filter(None, (identifier_text(one.identifier), one.name))) for one in alarm.suspects)
    return ", ".join(f"{name} ({', '.join(one.reasons)})" for name, one in zip(names, alarm.suspects, strict=True))


def describe_log_time(alarm: Alarm) -> str:
    """Say where an alarm begins in a log whose clock is not that of the bus: `; at 3.141590 in the log`."""
    return f"; at {alarm.log_begin_s:.6f} in the log" if alarm.log_begin_s != alarm.begin_s else ""


def _table_line(alarm: Alarm, start_s: float) -> str:
    return (
        f"{alarm.begin_s - start_s:>10.3f} s {alarm.duration_s:>7.3f} s {alarm.num_windows:>7,} {alarm.score:>6.3f}  "
        f"{alarm.guess:<28} {describe_suspects(alarm)}{describe_log_time(alarm)}"
    )


def _csv_row(alarm: Alarm) -> tuple[object, ...]:
    return (
        f"{alarm.log_begin_s:.6f}",
        f"{alarm.log_end_s:.6f}",
        f"{alarm.duration_s:.6f}",
        alarm.first_message,
        alarm.num_windows,
        f"{alarm.score:.6f}",
        " ".join(alarm.by),
        alarm.guess,
        " ".join(identifier_text(one.identifier) for one in alarm.suspects),
        "; ".join(", ".join(one.reasons) for one in alarm.suspects),
    )


def _csv_line(cells: tuple[object, ...]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(cells)
    return buffer.getvalue()
