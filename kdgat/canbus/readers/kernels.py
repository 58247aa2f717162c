"""Compiled parsers of text recordings: one pass over the bytes of a file, one row per line.

Each kernel fills preallocated columns, one entry per line, and a status per line (`RowStatus`): the first fault of
the line from left to right. They stay in one file: numba's cache of a function does not see changes in other files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES
from kdgat.canbus.readers.rows import MAX_CHANNELS, NO_CHANNEL, RowStatus

# Plain integers, because compiled code takes module constants but no enum of ours.
_GOOD, _SKIPPED = int(RowStatus.GOOD), int(RowStatus.SKIPPED)
_TIMESTAMP, _IDENTIFIER, _IDENTIFIER_RANGE = (
    int(RowStatus.TIMESTAMP),
    int(RowStatus.IDENTIFIER),
    int(RowStatus.IDENTIFIER_RANGE),
)
_ODD, _HEX, _LONG = int(RowStatus.PAYLOAD_ODD), int(RowStatus.PAYLOAD_HEX), int(RowStatus.PAYLOAD_LONG)
_MISMATCH, _LABEL, _FIELDS = int(RowStatus.LENGTH_MISMATCH), int(RowStatus.LABEL), int(RowStatus.FIELDS)
_TRUNCATED, _CAN_FD, _LENGTH, _TRAILING = (
    int(RowStatus.TRUNCATED),
    int(RowStatus.CAN_FD),
    int(RowStatus.LENGTH),
    int(RowStatus.TRAILING),
)
_ERROR_FRAME = int(RowStatus.ERROR_FRAME)

(
    ROLE_IGNORED,
    ROLE_TIMESTAMP,
    ROLE_IDENTIFIER,
    ROLE_PAYLOAD,
    ROLE_LABEL,
    ROLE_LENGTH,
    ROLE_BYTE,
    ROLE_BYTES,
) = range(8)
"""What a CSV column holds. ROLE_BYTE is one byte at a fixed column, empty or 0 behind the payload. From ROLE_BYTES on,
a line holds as many bytes as its length says and then the label, wherever that comes to stand."""

(
    TRACE_IGNORED,
    TRACE_TIME,
    TRACE_TYPE,
    TRACE_CHANNEL,
    TRACE_IDENTIFIER,
    TRACE_LENGTH,
    TRACE_DATA,
) = range(7)
"""What a column of a PEAK trace holds; TRACE_DATA is the last one and goes on to the end of the line."""

_NEWLINE, _SPACE, _QUOTE, _COMMENT, _DOT = ord("\n"), ord(" "), ord('"'), ord("#"), ord(".")
_OPEN, _CLOSE, _OPEN_SQUARE, _CLOSE_SQUARE = ord("("), ord(")"), ord("["), ord("]")
_ZERO, _ONE, _NINE, _PLUS, _MINUS = ord("0"), ord("1"), ord("9"), ord("+"), ord("-")
_UPPER_E, _LOWER_E, _UPPER_R, _LOWER_R, _UPPER_T, _LOWER_X = (ord(c) for c in "EeRrTx")
_UPPER_D, _UPPER_I, _UPPER_F, _COLON = ord("D"), ord("I"), ord("F"), ord(":")
_LOWER_A, _LOWER_B, _LOWER_D, _LOWER_F, _LOWER_I, _LOWER_T, _LOWER_Z = (ord(c) for c in "abdfitz")
_SLASH, _SEMICOLON = ord("/"), ord(";")
_ERROR_FRAME_WORD = np.frombuffer(b"errorframe", dtype=np.uint8)
_CAN_FD_WORD = np.frombuffer(b"canfd", dtype=np.uint8)
_ERROR_FLAG = 0x20000000  # of SocketCAN: bit 29 of an id marks an error frame
_FD_FLAG, _REMOTE_FLAG = 0x1000, 0x10  # of the frame in a CANFD line of an ASC log

_HEX_VALUE = np.full(256, 255, dtype=np.uint8)
for _digit, _letter in enumerate("0123456789abcdef"):
    _HEX_VALUE[[ord(_letter), ord(_letter.upper())]] = _digit
_POWERS = 10.0 ** np.arange(23)  # exact as float64 up to 1e22
_INTEGER_POWERS = 10 ** np.arange(19, dtype=np.int64)
_MAX_EXACT_INTEGER = 1 << 53

Bytes = NDArray[np.uint8]


@njit(cache=True, nogil=True)
def count_lines(data: Bytes, start: int) -> int:
    """Count the lines from `start` on; the last one may lack its newline."""
    num_lines = 0
    for i in range(start, len(data)):
        if data[i] == _NEWLINE:
            num_lines += 1
    if len(data) > start and data[len(data) - 1] != _NEWLINE:
        num_lines += 1
    return num_lines


@njit(cache=True, nogil=True)
def _number(data: Bytes, a: int, b: int) -> float:
    """Read a decimal number, NaN if it is none; equal to the nearest float64 for up to 15 decimals."""
    negative = False
    if a < b and (data[a] == _MINUS or data[a] == _PLUS):
        negative = data[a] == _MINUS
        a += 1
    mantissa = np.int64(0)
    num_digits, num_decimals, num_read = 0, 0, 0
    in_fraction = False
    while a < b:
        byte = data[a]
        if _ZERO <= byte <= _NINE:
            num_read += 1
            if num_digits < 18:
                mantissa = mantissa * 10 + (byte - _ZERO)
                if mantissa > 0:
                    num_digits += 1
                if in_fraction:
                    num_decimals += 1
            elif not in_fraction:
                num_decimals -= 1  # one more whole digit than is kept
        elif byte == _DOT and not in_fraction:
            in_fraction = True
        else:
            break
        a += 1
    if num_read == 0:
        return np.nan
    if a < b:
        if data[a] != _LOWER_E and data[a] != _UPPER_E:
            return np.nan
        a += 1
        exponent_sign = 1
        if a < b and (data[a] == _MINUS or data[a] == _PLUS):
            exponent_sign = -1 if data[a] == _MINUS else 1
            a += 1
        exponent = 0
        if a >= b:
            return np.nan
        while a < b:
            if not (_ZERO <= data[a] <= _NINE):
                return np.nan
            exponent = min(exponent * 10 + (data[a] - _ZERO), 1000)  # far beyond what is accepted below
            a += 1
        num_decimals -= exponent_sign * exponent
    if num_decimals < -22 or num_decimals > 22:
        return np.nan
    if num_decimals <= 0:
        value = np.float64(mantissa) * _POWERS[-num_decimals]
    elif mantissa <= _MAX_EXACT_INTEGER or num_decimals > 18:
        value = np.float64(mantissa) / _POWERS[num_decimals]
    else:
        # More digits than float64 holds: whole and fraction apart keep the rounding at the last bit of the sum.
        whole = mantissa // _INTEGER_POWERS[num_decimals]
        fraction = mantissa - whole * _INTEGER_POWERS[num_decimals]
        value = np.float64(whole) + np.float64(fraction) / _POWERS[num_decimals]
    return -value if negative else value


@njit(cache=True, nogil=True)
def _hex_identifier(data: Bytes, a: int, b: int) -> int:
    """Read an arbitration id, -1 if it is no hex number, -2 if it is beyond 29 bits."""
    if b - a > 2 and data[a] == _ZERO and (data[a + 1] | 32) == _LOWER_X:
        a += 2
    if a >= b:
        return -1
    value = 0
    too_large = False
    for i in range(a, b):
        digit = _HEX_VALUE[data[i]]
        if digit > 15:
            return -1
        value = (value << 4) | int(digit)
        if value > MAX_IDENTIFIER:
            too_large = True
            value = MAX_IDENTIFIER + 1
    return -2 if too_large else value


@njit(cache=True, nogil=True)
def _hex_payload(data: Bytes, a: int, b: int, payload: Bytes) -> int:
    """Decode hex text, spaces and dots between bytes allowed, into `payload`; a negative status if it is none."""
    count = 0
    i = a
    while i < b:
        if data[i] == _SPACE or data[i] == _DOT:
            i += 1
            continue
        high = _HEX_VALUE[data[i]]
        if high > 15:
            return -_HEX
        if i + 1 >= b or data[i + 1] == _SPACE or data[i + 1] == _DOT:
            return -_ODD
        low = _HEX_VALUE[data[i + 1]]
        if low > 15:
            return -_HEX
        if count == MAX_PAYLOAD_BYTES:
            return -_LONG
        payload[count] = (high << 4) | low
        count += 1
        i += 2
    return count


@njit(cache=True, nogil=True)
def _label_value(data: Bytes, a: int, b: int) -> int:
    """Read a label, -1 if it is none of 0, 1, R (regular), T (injected)."""
    if b - a != 1:
        return -1
    if data[a] == _ZERO or data[a] == _UPPER_R:
        return 0
    if data[a] == _ONE or data[a] == _UPPER_T:
        return 1
    return -1


@njit(cache=True, nogil=True)
def _length_value(data: Bytes, a: int, b: int) -> int:
    if b - a == 1 and _ZERO <= data[a] <= _ZERO + MAX_PAYLOAD_BYTES:
        return data[a] - _ZERO
    return -1


@njit(cache=True, nogil=True)
def parse_separated(
    data: Bytes,
    start: int,
    separator: int,
    roles: Any,  # [columns] ROLE_*
    labelled: bool,
    timestamp: Any,
    identifier: Any,
    payload: Any,
    length: Any,
    label: Any,
    status: Any,
) -> None:
    """Parse lines of separated fields. Columns of the outputs are [lines], payload [lines, 8] and zero."""
    end = len(data)
    num_roles = len(roles)
    variable = roles[num_roles - 1] == ROLE_BYTES
    num_required = 0
    for k in range(num_roles):
        if roles[k] != ROLE_IGNORED:
            num_required = k + 1
    i = start
    row = 0
    while i < end:
        column = 0
        fault = _GOOD
        stated_length = -1
        count = 0
        has_label = False
        blank = False
        while True:
            a = i
            while i < end and data[i] != separator and data[i] != _NEWLINE:
                i += 1
            b = i
            while a < b and (data[a] <= _SPACE or data[a] == _QUOTE):
                a += 1
            while b > a and (data[b - 1] <= _SPACE or data[b - 1] == _QUOTE):
                b -= 1
            last = i >= end or data[i] == _NEWLINE
            if last and column == 0 and a == b:
                blank = True
            elif fault == _GOOD:
                if column < num_roles:
                    role = roles[column]
                elif variable:
                    role = ROLE_BYTES
                else:
                    role = -1
                if role == ROLE_TIMESTAMP:
                    timestamp[row] = _number(data, a, b)
                    if not np.isfinite(timestamp[row]):
                        fault = _TIMESTAMP
                elif role == ROLE_IDENTIFIER:
                    value = _hex_identifier(data, a, b)
                    if value < 0:
                        fault = _IDENTIFIER if value == -1 else _IDENTIFIER_RANGE
                    else:
                        identifier[row] = value
                elif role == ROLE_PAYLOAD:
                    count = _hex_payload(data, a, b, payload[row])
                    if count < 0:
                        fault = -count
                elif role == ROLE_LENGTH:
                    stated_length = _length_value(data, a, b)
                    if stated_length < 0:
                        fault = _LENGTH
                elif role == ROLE_LABEL:
                    value = _label_value(data, a, b)
                    if value < 0:
                        fault = _LABEL
                    else:
                        label[row] = value
                        has_label = True
                elif role == ROLE_BYTE:
                    high = _HEX_VALUE[data[a]] if a < b else 0
                    low = _HEX_VALUE[data[b - 1]] if a < b else 0
                    if a == b:
                        pass  # padding behind the last byte
                    elif b - a > 2 or high > 15 or low > 15:
                        fault = _HEX
                    elif count == MAX_PAYLOAD_BYTES:
                        fault = _LONG
                    elif 0 <= stated_length <= count:
                        if high != 0 or low != 0:
                            fault = _MISMATCH
                    else:
                        payload[row, count] = low if b - a == 1 else (high << 4) | low
                        count += 1
                elif role == ROLE_BYTES:
                    if a == b:
                        pass  # padding between the last byte and the label, or behind it
                    elif count < stated_length:
                        high = _HEX_VALUE[data[a]]
                        low = _HEX_VALUE[data[b - 1]]
                        if b - a > 2 or high > 15 or low > 15:
                            fault = _MISMATCH if _label_value(data, a, b) >= 0 else _HEX
                        else:
                            payload[row, count] = low if b - a == 1 else (high << 4) | low
                            count += 1
                    elif labelled and not has_label:
                        value = _label_value(data, a, b)
                        if value >= 0:
                            label[row] = value
                            has_label = True
                        elif b - a == 2 and _HEX_VALUE[data[a]] < 16 and _HEX_VALUE[data[a + 1]] < 16:
                            fault = _MISMATCH
                        else:
                            fault = _LABEL
                    else:
                        fault = _TRAILING if has_label else _MISMATCH
                elif role == -1 and a < b:
                    fault = _TRAILING
            i += 1
            column += 1
            if last:
                break
        if blank:
            status[row] = _SKIPPED
            row += 1
            continue
        if fault == _GOOD:
            if column < num_required and not (variable and column == num_roles - 1):
                fault = _FIELDS
            elif stated_length >= 0 and count != stated_length:
                fault = _MISMATCH
            elif labelled and not has_label:
                fault = _FIELDS
        cut_off = i > end  # no newline behind the last line
        if cut_off and fault in (_FIELDS, _MISMATCH, _ODD, _LABEL):
            fault = _TRUNCATED
        status[row] = fault
        if fault == _GOOD:
            length[row] = count
        row += 1


@njit(cache=True, nogil=True)
def _word(data: Bytes, i: int) -> tuple[int, int]:
    """Find the next word of the line: start and end, equal at the end of the line."""
    end = len(data)
    while i < end and data[i] != _NEWLINE and data[i] <= _SPACE:
        i += 1
    a = i
    while i < end and data[i] > _SPACE:
        i += 1
    return a, i


@njit(cache=True, nogil=True)
def _next_line(data: Bytes, i: int) -> int:
    end = len(data)
    while i < end and data[i] != _NEWLINE:
        i += 1
    return i + 1


@njit(cache=True, nogil=True)
def _spaced_bytes(data: Bytes, i: int, stated_length: int, payload: Bytes) -> tuple[int, int]:
    """Read `stated_length` bytes of two digits each; return a status and where reading ended."""
    for k in range(stated_length):
        a, b = _word(data, i)
        if a == b:
            return _MISMATCH, b
        high, low = _HEX_VALUE[data[a]], _HEX_VALUE[data[b - 1]]
        if b - a != 2 or high > 15 or low > 15:
            return _ODD if b - a == 1 and high < 16 else _HEX, b
        payload[k] = (high << 4) | low
        i = b
    return _GOOD, i


@njit(cache=True, nogil=True)
def _cut_off(data: Bytes, next_line: int, fault: int) -> int:
    if next_line > len(data) and fault in (_FIELDS, _MISMATCH, _ODD):
        return _TRUNCATED
    return fault


@njit(cache=True, nogil=True)
def parse_named(
    data: Bytes, start: int, timestamp: Any, identifier: Any, payload: Any, length: Any, status: Any
) -> None:
    """Parse `Timestamp: 1479121434.850202  ID: 0350  000  DLC: 8  05 28 ...`, the attack-free HCRL form."""
    i = start
    row = 0
    while i < len(data):
        next_line = _next_line(data, i)
        fault = _FIELDS
        blank = True
        has_timestamp, has_identifier = False, False
        while True:
            a, b = _word(data, i)
            i = b
            if a == b:
                break
            blank = False
            if data[b - 1] != _COLON:
                continue  # the remote flag between id and length
            key = data[a]
            a, b = _word(data, i)
            i = b
            if key == _UPPER_T:
                timestamp[row] = _number(data, a, b)
                if not np.isfinite(timestamp[row]):
                    fault = _TIMESTAMP
                    break
                has_timestamp = True
            elif key == _UPPER_I:
                value = _hex_identifier(data, a, b)
                if value < 0:
                    fault = _IDENTIFIER if value == -1 else _IDENTIFIER_RANGE
                    break
                identifier[row] = value
                has_identifier = True
            elif key == _UPPER_D and has_timestamp and has_identifier:
                stated_length = _length_value(data, a, b)
                if stated_length < 0:
                    fault = _LENGTH
                    break
                fault, i = _spaced_bytes(data, i, stated_length, payload[row])
                if fault == _GOOD:
                    a, b = _word(data, i)
                    length[row] = stated_length
                    fault = _GOOD if a == b else _MISMATCH
                break
        status[row] = _SKIPPED if blank else _cut_off(data, next_line, fault)
        i = next_line
        row += 1


@njit(cache=True, nogil=True)
def _channel(data: Bytes, a: int, b: int, names: Any, num_names: int) -> int:
    """Find the name of a channel among those seen, or enter it; return its index.

    The last index that there is stands for all further names.
    """
    for k in range(num_names):
        if _is_same(data, a, b, names[k, 0], names[k, 1]):
            return k
    if num_names == MAX_CHANNELS:
        return num_names - 1
    names[num_names, 0], names[num_names, 1] = a, b
    return num_names


@njit(cache=True, nogil=True)
def _is_same(data: Bytes, a: int, b: int, c: int, d: int) -> bool:
    """Tell whether two words are the same."""
    if b - a != d - c:
        return False
    for i in range(b - a):  # noqa: SIM110 - compiled code knows no generators
        if data[a + i] != data[c + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def _is_error_frame(data: Bytes, a: int, b: int) -> bool:
    """Tell whether an id of eight digits, too large for one, carries the flag of SocketCAN's error frames alone."""
    if b - a != 8:
        return False
    value = 0
    for i in range(a, b):
        value = (value << 4) | int(_HEX_VALUE[data[i]])
    return value & 0xE0000000 == _ERROR_FLAG


