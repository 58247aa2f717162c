"""Lines of words: what candump logs, what it shows on a screen, and the named form of HCRL's attack-free recordings.

Each kernel passes once over the bytes of a file. It fills columns with one entry per line, and a status per line: the
first fault of the line from left to right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kdgat.base.machine_code import njit
from kdgat.canbus.readers.numbers import (
    CAN_FD,
    ERROR_FRAME,
    FIELDS,
    GOOD,
    IDENTIFIER,
    IDENTIFIER_RANGE,
    LENGTH,
    MISMATCH,
    SKIPPED,
    TIMESTAMP,
    Bytes,
    find_channel,
    find_next_line,
    find_word,
    is_error_frame,
    is_same_word,
    judge_line_end,
    read_identifier,
    read_length,
    read_number,
    read_payload,
    read_spaced_bytes,
)
from kdgat.canbus.readers.rows import NO_CHANNEL

_COMMENT, _OPEN, _CLOSE, _OPEN_SQUARE, _CLOSE_SQUARE = ord("#"), ord("("), ord(")"), ord("["), ord("]")
_UPPER_R, _LOWER_R, _UPPER_T, _UPPER_D, _UPPER_I = ord("R"), ord("r"), ord("T"), ord("D"), ord("I")
_COLON = ord(":")


@njit(cache=True, nogil=True)
def _log_frame(data: Bytes, a: int, b: int, row: int, identifier: Any, payload: Any, length: Any) -> int:
    """Parse `044#2A366C2BBA`; a remote frame `044#R` carries no bytes."""
    mark = a
    while mark < b and data[mark] != _COMMENT:
        mark += 1
    if mark == b:
        return FIELDS
    value = read_identifier(data, a, mark)
    if value < 0:
        if value == -2 and is_error_frame(data, a, mark):
            return ERROR_FRAME
        return IDENTIFIER if value == -1 else IDENTIFIER_RANGE
    identifier[row] = value
    if mark + 1 < b and data[mark + 1] == _COMMENT:
        return CAN_FD
    if mark + 1 < b and data[mark + 1] == _UPPER_R:
        return GOOD
    count = read_payload(data, mark + 1, b, payload[row])
    if count < 0:
        return -count
    length[row] = count
    return GOOD


@njit(cache=True, nogil=True)
def _screen_frame(data: Bytes, a: int, b: int, row: int, identifier: Any, payload: Any, length: Any) -> tuple[int, int]:
    """Parse `044   [5]  2A 36 6C 2B BA` from the id on; words between interface and id (`RX - -`) are passed over."""
    id_start, id_end = a, b
    while True:
        a, b = find_word(data, b)
        if a == b:
            return FIELDS, b
        if data[a] == _OPEN_SQUARE:
            break
        id_start, id_end = a, b
    value = read_identifier(data, id_start, id_end)
    if value < 0:
        if value == -2 and is_error_frame(data, id_start, id_end):
            return ERROR_FRAME, b
        return (IDENTIFIER if value == -1 else IDENTIFIER_RANGE), b
    identifier[row] = value
    if data[b - 1] != _CLOSE_SQUARE:
        return LENGTH, b
    if b - a == 4:  # two digits: candump prints those for CAN FD only
        return CAN_FD, b
    stated_length = read_length(data, a + 1, b - 1)
    if stated_length < 0:
        return LENGTH, b
    word_start, word_end = find_word(data, b)
    if word_end > word_start and data[word_start] == _LOWER_R:  # "remote request"
        return GOOD, word_end
    fault, i = read_spaced_bytes(data, b, stated_length, payload[row])
    if fault == GOOD:
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
            status[row] = SKIPPED
            i = next_line
            row += 1
            continue
        fault = GOOD
        if data[a] != _OPEN or data[b - 1] != _CLOSE:
            fault = TIMESTAMP
        else:
            timestamp[row] = read_number(data, a + 1, b - 1)
            if not np.isfinite(timestamp[row]):
                fault = TIMESTAMP
        channel[row] = NO_CHANNEL
        if fault == GOOD:
            a, b = find_word(data, b)
            name_start, name_end = a, b
            a, b = find_word(data, b)
            if a == b:
                fault = FIELDS
            else:
                is_log = False
                for k in range(a, b):
                    if data[k] == _COMMENT:
                        is_log = True
                if is_log:
                    fault = _log_frame(data, a, b, row, identifier, payload, length)
                else:
                    fault, _ = _screen_frame(data, a, b, row, identifier, payload, length)
                if fault in (GOOD, CAN_FD, ERROR_FRAME):  # a damaged name is no channel
                    if not is_same_word(data, name_start, name_end, last_start, last_end):
                        last = find_channel(data, name_start, name_end, names, num_names)
                        num_names = max(num_names, last + 1)
                        last_start, last_end = name_start, name_end
                    channel[row] = last
        status[row] = judge_line_end(data, next_line, fault)
        i = next_line
        row += 1
    return num_names


@njit(cache=True, nogil=True)
def parse_named(
    data: Bytes, start: int, timestamp: Any, identifier: Any, payload: Any, length: Any, status: Any
) -> None:
    """Parse `Timestamp: 1479121434.850202  ID: 0350  000  DLC: 8  05 28 ...`, the attack-free HCRL form."""
    i = start
    row = 0
    while i < len(data):
        next_line = find_next_line(data, i)
        fault = FIELDS
        blank = True
        has_timestamp, has_identifier = False, False
        while True:
            a, b = find_word(data, i)
            i = b
            if a == b:
                break
            blank = False
            if data[b - 1] != _COLON:
                continue  # the remote flag between id and length
            key = data[a]
            a, b = find_word(data, i)
            i = b
            if key == _UPPER_T:
                timestamp[row] = read_number(data, a, b)
                if not np.isfinite(timestamp[row]):
                    fault = TIMESTAMP
                    break
                has_timestamp = True
            elif key == _UPPER_I:
                value = read_identifier(data, a, b)
                if value < 0:
                    fault = IDENTIFIER if value == -1 else IDENTIFIER_RANGE
                    break
                identifier[row] = value
                has_identifier = True
            elif key == _UPPER_D and has_timestamp and has_identifier:
                stated_length = read_length(data, a, b)
                if stated_length < 0:
                    fault = LENGTH
                    break
                fault, i = read_spaced_bytes(data, i, stated_length, payload[row])
                if fault == GOOD:
                    a, b = find_word(data, i)
                    length[row] = stated_length
                    fault = GOOD if a == b else MISMATCH
                break
        status[row] = SKIPPED if blank else judge_line_end(data, next_line, fault)
        i = next_line
        row += 1
