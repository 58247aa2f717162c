import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.deployment.service import Service, end, have_ended, is_alive, processes_with
from flows.log_tail import last_lines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

TIMEOUT_S = 30.0
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path, "thing")
    yield found
    process = found.process()
    if process is not None:
        end(process, 0.1)


def started(service: Service, command: list[str], folder: Path) -> psutil.Process:
    process = service.start(command, os.environ, folder, port=7)
    wait_until(lambda: "up" in last_lines(service.log_path), "its first word")
    return process


def test_what_was_started_is_found_again_and_ended(service: Service, tmp_path: Path) -> None:
    process = started(service, SLEEP, tmp_path)
    again = Service(tmp_path, "thing")
    assert again.process() == process
    assert again.note()["port"] == 7
    assert os.getsid(process.pid) == process.pid  # out of reach for Ctrl-C
    assert end(process)
    assert again.process() is None


def test_what_ignores_a_request_is_ended_by_force(service: Service, tmp_path: Path) -> None:
    process = started(service, STUBBORN, tmp_path)
    assert not end(process, 0.3)
    assert not is_alive(process)


def test_what_is_ended_by_force_leaves_nothing_of_its_group(service: Service, tmp_path: Path) -> None:
    child = f"import subprocess; subprocess.Popen({SLEEP!r}).wait()"
    parent = f"import signal; signal.signal(15, signal.SIG_IGN); {child}"
    process = started(service, [sys.executable, "-c", parent], tmp_path)
    (group,) = [found for found in processes_with({}, SLEEP[2]) if os.getpgid(found.pid) == process.pid]
    assert not end(process, 0.3)
    assert have_ended([group], TIMEOUT_S)


def test_only_what_was_started_for_this_note_is_it(service: Service, tmp_path: Path) -> None:
    """Not what it has started itself, which inherits its mark, and not the same program with another note."""
    parent = [sys.executable, "-c", f"import subprocess; subprocess.Popen({SLEEP!r}).wait()"]
    other = Service(tmp_path, "other")
    process, stranger = started(service, parent, tmp_path), started(other, parent, tmp_path)
    assert service.process() == process
    children = [child for parent in (process, stranger) for child in parent.children()]
    assert len(children) == 2
    process.kill()
    assert have_ended([process], TIMEOUT_S)
    assert service.process() is None
    assert other.process() == stranger
    for left in (stranger, *children):
        end(left)


def test_a_process_that_is_over_but_not_collected_does_not_run() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        process = psutil.Process(child.pid)
        wait_until(lambda: not is_alive(process), "its end")  # a zombie until `with` ends
        assert have_ended([process], 0.0)


def test_a_program_is_noted_before_it_starts(service: Service, tmp_path: Path) -> None:
    """Whoever starts it may be killed meanwhile: the program is known all the same."""
    command = [str(tmp_path / "no-such-program")]
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        service.start(command, os.environ, tmp_path)
    assert service.note()["command"] == command
    assert service.process() is None


def test_a_damaged_note_is_no_process(service: Service) -> None:
    assert service.note() == {}
    service.note_path.write_text('{"pid": 1')
    assert service.process() is None
    service.note_path.write_text('{"pid": 1}')
    assert service.process() is None


def test_processes_are_found_by_environment_and_command(tmp_path: Path) -> None:
    variables = {"KDGAT_HOME": str(tmp_path)}
    with contextlib.ExitStack() as stack:
        own = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL, env={**os.environ, **variables})
        other = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL, env={**os.environ, "KDGAT_HOME": "elsewhere"})
        for process in (own, other):
            stack.callback(process.wait)
            stack.callback(process.kill)
        wait_until(lambda: [process.pid for process in processes_with(variables, SLEEP[2])] == [own.pid], "both")
        assert list(processes_with(variables, "another word")) == []
