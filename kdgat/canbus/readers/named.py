"""Lines whose numbers have names: HCRL's attack-free recordings, and messages that python-can has printed."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdgat.base.machine_code import njit
from kdgat.canbus.readers.numbers import (
    Bytes,
    find_channel,
    find_next_line,
    find_word,
    is_same_word,
    is_word,
    judge_line_end,
    read_identifier,
    read_length,
    read_number,
    read_spaced_bytes,
)
from kdgat.canbus.readers.rows import RowStatus

_UPPER_D, _UPPER_E, _UPPER_F, _UPPER_I = ord("D"), ord("E"), ord("F"), ord("I")
_UPPER_R, _UPPER_T, _ONE, _COLON, _QUOTE = ord("R"), ord("T"), ord("1"), ord(":"), ord("'")
_CONNECTED_WORD, _CAN_WORD = np.frombuffer(b"connected", dtype=np.uint8), np.frombuffer(b"can", dtype=np.uint8)
_CHANNEL_WORD = np.frombuffer(b"channel:", dtype=np.uint8)


@njit(cache=True, nogil=True)
def _printed_channel(data: Bytes, i: int, has_bytes: bool) -> tuple[int, int]:
    """Find the name behind `Channel:`, empty if there is none; -1 for a word that is neither its nor the bytes' text.

    With `has_bytes` the bytes stand before it, too.
    """
    while True:
        a, b = find_word(data, i)
        if a == b:
            return a, b
        if is_word(data, a, b, _CHANNEL_WORD):
            return find_word(data, b)
        if not has_bytes and data[a] != _QUOTE:
            return -1, -1
        i = b


@njit(cache=True, nogil=True)
def parse_named(
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
    """Parse `Timestamp: 1479121434.850202  ID: 0350  000  DLC: 8  05 28 ...`, the attack-free HCRL form.

    python-can prints the same with flags of its own, `S Rx E R F`, and the channel behind the bytes. Return the number
    of channel names, as `parse_candump` does.
    """
    i = start
    row = 0
    num_names, last, last_start, last_end = 0, 0, 0, 0
    while i < len(data):
        next_line = find_next_line(data, i)
        fault: int = RowStatus.FIELDS
        blank = True
        kind: int = RowStatus.GOOD
        is_remote = False
        has_timestamp, has_identifier = False, False
        while True:
            a, b = find_word(data, i)
            i = b
            if a == b:
                break
            if blank and (is_word(data, a, b, _CONNECTED_WORD) or is_word(data, a, b, _CAN_WORD)):
                break  # python-can's logger names the bus and the time at which it starts
            blank = False
            if data[b - 1] != _COLON:  # a flag between id and length
                if b - a == 1 and data[a] == _UPPER_E:
                    kind = RowStatus.ERROR_FRAME
                elif b - a == 1 and data[a] == _UPPER_F and kind == RowStatus.GOOD:
                    kind = RowStatus.CAN_FD
                elif (b - a == 1 and data[a] == _UPPER_R) or (b - a == 3 and data[a] == _ONE):
                    is_remote = True
                continue
            key = data[a]
            a, b = find_word(data, i)
            i = b
            if key == _UPPER_T:
                timestamp[row] = read_number(data, a, b)
                if not np.isfinite(timestamp[row]):
                    fault = RowStatus.TIMESTAMP
                    break
                has_timestamp = True
            elif key == _UPPER_I:
                value = read_identifier(data, a, b)
                if value < 0:
                    fault = RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE
                    break
                identifier[row] = value
                has_identifier = True
            elif key == _UPPER_D and has_timestamp and has_identifier:
                stated_length = read_length(data, a, b)
                if kind != RowStatus.GOOD:
                    fault = kind if a < b else RowStatus.FIELDS
                elif stated_length < 0:
                    fault = RowStatus.LENGTH
                else:
                    a, b = find_word(data, i)
                    if is_remote and (a == b or data[b - 1] == _COLON):  # it asks for so many bytes, and has none
                        stated_length = 0
                    fault, i = read_spaced_bytes(data, i, stated_length, payload[row])
                    if fault == RowStatus.GOOD:
                        length[row] = stated_length
                if fault not in (RowStatus.GOOD, RowStatus.CAN_FD, RowStatus.ERROR_FRAME):
                    break
                name_start, name_end = _printed_channel(data, i, kind != RowStatus.GOOD)
                if name_start < 0:
                    fault = RowStatus.LENGTH_MISMATCH
                elif name_start < name_end:
                    if not is_same_word(data, name_start, name_end, last_start, last_end):
                        last = find_channel(data, name_start, name_end, names, num_names)
                        num_names = max(num_names, last + 1)
                        last_start, last_end = name_start, name_end
                    channel[row] = last
                break
        status[row] = RowStatus.SKIPPED if blank else judge_line_end(data, next_line, fault)
        i = next_line
        row += 1
    return num_names
