"""Lines of a tool's log, one after the other, as rows: what they state is judged here, the same for every tool."""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES
from kdgat.canbus.readers.rows import FrameColumns, Rows, RowStatus

DAY_S: Final = 86_400
_BLOCK_BYTES: Final = 1 << 22  # of lines that are split at once
_FD_LENGTHS: Final = frozenset({12, 16, 20, 24, 32, 48, 64})
_CUT: Final = (RowStatus.FIELDS, RowStatus.LENGTH_MISMATCH, RowStatus.PAYLOAD_ODD)
_CLOCK: Final = re.compile(r"(\d{1,9}):(\d{1,9}):(\d{1,9})(?:([:.,])(\d{1,9}))?", re.ASCII)
_TICKS: Final = re.compile(r"-?\d{1,18}", re.ASCII)
_LENGTH: Final = re.compile(r"\d{1,2}", re.ASCII)


class Frame(NamedTuple):
    """What a line holds, of RowStatus; all else only where it is a frame."""

    status: int
    timestamp: float = 0.0
    identifier: int = 0
    data: bytes = b""
    channel: str | None = None


ReadLine = Callable[[str], Frame]
SKIPPED: Final = Frame(RowStatus.SKIPPED)
TOO_FEW: Final = Frame(RowStatus.FIELDS)


class ToolLines:
    """Read the lines of a tool, which may refer to those before, a block of whole lines after the other."""

    def __init__(self, read: ReadLine) -> None:
        """Begin before the first line of a file, so that `read` sees what stands above the messages."""
        self._read = read
        self._columns = FrameColumns()

    def parse(self, data: NDArray[np.uint8], start: int) -> Rows:
        """Return a row for each line from `start` on."""
        while start < len(data):
            block = data[start : start + _BLOCK_BYTES].tobytes()
            end = block.rfind(b"\n") + 1
            if not end or start + len(block) == len(data):
                end = len(block)
            start += end
            lines = block[:end].decode("latin-1").split("\n")
            rest = lines.pop()  # behind the last newline
            for line in lines:
                self._columns.append(*self._frame(line))
            if rest:
                frame = self._frame(rest)
                self._columns.append(*(_columns(Frame(RowStatus.TRUNCATED)) if frame[-1] in _CUT else frame))
        return self._columns.take()

    def _frame(self, line: str) -> tuple[float, int, bytes, str | None, int]:
        return _columns(self._read(line) if line.strip() else SKIPPED)


def _columns(frame: Frame) -> tuple[float, int, bytes, str | None, int]:
    return frame.timestamp, frame.identifier, frame.data, frame.channel, int(frame.status)


def judge_frame(
    timestamp: float,
    identifier: int,
    payload: bytes | RowStatus,
    stated_length: str | None = None,
    channel: str | None = None,
    *,
    is_remote: bool = False,
    is_error: bool = False,
) -> Frame:
    """Return the frame with its first fault from left to right; a remote one has no bytes."""
    if not math.isfinite(timestamp):
        return Frame(RowStatus.TIMESTAMP)
    if is_error:
        return Frame(RowStatus.ERROR_FRAME, timestamp, channel=channel)
    if not 0 <= identifier <= MAX_IDENTIFIER:
        return Frame(RowStatus.IDENTIFIER if identifier < 0 else RowStatus.IDENTIFIER_RANGE)
    num_bytes = read_length(stated_length) if stated_length is not None else None
    if num_bytes == -1:
        return Frame(RowStatus.LENGTH)
    if is_remote:
        return Frame(RowStatus.GOOD, timestamp, identifier, b"", channel)
    if isinstance(payload, RowStatus):
        return Frame(payload)
    if (len(payload) if num_bytes is None else num_bytes) in _FD_LENGTHS:
        return Frame(RowStatus.CAN_FD, timestamp, identifier, b"", channel)
    if len(payload) > MAX_PAYLOAD_BYTES:
        return Frame(RowStatus.PAYLOAD_LONG)
    if num_bytes is not None and num_bytes != len(payload):
        return Frame(RowStatus.LENGTH_MISMATCH)
    return Frame(RowStatus.GOOD, timestamp, identifier, payload, channel)


