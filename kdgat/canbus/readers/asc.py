"""ASC, the log of Vector's tools as text: which numbers it is written in, and its rows.

Frames of a channel that is set up for CAN FD, and all other events, have lines of their own kinds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from kdgat.base.machine_code import njit
from kdgat.canbus.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES
from kdgat.canbus.readers.numbers import (
    Bytes,
    find_channel,
    find_next_line,
    find_word,
    is_same_word,
    is_word,
    judge_line_end,
    read_integer,
    read_number,
)
from kdgat.canbus.readers.rows import RowStatus

ASC_BASE = re.compile(r"base\s+(hex|dec)(?:\s+timestamps\s+(absolute|relative))?", re.IGNORECASE)
ASC_LINE = re.compile(r"\s*-?\d+[.,]\d+\s+((\d+\s+(\S+\s+(Tx|Rx)\s|ErrorFrame))|CAN(FD|XL)\s)", re.IGNORECASE)
_NAMED_LINE = re.compile(
    r"\s*-?\d+[.,]\d+\s+\d+\s+(?P<name>[a-z_]\S*)\s+[tr]x\s+[dr]\s(.*\sID = (?P<stated>\d+)x?\s*$)?", re.IGNORECASE
)
_HEX_IDENTIFIER = re.compile(r"([0-9a-f]+)x?", re.IGNORECASE)
_ZERO, _ONE, _LOWER_R, _LOWER_X, _SLASH = ord("0"), ord("1"), ord("r"), ord("x"), ord("/")
_LOWER_A, _LOWER_D, _LOWER_T, _LOWER_Z, _UNDERSCORE = ord("a"), ord("d"), ord("t"), ord("z"), ord("_")
_ERROR_FRAME_WORD = np.frombuffer(b"errorframe", dtype=np.uint8)
_CAN_FD_WORD = np.frombuffer(b"canfd", dtype=np.uint8)
_CAN_XL_WORD = np.frombuffer(b"canxl", dtype=np.uint8)
_IDENTIFIER_WORD = np.frombuffer(b"id", dtype=np.uint8)
_START_WORDS = np.frombuffer(b"startofmeasurement", dtype=np.uint8)
_LOWER_C, _LOWER_F, _EQUAL = ord("c"), ord("f"), ord("=")
_NOT_STATED = -3
_FD_FLAG, _REMOTE_FLAG = 0x1000, 0x10  # of the frame in a CANFD line of an ASC log


def find_asc_base(lines: Sequence[str]) -> tuple[int, bool]:
    """Return the base of the numbers in an ASC log, from its first lines, and whether its times are relative."""
    found = next((match for line in lines if (match := ASC_BASE.match(line.strip()))), None)
    if found is None:
        return 16, False
    base, timestamps = found[1].lower(), (found[2] or "").lower()
    return 10 if base == "dec" else 16, timestamps == "relative"


def has_names(lines: Sequence[str], base: int) -> bool:
    """Return whether an ASC log names messages instead of saying their ids, also where a name looks like a number."""
    for match in filter(None, map(_NAMED_LINE.match, lines)):
        number = _HEX_IDENTIFIER.fullmatch(match["name"]) if base == 16 else None
        if number is None or (match["stated"] and int(match["stated"]) != int(number[1], 16)):
            return True
    return False


@njit(cache=True, nogil=True)
def is_direction(data: Bytes, a: int, b: int) -> bool:
    """Distinguish `Rx` and `Tx` from others, for instance `TxRq`: asked to be sent, and not seen on the bus yet."""
    letter = data[a] | 32 if b - a == 2 else 0
    return (letter in (_LOWER_T, _LOWER_R)) and (data[a + 1] | 32) == _LOWER_X


@njit(cache=True, nogil=True)
def _asc_bytes(data: Bytes, i: int, num_bytes: int, base: int, payload: Bytes) -> tuple[int, int]:
    """Read bytes as numbers in a base; return a status and where reading ended."""
    for k in range(num_bytes):
        a, b = find_word(data, i)
        if a == b:
            return RowStatus.LENGTH_MISMATCH, b
        value = read_integer(data, a, b, base)
        if value < 0 or value > 255:
            return RowStatus.PAYLOAD_HEX, b
        payload[k] = value
        i = b
    return RowStatus.GOOD, i


@njit(cache=True, nogil=True)
def _asc_identifier(data: Bytes, a: int, b: int, base: int) -> int:
    """Read an arbitration id, which ends in x if it has 29 bits; -1 if it is no number, -2 if it is beyond 29 bits."""
    if b > a and (data[b - 1] | 32) == _LOWER_X:
        b -= 1
    value = read_integer(data, a, b, base)
    return -2 if value > MAX_IDENTIFIER else value


@njit(cache=True, nogil=True)
def _is_letter(byte: int) -> bool:
    return _LOWER_A <= byte | 32 <= _LOWER_Z or byte == _UNDERSCORE


@njit(cache=True, nogil=True)
def _stated_identifier(data: Bytes, i: int) -> int:
    """Read the number behind `ID = ` in the rest of a line, decimal in every log; -3 if there is none."""
    while True:
        a, b = find_word(data, i)
        if a == b:
            return _NOT_STATED
        i = b
        if is_word(data, a, b, _IDENTIFIER_WORD):
            c, d = find_word(data, b)
            if d - c == 1 and data[c] == _EQUAL:
                c, d = find_word(data, d)
                # Without an end of the line it may not be the whole number.
                return _NOT_STATED if d == len(data) else _asc_identifier(data, c, d, 10)


@njit(cache=True, nogil=True)
def _asc_classic(
    data: Bytes, i: int, base: int, is_named: bool, row: int, identifier: Any, payload: Any, length: Any
) -> int:
    """Parse `123  Rx   d 8 01 02 ...`, what follows the channel; the id may be a name, and its number at the end."""
    a, b = find_word(data, i)
    if a == b:
        return RowStatus.FIELDS
    if is_word(data, a, b, _ERROR_FRAME_WORD):
        return RowStatus.ERROR_FRAME
    c, d = find_word(data, b)
    if not is_direction(data, c, d):
        return RowStatus.FIELDS if c == d else RowStatus.EVENT  # `Statistic: D 0 R 0 ...` and other events
    value = _asc_identifier(data, a, b, base)
    if value == -1 or _is_letter(data[a]):
        stated = _stated_identifier(data, d)
        if stated != _NOT_STATED:
            value = stated
        elif _is_letter(data[a]) and (is_named or value == -1):
            return RowStatus.NAME
    if value < 0:
        return RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE
    identifier[row] = value
    a, b = find_word(data, d)
    if b - a != 1:
        return RowStatus.FIELDS
    if data[a] | 32 == _LOWER_R:
        return RowStatus.GOOD  # a remote frame carries no bytes
    if data[a] | 32 != _LOWER_D:
        return RowStatus.FIELDS
    a, b = find_word(data, b)
    if a == b:
        return RowStatus.FIELDS
    num_bytes = read_integer(data, a, b, base)
    if num_bytes < 0 or num_bytes > 15:
        return RowStatus.LENGTH
    num_bytes = min(num_bytes, MAX_PAYLOAD_BYTES)  # codes from 9 on mean 8 bytes
    fault, _ = _asc_bytes(data, b, num_bytes, base, payload[row])
    if fault == RowStatus.GOOD:
        length[row] = num_bytes
    return fault


@njit(cache=True, nogil=True)
def _behind_direction(data: Bytes, i: int) -> tuple[int, int, int]:
    """Find the word behind `Rx` or `Tx`, or what the line is instead; an error may stand on either side."""
    a, b = find_word(data, i)
    if is_word(data, a, b, _ERROR_FRAME_WORD):
        return RowStatus.ERROR_FRAME, a, b
    if not is_direction(data, a, b):
        return (RowStatus.FIELDS if a == b else RowStatus.EVENT), a, b
    a, b = find_word(data, b)
    return (RowStatus.ERROR_FRAME if is_word(data, a, b, _ERROR_FRAME_WORD) else RowStatus.GOOD), a, b


@njit(cache=True, nogil=True)
def _asc_long(data: Bytes, i: int, row: int, identifier: Any, payload: Any, length: Any) -> int:
    """Parse `Rx CBFF 230000 120 a1 Name 8 8 20 ... crc flags`, what follows the channel of a CANXL line.

    Frames of all kinds have such lines on a channel that is set up for CAN XL; the name may be left out.
    """
    fault, a, b = _behind_direction(data, i)
    if fault != RowStatus.GOOD:
        return fault
    if b - a != 4 or data[b - 1] | 32 != _LOWER_F or data[b - 2] | 32 != _LOWER_F:
        return RowStatus.FIELDS if a == b else RowStatus.EVENT
    if data[a] | 32 == _LOWER_X:
        return RowStatus.CAN_XL
    if data[a] | 32 == _LOWER_F:
        return RowStatus.CAN_FD
    if data[a] | 32 != _LOWER_C:
        return RowStatus.EVENT
    for _ in range(3):  # duration, number of bits, id
        a, b = find_word(data, b)
    value = _asc_identifier(data, a, b, 16)
    if value < 0:
        return RowStatus.FIELDS if a == b else RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE
    identifier[row] = value
    c, d = find_word(data, b)  # length code or name
    e, f = find_word(data, d)
    g, h = find_word(data, f)
    if d - c != 1 or read_integer(data, c, d, 16) < 0 or h - g == 1:  # bytes have two digits
        e, f = g, h
    num_bytes = read_integer(data, e, f, 10)
    if num_bytes < 0 or num_bytes > MAX_PAYLOAD_BYTES:
        return RowStatus.FIELDS if e == f else RowStatus.LENGTH
    fault, i = _asc_bytes(data, f, num_bytes, 16, payload[row])
    a, b = find_word(data, i)  # checksum
    a, b = find_word(data, b)
    flags = read_integer(data, a, b, 16)
    if fault == RowStatus.GOOD and flags < 0:
        return RowStatus.FIELDS if a == b else RowStatus.PAYLOAD_HEX
    if fault == RowStatus.GOOD and not flags & _REMOTE_FLAG:
        length[row] = num_bytes
    return fault


@njit(cache=True, nogil=True)
def _asc_flexible(data: Bytes, i: int, base: int, row: int, identifier: Any, payload: Any, length: Any) -> int:
    """Parse `Rx 123 Name 1 0 8 8 01 02 ... 0 0 flags`, what follows the channel of a CANFD line.

    Classic frames on a channel that is set up for CAN FD have such lines, too, with other flags.
    """
    fault, a, b = _behind_direction(data, i)
    if fault != RowStatus.GOOD:
        return fault
    value = _asc_identifier(data, a, b, base)
    if value < 0:
        return RowStatus.FIELDS if a == b else RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE
    identifier[row] = value
    a, b = find_word(data, b)
    if b - a != 1 or not (_ZERO <= data[a] <= _ONE):
        a, b = find_word(data, b)  # behind a symbolic name: bit rate switch
    for _ in range(3):  # error state, data length code, number of bytes
        a, b = find_word(data, b)
    num_bytes = read_integer(data, a, b, 10)
    if num_bytes < 0:
        return RowStatus.FIELDS if a == b else RowStatus.LENGTH
    bytes_start = b
    for _ in range(num_bytes + 3):  # the bytes, duration and length of the frame, flags
        a, b = find_word(data, b)
    flags = read_integer(data, a, b, 16)
    if flags < 0 or flags & _FD_FLAG:
        return RowStatus.CAN_FD
    if flags & _REMOTE_FLAG:
        return RowStatus.GOOD
    if num_bytes > MAX_PAYLOAD_BYTES:
        return RowStatus.CAN_FD  # whatever its flags say
    fault, _ = _asc_bytes(data, bytes_start, num_bytes, base, payload[row])
    if fault == RowStatus.GOOD:
        length[row] = num_bytes
    return fault


@njit(cache=True, nogil=True)
def _is_start(data: Bytes, a: int, b: int) -> bool:
    """Return whether a line says no more than `Start of measurement`, as every log does."""
    place = 0
    while a < b:
        if place + b - a > len(_START_WORDS) or not is_word(data, a, b, _START_WORDS[place : place + b - a]):
            return False
        place += b - a
        a, b = find_word(data, b)
    return place == len(_START_WORDS)


@njit(cache=True, nogil=True)
def parse_asc(
    data: Bytes,
    start: int,
    base: int,
    is_relative: bool,
    is_named: bool,
    clock: float,
    names: Any,
    timestamp: Any,
    identifier: Any,
    payload: Any,
    length: Any,
    channel: Any,
    status: Any,
) -> tuple[int, float]:
    """Parse `   0.015991 1  123             Rx   d 8 01 02 03 04 05 06 07 08`; other events are passed over.

    With `is_relative` every line counts its seconds from the line before; `clock` is the time of the last one. With
    `is_named` a word that could be a number is a name, where it begins with a letter.
    Return the number of channel names, as `parse_candump` does, and the clock.
    """
    i = start
    row = 0
    num_names, last, last_start, last_end = 0, 0, 0, 0
    while i < len(data):
        next_line = find_next_line(data, i)
        fault: int = RowStatus.SKIPPED
        a, b = find_word(data, i)
        # Header, comments and trigger blocks begin with a letter or a slash.
        if a < b and not (_LOWER_A <= data[a] | 32 <= _LOWER_Z) and data[a] != _SLASH:
            seconds = read_number(data, a, b)
            if np.isfinite(seconds):
                if is_relative:
                    clock += seconds
                    seconds = clock
                timestamp[row] = seconds
                a, b = find_word(data, b)
                is_flexible = is_word(data, a, b, _CAN_FD_WORD)
                is_long = is_word(data, a, b, _CAN_XL_WORD)
                if is_flexible or is_long:
                    a, b = find_word(data, b)
                if a == b:
                    fault = RowStatus.FIELDS
                elif read_integer(data, a, b, 10) < 0:
                    fault = RowStatus.SKIPPED if _is_start(data, a, b) else RowStatus.EVENT
                else:
                    if is_flexible:
                        fault = _asc_flexible(data, b, base, row, identifier, payload, length)
                    elif is_long:
                        fault = _asc_long(data, b, row, identifier, payload, length)
                    else:
                        fault = _asc_classic(data, b, base, is_named, row, identifier, payload, length)
                    if fault == RowStatus.GOOD or fault > RowStatus.EVENT:
                        if not is_same_word(data, a, b, last_start, last_end):
                            last = find_channel(data, a, b, names, num_names)
                            num_names = max(num_names, last + 1)
                            last_start, last_end = a, b
                        channel[row] = last
            else:
                fault = RowStatus.TIMESTAMP
        status[row] = judge_line_end(data, next_line, fault)
        i = next_line
        row += 1
    return num_names, clock
