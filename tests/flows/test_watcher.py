"""The process in a watcher's job, a real one, beside an sbatch and a scancel that write down how they are called."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.watcher import MOST_SHORT, SCRIPT, STATE, note_num_short, read_num_short
from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState
from tests.support.waiting import wait_until

COMMANDS = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
[ -e "$CALLS.refused" ] && { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }
echo 8
"""
SLEEPS = "import time; print('there', flush=True); time.sleep(600)"
LEAVES = f"""
import signal, sys
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: sys.exit(130))
{SLEEPS}
"""


class WatcherJob:
    """Watchers of one run, job number 7 each time."""

    def __init__(self, path: Path) -> None:
        self.output = OutputDirectory(path / "out")
        self.output.slurm_path.mkdir(parents=True)
        self.calls_path, self.log_path = path / "calls", path / "log"
        self.calls_path.touch()
        commands = path / "bin"
        commands.mkdir()
        for name in ("sbatch", "scancel"):
            (commands / name).write_text(COMMANDS)
            (commands / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "CALLS": str(self.calls_path),
            "SLURM_JOB_ID": "7",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, program: str) -> "WatcherJob":
        command = [sys.executable, "-m", "flows.watcher", str(self.output.path), sys.executable, "-c", program]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        return self

    def finish(self) -> int:
        assert self.process is not None
        return self.process.wait(120)

    def wait_for_command(self) -> "WatcherJob":
        wait_until(lambda: "there" in self.printed(), "the command", log=self.printed)
        return self

    def signal(self, number: signal.Signals) -> "WatcherJob":
        assert self.process is not None
        self.process.send_signal(number)
        return self

    def calls(self) -> list[str]:
        return self.calls_path.read_text().splitlines()

    def printed(self) -> str:
        return self.log_path.read_text()

    @property
    def num_short(self) -> int:
        return read_num_short(self.output.slurm_path / STATE)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WatcherJob]:
    job = WatcherJob(tmp_path)
    yield job
    if job.process is not None and job.process.poll() is None:
        job.process.kill()
        job.process.wait()


@pytest.fixture
def submission(job: WatcherJob) -> str:
    """How the next watcher is asked for."""
    return f"sbatch --parsable --dependency=afterany:7 {job.output.slurm_path / SCRIPT}"


def test_the_next_watcher_is_there_from_the_start_and_goes_with_the_end_of_the_command(
    job: WatcherJob, submission: str
) -> None:
    job.start("print('there', flush=True); import time; time.sleep(1)").wait_for_command()
    assert job.calls() == [submission]
    assert job.finish() == 0
    assert job.calls() == [submission, "scancel 8"]
    assert job.num_short == 0


@pytest.mark.parametrize("program", ["import os; os.kill(os.getpid(), 9)", "raise RuntimeError('no server')"])
def test_a_command_that_is_killed_or_breaks_down_is_given_again_by_the_next(
    job: WatcherJob, submission: str, program: str
) -> None:
    assert job.start(program).finish() != 0
    assert job.calls() == [submission]
    assert "the next one is job 8" in job.printed()
    assert job.num_short == 1


def test_a_stage_that_failed_is_an_end_of_its_own(job: WatcherJob, submission: str) -> None:
    failed = StageRecord(name="normal", stage="normal", scale="large", seed=0, state=StageState.FAILED)
    job.output.write_index(RunIndex(family="can", config={}, stages=[failed]))
    assert job.start("raise SystemExit(1)").finish() == 1
    assert job.calls() == [submission, "scancel 8"]


def test_at_the_end_of_the_job_the_command_leaves_and_the_next_watcher_stays(job: WatcherJob, submission: str) -> None:
    note_num_short(job.output.slurm_path / STATE, 3)
    job.start(LEAVES).wait_for_command().signal(signal.SIGTERM)
    assert job.finish() == 130
    assert job.calls() == [submission]
    assert job.num_short == 0


def test_ctrl_c_stops_for_good(job: WatcherJob, submission: str) -> None:
    job.start(LEAVES).wait_for_command().signal(signal.SIGINT)
    assert job.finish() == 130
    assert job.calls() == [submission, "scancel 8"]


def test_a_next_watcher_that_is_refused_is_asked_for_again_before_this_one_leaves(
    job: WatcherJob, submission: str
) -> None:
    refused = job.calls_path.with_name("calls.refused")
    refused.touch()
    job.start(LEAVES).wait_for_command()
    assert "QOSMaxSubmitJobPerUserLimit" in job.printed()
    refused.unlink()
    job.signal(signal.SIGTERM)
    assert job.finish() == 130
    assert job.calls() == [submission, submission]


def test_after_five_that_ended_at_once_no_other_one_is_tried(job: WatcherJob) -> None:
    note_num_short(job.output.slurm_path / STATE, MOST_SHORT)
    assert job.start("pass").finish() == 1
    assert job.calls() == []
    assert "the last one" in job.printed()


def test_the_command_does_not_believe_to_be_the_job(job: WatcherJob) -> None:
    job.start("import json, os; print(json.dumps([name for name in os.environ if name.startswith('SLURM_JOB')]))")
    assert job.finish() == 0
    assert json.loads(job.printed()) == []
