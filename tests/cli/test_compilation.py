"""A first call that compiles says so, how far it is and what it came to, and ends at Ctrl-C; others say nothing."""

import os
import pty
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import event

from kdgat.canbus import write_recording
from kdgat.cli import compilation
from kdgat.cli.compilation import COMPILING, STOPPED, compilation_told
from kdgat.run.end import EXIT_STOPPED
from tests.can.detection.untrained import drive
from tests.support.command_line import PROGRAM, kdgat
from tests.support.waiting import wait_until


def two_kernels() -> tuple[Any, Any]:
    """Return functions that nothing has compiled yet, and that no cache keeps."""
    return numba.njit(lambda x: x + 1), numba.njit(lambda x: x + 2)


def test_compilation_is_told_of_at_its_beginning_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_kernels()
    with compilation_told(quiet=False):
        assert capsys.readouterr().err == ""
        first(1)
        second(1)
    begin, end = capsys.readouterr().err.splitlines()
    assert begin == COMPILING
    assert end.startswith("compiled 2 functions in ")
    with compilation_told(quiet=False):
        first(1)
    assert capsys.readouterr().err == "", "it is compiled already"


def test_its_end_is_told_before_the_command_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live watch goes on for days."""
    monkeypatch.setattr(compilation, "REDRAWN_S", 0.01)
    monkeypatch.setattr(compilation, "OVER_S", 0.05)
    printed = ""
    first, second = two_kernels()
    with compilation_told(quiet=False):
        for kernel in (first, second):
            kernel(1)
            printed = ""

            def is_told() -> bool:
                nonlocal printed
                printed += capsys.readouterr().err
                return "compiled 1 function in " in printed

            wait_until(is_told, "the end")
            assert printed.startswith(COMPILING)
    assert capsys.readouterr().err == ""


def test_something_moves_while_a_function_is_compiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "REDRAWN_S", 0.01)
    monkeypatch.setattr(compilation, "TOLD_S", 0.1)
    with compilation_told(quiet=False), event.trigger_event("numba:compile"):
        time.sleep(0.5)
    told = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("still compiling: 0 s, 0 functions")
    ]
    assert 2 <= len(told) <= 5


def test_quiet_and_afterwards_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_kernels()
    with compilation_told(quiet=True):
        first(1)
    with compilation_told(quiet=False):
        pass
    second(1)
    assert capsys.readouterr().err == ""


def test_what_make_install_compiles_is_all_that_a_first_detect_needs(tmp_path: Path) -> None:
    write_recording(tmp_path / "drive.parquet", drive(None))
    compilation.main()
    assert COMPILING not in kdgat("detect", tmp_path / "drive.parquet").stderr


@pytest.mark.processes
def test_a_line_on_a_terminal_moves_and_ctrl_c_ends_the_first_detect_within_two_seconds(tmp_path: Path) -> None:
    """With the kernels of the habits themselves, which compile for a minute."""
    write_recording(tmp_path / "drive.parquet", drive(None))
    ours, theirs = pty.openpty()
    words = [*PROGRAM, "detect", str(tmp_path / "drive.parquet")]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    process = subprocess.Popen(words, stderr=theirs, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    os.close(theirs)
    printed = b""
    try:
        while printed.count(b"still compiling: ") < 3:
            printed += os.read(ours, 4096)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == EXIT_STOPPED
        assert time.monotonic() - begun < 2.0
        assert process.communicate()[0] == b""
        printed += os.read(ours, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    last = printed.decode().replace("\r\n", "\n").splitlines()[-1]
    assert last.endswith(STOPPED)
