"""Names of files and folders: which recording one holds, and which may be given to a dataset or a recording."""

from __future__ import annotations

from pathlib import Path

from kdgat.canbus.messages import SCENARIO_SEPARATOR

PACKABLE_SUFFIXES = (".csv", ".txt", ".log", ".asc", ".trc", ".blf", ".pcap", ".pcapng")
"""Suffixes that one of a packing may follow."""
RECORDING_SUFFIXES = (".parquet", *PACKABLE_SUFFIXES, ".mf4")
"""Suffixes of files that a folder is known to hold as recordings; files of other names are looked into."""
PACKED_SUFFIXES = (".gz", ".xz", ".lzma", ".bz2", ".zip")
ATTACKS_SUFFIX = ".attacks.csv"
"""Behind the name of a log in that of a table which tells when it was attacked."""
METADATA_NAME = "capture_metadata.json"
"""What ROAD tells of the logs beside it."""
STANDARD_INPUT = Path("-")
_STREAMS = {STANDARD_INPUT: "stdin", Path("/dev/stdin"): "stdin"}  # what is read from them has no name of its own


def is_recording(path: Path) -> bool:
    """Return whether a file is named like a recording."""
    suffix = recording_suffix(path)
    if tells_labels(path):
        return False
    return suffix in (RECORDING_SUFFIXES if path.suffix.lower() == suffix else PACKABLE_SUFFIXES)


def tells_labels(path: Path) -> bool:
    """Return whether a file is named like one that tells the labels of the logs beside it."""
    return path.name == METADATA_NAME or path.name.lower().endswith(ATTACKS_SUFFIX)


def recording_suffix(path: Path) -> str:
    """Return the suffix that names the format, in small letters: `.log` of `drive.LOG.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED_SUFFIXES else suffix


def recording_stem(path: Path) -> str:
    """Return the name of a file without what names the format.

    >>> [recording_stem(Path(name)) for name in ("drive.log.gz", "drive.dat", "can.log.2.gz", "can.log_2022-08-27")]
    ['drive', 'drive', 'can.log.2', 'can.log_2022-08-27']
    """
    name = Path(path.stem) if path.suffix.lower() in PACKED_SUFFIXES else path
    # What has other signs than letters tells recordings apart: a number, a date.
    is_format = name.suffix.lower() in RECORDING_SUFFIXES or name.suffix[1:].isalpha()
    return _STREAMS.get(path) or (name.stem if is_format else name.name)


def recording_name(path: Path) -> tuple[str, str]:
    """Take (scenario, recording) from `<scenario>__<recording>.suffix` or `<scenario>/<recording>.suffix`."""
    stem = recording_stem(path)
    scenario, separator, name = stem.partition(SCENARIO_SEPARATOR)
    return (scenario, name) if separator else (path.parent.name, stem)


def is_utf8(path: Path) -> bool:
    """Return whether a path is text in UTF-8: no other can stand in a configuration or a report."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def is_path_part(text: str) -> bool:
    """Return whether a name is one part of a path, and no hidden one: what it names stays in the folder it belongs to.

    >>> [is_path_part(name) for name in ("can-train-and-test_v1.5", "", "..", "a/b", "a\\0b")]
    [True, False, False, False, False]
    """
    return bool(text.strip()) and "/" not in text and not text.startswith(".") and text.isprintable()


def require_dataset_name(name: str) -> str:
    """Return a dataset's name; ValueError with what it cannot be part of and the fix where it cannot name a folder."""
    if not is_path_part(name):
        raise ValueError(
            f"dataset={name!r} cannot be part of a file name, and names a folder of the data root; use letters, "
            "digits, -, _ and ., the last one not first"
        )
    return name
