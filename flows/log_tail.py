"""What another process appends to a file: the last lines, or those that are new, and that it does not grow for ever."""

import contextlib
import os
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 64_000
MAX_LOG_BYTES: Final = 8 << 20
KEPT_JOBS: Final = 20


def last_lines(path: Path, num_lines: int = 8) -> str:
    """Return the end of a log."""
    if not path.is_file():
        return "(no log)"
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_BYTES))
        lines = log.read().decode(errors="replace").rstrip().splitlines()
    return "\n".join(lines[-num_lines:]) or "(nothing)"


def trim(path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Leave the last half of `max_bytes` of a log that is longer; whoever has it open for appending goes on there."""
    with contextlib.suppress(OSError), path.open("r+b") as log:
        size = log.seek(0, os.SEEK_END)
        if size > max_bytes:
            log.seek(size - max_bytes // 2)
            _, _, rest = log.read().partition(b"\n")
            log.seek(0)
            log.write(rest)
            log.truncate()


def remove_old_output(folder: Path, kept: int = KEPT_JOBS) -> None:
    """Remove what the jobs of each stage printed, NAME-NUMBER.out and .err, but for the last `kept` of them."""
    jobs: dict[str, list[tuple[int, Path]]] = {}
    for path in [*folder.glob("*-*.out"), *folder.glob("*-*.err")]:
        name, _, number = path.stem.rpartition("-")
        if number.isdigit():
            jobs.setdefault(name + path.suffix, []).append((int(number), path))
    for found in jobs.values():
        for _, path in sorted(found)[:-kept]:
            with contextlib.suppress(OSError):
                path.unlink()


class LogTail:
    """Read what is appended to a log from now on, whole lines only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = path.stat().st_size if path.is_file() else 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Return the lines that were completed since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                added = file.read()
        except OSError:  # not there yet, or a network filesystem that has lost its handle: the next look finds it
            return []
        self._position += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        return [line.decode(errors="replace") for line in lines if line.strip()]
