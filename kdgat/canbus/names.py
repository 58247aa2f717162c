"""What the name of a file tells about the recording in it."""

from __future__ import annotations

from pathlib import Path

from kdgat.canbus.messages import SCENARIO_SEPARATOR

COMPRESSIBLE_SUFFIXES = (".csv", ".txt", ".log", ".asc", ".trc", ".blf", ".pcap", ".pcapng")
"""Suffixes behind which `.gz` may stand."""
RECORDING_SUFFIXES = (".parquet", *COMPRESSIBLE_SUFFIXES, ".mf4")
"""Suffixes of files that are looked at as recordings in a folder."""
COMPRESSED_SUFFIX = ".gz"


def is_recording(path: Path) -> bool:
    """Tell whether a file is named like a recording."""
    suffix = recording_suffix(path)
    return suffix in (RECORDING_SUFFIXES if path.suffix.lower() == suffix else COMPRESSIBLE_SUFFIXES)


def recording_suffix(path: Path) -> str:
    """Return the suffix that tells the format, in small letters: `.log` of `drive.LOG.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == COMPRESSED_SUFFIX else suffix


def recording_stem(path: Path) -> str:
    """Return the name of a file without what tells the format: `drive` of `drive.log.gz`."""
    return Path(path.stem).stem if path.suffix.lower() == COMPRESSED_SUFFIX else path.stem


def recording_name(path: Path) -> tuple[str, str]:
    """Take (scenario, recording) from `<scenario>__<recording>.suffix` or `<scenario>/<recording>.suffix`."""
    stem = recording_stem(path)
    scenario, separator, name = stem.partition(SCENARIO_SEPARATOR)
    return (scenario, name) if separator else (path.parent.name, stem)
