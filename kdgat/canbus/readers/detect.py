"""Which kind of file a recording is, from its first bytes; its name is asked only where it promises one format."""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Sequence
from enum import StrEnum
from gzip import GzipFile
from io import BufferedReader, RawIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kdgat.base import MIB
from kdgat.canbus.messages import ReadOptions, RecordingError
from kdgat.canbus.names import recording_suffix
from kdgat.canbus.readers.limits import Growth

GZIP_MAGIC = b"\x1f\x8b"
NUM_HEAD_BYTES = 16
NOTHING_SAID: Final = ReadOptions()
"""Of a file that says all of itself."""
SHOWN_CHARACTERS = 60  # of a line that is not understood


class FileFormat(StrEnum):
    """Name the families of files, each with a reader of its own."""

    PARQUET = "Parquet"
    BLF = "Vector BLF"
    MF4 = "MF4"
    PCAP = "PCAP"
    TEXT = "text"


_MAGIC = {
    b"PAR1": FileFormat.PARQUET,
    b"LOGG": FileFormat.BLF,
    b"MDF     ": FileFormat.MF4,
    b"UnFinMF ": FileFormat.MF4,  # of a logger that was switched off
    b"\xa1\xb2\xc3\xd4": FileFormat.PCAP,  # micro- and nanoseconds, in both byte orders
    b"\xd4\xc3\xb2\xa1": FileFormat.PCAP,
    b"\xa1\xb2\x3c\x4d": FileFormat.PCAP,
    b"\x4d\x3c\xb2\xa1": FileFormat.PCAP,
    b"\x0a\x0d\x0d\x0a": FileFormat.PCAP,  # pcapng
}
_WIDE_TEXT_MARKS = (b"\xff\xfe", b"\xfe\xff")
_PROMISED = {
    ".parquet": FileFormat.PARQUET,
    ".blf": FileFormat.BLF,
    ".mf4": FileFormat.MF4,
    ".pcap": FileFormat.PCAP,
    ".pcapng": FileFormat.PCAP,
}


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed by gzip."""
    with path.open("rb") as stream:
        return stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC


class _Unpacked(RawIOBase):
    """What gzip has compressed, as far as it may grow; damage of any kind is an OSError or EOFError."""

    def __init__(self, path: Path) -> None:
        self._file = GzipFile(path, "rb")
        self._growth = Growth(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        try:
            data = self._file.read1(len(view))
        except zlib.error as error:
            raise OSError(str(error)) from error
        self._growth.add(len(data))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_recording(path: Path) -> BufferedReader:
    """Open a file for reading its bytes, decompressed where gzip has compressed them.

    Reading raises RecordingError where what comes out is more than a log of that size holds.
    """
    return BufferedReader(_Unpacked(path), MIB) if is_compressed(path) else path.open("rb")


def find_format(path: Path) -> FileFormat:
    """Find the kind of a file; raise RecordingError for an empty one, or one that is not what its name promises."""
    if path.stat().st_size == 0:
        raise RecordingError(path, "is empty; remove the file or export the recording again")
    compressed = is_compressed(path)
    try:
        with open_recording(path) as stream:
            head = stream.read(NUM_HEAD_BYTES)
    except (OSError, EOFError) as error:
        raise RecordingError(path, f"is damaged from its beginning on ({error}); copy it again") from error
    found = next((found for magic, found in _MAGIC.items() if head.startswith(magic)), FileFormat.TEXT)
    # Without a mark, every other byte of what is mostly ASCII is 0.
    is_wide = len(head) > 1 and not (any(head[::2]) and any(head[1::2]))
    if head.startswith(_WIDE_TEXT_MARKS) or (is_wide and found is FileFormat.TEXT):
        raise RecordingError(path, "is text in UTF-16, as PowerShell writes it; save it as UTF-8")
    promised = _PROMISED.get(recording_suffix(path))
    if promised is FileFormat.PARQUET and not compressed:
        return promised  # its reader names what is wrong with a damaged one
    if promised is not None and found is not promised:
        shown = head.decode("latin-1").strip()
        raise RecordingError(
            path,
            f"is named {path.suffix}, but is no {promised} file (it starts with {shown!r}); name it after its format",
        )
    if compressed and head.startswith(GZIP_MAGIC):
        raise RecordingError(path, "is gzip inside gzip; unpack it by `gunzip` first")
    if compressed and found in (FileFormat.PARQUET, FileFormat.MF4):
        raise RecordingError(path, f"is a {found} file inside gzip; unpack it by `gunzip` first")
    return found


def load_library(name: str, path: Path | str, what: str) -> ModuleType:
    """Import a library of the extra `logs`; raise RecordingError with how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecordingError(
            path, f"is {what}; to read it, install what it takes: pip install 'kdgat[logs]' ({error})"
        ) from error


def require_table(path: Path, options: ReadOptions, what: str) -> None:
    """Refuse what is said of the columns of a table where a file is none."""
    for key in ("identifiers", "payload", "label_column", "attack_labels"):
        if (value := getattr(options, key)) != getattr(NOTHING_SAID, key):
            raise RecordingError(path, f"{key}={value!r} is for tables, and this is {what}; leave it out")


def require_text(path: Path, lines: Sequence[str]) -> None:
    """Refuse lines with control characters, once they are not understood: an image or an archive by another name."""
    if any(character < " " and character not in "\t\r" for line in lines for character in line):
        first = next((line.strip() for line in lines if line.strip()), "")
        shown = "".join(character if character.isprintable() else "." for character in first[:SHOWN_CHARACTERS])
        raise RecordingError(
            path, f"is no text (it starts with {shown!r}): name it after its format, or export the recording again"
        )
