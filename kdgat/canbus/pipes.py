"""Logs that come through a pipe: bytes once, in their order, as somebody writes them."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any, Final

from kdgat.canbus.messages import RecordingError
from kdgat.canbus.names import STANDARD_INPUT
from kdgat.canbus.readers.detect import FileFormat, judge_head
from kdgat.canbus.readers.limits import Growth
from kdgat.canbus.readers.packing import ZIP, Packing, Unpacked, ZipMember, find_packing

_LOOK_S: Final = 0.05  # between two looks at whether the stream shall end
_BLOCK_BYTES: Final = 1 << 16
_DECIDING_BYTES: Final = 16  # of a beginning, by which every format but text is known


def is_pipe(path: Path) -> bool:
    """Return whether bytes come out of it once, in order: standard input, a pipe, a terminal; no file, no folder."""
    try:
        mode = os.fstat(0).st_mode if path == STANDARD_INPUT else path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def as_file(path: Path) -> Path:
    """Return where standard input lies that is a file (`< drive.blf`); what it is not stays as it is."""
    is_file = path == STANDARD_INPUT and not is_pipe(path) and not path.is_file()
    return Path("/dev/stdin") if is_file else path


def text_blocks(path: Path, is_over: Callable[[], bool] = lambda: False) -> Iterator[bytes | None]:
    """Yield the text of a log as it comes through a pipe, unpacked; None where nothing came for a while.

    It ends with the pipe, or when `is_over` says so. OSError or EOFError where what is packed is damaged or cut off;
    RecordingError for what is no text, and for a pipe that brings nothing.
    """
    with _Pipe(path, is_over) as pipe:
        packing = find_packing(path, pipe.look())
        head, damage = b"", None
        try:
            source = pipe if packing is None else _unpacked(path, pipe, packing)
            while len(head) < _DECIDING_BYTES and (block := source.read(_BLOCK_BYTES)) != b"":
                head += block or b""
        except (OSError, EOFError) as error:
            damage = error
        if is_over():
            return
        if damage is not None and not head:
            raise RecordingError(path, f"brings what is damaged from its beginning on ({damage})") from damage
        if not head and packing is None:
            raise RecordingError(path, "brought nothing (0 bytes); see whether what should write to it does")
        found = judge_head(path, head, packing)
        if found is not FileFormat.TEXT:
            raise RecordingError(
                path, f"brings a {found} log, which cannot be read from a pipe; write it to a file, and give that"
            )
        yield head
        if damage is not None:
            raise damage
        while (block := source.read(_BLOCK_BYTES)) != b"":
            yield block


def read_pipe(path: Path) -> tuple[bytearray, bool]:
    """Return all text that a pipe brings, and whether it is cut off: then the whole lines of it."""
    content = bytearray()
    try:
        for block in text_blocks(path):
            content += block or b""
    except (OSError, EOFError):
        del content[content.rfind(b"\n") + 1 :]
        return content, True
    return content, False


class _Pipe(RawIOBase):
    """Read what comes, waiting no longer than for a look at whether it is over, which is the end."""

    def __init__(self, path: Path, is_over: Callable[[], bool]) -> None:
        # Without blocking: a FIFO that nobody writes to yet would keep us from looking.
        try:
            self._file = os.dup(0) if path == STANDARD_INPUT else os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise RecordingError(path, f"cannot be opened ({error.strerror}); name a pipe that can be read") from error
        self._is_over = is_over
        self._head = b""
        self.growth = Growth(path, 0)

    def look(self) -> bytes:
        """Return the first bytes, which reading begins with all the same."""
        while len(self._head) < _DECIDING_BYTES and (block := self._next(_BLOCK_BYTES)) != b"":
            self._head += block or b""
        return self._head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        view = memoryview(buffer)
        if self._head:
            data: bytes | None = self._head[: len(view)]
            self._head = self._head[len(view) :]
        else:
            data = self._next(len(view))
        if data is None:
            return None
        view[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> bytes | None:
        """Return what is there, of a writer that is fast as much as there is room for; None where nothing comes."""
        if self._is_over():
            return b""
        parts, wait_s, is_end = [], _LOOK_S, False
        while size > 0 and select.select([self._file], [], [], wait_s)[0]:
            try:
                part = os.read(self._file, size)
            except BlockingIOError:  # another process has read it
                break
            if not part:  # the end; if something came before, the next call says so, too
                is_end = True
                break
            parts.append(part)
            size -= len(part)
            wait_s = 0.0
        data = b"".join(parts)
        self.growth.take(len(data))
        return data if data or is_end else None

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()


def _unpacked(path: Path, pipe: _Pipe, packing: Packing) -> RawIOBase:
    return ZipMember(path, pipe, pipe.growth) if packing is ZIP else Unpacked(pipe, packing, pipe.growth)
