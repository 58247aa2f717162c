"""New lines of a file that another process appends to."""

from pathlib import Path


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