@njit(cache=True, nogil=True)
def _log_frame(data: Bytes, a: int, b: int, row: int, identifier: Any, payload: Any, length: Any) -> int:
    """Parse `044#2A366C2BBA`; a remote frame `044#R` carries no bytes."""
    mark = a
    while mark < b and data[mark] != _COMMENT:
        mark += 1
    if mark == b:
        return _FIELDS
    value = _hex_identifier(data, a, mark)
    if value < 0:
        if value == -2 and _is_error_frame(data, a, mark):
            return _ERROR_FRAME
        return _IDENTIFIER if value == -1 else _IDENTIFIER_RANGE
    identifier[row] = value
    if mark + 1 < b and data[mark + 1] == _COMMENT:
        return _CAN_FD
    if mark + 1 < b and data[mark + 1] == _UPPER_R:
        return _GOOD
    count = _hex_payload(data, mark + 1, b, payload[row])
    if count < 0:
        return -count
    length[row] = count
    return _GOOD


@njit(cache=True, nogil=True)
def _screen_frame(data: Bytes, a: int, b: int, row: int, identifier: Any, payload: Any, length: Any) -> tuple[int, int]:
    """Parse `044   [5]  2A 36 6C 2B BA` from the id on; words between interface and id (`RX - -`) are passed over."""
    id_start, id_end = a, b
    while True:
        a, b = _word(data, b)
        if a == b:
            return _FIELDS, b
        if data[a] == _OPEN_SQUARE:
            break
        id_start, id_end = a, b
    value = _hex_identifier(data, id_start, id_end)
    if value < 0:
        if value == -2 and _is_error_frame(data, id_start, id_end):
            return _ERROR_FRAME, b
        return (_IDENTIFIER if value == -1 else _IDENTIFIER_RANGE), b
    identifier[row] = value
    if data[b - 1] != _CLOSE_SQUARE:
        return _LENGTH, b
    if b - a == 4:  # two digits: candump prints those for CAN FD only
        return _CAN_FD, b
    stated_length = _length_value(data, a + 1, b - 1)
    if stated_length < 0:
        return _LENGTH, b
    word_start, word_end = _word(data, b)
    if word_end > word_start and data[word_start] == _LOWER_R:  # "remote request"
        return _GOOD, word_end
    fault, i = _spaced_bytes(data, b, stated_length, payload[row])
    if fault == _GOOD:
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

    Where the names of channels stand is entered in `names` [MAX_CHANNELS, 2]; return how many there are.
    """
    i = start
    row = 0
    num_names, last, last_start, last_end = 0, 0, 0, 0
    while i < len(data):
        next_line = _next_line(data, i)
        a, b = _word(data, i)
        if a == b:
            status[row] = _SKIPPED
            i = next_line
            row += 1
            continue
        fault = _GOOD
        if data[a] != _OPEN or data[b - 1] != _CLOSE:
            fault = _TIMESTAMP
        else:
            timestamp[row] = _number(data, a + 1, b - 1)
            if not np.isfinite(timestamp[row]):
                fault = _TIMESTAMP
        channel[row] = NO_CHANNEL
        if fault == _GOOD:
            a, b = _word(data, b)
            name_start, name_end = a, b
            a, b = _word(data, b)
            if a == b:
                fault = _FIELDS
            else:
                is_log = False
                for k in range(a, b):
                    if data[k] == _COMMENT:
                        is_log = True
                if is_log:
                    fault = _log_frame(data, a, b, row, identifier, payload, length)
                else:
                    fault, _ = _screen_frame(data, a, b, row, identifier, payload, length)
                if fault in (_GOOD, _CAN_FD, _ERROR_FRAME):  # a damaged name is no channel
                    if not _is_same(data, name_start, name_end, last_start, last_end):
                        last = _channel(data, name_start, name_end, names, num_names)
                        num_names = max(num_names, last + 1)
                        last_start, last_end = name_start, name_end
                    channel[row] = last
        status[row] = _cut_off(data, next_line, fault)
        i = next_line
        row += 1
    return num_names


@njit(cache=True, nogil=True)
def _is_word(data: Bytes, a: int, b: int, word: Bytes) -> bool:
    """Compare with a word of small letters, without case."""
    if b - a != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110 - compiled code knows no generators
        if data[a + i] | 32 != word[i]:
            return False
    return True


@njit(cache=True, nogil=True)
def _integer(data: Bytes, a: int, b: int, base: int) -> int:
    """Read a whole number of at most ten digits in base 10 or 16, -1 if it is none."""
    if a >= b or b - a > 10:
        return -1
    value = 0
    for i in range(a, b):
        digit = _HEX_VALUE[data[i]]
        if digit >= base:
            return -1
        value = value * base + int(digit)
    return value


@njit(cache=True, nogil=True)
def _asc_bytes(data: Bytes, i: int, num_bytes: int, base: int, payload: Bytes) -> tuple[int, int]:
    """Read bytes as numbers in a base; return a status and where reading ended."""
    for k in range(num_bytes):
        a, b = _word(data, i)
        if a == b:
            return _MISMATCH, b
        value = _integer(data, a, b, base)
        if value < 0 or value > 255:
            return _HEX, b
        payload[k] = value
        i = b
    return _GOOD, i


@njit(cache=True, nogil=True)
def _asc_identifier(data: Bytes, a: int, b: int, base: int) -> int:
    """Read an arbitration id, which ends in x if it has 29 bits; -1 if it is no number, -2 if it is beyond 29 bits."""
    if b > a and (data[b - 1] | 32) == _LOWER_X:
        b -= 1
    value = _integer(data, a, b, base)
    return -2 if value > MAX_IDENTIFIER else value


@njit(cache=True, nogil=True)
def _is_direction(data: Bytes, a: int, b: int) -> bool:
    """Tell `Rx` and `Tx` from others, for instance `TxRq`: asked to be sent, and not seen on the bus yet."""
    letter = data[a] | 32 if b - a == 2 else 0
    return (letter in (_LOWER_T, _LOWER_R)) and (data[a + 1] | 32) == _LOWER_X


@njit(cache=True, nogil=True)
def _asc_classic(data: Bytes, i: int, base: int, row: int, identifier: Any, payload: Any, length: Any) -> int:
    """Parse `123  Rx   d 8 01 02 ...`, what follows the channel."""
    a, b = _word(data, i)
    if a == b:
        return _FIELDS
    if _is_word(data, a, b, _ERROR_FRAME_WORD):
        return _ERROR_FRAME
    c, d = _word(data, b)
    if not _is_direction(data, c, d):
        return _FIELDS if c == d else _SKIPPED  # `Statistic: D 0 R 0 ...` and other events
    value = _asc_identifier(data, a, b, base)
    if value < 0:
        return _IDENTIFIER if value == -1 else _IDENTIFIER_RANGE
    identifier[row] = value
    a, b = _word(data, d)
    if b - a != 1:
        return _FIELDS
    if data[a] | 32 == _LOWER_R:
        return _GOOD  # a remote frame carries no bytes
    if data[a] | 32 != _LOWER_D:
        return _FIELDS
    a, b = _word(data, b)
    if a == b:
        return _FIELDS
    num_bytes = _integer(data, a, b, base)
    if num_bytes < 0 or num_bytes > 15:
        return _LENGTH
    num_bytes = min(num_bytes, MAX_PAYLOAD_BYTES)  # codes from 9 on mean 8 bytes
    fault, _ = _asc_bytes(data, b, num_bytes, base, payload[row])
    if fault == _GOOD:
        length[row] = num_bytes
    return fault


@njit(cache=True, nogil=True)
def _asc_flexible(data: Bytes, i: int, base: int, row: int, identifier: Any, payload: Any, length: Any) -> int:
    """Parse `Rx 123 Name 1 0 8 8 01 02 ... 0 0 flags`, what follows the channel of a CANFD line.

    Classic frames on a channel that is set up for CAN FD stand in such lines, too: their flags tell.
    """
    a, b = _word(data, i)
    if _is_word(data, a, b, _ERROR_FRAME_WORD):
        return _ERROR_FRAME
    if not _is_direction(data, a, b):
        return _FIELDS if a == b else _SKIPPED
    a, b = _word(data, b)
    if _is_word(data, a, b, _ERROR_FRAME_WORD):
        return _ERROR_FRAME
    value = _asc_identifier(data, a, b, base)
    if value < 0:
        return _FIELDS if a == b else _IDENTIFIER if value == -1 else _IDENTIFIER_RANGE
    identifier[row] = value
    a, b = _word(data, b)
    if b - a != 1 or not (_ZERO <= data[a] <= _ONE):
        a, b = _word(data, b)  # behind a symbolic name: bit rate switch
    for _ in range(3):  # error state, data length code, number of bytes
        a, b = _word(data, b)
    num_bytes = _integer(data, a, b, 10)
    if num_bytes < 0:
        return _FIELDS if a == b else _LENGTH
    bytes_start = b
    for _ in range(num_bytes + 3):  # the bytes, duration and length of the frame, flags
        a, b = _word(data, b)
    flags = _integer(data, a, b, 16)
    if flags < 0 or flags & _FD_FLAG:
        return _CAN_FD
    if flags & _REMOTE_FLAG:
        return _GOOD
    if num_bytes > MAX_PAYLOAD_BYTES:
        return _LENGTH
    fault, _ = _asc_bytes(data, bytes_start, num_bytes, base, payload[row])
    if fault == _GOOD:
        length[row] = num_bytes
    return fault


@njit(cache=True, nogil=True)
def parse_asc(
    data: Bytes,
    start: int,
    base: int,
    is_relative: bool,
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

    With `is_relative` every line counts its seconds from the line before; `clock` is where the last one stood.
    Return the number of channel names, as `parse_candump` does, and the clock.
    """
    i = start
    row = 0
    num_names, last, last_start, last_end = 0, 0, 0, 0
    while i < len(data):
        next_line = _next_line(data, i)
        channel[row] = NO_CHANNEL
        fault = _SKIPPED
        a, b = _word(data, i)
        # Header, comments and trigger blocks begin with a letter or a slash.
        if a < b and not (_LOWER_A <= data[a] | 32 <= _LOWER_Z) and data[a] != _SLASH:
            seconds = _number(data, a, b)
            if np.isfinite(seconds):
                if is_relative:
                    clock += seconds
                    seconds = clock
                timestamp[row] = seconds
                a, b = _word(data, b)
                is_flexible = _is_word(data, a, b, _CAN_FD_WORD)
                if is_flexible:
                    a, b = _word(data, b)
                if a == b:
                    fault = _FIELDS
                elif _integer(data, a, b, 10) >= 0:
                    if is_flexible:
                        fault = _asc_flexible(data, b, base, row, identifier, payload, length)
                    else:
                        fault = _asc_classic(data, b, base, row, identifier, payload, length)
                    if fault in (_GOOD, _CAN_FD, _ERROR_FRAME):
                        if not _is_same(data, a, b, last_start, last_end):
                            last = _channel(data, a, b, names, num_names)
                            num_names = max(num_names, last + 1)
                            last_start, last_end = a, b
                        channel[row] = last
            else:
                fault = _TIMESTAMP
        status[row] = _cut_off(data, next_line, fault)
        i = next_line
        row += 1
    return num_names, clock