def read_length(text: str) -> int:
    """Return how many bytes a frame has, -1 where that is no number, or none of CAN and CAN FD."""
    if not _LENGTH.fullmatch(text):
        return -1
    length = int(text)
    return length if length <= MAX_PAYLOAD_BYTES or length in _FD_LENGTHS else -1


def read_integer(text: str, base: int = 16) -> int:
    """Return a whole number, -1 where it is none; `0x` before it makes it hexadecimal."""
    text = text.strip()
    if not (text.isascii() and text.isalnum()):
        return -1
    try:
        return int(text[2:], 16) if text[:2] in ("0x", "0X") else int(text, base)
    except ValueError:
        return -1


def read_seconds(text: str, per_second: float = 1.0) -> float:
    """Return a time that counts `per_second`, NaN where it is none; a comma may stand for the decimal point."""
    try:
        return float(text.replace(",", ".")) / per_second if "_" not in text else math.nan
    except ValueError:
        return math.nan


def read_ticks(text: str, per_second: float) -> float:
    """Return a time that counts whole ticks, NaN where it is none: one with a point would count something else."""
    return int(text) / per_second if _TICKS.fullmatch(text.strip()) else math.nan


def read_clock(text: str) -> float:
    """Return the seconds of `22:17:28.9284`, NaN where it is none.

    Behind a colon four digits count 0.1 ms and fewer ms: BUSMASTER writes `:0120`, exports of others `:12`.
    """
    found = _CLOCK.fullmatch(text.strip())
    if not found:
        return math.nan
    hours, minutes, seconds, separator, fraction = found.groups(default="0")
    parts = 10 ** (max(len(fraction), 3) if separator == ":" else len(fraction))
    return (((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * parts + int(fraction)) / parts


def decode_words(words: Sequence[str], base: int = 16) -> bytes | RowStatus:
    """Return bytes that stand one beside the other, with one or two digits each in hexadecimal."""
    if base == 16:
        try:
            data = bytes.fromhex(" ".join(words))
        except ValueError:
            data = b""
        if len(data) == len(words):
            return data
    numbers = [read_integer(word, base) for word in words]
    return bytes(numbers) if all(0 <= number <= 0xFF for number in numbers) else RowStatus.PAYLOAD_HEX


def decode_text(text: str) -> bytes | RowStatus:
    """Return the bytes of hexadecimal text, with or without spaces."""
    text = text.strip()
    digits = "".join((text[2:] if text[:2] in ("0x", "0X") else text).split())
    try:
        return bytes.fromhex(digits)
    except ValueError:
        is_hex = digits.isascii() and all(digit in "0123456789abcdefABCDEF" for digit in digits)
        return RowStatus.PAYLOAD_ODD if is_hex else RowStatus.PAYLOAD_HEX


def decode_base64(text: str) -> bytes | RowStatus:
    """Return the bytes of base64."""
    try:
        return b64decode(text.strip(), validate=True)
    except ValueError:
        return RowStatus.PAYLOAD_HEX


def add_seconds(time: float, offset: float) -> float:
    """Add seconds to a time of at most six decimals, which the sum then has, too."""
    return round(time + offset, 6) if offset and math.isfinite(time) else time


class Wrap:
    """Continue a clock that begins anew after each period; a single message out of order does not shift the others."""

    def __init__(self, period_s: float) -> None:
        """Begin before the first time."""
        self._period = period_s
        self._last = math.nan
        self._offset = 0.0

    def __call__(self, time: float) -> float:
        """Return the time since the clock's first begin."""
        if time < self._last - self._period / 2 and self._last < self._period:
            self._offset += self._period
        elif time > self._last + self._period / 2 and self._offset:
            return add_seconds(time, self._offset - self._period)
        if math.isfinite(time):
            self._last = time
        return add_seconds(time, self._offset)
