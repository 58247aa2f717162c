"""Read and write recordings of CAN traffic: the format is found from the file itself."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kdgat.can.recordings.messages import SCENARIO_SEPARATOR, BadRow, Messages, ReadLimits, RecordingError
from kdgat.can.recordings.readers.parquet import read_campaigns, read_parquet, write_parquet
from kdgat.can.recordings.readers.rows import Rows, keep_good_rows

__all__ = [
    "BadRow",
    "Messages",
    "ReadLimits",
    "RecordingError",
    "read_recording",
    "recording_name",
    "write_recording",
]

PARQUET_MAGIC = b"PAR1"
"""First bytes of every Parquet file."""


def recording_name(path: Path) -> tuple[str, str]:
    """Take (scenario, recording) from `<scenario>__<recording>.suffix` or `<scenario>/<recording>.suffix`."""
    scenario, separator, name = path.stem.partition(SCENARIO_SEPARATOR)
    return (scenario, name) if separator else (path.parent.name, path.stem)


def read_recording(path: Path | str, *, scenario: str | None = None, limits: ReadLimits | None = None) -> Messages:
    """Read one recording of any known format, messages in file order.

    `scenario` replaces the one in the path. Raise RecordingError (a ValueError) naming the file when it has
    another format, no valid row, or more bad rows than `limits` allows.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordingError(path, "is no file; name one recording")
    path_scenario, name = recording_name(path)
    messages = keep_good_rows(
        _read_rows(path), path, name, path_scenario if scenario is None else scenario, limits or ReadLimits()
    )
    if _is_parquet(path):
        messages.campaigns = read_campaigns(path)
    return messages


def _read_rows(path: Path) -> Rows:
    if _is_parquet(path):
        return read_parquet(path)
    from kdgat.can.recordings.readers.text import (
        read_text,  # its kernels load numba, as slow as reading a plan's Parquet files
    )

    return read_text(path)


def _is_parquet(path: Path) -> bool:
    if path.suffix.lower() == ".parquet":
        return True
    with path.open("rb") as stream:
        return stream.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


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
