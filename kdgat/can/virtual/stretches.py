"""Attack-free traffic to make virtual recordings from: kept in a file, of which a stretch at a time is read.

Training recordings together may be larger than memory, and a virtual recording is made of seconds of one of them.
"""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.can.recordings.messages import Messages

_COLUMNS: Final = ("timestamp", "identifier", "payload", "length", "label")


class TrafficFile:
    """A nameless file that recordings are moved to; it is gone with the last array that views it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as it is viewed

    def move(self, messages: Messages) -> Messages:
        """Return the same messages with columns that are pages of the file, read when touched."""
        if not len(messages):
            return messages
        begin = self._file.seek(-(-self._file.seek(0, 2) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY)
        offsets, end = {}, begin
        for name in _COLUMNS:
            column = np.ascontiguousarray(getattr(messages, name))
            end = self._file.seek(-(-end // 8) * 8)
            offsets[name] = end - begin
            end += self._file.write(column.data.cast("B"))
        self._file.flush()
        pages = mmap.mmap(self._file.fileno(), end - begin, access=mmap.ACCESS_READ, offset=begin)
        columns: dict[str, Any] = {name: _view(pages, offsets[name], getattr(messages, name)) for name in _COLUMNS}
        return replace(messages, **columns)


def _view(pages: mmap.mmap, offset: int, column: NDArray[Any]) -> NDArray[Any]:
    return np.frombuffer(pages, column.dtype, column.size, offset).reshape(column.shape)


def forget_pages(messages: Messages) -> None:
    """Give back the memory of the pages that were read of a recording, which stay in the file."""
    base = messages.timestamp.base
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
