"""Vector BLF through python-can: frame by frame, so that a long log needs little memory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from kdgat.can.recordings.messages import RecordingError
from kdgat.can.recordings.readers.formats import load_library, open_recording
from kdgat.can.recordings.readers.frames import FrameColumns
from kdgat.can.recordings.readers.rows import Rows


def read_blf(path: Path, size: int) -> Iterator[Rows]:
    """Yield the frames of a log, at most `size` at once; channels are numbered from 1, as in the file.

    Where a log is cut off or damaged, what stands before is kept and one bad row says so. Raise RecordingError when
    not even its header can be read.
    """
    can = load_library("can", path, "a Vector BLF file, which python-can reads")
    blf = load_library("can.io.blf", path, "a Vector BLF file, which python-can reads")
    columns = FrameColumns()
    with open_recording(path) as stream:
        damage = (blf.BLFParseError, struct.error, zlib.error, EOFError, OSError, ValueError, OverflowError)
        try:
            reader = can.BLFReader(stream)
        except damage as error:
            raise RecordingError(path, f"is no readable Vector BLF file ({error}); export it again") from error
        # A logger that was switched off leaves a header without the size.
        damaged = reader.file_size > _size_of(path)
        try:
            for message in reader:
                columns.append_frame(
                    message.timestamp,
                    message.arbitration_id,
                    b"" if message.is_remote_frame else bytes(message.data),
                    None if message.channel is None else str(message.channel + 1),
                    message.is_fd,
                    message.is_error_frame,
                )
                if len(columns) >= size:
                    yield columns.take()
        except damage:
            damaged = True
    if damaged:
        columns.append_damage()
    yield columns.take()


def _size_of(path: Path) -> int:
    """Return the bytes of a log; a compressed one says itself when it is cut off."""
    with path.open("rb") as stream:
        return path.stat().st_size if stream.read(4) == b"LOGG" else 1 << 62
