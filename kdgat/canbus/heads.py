"""A first look at recordings: whether they are what their names say, from their first bytes, without reading them.

Seconds for a dataset that takes minutes to read: what is found here is said before anything is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kdgat.canbus.readers.detect import FileFormat, find_format, is_compressed, open_recording

COUNTED_BYTES: Final = 1 << 20
"""Lines of longer files are not counted."""
_SNIFFED_BYTES: Final = 1 << 16


def check_head(path: Path) -> int | None:
    """Look at the beginning of a recording, and at the end of a Parquet file, which has its columns there.

    Returns:
        how many messages it has at most; None where that takes reading it.

    Raises:
        RecordingError: if it is empty, cut off, of no known format or without the columns of a recording.
    """
    # Readers are imported where they are needed: a dataset of Parquet files waits for no compiled kernel.
    match find_format(path):
        case FileFormat.PARQUET:
            from kdgat.canbus.readers.parquet import check_columns

            return check_columns(path)
        case FileFormat.TEXT:
            from kdgat.canbus.readers.text import find_start

            with open_recording(path) as stream:
                head = stream.read(_SNIFFED_BYTES)
            is_packed = is_compressed(path)
            find_start(path, head, is_whole=not is_packed and len(head) == path.stat().st_size)
            if is_packed or path.stat().st_size > COUNTED_BYTES:
                return None
            return path.read_bytes().count(b"\n") + 1
        case _:
            return None
