"""Where a stage's log goes: `stage.log` of its run directory, and stderr."""

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from kdgat.stage.directory import RunDirectory
from kdgat.stage.families import registered_packages

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(logging.Handler):
    """Append each line to a file; one that cannot be written is lost, is said on stderr, and ends nothing.

    `logging.FileHandler` raises where the file cannot be opened, and where it is closed after a line that failed.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: FileIO | None = None
        self._fails = self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, at once."""
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:  # a mistake in the call, as logging treats it everywhere
            self.handleError(record)
            return
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            if self._file.write(b"\n" * self._is_cut + line) < len(line):
                self._is_cut = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._fails = self._is_cut = False
        except OSError as error:
            if not self._fails:
                with suppress(OSError, ValueError):  # stderr may be a file of the same disk
                    print(f"{self._path} cannot be written, the next line is tried: {error}", file=sys.stderr)
            self._fails = True
            self._close()

    def close(self) -> None:
        """Close the file."""
        self._close()
        super().close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


@contextmanager
def stage_log(directory: RunDirectory, quiet: bool) -> Iterator[None]:
    """Send the log of the package to the run directory and, unless quiet, to stderr."""
    # Warnings of libraries belong into the log as well: on a node nobody sees stderr, and quiet means quiet.
    loggers = [logging.getLogger(name) for name in ("flows", "kdgat", *sorted(registered_packages()), "py.warnings")]
    levels = [one.level for one in loggers]
    handlers: list[logging.Handler] = [LogFile(directory.log_path)]
    if not quiet:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
    for one in loggers:
        one.setLevel(logging.INFO)
        for handler in handlers:
            one.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
            for handler in handlers:
                one.removeHandler(handler)
        for handler in handlers:
            handler.close()
