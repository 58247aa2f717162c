"""Which kind of file a recording is, from its first bytes; its name is asked only where it promises one format."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Final

from kdgat.base.text import describe_pickled
from kdgat.canbus.messages import ReadOptions, RecordingError
from kdgat.canbus.names import recording_suffix
from kdgat.canbus.readers.packing import NUM_HEAD_BYTES, Packing, find_packing, open_recording, read_head
from kdgat.canbus.readers.tools.foreign import refuse_foreign_bytes

NO_OPTIONS: Final = ReadOptions()
"""Of a file that says all of itself."""
_NUM_SHOWN_BYTES = 16
_LOOKED_AT_BYTES = 1 << 16  # for what a log holds instead of messages
SHOWN_CHARACTERS = 60  # of a line that is not understood


# Blank lines, comments, and what ASC logs begin and end with.
_HEADER_LINE = re.compile(r"\s*($|;|//|#|date\b|base\b|(no )?internal events|begin trigger|end trigger)", re.IGNORECASE)


class FileFormat(StrEnum):
    """Name the families of files, each with a reader of its own."""

    PARQUET = "Parquet"
    BLF = "Vector BLF"
    MF4 = "MF4"
    PCAP = "PCAP"
    SQLITE = "SQLite"
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
    b"SQLite format 3\0": FileFormat.SQLITE,
}
NEED_A_FILE = (FileFormat.PARQUET, FileFormat.MF4, FileFormat.SQLITE)
"""Formats that are read from their end, or here and there."""
_WIDE_TEXT_MARKS = (b"\xff\xfe", b"\xfe\xff")
_PROMISED = {
    ".parquet": FileFormat.PARQUET,
    ".blf": FileFormat.BLF,
    ".mf4": FileFormat.MF4,
    ".pcap": FileFormat.PCAP,
    ".pcapng": FileFormat.PCAP,
}


def find_format(path: Path) -> FileFormat:
    """Find the kind of a file; raise RecordingError for an empty one, or one that is not what its name promises."""
    if path.stat().st_size == 0:
        raise RecordingError(path, "is empty (0 bytes); remove the file or export the recording again")
    if problem := describe_pickled(path, "give the recordings that it was made from, as `kdgat data import LOG`"):
        raise RecordingError(path, problem)
    with path.open("rb") as file:
        head = file.read(NUM_HEAD_BYTES)
    packing = find_packing(path, head)
    try:
        if packing is not None:
            with open_recording(path) as stream:
                head = read_head(stream, NUM_HEAD_BYTES)
    except (OSError, EOFError) as error:
        raise RecordingError(path, f"is damaged from its beginning on ({error}); copy it again") from error
    return judge_head(path, head, packing)


def judge_head(path: Path, head: bytes, packing: Packing | None) -> FileFormat:
    """Find the kind of what begins with these bytes, as they came out of a packing; RecordingError as `find_format`."""
    if packing is not None and not head:
        raise RecordingError(path, f"holds nothing, unpacked by `{packing.command}`; export the recording again")
    found = next((found for magic, found in _MAGIC.items() if head.startswith(magic)), FileFormat.TEXT)
    if found is FileFormat.TEXT:
        refuse_foreign_bytes(path, head)
    first = head[:_NUM_SHOWN_BYTES]
    # Without a mark, every other byte of what is mostly ASCII is 0.
    is_wide = len(first) > 1 and not (any(first[::2]) and any(first[1::2]))
    if first.startswith(_WIDE_TEXT_MARKS) or (is_wide and found is FileFormat.TEXT):
        raise RecordingError(path, "is text in UTF-16, as PowerShell writes it; save it as UTF-8")
    promised = _PROMISED.get(recording_suffix(path))
    if promised is FileFormat.PARQUET and packing is None:
        return promised  # its reader names what is wrong with a damaged one
    if promised is not None and found is not promised:
        shown = first.decode("latin-1").strip()
        raise RecordingError(
            path,
            f"is named {path.suffix}, but is no {promised} file (it starts with {shown!r}); name it after its format",
        )
    if packing is not None:
        find_packing(path, head, packing)
        if found in NEED_A_FILE:
            raise RecordingError(
                path, f"is a {found} file inside {packing.name}; unpack it by `{packing.command}` first"
            )
    return found


def no_message(path: Path) -> RecordingError:
    """Return the error of what was read to its end without a message: with what it holds instead, and the fix."""
    if not path.is_file():
        return RecordingError(path, "brought lines and no message; see what writes to it")
    line = _first_content(path) if find_format(path) is FileFormat.TEXT else ""
    if not line:
        return RecordingError(
            path, "holds a header and no message: nothing was on the bus, or was exported; record or export it again"
        )
    return RecordingError(
        path,
        f"holds no message that is understood: behind its header stands {line[:SHOWN_CHARACTERS]!r}, and error frames, "
        "other events and comments are no messages; export its frames in a format of `kdgat data import --help`",
    )


def _first_content(path: Path) -> str:
    """Return the first line that belongs to no header; empty if there is none."""
    with open_recording(path) as stream:
        lines = read_head(stream, _LOOKED_AT_BYTES).decode("utf-8-sig", "replace").splitlines()
    return next((line.strip() for line in lines if not _HEADER_LINE.match(line)), "")


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
        if (value := getattr(options, key)) != getattr(NO_OPTIONS, key):
            raise RecordingError(path, f"{key}={value!r} is for tables, and this is {what}; leave it out")


def require_text(path: Path, lines: Sequence[str]) -> None:
    """Refuse lines with control characters, once they are not understood: an image or an archive by another name."""
    if any(character < " " and character not in "\t\r" for line in lines for character in line):
        first = next((line.strip() for line in lines if line.strip()), "")
        shown = "".join(character if character.isprintable() else "." for character in first[:SHOWN_CHARACTERS])
        raise RecordingError(
            path, f"is no text (it starts with {shown!r}): name it after its format, or export the recording again"
        )
