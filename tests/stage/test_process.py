"""A process that imports much: the collector rests meanwhile, and its end loses nothing that was printed or logged."""

import gc
import os
import subprocess
import sys

import pytest

from kdgat.stage import garbage_kept


def test_the_collector_rests_inside_and_works_again_afterwards() -> None:
    with garbage_kept():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_works_again_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError), garbage_kept():
        raise ModuleNotFoundError
    assert gc.isenabled()


def test_a_collector_that_somebody_has_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with garbage_kept():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.processes
def test_leaving_writes_out_what_was_printed_and_has_the_given_status() -> None:
    program = "from kdgat.stage.process import leave; import sys; print('paused'); sys.stderr.write('why'); leave(75)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (75, "paused\n", "why")


@pytest.mark.processes
def test_leaving_with_nobody_to_read_keeps_the_status() -> None:
    program = "from kdgat.stage.process import leave; import time; print('x' * 9); time.sleep(0.5); leave(0)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0


AT_THE_END = """
import atexit, gc
from kdgat.stage.process import keep_garbage_at_exit
keep_garbage_at_exit()
keep_garbage_at_exit()
class Kept:
    def __del__(self): print("collected")
kept = Kept(); kept.itself = kept; del kept
gc.collect()
later = Kept(); later.itself = later; del later
atexit.register(print, "registered later")
"""


@pytest.mark.processes
def test_a_process_ends_as_usual_and_looks_for_no_garbage() -> None:
    printed = subprocess.run([sys.executable, "-c", AT_THE_END], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == ["collected", "registered later"]
