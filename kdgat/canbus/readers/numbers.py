"""Words and numbers in the bytes of a log, read by compiled code; what is none is named by the status of its row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES
from kdgat.canbus.readers.rows import MAX_CHANNELS, RowStatus

Bytes = NDArray[np.uint8]

_NEWLINE, _SPACE, _DOT, _ZERO, _ONE = ord("\n"), ord(" "), ord("."), ord("0"), ord("1")
_RETURN, _COMMA, _ESCAPE, _LOWER_M = ord("\r"), ord(","), 0x1B, ord("m")
_MAX_COLOUR = 16  # bytes of a sequence that sets one
_NINE, _PLUS, _MINUS, _UPPER_E, _LOWER_E = ord("9"), ord("+"), ord("-"), ord("E"), ord("e")
_UPPER_R, _UPPER_T, _LOWER_X = ord("R"), ord("T"), ord("x")
_ERROR_FLAG = 0x20000000  # of SocketCAN: bit 29 of an id marks an error frame

HEX_VALUE = np.full(256, 255, dtype=np.uint8)
"""The value of a hexadecimal digit by its byte, 255 for all others."""
for _digit, _letter in enumerate("0123456789abcdef"):
    HEX_VALUE[[ord(_letter), ord(_letter.upper())]] = _digit
_POWERS = 10.0 ** np.arange(23)  # exact as float64 up to 1e22
_INTEGER_POWERS = 10 ** np.arange(19, dtype=np.int64)
_MAX_EXACT_INTEGER = 1 << 53


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
def as_plain_lines(data: Bytes, end_by_return: bool) -> Bytes:
    """Return lines that end by a newline, with spaces for what begins or ends a colour on a terminal."""
    plain = data.copy()
    end = len(data)
    i = 0
    while i < end:
        if data[i] == _RETURN and end_by_return:
            plain[i] = _NEWLINE
        elif data[i] == _ESCAPE:
            k = i
            while k < end and k < i + _MAX_COLOUR and data[k] != _LOWER_M and (k == i or data[k] > _SPACE):
                k += 1
            if k < end and data[k] == _LOWER_M:
                plain[i : k + 1] = _SPACE
                i = k
        i += 1
    return plain


@njit(cache=True, nogil=True)
def find_next_line(data: Bytes, i: int) -> int:
    end = len(data)
    while i < end and data[i] != _NEWLINE:
        i += 1
    return i + 1


@njit(cache=True, nogil=True)
def find_word(data: Bytes, i: int) -> tuple[int, int]:
    """Find the next word of the line: start and end, equal at the end of the line."""
    end = len(data)
    while i < end and data[i] != _NEWLINE and data[i] <= _SPACE:
        i += 1
    a = i
    while i < end and data[i] > _SPACE:
        i += 1
    return a, i


@njit(cache=True, nogil=True)
def is_word(data: Bytes, a: int, b: int, word: Bytes) -> bool:
    """Compare with a word of small letters, without case."""
    if b - a != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110 - compiled code knows no generators
        if data[a + i] | 32 != word[i]:
            return False
    return True


@njit(cache=True, nogil=True)
def is_same_word(data: Bytes, a: int, b: int, c: int, d: int) -> bool:
    """Return whether two words are the same."""
    if b - a != d - c:
        return False
    for i in range(b - a):  # noqa: SIM110 - compiled code knows no generators
        if data[a + i] != data[c + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def find_channel(data: Bytes, a: int, b: int, names: Any, num_names: int) -> int:
    """Find the name of a channel among those seen, or enter it; return its index.

    The last index that there is holds for all further names.
    """
    for k in range(num_names):
        if is_same_word(data, a, b, names[k, 0], names[k, 1]):
            return k
    if num_names == MAX_CHANNELS:
        return num_names - 1
    names[num_names, 0], names[num_names, 1] = a, b
    return num_names


@njit(cache=True, nogil=True)
def judge_line_end(data: Bytes, next_line: int, fault: int) -> int:
    cut = (RowStatus.FIELDS, RowStatus.LENGTH_MISMATCH, RowStatus.PAYLOAD_ODD, RowStatus.NAME)
    return RowStatus.TRUNCATED if next_line > len(data) and fault in cut else fault


@njit(cache=True, nogil=True)
def read_number(data: Bytes, a: int, b: int) -> float:
    """Read a decimal number, NaN if it is none; equal to the nearest float64 for up to 15 decimals.

    A comma is a decimal sign, too: thousands are never set apart, and two of them make no number.
    """
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
        elif byte in (_DOT, _COMMA) and not in_fraction:
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
def read_integer(data: Bytes, a: int, b: int, base: int) -> int:
    """Read a whole number of at most ten digits in base 10 or 16, -1 if it is none."""
    if a >= b or b - a > 10:
        return -1
    value = 0
    for i in range(a, b):
        digit = HEX_VALUE[data[i]]
        if digit >= base:
            return -1
        value = value * base + int(digit)
    return value


@njit(cache=True, nogil=True)
def read_identifier(data: Bytes, a: int, b: int, base: int = 16) -> int:
    """Read an arbitration id, -1 if it is no number in its base, -2 if it is beyond 29 bits; 0x means base 16."""
    if b - a > 2 and data[a] == _ZERO and (data[a + 1] | 32) == _LOWER_X:
        a += 2
        base = 16
    if a >= b:
        return -1
    value = 0
    too_large = False
    for i in range(a, b):
        digit = HEX_VALUE[data[i]]
        if digit >= base:
            return -1
        value = value * base + int(digit)
        if value > MAX_IDENTIFIER:
            too_large = True
            value = MAX_IDENTIFIER + 1
    return -2 if too_large else value


@njit(cache=True, nogil=True)
def is_error_frame(data: Bytes, a: int, b: int) -> bool:
    """Return whether an id of eight digits, too large for one, carries the flag of SocketCAN's error frames alone."""
    if b - a != 8:
        return False
    value = 0
    for i in range(a, b):
        value = (value << 4) | int(HEX_VALUE[data[i]])
    return value & 0xE0000000 == _ERROR_FLAG


