"""A long program is shown while it runs, kept in a log, and ended with all it started when we are interrupted."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kdgat.container.process import NUM_LAST_LINES, run_streaming
from tests.support.waiting import wait_until


def test_lines_arrive_while_the_program_runs_and_stay_in_the_log(tmp_path: Path) -> None:
    seen: list[str] = []
    waits = f"echo one; while [ ! -e {tmp_path}/go ]; do sleep .02; done; echo two >&2; exit 3"

    def tell(line: str) -> None:
        seen.append(line)
        (tmp_path / "go").touch()  # the program goes on only when its first line has been passed on

    ending = run_streaming(["sh", "-c", waits], os.environ, tmp_path / "log", tell)
    assert (ending.status, ending.last_lines, seen) == (3, ("one", "two"), ["one", "two"])
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_only_the_last_lines_are_kept_in_mind_and_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    ending = run_streaming(
        ["sh", "-c", r"i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); done; printf '\377\n'"],
        os.environ, tmp_path / "log", lambda line: None,
    )  # fmt: skip
    assert len(ending.last_lines) == NUM_LAST_LINES
    assert ending.last_lines[-2] == "39"


@pytest.mark.processes
def test_a_signal_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import os
        from pathlib import Path
        from kdgat.container.process import run_streaming, signals_as_exit
        words = ["sh", "-c", "sleep 300 & echo $!; wait"]
        with signals_as_exit():
            run_streaming(words, os.environ, Path({str(tmp_path / "log")!r}), lambda line: print(line, flush=True))
    """)
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        sleeper = int(process.stdout.readline())
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == status
        wait_until(lambda sleeper=sleeper: not _runs(sleeper), "the end of its child", timeout_s=10.0)


@pytest.mark.processes
def test_further_signals_do_not_stop_the_unwinding(tmp_path: Path) -> None:
    # The program goes on after SIGTERM; only SIGKILL, after the time of grace, ends it.
    stubborn = f"trap 'touch {tmp_path}/asked' TERM; echo $$; while :; do sleep .05; done"
    script = textwrap.dedent(f"""
        import os
        from pathlib import Path
        from kdgat.container import process
        from kdgat.container.build import Builder, work_folder
        process.GRACE_S = 2.0
        with process.signals_as_exit(), work_folder(Path({str(tmp_path)!r}), Builder(None)) as folder:
            words, log = ["sh", "-c", {stubborn!r}], folder / "log"
            process.run_streaming(words, os.environ, log, lambda line: print(line, flush=True))
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    shell = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "asked").exists, "the first signal")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not _runs(shell)
    assert [path.name for path in tmp_path.iterdir()] == ["asked"]


@pytest.mark.processes
def test_a_signal_that_was_ignored_before_stays_ignored(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import os
        from pathlib import Path
        from kdgat.container.process import run_streaming, signals_as_exit
        words = ["sh", "-c", "echo begun; while [ ! -e {tmp_path}/go ]; do sleep .05; done; echo ended; sleep 300"]
        with signals_as_exit():
            run_streaming(words, os.environ, Path({str(tmp_path / "log")!r}), lambda line: print(line, flush=True))
    """)
    words = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", sys.executable, "-c", script]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert process.stdout.readline() == "ended\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except FileNotFoundError:
        return False
