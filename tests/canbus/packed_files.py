"""Recordings packed in every way that is read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Mapping

from kdgat.canbus import ReadLimits

LENIENT = ReadLimits(max_bad_fraction=1.0, max_listed_bad_rows=10_000)
BLOCK = 30_000


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Pack files into a zip."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def in_blocks(data: bytes, pack: Callable[[bytes], bytes]) -> bytes:
    """Pack piece by piece, as the programs do that use several processors."""
    return b"".join(pack(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK))


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: in_blocks(data, gzip.compress),
    "xz": lambda data: in_blocks(data, lzma.compress) + bytes(4),
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "bzip2": lambda data: in_blocks(data, bz2.compress),
    "zip": lambda data: zipped({"a folder/": b"", "a folder/drive.log": data, "__MACOSX/a folder/._drive.log": b"\0"}),
    "stored": lambda data: zipped({"drive.log": data}, zipfile.ZIP_STORED),
}


def str_or_nothing(value: object) -> str:
    """Name a test by its text alone: what is packed holds the time of day, and workers must agree on names."""
    return value if isinstance(value, str) else "packed"
