"""`kdgat` as a person types it: in this process, which saves the imports of a new one, or as a process of its own."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kdgat.cli.main import main

PROGRAM = (sys.executable, "-m", "kdgat.cli.main")


class Answer(NamedTuple):
    """Exit status and everything printed."""

    status: int
    stdout: str
    stderr: str


def kdgat(*words: object, status: int | None = None, folder: Path | None = None) -> Answer:
    """Run `kdgat` with these words in this process.

    Args:
        words: arguments, turned into text.
        status: the exit status that is expected; None takes any.
        folder: current directory meanwhile.

    An exception that is no user mistake, and any with `--debug`, is raised instead of printed.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder or Path.cwd()),
        pytest.raises(SystemExit) as stop,
    ):
        main([str(word) for word in words])
    answer = Answer(int(stop.value.code or 0), out.getvalue(), err.getvalue())
    assert status is None or answer.status == status, answer.stdout + answer.stderr
    return answer


def run_kdgat(*words: str, timeout_s: float = 120.0, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `kdgat` in a process of its own, for what only a process shows: imports, signals, servers."""
    return subprocess.run(
        [*PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        check=False,
    )


@contextlib.contextmanager
def started_kdgat(log_path: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Start `kdgat` in a process group of its own, as a shell does, and leave nothing of it behind."""
    with log_path.open("w") as log:
        process = subprocess.Popen([*PROGRAM, *words], stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def processes_of(folder: Path) -> list[str]:
    """Return the commands of all processes that have this folder in command or environment, this one aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder) in command or str(folder).encode() in environment:
                found.append(command)
    return found
