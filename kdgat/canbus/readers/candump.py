"""Lines of candump: what it logs, and what it shows on a screen.

The kernel passes once over the bytes of a file. It fills columns with one entry per line, and a status per line: the
first fault of the line from left to right.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from kdgat.base.machine_code import njit
from kdgat.canbus.messages import MAX_PAYLOAD_BYTES
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
    read_length,
    read_number,
    read_payload,
    read_spaced_bytes,
)
from kdgat.canbus.readers.rows import RowStatus

CANDUMP_LINE = re.compile(r"\s*\([^()]*\)\s")
EXPLANATION = re.compile(r"\s+[a-z]+(-[a-z]+)+(\{|\s*$)")
"""What `candump -e` says below an error frame."""
TIMELESS_LINE = re.compile(
    r"\s*[\w.-]+\s+((RX|TX)\s+\S\s+\S\s+)?[0-9A-F]{3,8}(\s+(\[\d{1,4}\]|\{[0-9A-F]\})|#)|<0x[0-9a-f]+>\s+\[\d\]"
)
"""What candump shows where nobody asked it for times."""
_COMMENT, _OPEN, _CLOSE, _OPEN_SQUARE, _CLOSE_SQUARE = ord("#"), ord("("), ord(")"), ord("["), ord("]")
_OPEN_BRACE, _CLOSE_BRACE, _UNDERSCORE, _MINUS = ord("{"), ord("}"), ord("_"), ord("-")
_SWAPPED = ord("`")  # between bytes whose order `candump -S` has reversed
_UPPER_R, _LOWER_A, _LOWER_R, _LOWER_Z, _COLON = ord("R"), ord("a"), ord("r"), ord("z"), ord(":")
_DROPS_WORD = np.frombuffer(b"dropcount:", dtype=np.uint8)
_FIRST_DAY = 719_468  # 1970-01-01, counted from 1st March of the year 0


@njit(cache=True, nogil=True)
def _is_long_frame(data: Bytes, a: int, b: int) -> bool:
    """Return whether what follows the id belongs to CAN XL: `81:00:12345678#11223344`."""
    num_colons = 0
    while a < b and data[a] != _COMMENT:
        num_colons += data[a] == _COLON
        a += 1
    return num_colons == 2 and a < b


@njit(cache=True, nogil=True)
def _log_frame(data: Bytes, a: int, b: int, row: int, identifier: Any, payload: Any, length: Any) -> int:
    """Parse `044#2A366C2BBA`; a remote frame `044#R` carries no bytes, and `_D` behind 8 bytes is a length code."""
    mark = a
    while mark < b and data[mark] != _COMMENT:
        mark += 1
    if mark == b:
        return RowStatus.FIELDS
    value = read_identifier(data, a, mark)
    if value < 0:
        if value == -2 and is_error_frame(data, a, mark):
            return RowStatus.ERROR_FRAME
        return RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE
    identifier[row] = value
    if mark + 1 < b and data[mark + 1] == _COMMENT:
        return RowStatus.CAN_FD
    if mark + 1 < b and data[mark + 1] == _UPPER_R:
        return RowStatus.GOOD
    has_code = b - mark > 2 and data[b - 2] == _UNDERSCORE
    count = read_payload(data, mark + 1, b - 2 if has_code else b, payload[row])
    if count < 0:
        return RowStatus.CAN_XL if count == -RowStatus.PAYLOAD_HEX and _is_long_frame(data, mark + 1, b) else -count
    if has_code and (count != MAX_PAYLOAD_BYTES or read_integer(data, b - 1, b, 16) <= MAX_PAYLOAD_BYTES):
        return RowStatus.LENGTH_MISMATCH
    length[row] = count
    return RowStatus.GOOD


@njit(cache=True, nogil=True)
def _other_bytes(data: Bytes, i: int, num_bytes: int, payload: Any) -> int:
    """Read bytes as `candump -i` shows them, `01001111`, or `candump -S`, the last one first: ``4F`00`28``."""
    is_swapped = False
    a, b = find_word(data, i)
    for k in range(num_bytes):
        if a == b:
            a, b = find_word(data, b)
            if a == b:
                return RowStatus.LENGTH_MISMATCH
        start = a
        while a < b and data[a] != _SWAPPED:
            a += 1
        value = read_integer(data, start, a, 16 if a - start == 2 else 2)
        if value < 0 or a - start not in (2, 8):
            return RowStatus.PAYLOAD_HEX
        payload[k] = value
        if a < b:
            is_swapped = True
            a += 1
    if is_swapped:
        for k in range(num_bytes // 2):
            payload[k], payload[num_bytes - 1 - k] = payload[num_bytes - 1 - k], payload[k]
    return RowStatus.GOOD


@njit(cache=True, nogil=True)
def _read_date(data: Bytes, a: int, b: int, c: int, d: int) -> float:
    """Read `2020-11-19` and `13:42:02.000370` as seconds since 1970, as if it were UTC; NaN if it is none."""
    if b - a != 10 or d - c < 8 or not (data[a + 4] == data[a + 7] == _MINUS and data[c + 2] == data[c + 5] == _COLON):
        return np.nan
    year, month, day = (
        read_integer(data, a, a + 4, 10),
        read_integer(data, a + 5, a + 7, 10),
        read_integer(data, a + 8, b, 10),
    )
    hour, minute = read_integer(data, c, c + 2, 10), read_integer(data, c + 3, c + 5, 10)
    second = read_number(data, c + 6, d)
    if year < 0 or not (
        1 <= month <= 12 and 1 <= day <= 31 and 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 61
    ):
        return np.nan
    year -= month < 3  # years begin in March: the day that not all of them have is the last
    day += (153 * ((month + 9) % 12) + 2) // 5 - 1
    num_days = year * 365 + year // 4 - year // 100 + year // 400 + day - _FIRST_DAY
    return num_days * 86400 + hour * 3600 + minute * 60 + second


@njit(cache=True, nogil=True)
def _judge_remark(data: Bytes, i: int, a: int, b: int) -> int:
    """Return what a line is that begins with no time."""
    if is_word(data, a, b, _DROPS_WORD):
        return RowStatus.EVENT
    if a > i and _LOWER_A <= data[a] <= _LOWER_Z:  # an explanation of the error frame above
        has_dash, has_brace = False, False
        for k in range(a, b):
            has_dash = has_dash or data[k] == _MINUS
            has_brace = has_brace or data[k] == _OPEN_BRACE
        c, d = find_word(data, b)
        if has_dash and (has_brace or c == d):
            return RowStatus.SKIPPED
    return RowStatus.TIMESTAMP


@njit(cache=True, nogil=True)
def _screen_frame(data: Bytes, a: int, b: int, row: int, identifier: Any, payload: Any, length: Any) -> tuple[int, int]:
    """Parse `044   [5]  2A 36 6C 2B BA` from the id on; words between interface and id (`RX - -`) are passed over."""
    id_start, id_end = a, b
    while True:
        a, b = find_word(data, b)
        if a == b:
            return RowStatus.FIELDS, b
        if data[a] == _OPEN_SQUARE or data[a] == _OPEN_BRACE:
            break
        id_start, id_end = a, b
    value = read_identifier(data, id_start, id_end)
    if value < 0:
        if value == -2 and is_error_frame(data, id_start, id_end):
            return RowStatus.ERROR_FRAME, b
        return (RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE), b
    identifier[row] = value
    if data[b - 1] != (_CLOSE_SQUARE if data[a] == _OPEN_SQUARE else _CLOSE_BRACE):
        return RowStatus.LENGTH, b
    if data[a] == _OPEN_BRACE:  # a length code, where bytes are 8
        stated_length = min(read_integer(data, a + 1, b - 1, 16), MAX_PAYLOAD_BYTES)
    elif b - a in (4, 6) and read_integer(data, a + 1, b - 1, 10) >= 0:  # so many digits stand for CAN FD and CAN XL
        return (RowStatus.CAN_FD if b - a == 4 else RowStatus.CAN_XL), b
    else:
        stated_length = read_length(data, a + 1, b - 1)
    if stated_length < 0:
        return RowStatus.LENGTH, b
    word_start, word_end = find_word(data, b)
    if word_end > word_start and data[word_start] == _LOWER_R:  # "remote request"
        return RowStatus.GOOD, word_end
    fault, i = read_spaced_bytes(data, b, stated_length, payload[row])
    if fault == RowStatus.PAYLOAD_HEX and word_end - word_start > 2:
        fault = _other_bytes(data, word_start, stated_length, payload[row])
    if fault == RowStatus.GOOD:
        length[row] = stated_length
    return fault, i


@njit(cache=True, nogil=True)
def parse_candump(
    data: Bytes,
    start: int,
    names: Any,
    timestamp: Any,
    identifier: Any,
    payload: Any,
    length: Any,
    channel: Any,
    status: Any,
) -> int:
    """Parse `(1436509052.249713) vcan0 044#2A366C2BBA`, and the form that candump shows on a screen.

    The places of the names of channels are entered in `names` [MAX_CHANNELS, 2]; return how many there are.
    """
    i = start
    row = 0
    num_names, last, last_start, last_end = 0, 0, 0, 0
    while i < len(data):
        next_line = find_next_line(data, i)
        a, b = find_word(data, i)
        if a == b:
            status[row] = RowStatus.SKIPPED
            i = next_line
            row += 1
            continue
        fault: int = RowStatus.GOOD
        if data[a] != _OPEN:
            fault = _judge_remark(data, i, a, b)
        elif data[b - 1] == _CLOSE:
            timestamp[row] = read_number(data, a + 1, b - 1)
        else:
            c, d = find_word(data, b)
            timestamp[row] = _read_date(data, a + 1, b, c, d - 1) if c < d and data[d - 1] == _CLOSE else np.nan
            b = d
        if not np.isfinite(timestamp[row]):
            fault = RowStatus.TIMESTAMP
        if fault == RowStatus.GOOD:
            a, b = find_word(data, b)
            name_start, name_end = a, b
            a, b = find_word(data, b)
            if a == b:
                fault = RowStatus.FIELDS
            else:
                is_log = False
                for k in range(a, b):
                    if data[k] == _COMMENT:
                        is_log = True
                if is_log:
                    fault = _log_frame(data, a, b, row, identifier, payload, length)
                else:
                    fault, _ = _screen_frame(data, a, b, row, identifier, payload, length)
                if fault == RowStatus.GOOD or fault > RowStatus.EVENT:  # a damaged name is no channel
                    if not is_same_word(data, name_start, name_end, last_start, last_end):
                        last = find_channel(data, name_start, name_end, names, num_names)
                        num_names = max(num_names, last + 1)
                        last_start, last_end = name_start, name_end
                    channel[row] = last
        status[row] = judge_line_end(data, next_line, fault)
        i = next_line
        row += 1
    return num_names
