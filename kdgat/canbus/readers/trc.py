"""TRC, the trace of PEAK's tools as text: which columns its version has, and its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kdgat.base.machine_code import njit
from kdgat.canbus.messages import MAX_PAYLOAD_BYTES, RecordingError
from kdgat.canbus.readers.asc import is_direction
from kdgat.canbus.readers.numbers import (
    Bytes,
    find_channel,
    find_next_line,
    find_word,
    is_error_frame,
    is_same_word,
    is_word,
    judge_line_end,
    read_identifier,
    read_integer,
    read_number,
    read_spaced_bytes,
)
from kdgat.canbus.readers.rows import RowStatus

(
    TRACE_IGNORED,
    TRACE_TIME,
    TRACE_TYPE,
    TRACE_CHANNEL,
    TRACE_IDENTIFIER,
    TRACE_LENGTH,
    TRACE_DATA,
) = range(7)
"""What a column of a PEAK trace holds; TRACE_DATA is the last one and continues to the end of the line."""

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
    "O": TRACE_TIME,
    "T": TRACE_TYPE,
    "B": TRACE_CHANNEL,
    "I": TRACE_IDENTIFIER,
    "l": TRACE_LENGTH,
    "L": TRACE_LENGTH,
    "D": TRACE_DATA,
}
TRACE_VERSION = re.compile(r";\$FILEVERSION=(\S+)")
_TRACE_NAMED_COLUMNS = re.compile(r";\$COLUMNS=(\S+)")
_UNSTATED = {
    "1.1": re.compile(r"\s*\d+\)\s+\S+\s+[A-Z][a-z]"),
    "1.3": re.compile(r"\s*\d+\)\s+\S+\s+\d+\s+[A-Z][a-z]\S*\s+\S+\s+-\s"),
    "1.2": re.compile(r"\s*\d+\)\s+\S+\s+\d+\s+[A-Z][a-z]"),
}
"""How a line looks by which a trace without its header shows its version."""
TRACE_LINE = re.compile(r"\s*\d+\)\s+\d+([.,]\d+)?\s")
_LOWER_E, _LOWER_R, _UPPER_F, _SEMICOLON, _LOWER_B = ord("e"), ord("r"), ord("F"), ord(";"), ord("b")
_ERROR_WORD = np.frombuffer(b"error", dtype=np.uint8)
_LOWER_D, _LOWER_F, _LOWER_I, _LOWER_T = ord("d"), ord("f"), ord("i"), ord("t")


def find_trace_roles(path: Path, lines: Sequence[str]) -> tuple[int, ...]:
    """Return what the columns of a PEAK trace hold, TRACE_*; RecordingError for a version that is not known."""
    version = next((match[1] for line in lines if (match := TRACE_VERSION.match(line))), None)
    if version is None:
        version = next((version for version, form in _UNSTATED.items() if any(map(form.match, lines))), "1.0")
    named = next((match[1] for line in lines if (match := _TRACE_NAMED_COLUMNS.match(line))), None)
    columns = (named or TRACE_COLUMNS.get(version, "")).split(",")
    if not {"O", "I", "D"} <= set(columns) or not {"l", "L"} & set(columns):
        raise RecordingError(
            path,
            f"is a PEAK trace of version {version} with the columns {','.join(columns) or 'of no known name'}; "
            f"known are {', '.join(TRACE_COLUMNS)}, and from 2.0 on any columns with O, I, l or L, and D",
        )
    roles = [_TRACE_ROLES.get(column, TRACE_IGNORED) for column in columns]
    return tuple(roles[: roles.index(TRACE_DATA) + 1])


@njit(cache=True, nogil=True)
def _trace_type(data: Bytes, a: int, b: int) -> int:
    """Return what a row of a PEAK trace is from the word for its type: a message, or a status."""
    first = data[a] | 32
    second = data[a + 1] | 32 if b - a > 1 else 0
    if b - a == 2 and (
        is_direction(data, a, b) or (first == _LOWER_D and second == _LOWER_T) or (first == _LOWER_R == second)
    ):
        return RowStatus.GOOD
    if b - a == 2 and (first == _LOWER_F or (first == _LOWER_B and second == _LOWER_I)):
        return RowStatus.CAN_FD
    if first == _LOWER_E and second == _LOWER_R:
        return RowStatus.ERROR_FRAME
    return RowStatus.EVENT  # warnings, states, counters, events


@njit(cache=True, nogil=True)
def parse_trace(
    data: Bytes,
    start: int,
    roles: Any,  # [columns] TRACE_*
    names: Any,
    timestamp: Any,
    identifier: Any,
    payload: Any,
    length: Any,
    channel: Any,
    status: Any,
) -> int:
    """Parse `  1)      1059.9  Rx  0300  7  00 00 00 00 04 00 00`, a PEAK trace, by the columns of its version.

    Return the number of channel names, as `parse_candump` does.
    """
    i = start
    row = 0
    num_names, last, last_start, last_end = 0, 0, 0, 0
    while i < len(data):
        next_line = find_next_line(data, i)
        a, b = find_word(data, i)
        if a == b or data[a] == _SEMICOLON:
            status[row] = RowStatus.SKIPPED
            i = next_line
            row += 1
            continue
        fault: int = RowStatus.GOOD
        kind: int = RowStatus.GOOD
        name_start, name_end = 0, 0
        num_bytes = -1
        is_remote = False
        for k in range(len(roles)):
            if k > 0:
                a, b = find_word(data, b)
            role = roles[k]
            if role == TRACE_DATA:
                if is_remote or (a < b and data[a] | 32 == _LOWER_R):  # `RTR`
                    break
                if is_word(data, a, b, _ERROR_WORD):  # version 1.0 has no column of types
                    kind = RowStatus.ERROR_FRAME
                    break
                if num_bytes > 0:
                    fault, _ = read_spaced_bytes(data, a, num_bytes, payload[row])
                if fault == RowStatus.GOOD and kind == RowStatus.GOOD:
                    length[row] = num_bytes
                break
            if a == b:
                fault = RowStatus.FIELDS
                break
            if role == TRACE_TIME:
                timestamp[row] = read_number(data, a, b) / 1000.0
                if not np.isfinite(timestamp[row]):
                    fault = RowStatus.TIMESTAMP
                    break
            elif role == TRACE_TYPE:
                kind = _trace_type(data, a, b)
                is_remote = data[a] | 32 == _LOWER_R and data[b - 1] | 32 == _LOWER_R
                if kind in (RowStatus.EVENT, RowStatus.ERROR_FRAME):
                    break
            elif role == TRACE_CHANNEL:
                name_start, name_end = a, b
            elif role == TRACE_IDENTIFIER:
                value = read_identifier(data, a, b)
                if value == -2 and is_error_frame(data, a, b):
                    kind = RowStatus.ERROR_FRAME
                    break
                if value == -2 and b - a == 8 and data[a] == data[b - 1] == _UPPER_F:
                    kind = RowStatus.EVENT  # FFFFFFFF: the state of the bus
                    break
                if value < 0:
                    fault = RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE
                    break
                identifier[row] = value
            elif role == TRACE_LENGTH:
                num_bytes = read_integer(data, a, b, 10)
                if kind == RowStatus.CAN_FD:
                    break
                if num_bytes < 0 or num_bytes > 15:
                    fault = RowStatus.LENGTH
                    break
                num_bytes = min(num_bytes, MAX_PAYLOAD_BYTES)
        if fault == RowStatus.GOOD or kind == RowStatus.EVENT:
            fault = kind
        if name_end > name_start and (fault in (RowStatus.GOOD, RowStatus.CAN_FD, RowStatus.ERROR_FRAME)):
            if not is_same_word(data, name_start, name_end, last_start, last_end):
                last = find_channel(data, name_start, name_end, names, num_names)
                num_names = max(num_names, last + 1)
                last_start, last_end = name_start, name_end
            channel[row] = last
        status[row] = judge_line_end(data, next_line, fault)
        i = next_line
        row += 1
    return num_names
