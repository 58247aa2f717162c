"""The job in which a detached command watches a run: `kdgat train ... --detach`.

As soon as one begins, it submits the next, which waits for its end whatever that is: walltime, a node that fails, a
kill. So a run is watched until its command has come to an end of its own, and then the next one is cancelled. Jobs of
stages go on between two watchers, and the next one takes them over.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from kdgat.cluster.slurm import Slurm, SubmissionError, outside_of_jobs
from kdgat.run.directory import OutputDirectory, RunError, StageState
from kdgat.stage.files import write_snapshot

SCRIPT: Final = "watcher.sh"  # both in the folder of what jobs print
STATE: Final = "watcher.json"
SUBMIT_AGAIN_S: Final = 60.0
SHORT_S: Final = 900.0  # a watcher that was there for longer has done something
MOST_SHORT: Final = 5  # short ones in a row: something is wrong that no further one mends
POLL_S: Final = 0.5


class Watcher:
    """One job that watches a run by a command, in the process that Slurm signals.

    Args:
        output: of the run, with the script of the job.
        job_id: of this job.
        slurm: takes the next job, and cancels it.
    """

    def __init__(self, output: OutputDirectory, job_id: str, slurm: Slurm) -> None:
        self._output, self._job_id, self._slurm = output, job_id, slurm
        self._next = ""  # job that comes after this one
        self._next_try = 0.0
        self._received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end and return its exit status; another watcher comes unless that end was its own."""
        state = self._output.slurm_path / STATE
        num_short = read_num_short(state)
        if num_short >= MOST_SHORT:
            print(f"{num_short} watchers in a row ended within {SHORT_S / 60:.0f} minutes: the last one that is tried")
            return 1
        note_num_short(state, num_short + 1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)
        status = self._watch(command, state)
        if self._is_followed(status):
            if self._received:
                note_num_short(state, 0)
            self._submit_next()
            print(f"watcher {self._job_id} leaves with status {status}; the next one is job {self._next or '(none)'}")
        else:
            note_num_short(state, 0)
            if self._next:
                self._slurm.cancel(self._next)
        return status

    def _watch(self, command: Sequence[str], state: Path) -> int:
        self._submit_next()
        since = time.monotonic()
        self._process = process = subprocess.Popen(command, env=outside_of_jobs(os.environ))
        for number in self._received:  # before there was a process
            process.send_signal(number)
        is_short = True
        while (status := process.poll()) is None:
            if not self._next and time.monotonic() > self._next_try:
                self._submit_next()
            if is_short and time.monotonic() - since > SHORT_S:
                is_short = False
                note_num_short(state, 0)
            time.sleep(POLL_S)
        return status

    def _submit_next(self) -> None:
        if self._next:
            return
        self._next_try = time.monotonic() + SUBMIT_AGAIN_S
        try:
            # Not `afternotok`: how this job ends says nothing about whether its command has come to an end.
            self._next = self._slurm.submit(self._output.slurm_path / SCRIPT, f"--dependency=afterany:{self._job_id}")
        except SubmissionError as error:
            print(f"the next watcher, asked for again in {SUBMIT_AGAIN_S:.0f} s: {error}", flush=True)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        if self._process is not None:
            self._process.send_signal(number)

    def _is_followed(self, status: int) -> bool:
        """Tell whether the run is to be watched on: the command was asked to leave, was killed, or broke down."""
        if signal.SIGINT in self._received or status == 0:
            return False
        if self._received or status < 0:
            return True
        try:
            return not any(record.state == StageState.FAILED for record in self._output.read_index().stages)
        except RunError:
            return True  # it has not come that far


def read_num_short(path: Path) -> int:
    """Return how many watchers have ended soon, one after the other."""
    try:
        return int(json.loads(path.read_bytes())["num_short"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def note_num_short(path: Path, number: int) -> None:
    """Keep how many watchers have ended soon, for the next one."""
    write_snapshot(path, json.dumps({"num_short": number}).encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch a run; the words after the output directory are the command."""
    parser = argparse.ArgumentParser(prog="python -m flows.watcher", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    return Watcher(OutputDirectory(given.out), os.environ["SLURM_JOB_ID"], Slurm()).run(given.command)


if __name__ == "__main__":
    sys.exit(main())
