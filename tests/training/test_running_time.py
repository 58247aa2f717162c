"""Time counts while a process runs or waits, and stands still while it is stopped."""

import os
import signal
import subprocess
import sys
import time

import pytest

from kdgat.training.running_time import PAUSE_S, RunningTime


class Machine:
    """A process whose clock and processor time a test moves."""

    def __init__(self) -> None:
        self.now = self.used = 100.0

    def passes(self, seconds: float, used: float = 0.0) -> None:
        self.now += seconds
        self.used += used


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def running_time(machine: Machine) -> RunningTime:
    return RunningTime(lambda: machine.now, lambda: machine.used)


def test_short_waits_count(machine: Machine, running_time: RunningTime) -> None:
    for _ in range(10):
        machine.passes(PAUSE_S)  # a slow filesystem: nothing is computed, and the thread looks all the same
        running_time()
    assert running_time() == pytest.approx(10 * PAUSE_S)


def test_a_long_pause_without_processor_time_does_not_count(machine: Machine, running_time: RunningTime) -> None:
    machine.passes(18_000.0, used=1.0)
    assert running_time() < 1.0
    assert running_time.stopped_s == pytest.approx(18_000.0, abs=1.0)
    machine.passes(1.0)
    assert running_time() == pytest.approx(1.0, abs=1.0)


def test_a_long_computation_that_lets_no_other_thread_run_counts(machine: Machine, running_time: RunningTime) -> None:
    machine.passes(60.0, used=59.0)
    assert running_time() == 60.0


PROGRAM = """
import os, signal, sys, time
from kdgat.training.running_time import RunningTime

with RunningTime().watched() as running_time:
    began = running_time()
    if sys.argv[1] == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        time.sleep(float(sys.argv[2]))
    print(running_time() - began, running_time.stopped_s, flush=True)
"""


@pytest.mark.parametrize("how", ["stopped", "waiting"])
@pytest.mark.processes
def test_a_real_process_notices_that_it_was_stopped_and_not_that_it_waited(how: str) -> None:
    seconds = 2.0 * PAUSE_S
    command = [sys.executable, "-c", PROGRAM, how, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if how == "stopped":
            os.waitpid(process.pid, os.WUNTRACED)
            time.sleep(seconds)
            os.kill(process.pid, signal.SIGCONT)
        ran_s, stopped_s = map(float, process.stdout.read().split())
    if how == "stopped":
        assert stopped_s > seconds - 1.0
        assert ran_s < PAUSE_S
    else:
        assert stopped_s < 1.0
        assert ran_s > seconds - 1.0