@njit(cache=True, nogil=True)
def read_byte(data: Bytes, a: int, b: int, base: int) -> int:
    """Read a byte of one or two hex digits, or of up to three decimal ones; -1 if it is none; 0x means base 16."""
    if b - a > 2 and data[a] == _ZERO and (data[a + 1] | 32) == _LOWER_X:
        a += 2
        base = 16
    if base == 10:
        value = read_integer(data, a, b, 10) if b - a <= 3 else -1
        return value if value <= 255 else -1
    high, low = HEX_VALUE[data[a]] if a < b else 255, HEX_VALUE[data[b - 1]] if a < b else 255
    if b - a > 2 or high > 15 or low > 15:
        return -1
    return int(low) if b - a == 1 else (int(high) << 4) | int(low)


@njit(cache=True, nogil=True)
def read_payload(data: Bytes, a: int, b: int, payload: Bytes, base: int = 16) -> int:
    """Decode hex text, spaces and dots between bytes allowed, into `payload`; a negative status if it is none.

    In base 10 spaces or dots stand between any two bytes.
    """
    count = 0
    i = a
    while base == 10 and i < b:
        start = i
        while i < b and data[i] != _SPACE and data[i] != _DOT:
            i += 1
        if i > start:
            value = read_byte(data, start, i, base)
            if value < 0 or count == MAX_PAYLOAD_BYTES:
                return -RowStatus.PAYLOAD_HEX if value < 0 else -RowStatus.PAYLOAD_LONG
            payload[count] = value
            count += 1
        i += 1
    while i < b:
        if data[i] == _SPACE or data[i] == _DOT:
            i += 1
            continue
        high = HEX_VALUE[data[i]]
        if high > 15:
            return -RowStatus.PAYLOAD_HEX
        if i + 1 >= b or data[i + 1] == _SPACE or data[i + 1] == _DOT:
            return -RowStatus.PAYLOAD_ODD
        low = HEX_VALUE[data[i + 1]]
        if low > 15:
            return -RowStatus.PAYLOAD_HEX
        if count == MAX_PAYLOAD_BYTES:
            return -RowStatus.PAYLOAD_LONG
        payload[count] = (high << 4) | low
        count += 1
        i += 2
    return count


@njit(cache=True, nogil=True)
def read_spaced_bytes(data: Bytes, i: int, stated_length: int, payload: Bytes) -> tuple[int, int]:
    """Read `stated_length` bytes of two digits each; return a status and where reading ended."""
    for k in range(stated_length):
        a, b = find_word(data, i)
        if a == b:
            return RowStatus.LENGTH_MISMATCH, b
        high, low = HEX_VALUE[data[a]], HEX_VALUE[data[b - 1]]
        if b - a != 2 or high > 15 or low > 15:
            return RowStatus.PAYLOAD_ODD if b - a == 1 and high < 16 else RowStatus.PAYLOAD_HEX, b
        payload[k] = (high << 4) | low
        i = b
    return RowStatus.GOOD, i


@njit(cache=True, nogil=True)
def read_label(data: Bytes, a: int, b: int, words: Any) -> int:
    """Read a label: what it means by the table of `kdgat.canbus.readers.labels`, -1 if it is no word of it."""
    text, bounds, values, other = words
    if other < 0 and b - a == 1:  # what nearly all files have
        if data[a] == _ZERO or data[a] == _UPPER_R:
            return 0
        if data[a] == _ONE or data[a] == _UPPER_T:
            return 1
    for k in range(len(values)):
        first = bounds[k]
        if bounds[k + 1] - first == b - a:
            i = 0
            while i < b - a and data[a + i] | 32 == text[first + i]:
                i += 1
            if i == b - a:
                return values[k]
    return other if a < b else -1


@njit(cache=True, nogil=True)
def read_length(data: Bytes, a: int, b: int) -> int:
    if b - a == 1 and _ZERO <= data[a] <= _ZERO + MAX_PAYLOAD_BYTES:
        return data[a] - _ZERO
    return -1
