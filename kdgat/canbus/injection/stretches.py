"""Attack-free traffic to make virtual recordings from: kept in a file, of which a stretch at a time is read.

Training recordings together may be larger than memory, and a virtual recording is made of seconds of one of them.
"""

from __future__ import annotations

import math
import mmap
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import Messages

Buffer: TypeAlias = bytes | mmap.mmap

_COLUMNS: Final = ("timestamp", "identifier", "payload", "length", "label")


class TrafficFile:
    """A nameless file that recordings are moved to; it is gone with the last array that views it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open until it is viewed
        self._moved: list[tuple[Messages, dict[str, _Place]]] = []

    def append(self, messages: Messages) -> None:
        """Write the columns of a recording behind those before it; nothing of them stays in memory."""
        places = {}
        for name in _COLUMNS:
            column = np.ascontiguousarray(getattr(messages, name))
            begin = self._file.seek(-(-self._file.seek(0, 2) // 8) * 8)
            if column.size:
                self._file.write(column.data.cast("B"))
            places[name] = _Place(begin, column.dtype, column.shape)
        nothing: dict[str, Any] = {name: np.empty((0, *one.shape[1:]), one.dtype) for name, one in places.items()}
        self._moved.append((replace(messages, **nothing), places))

    def view(self) -> list[Messages]:
        """Return all recordings, with columns that are pages of the file, read when touched; nothing follows them.

        All view one mapping: a mapping of each would hold an open file of its own.
        """
        self._file.flush()
        is_empty = self._file.seek(0, 2) == 0
        pages = b"" if is_empty else mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        recordings = []
        for messages, places in self._moved:
            columns: dict[str, Any] = {name: one.of(pages) for name, one in places.items()}
            recordings.append(replace(messages, **columns))
        return recordings


@dataclass(frozen=True)
class _Place:
    """Where a column is."""

    begin: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def of(self, pages: Buffer) -> NDArray[Any]:
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.frombuffer(pages, self.dtype, math.prod(self.shape), self.begin).reshape(self.shape)


def forget_pages(messages: Messages) -> None:
    """Give back the memory of the pages that were read of a recording, which stay in the file."""
    base = messages.timestamp.base
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = _address(np.frombuffer(base, np.uint8))
    columns = [getattr(messages, name) for name in _COLUMNS]
    begin = min(_address(column) for column in columns) - first
    end = max(_address(column) + column.nbytes for column in columns) - first
    begin -= begin % mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _address(column: NDArray[Any]) -> int:
    return int(column.__array_interface__["data"][0])
