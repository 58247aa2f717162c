"""Read and write recordings of CAN traffic: the format is found from the file itself."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path

import numpy as np

from kdgat.canbus.messages import BadRow, Messages, ReadLimits, RecordingError
from kdgat.canbus.names import recording_name
from kdgat.canbus.readers.detect import FileFormat, find_format, is_compressed, open_recording
from kdgat.canbus.readers.frames import join_rows
from kdgat.canbus.readers.parquet import DataframeBackend, read_campaigns, read_parquet, write_parquet
from kdgat.canbus.readers.rows import Rows, keep_good_rows

__all__ = [
    "BadRow",
    "Messages",
    "ReadLimits",
    "RecordingError",
    "read_recording",
    "recording_name",
    "write_recording",
]

NUM_FRAMES_AT_ONCE = 1 << 16
"""Frames that a reader of binary logs hands on at once."""
_GZIP_BLOCK_BYTES = 1 << 20


def read_recording(
    path: Path | str,
    *,
    scenario: str | None = None,
    limits: ReadLimits | None = None,
    channel: str | int | None = None,
    backend: DataframeBackend | None = None,
) -> Messages:
    """Read one recording of any known format, messages in file order.

    `scenario` replaces the one in the path. `channel` is the interface or the number of the channel to take, where the
    file names several. `backend` may have Parquet read on a GPU, to the same bits. Raise RecordingError (a ValueError)
    naming the file when it has another format, no valid row, more bad rows than `limits` allows, or several channels
    and none is chosen.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordingError(path, "is no file; name one recording")
    path_scenario, name = recording_name(path)
    messages = keep_good_rows(
        _read_rows(path, backend),
        path,
        name,
        path_scenario if scenario is None else scenario,
        limits or ReadLimits(),
        None if channel is None else str(channel),
    )
    if find_format(path) is FileFormat.PARQUET:
        messages.campaigns = read_campaigns(path)
    return messages


def _read_rows(path: Path, backend: DataframeBackend | None) -> Rows:
    # Readers are imported where they are needed: numba's kernels alone take as long as reading a plan's Parquet files.
    match find_format(path):
        case FileFormat.PARQUET:
            return read_parquet(path, backend)
        case FileFormat.BLF:
            from kdgat.canbus.readers.blf import read_blf

            return join_rows(list(read_blf(path, NUM_FRAMES_AT_ONCE)))
        case FileFormat.PCAP:
            from kdgat.canbus.readers.pcap import read_pcap

            return join_rows(list(read_pcap(path, NUM_FRAMES_AT_ONCE)))
        case FileFormat.MF4:
            from kdgat.canbus.readers.mf4 import read_mf4

            return read_mf4(path)
        case FileFormat.TEXT:
            from kdgat.canbus.readers.text import read_text

            if not is_compressed(path):
                return read_text(path)
            content, damaged = _decompress(path)
            return read_text(path, np.frombuffer(content, np.uint8), damaged=damaged)


def _decompress(path: Path) -> tuple[bytes, bool]:
    """Return what a compressed log holds, and whether it is cut off: then the whole lines that can be read."""
    content = bytearray()
    with open_recording(path) as stream:
        try:
            while block := stream.read1(_GZIP_BLOCK_BYTES):
                content += block
        except (EOFError, OSError, zlib.error):
            return bytes(content[: content.rfind(b"\n") + 1]), True
    return bytes(content), False


def write_recording(path: Path | str, messages: Messages) -> None:
    """Write one recording as Parquet in the dataset layout, all of it or nothing.

    Columns timestamp (s), id, data_field (hex text), label, source_file; no label column for an unlabelled one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    source = f"{messages.scenario}/{messages.name}" if messages.scenario else messages.name
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write_parquet(Path(temporary), messages, source)
        with Path(temporary).open("rb") as stream:
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
