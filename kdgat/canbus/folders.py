"""What lies in a dataset's folder: recordings, by their names or by what they hold, and all else with the reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from kdgat.base.text import PICKLED, describe_pickled, list_some
from kdgat.canbus.logs import end_of_lines
from kdgat.canbus.messages import SCENARIO_SEPARATOR, RecordingError
from kdgat.canbus.names import is_recording, is_utf8, recording_stem, recording_suffix, tells_labels
from kdgat.canbus.readers.detect import FileFormat, find_format
from kdgat.canbus.readers.packing import open_recording, read_head
from kdgat.canbus.readers.rows import NO_ROW, RowStatus

NO_SCENARIO: Final = "no scenario in its name"
_BESIDE_STEMS: Final = re.compile(r"(readme|licen[cs]e|copying|changelog|citation|notice|(md5|sha\d+)sums?)\b", re.I)
_BESIDE_SUFFIXES: Final = (
    *(".md", ".rst", ".json", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm", ".py", ".ipynb", ".sh"),
    *(".md5", ".sha1", ".sha256", ".sha512", ".png", ".jpg", ".jpeg", ".svg", ".gif", ".tif", ".tiff"),
    *(".npy", ".npz", ".h5", ".onnx", ".swc", ".shp", ".geojson", *PICKLED),
)
_UNFINISHED_SUFFIXES: Final = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".filepart", ".swp")
_MAX_LISTED: Final = 5


@dataclass(slots=True)
class FolderContent:
    """Hold what lies in a folder; nobody takes the files `beside` for recordings, by their names."""

    recordings: list[tuple[str, str, Path]] = field(default_factory=list)  # scenario (empty: none), name, path
    passed_over: dict[Path, str] = field(default_factory=dict)  # file -> why it is no recording
    beside: list[Path] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        """Name what is no recording, each with the reason; what lies beside them in one line."""
        for path, reason in sorted(self.passed_over.items()):
            yield f"passed over: {_shown(path)} (no recording: {reason})"
        if self.beside:
            names = [_shown(Path(path.name)) for path in sorted(self.beside)]
            yield f"passed over, by their names: {list_some(names, _MAX_LISTED)}"
        if cache := next((path for path in self.beside if path.suffix.lower() in PICKLED), None):
            yield f"{_shown(Path(cache.name))} {describe_pickled(cache, 'recordings are needed')}"


def survey_folder(folder: Path, *, needs_scenario: bool = True) -> FolderContent:
    """Look at the names in a dataset's folder, in both layouts, and into files whose names say nothing."""
    content = FolderContent()
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith(".") and is_utf8(path):
            for inner in sorted(path.rglob("*")):
                if not inner.is_dir():
                    name = inner.relative_to(path).with_name(recording_stem(inner)).as_posix()
                    _sort(content, inner, path.name, name)
        elif not path.is_dir():
            scenario, separator, name = recording_stem(path).partition(SCENARIO_SEPARATOR)
            if separator and scenario and name:
                _sort(content, path, scenario, name)
            elif needs_scenario and recording_suffix(path) == ".txt" and not _is_beside(path):  # most likely a readme
                content.passed_over[path] = f"{NO_SCENARIO}: call it <scenario>{SCENARIO_SEPARATOR}{path.name}"
            else:
                _sort(content, path, "", recording_stem(path))
    return content


def _sort(content: FolderContent, path: Path, scenario: str, name: str) -> None:
    if tells_labels(path):  # of a recording, which says so
        return
    is_link_to_nothing = path.is_symlink() and not path.exists()
    if not is_utf8(path):
        content.passed_over[path] = "its name is no text in UTF-8: rename it"
    elif _is_beside(path):
        content.beside.append(path)
    elif is_recording(path) and (path.is_file() or is_link_to_nothing):  # of a link to nothing, reading says so
        content.recordings.append((scenario, name, path))
    elif not path.is_file():
        content.passed_over[path] = "a link to nothing" if is_link_to_nothing else "a pipe, a socket or a device"
    elif reason := why_no_recording(path):
        content.passed_over[path] = reason
    else:
        content.recordings.append((scenario, name, path))


def _is_beside(path: Path) -> bool:
    is_hidden = path.name.startswith(".")
    return is_hidden or path.suffix.lower() in _BESIDE_SUFFIXES or _BESIDE_STEMS.match(path.name) is not None


def why_no_recording(path: Path) -> str:
    """Look at the beginning of a file, whatever its name; return why it holds no messages, empty where it does."""
    if path.suffix.lower() in _UNFINISHED_SUFFIXES or path.name.endswith("~"):
        return f"named {path.suffix or '~'}, as what is not finished; rename it when it is"
    try:
        if find_format(path) is not FileFormat.TEXT:
            return ""
        return _why_no_text(path)
    except RecordingError as error:
        return error.problem.partition("; known are")[0]
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _why_no_text(path: Path) -> str:
    from kdgat.canbus.readers.text import SNIFFED_BYTES, LineParser, find_start

    with open_recording(path) as stream:
        head = read_head(stream, SNIFFED_BYTES)
    layout, start = find_start(path, head, is_whole=len(head) < SNIFFED_BYTES)
    end = (end_of_lines(head) if len(head) == SNIFFED_BYTES else 0) or len(head)
    status = LineParser(layout).parse(np.frombuffer(head, np.uint8, end), start).status
    num_good = np.count_nonzero(status == RowStatus.GOOD)
    num_bad = np.count_nonzero((status != RowStatus.GOOD) & (status < NO_ROW))
    return "" if num_good > num_bad else "most of its lines are no CAN messages"


def _shown(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")
