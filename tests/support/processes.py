"""Python processes that a test starts: only those tests that are marked as starting some may."""

import multiprocessing.process
import sys
from pathlib import Path

import pytest

MARK = "processes"


def is_gone(pid: int | str) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


class Guard:
    """Fails the test that starts a Python process, while one is watched."""

    def __init__(self) -> None:
        self.watched: str | None = None
        sys.addaudithook(self._audit)
        self._start = multiprocessing.process.BaseProcess.start
        guard = self

        def start(process: multiprocessing.process.BaseProcess) -> None:
            guard._refuse()
            guard._start(process)

        multiprocessing.process.BaseProcess.start = start  # type: ignore[method-assign]

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.watched is not None and event == "subprocess.Popen":
            program, command = arguments[:2]
            words = [program, *command] if isinstance(command, list | tuple) else [program]
            if sys.executable in map(str, words):
                self._refuse()

    def _refuse(self) -> None:
        if self.watched is not None:
            pytest.fail(f"{self.watched} starts a Python process and is not marked with pytest.mark.{MARK}")
