import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.deployment.service import Process, Service, processes_with
from tests.support.waiting import wait_until

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
        process.end(0.1)


def started(service: Service, command: list[str], folder: Path) -> Process:
    process = service.start(command, os.environ, folder, port=7)
    wait_until(lambda: "up" in service.log_tail(), "its first word")
    return process


def test_what_was_started_is_found_again_and_ended(service: Service, tmp_path: Path) -> None:
    process = started(service, SLEEP, tmp_path)
    again = Service(tmp_path, "thing")
    assert again.process() == process
    assert again.note()["port"] == 7
    assert os.getsid(process.pid) == process.pid  # out of reach for Ctrl-C
    assert process.end()
    assert again.process() is None


def test_what_ignores_a_request_is_ended_by_force(service: Service, tmp_path: Path) -> None:
    process = started(service, STUBBORN, tmp_path)
    assert not process.end(0.3)
    assert not process.is_alive()


def test_what_is_ended_by_force_leaves_nothing_of_its_group(service: Service, tmp_path: Path) -> None:
    child = f"import subprocess; subprocess.Popen({SLEEP!r}).wait()"
    parent = f"import signal; signal.signal(15, signal.SIG_IGN); {child}"
    process = started(service, [sys.executable, "-c", parent], tmp_path)
    (group,) = [found for found in processes_with({}, SLEEP[2]) if os.getpgid(found.pid) == process.pid]
    assert not process.end(0.3)
    assert group.wait(TIMEOUT_S)


def test_a_stranger_with_a_recycled_process_id_is_neither_ours_nor_ended(service: Service, tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL) as stranger:
        try:
            found = Process.of(stranger.pid)
            assert found is not None
            for recycled in (
                Process(found.pid, found.start_time - 1, found.boot_id),
                Process(found.pid, found.start_time, "before the restart"),
            ):
                service.note_path.write_text(json.dumps(vars(recycled)))
                assert service.process() is None
                assert recycled.end(0.1)
                recycled.send(signal.SIGKILL)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_process_that_is_over_but_not_collected_does_not_run() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        wait_until(lambda: Process.of(child.pid) is None, "its end")  # a zombie until `with` ends


def test_a_process_notes_itself_before_it_becomes_the_program(service: Service, tmp_path: Path) -> None:
    """Whoever starts it may be killed meanwhile: the program is known all the same."""
    process = service.start([str(tmp_path / "no-such-program")], os.environ, tmp_path)
    assert process.wait(TIMEOUT_S)
    assert service.note()["pid"] == process.pid
    assert "no-such-program" in service.log_tail()


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
