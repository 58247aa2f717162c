"""Strategies: files that were whole once, JSON that meant something once, and words that nobody would write."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

MAX_EDITS = 4
NUMBERS = (0, 1, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TOKENS = (
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b"\r",
    b",",
    b";",
    b"\t",
    b" ",
    b"#",
    b"-",
    b"--",
    b"+",
    b".",
    b":",
    b'"',
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b"nan",
    b"NaN",
    b"inf",
    b"-inf",
    b"Infinity",
    b"null",
    b"true",
    b"1e400",
    b"-1e400",
    b"1e-400",
    b"-1",
    b"0",
    b"00",
    b"9" * 30,
    b"1" * 400,
    b"0x",
    b"0xFFFFFFFFF",
    b"2147483648",
    b"9223372036854775808",
    b"\xff",
    b"\xff\xfe",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
    b"\xc3",
    b"\xe2\x80\xa8",
    "é".encode(),
    b"A" * 300,
    b"PAR1",
    b"LOGG",
    b"\x1f\x8b",
)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    "",
    " ",
    "x",
    "../..",
    "/",
    "\0",
    "é\u2028",
    "A" * 300,
    "nan",
    "1",
    "-1",
    "2026-13-45",
    [],
    {},
    [[]],
    [None],
    {"": {}},
    {"a": 1},
    ["x"] * 20,
)


@st.composite
def damaged(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw one of the samples with a few edits, rarely none; now and then bytes that have nothing to do with them."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.sampled_from(TOKENS)) + draw(st.binary(max_size=64))
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, MAX_EDITS))):
        kind, place, number = draw(_EDITS)
        start = place % (len(data) + 1)
        _edit(data, kind, start, number, samples)
    return bytes(data)


_EDITS = st.tuples(st.integers(0, 8), st.integers(0, 2**20), st.integers(0, 2**32 - 1))


def _edit(data: bytearray, kind: int, start: int, number: int, samples: Sequence[bytes]) -> None:
    length = 1 + number % 64
    token = TOKENS[number % len(TOKENS)]
    if kind == 0:  # another byte
        data[start : start + 1] = bytes([number & 0xFF])
    elif kind == 1:  # one bit
        if start < len(data):
            data[start] ^= 1 << (number & 7)
    elif kind == 2:  # a token more
        data[start:start] = token
    elif kind == 3:  # a token instead
        data[start : start + max(1, len(token))] = token
    elif kind == 4:  # cut out
        del data[start : start + length]
    elif kind == 5:  # cut off
        del data[start:]
    elif kind == 6:  # twice
        data[start:start] = data[start : start + length]
    elif kind == 7:  # a number of four bytes, in either order
        data[start : start + 4] = struct.pack("<I" if number & 1 else ">I", NUMBERS[number % len(NUMBERS)])
    else:  # the end of another one
        other = samples[number % len(samples)]
        data[start:] = other[start % (len(other) + 1) :]


@st.composite
def damaged_json(draw: st.DrawFn, samples: Sequence[Any], *, lines: bool = False) -> bytes:
    """Draw JSON of one of the samples with other values, keys and types in places, now and then damaged as text.

    With `lines` a sample is a list whose items are written one to a line.
    """
    value = json.loads(json.dumps(draw(st.sampled_from(samples))))
    for _ in range(draw(st.integers(0, 3))):
        value = _replace(value, draw)
    text = "\n".join(map(json.dumps, value)) + "\n" if lines and isinstance(value, list) else json.dumps(value)
    data = text.encode()
    return draw(damaged([data])) if draw(st.integers(0, 3)) == 0 else data


def _replace(value: Any, draw: st.DrawFn) -> Any:
    """Return the value with one place in it changed, chosen on a walk from the top."""
    if isinstance(value, dict) and value and draw(st.integers(0, 7)):
        key = draw(st.sampled_from(sorted(value)))
        match draw(st.integers(0, 9)):
            case 0:
                return {name: one for name, one in value.items() if name != key}
            case 1:
                return {**value, draw(st.sampled_from(("extra", "", "a.b", key.upper()))): value[key]}
            case _:
                return {**value, key: _replace(value[key], draw)}
    if isinstance(value, list) and value and draw(st.integers(0, 7)):
        place = draw(st.integers(0, len(value) - 1))
        match draw(st.integers(0, 9)):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value, value[place]]
            case _:
                return [*value[:place], _replace(value[place], draw), *value[place + 1 :]]
    return draw(st.sampled_from(SCALARS))
