"""Which processes are runs of an installation, and how they are stopped: with processes that look like them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from flows.deployment.runs import DEPLOY, ENGINE, RUN_VARIABLE, STAGE, WORKER_VARIABLE, run_ids, stop_runs

pytestmark = pytest.mark.processes

IDLE = "import time; print('up', flush=True); time.sleep(600)"
ON = "import signal, os; [signal.signal(number, {}) for number in ({})]; " + IDLE
BOTH = "signal.SIGINT, signal.SIGTERM"
STUBBORN = ON.format("signal.SIG_IGN", BOTH)
# Ends with the number of the signal, which tells it from SIGKILL.
POLITE = ON.format("lambda number, _: os._exit(number)", BOTH)
DEAF_TO_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + ON.format(
    "lambda number, _: os._exit(number)", "signal.SIGTERM,"
)
STOPPED, SAVED = signal.SIGINT, signal.SIGTERM  # what ends a run, and a stage that is asked once more
KILLED = -9

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start what looks like an engine or a stage of this installation."""
    processes: list[subprocess.Popen[str]] = []

    def start(word: str, program: str = POLITE, **variables: str) -> "subprocess.Popen[str]":
        environment = {name: value for name, value in os.environ.items() if name not in (WORKER_VARIABLE, RUN_VARIABLE)}
        process = subprocess.Popen(
            [sys.executable, "-c", program, word],
            env={**environment, "KDGAT_HOME": str(tmp_path), **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def of_run(worker: str = DEPLOY, run_id: UUID | None = None) -> dict[str, str]:
    return {RUN_VARIABLE: str(run_id or uuid4()), WORKER_VARIABLE: worker}


def test_stages_of_a_run_are_stopped_and_those_of_a_person_are_not(tmp_path: Path, start: Start) -> None:
    run = of_run()
    engine, stage = start(ENGINE, **run), start(STAGE, **run)
    by_hand, elsewhere = start(STAGE), start(STAGE, **{**run, "KDGAT_HOME": str(tmp_path / "other")})
    said: list[str] = []
    stop_runs(tmp_path, said.append, DEPLOY, save_timeout_s=1.0)
    assert (engine.wait(), stage.wait()) == (STOPPED, SAVED)
    assert by_hand.poll() is elsewhere.poll() is None
    assert not any("by force" in line for line in said)


def test_runs_of_another_worker_go_on_unless_all_are_meant(tmp_path: Path, start: Start) -> None:
    systemd = {RUN_VARIABLE: str(uuid4())}
    engine, stage = start(ENGINE, **systemd), start(STAGE, **systemd)
    stop_runs(tmp_path, print, DEPLOY, save_timeout_s=1.0)
    assert engine.poll() is stage.poll() is None
    stop_runs(tmp_path, print, save_timeout_s=1.0)
    assert (engine.wait(), stage.wait()) == (STOPPED, SAVED)


def test_a_run_that_ignores_interrupts_is_asked_otherwise(tmp_path: Path, start: Start) -> None:
    engine = start(ENGINE, DEAF_TO_INTERRUPTS, **of_run())
    stop_runs(tmp_path, print, DEPLOY, save_timeout_s=5.0)
    assert engine.wait() == SAVED


def test_what_does_not_stop_is_killed(tmp_path: Path, start: Start) -> None:
    runs = [of_run() for _ in range(2)]
    engines = [start(ENGINE, STUBBORN, **run) for run in runs]
    stages = [start(STAGE, STUBBORN, **run) for run in runs]
    said: list[str] = []
    stop_runs(tmp_path, said.append, DEPLOY, save_timeout_s=1.0, leave_timeout_s=0.5)
    assert {process.wait() for process in (*engines, *stages)} == {KILLED}
    assert len([line for line in said if "by force" in line]) == 4


def test_a_stage_whose_run_was_killed_is_stopped_too(tmp_path: Path, start: Start) -> None:
    stage = start(STAGE, **of_run())
    stop_runs(tmp_path, print, DEPLOY, save_timeout_s=0.3)
    assert stage.wait() == SAVED


def test_runs_are_known_by_the_ids_that_prefect_gave_them(tmp_path: Path, start: Start) -> None:
    run_id, other = uuid4(), uuid4()
    start(ENGINE, **of_run(run_id=run_id))
    start(ENGINE, **of_run("systemd", other))
    start(ENGINE)
    assert run_ids(tmp_path) == {run_id, other}