@njit(cache=True, nogil=True)
def _trace_type(data: Bytes, a: int, b: int) -> int:
    """Tell what a row of a PEAK trace is from the word for its type: a message, or a status."""
    first = data[a] | 32
    second = data[a + 1] | 32 if b - a > 1 else 0
    if b - a == 2 and (
        _is_direction(data, a, b) or (first == _LOWER_D and second == _LOWER_T) or (first == _LOWER_R == second)
    ):
        return _GOOD
    if b - a == 2 and (first == _LOWER_F or (first == _LOWER_B and second == _LOWER_I)):
        return _CAN_FD
    if first == _LOWER_E and second == _LOWER_R:
        return _ERROR_FRAME
    return _SKIPPED  # warnings, states, counters, events


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
        next_line = _next_line(data, i)
        channel[row] = NO_CHANNEL
        a, b = _word(data, i)
        if a == b or data[a] == _SEMICOLON:
            status[row] = _SKIPPED
            i = next_line
            row += 1
            continue
        fault = _GOOD
        kind = _GOOD
        name_start, name_end = 0, 0
        num_bytes = -1
        is_remote = False
        for k in range(len(roles)):
            if k > 0:
                a, b = _word(data, b)
            role = roles[k]
            if role == TRACE_DATA:
                if is_remote or (a < b and data[a] | 32 == _LOWER_R):  # `RTR`
                    break
                if num_bytes > 0:
                    fault, _ = _spaced_bytes(data, a, num_bytes, payload[row])
                if fault == _GOOD and kind == _GOOD:
                    length[row] = num_bytes
                break
            if a == b:
                fault = _FIELDS
                break
            if role == TRACE_TIME:
                timestamp[row] = _number(data, a, b) / 1000.0
                if not np.isfinite(timestamp[row]):
                    fault = _TIMESTAMP
                    break
            elif role == TRACE_TYPE:
                kind = _trace_type(data, a, b)
                is_remote = data[a] | 32 == _LOWER_R and data[b - 1] | 32 == _LOWER_R
                if kind in (_SKIPPED, _ERROR_FRAME):
                    break
            elif role == TRACE_CHANNEL:
                name_start, name_end = a, b
            elif role == TRACE_IDENTIFIER:
                value = _hex_identifier(data, a, b)
                if value == -2 and _is_error_frame(data, a, b):
                    kind = _ERROR_FRAME
                    break
                if value == -2 and b - a == 8 and data[a] == data[b - 1] == _UPPER_F:
                    kind = _SKIPPED  # FFFFFFFF: the state of the bus
                    break
                if value < 0:
                    fault = _IDENTIFIER if value == -1 else _IDENTIFIER_RANGE
                    break
                identifier[row] = value
            elif role == TRACE_LENGTH:
                num_bytes = _integer(data, a, b, 10)
                if kind == _CAN_FD:
                    break
                if num_bytes < 0 or num_bytes > 15:
                    fault = _LENGTH
                    break
                num_bytes = min(num_bytes, MAX_PAYLOAD_BYTES)
        if fault == _GOOD or kind == _SKIPPED:
            fault = kind
        if name_end > name_start and (fault in (_GOOD, _CAN_FD, _ERROR_FRAME)):
            if not _is_same(data, name_start, name_end, last_start, last_end):
                last = _channel(data, name_start, name_end, names, num_names)
                num_names = max(num_names, last + 1)
                last_start, last_end = name_start, name_end
            channel[row] = last
        status[row] = _cut_off(data, next_line, fault)
        i = next_line
        row += 1
    return num_names
