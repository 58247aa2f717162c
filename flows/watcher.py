"""The job in which a detached command watches a run: `kdgat train ... --detach`.

Such jobs have one name, and Slurm runs one of that name at a time. Each sees to it that two others wait, so that the
next one begins whatever ends this one: walltime, a kill, a node that fails. When the command has come to an end of its
own, or somebody has stopped it, that is noted before the others are cancelled: one that begins all the same leaves at
once. Jobs of stages go on between two watchers, and the next one takes them over.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Final

from kdgat.base import UserError, write_bytes_atomically
from kdgat.base.environment import of_children
from kdgat.base.kept import refuse_newer
from kdgat.cluster import AttemptLedger, Slurm
from kdgat.cluster.ending import Because
from kdgat.cluster.scheduler import cancel_jobs, jobs_named
from kdgat.cluster.script import watcher_names
from kdgat.cluster.slurm import SubmissionError, outside_of_jobs
from kdgat.run import OutputDirectory, RunError, StageRecord, StageState
from kdgat.run.end import EXIT_STOPPED
from kdgat.stage import FailureKind, RunDirectoryError

SCRIPT: Final = "watcher.sh"  # both in the folder of what jobs print
STATE: Final = "watcher.json"
NUM_WAITING: Final = 2  # one may be sent to a node on which it cannot begin
QUEUE_S: Final = 60.0  # between two looks at who waits
SHORT_S: Final = 900.0  # a watcher that was there for longer has done something
MOST_SHORT: Final = 10  # short ones in a row, with growing pauses between them: more than an hour
LONGEST_PAUSE_S: Final = 900.0
WALLTIME_S: Final = 600.0  # a SIGTERM so soon before the end of the job is that of its walltime
POLL_S: Final = 0.5


@dataclass
class WatcherState:
    """What watchers of one run leave each other."""

    num_short: int = 0  # that ended soon, one after the other
    is_over: bool = False  # the command came to an end of its own, or somebody stopped it

    @staticmethod
    def read(path: Path) -> "WatcherState":
        """Read it; a file that is not there, or damaged, says nothing. UserError for that of a newer kdgat."""
        try:
            content = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return WatcherState()
        refuse_newer(content, path)
        return WatcherState(**{one.name: content[one.name] for one in fields(WatcherState) if one.name in content})

    def write(self, path: Path) -> bool:
        """Keep it for the next one; tell whether that was possible."""
        try:
            write_bytes_atomically(path, json.dumps(asdict(self)).encode())
        except OSError as error:
            print(f"{path} cannot be written: {error}", flush=True)
            return False
        return True


class Watcher:
    """One job that watches a run by a command, in the process that Slurm signals.

    Args:
        output: of the run, with the script of the job.
        job_id: of this job.
        slurm: takes the next jobs, and cancels them.
    """

    def __init__(self, output: OutputDirectory, job_id: str, slurm: Slurm) -> None:
        self._output, self._job_id, self._slurm = output, job_id, slurm
        self._names = watcher_names(output.path)
        self._state_path = output.slurm_path / STATE
        self._state = WatcherState.read(self._state_path)
        self._next_look = 0.0
        self._complaint = ""
        self._received: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end and return its exit status; another watcher comes unless that end was its own."""
        if self._state.is_over:
            print("the run is over, or somebody stopped it")
            return 0
        if self._state.num_short >= MOST_SHORT:
            print(f"{MOST_SHORT} watchers in a row ended within {SHORT_S / 60:.0f} minutes: the last one that is tried")
            return 1
        self._pause()
        index_before = _written_at(self._output.index_path)
        status = self._watch(command)
        if self._is_followed(status, index_before):
            if not self._received or self._ends_soon():
                self._see_to_the_next()
            print(
                f"watcher {self._job_id} leaves with status {status}; waiting: {', '.join(self._waiting()) or 'none'}"
            )
        else:
            self._end()
        return status

    def _pause(self) -> None:
        """Wait before the command is given again: the longer, the more watchers have ended soon."""
        count = self._state.num_short
        self._state.num_short += 1
        is_kept = self._state.write(self._state_path)
        pause_s = min(60.0 * 2.0 ** (count - 1), LONGEST_PAUSE_S) if count else 0.0
        give_up_at = time.monotonic() + (pause_s if is_kept else LONGEST_PAUSE_S)
        while time.monotonic() < give_up_at and not self._received:
            self._look()
            time.sleep(POLL_S)

    def _watch(self, command: Sequence[str]) -> int:
        if self._received:
            return 128 + self._received[0]
        since, num_forwarded = time.monotonic(), 0
        process = subprocess.Popen(command, env=outside_of_jobs(of_children(os.environ)))
        while (status := process.poll()) is None:
            for number in self._received[num_forwarded:]:
                num_forwarded += 1
                if number == signal.SIGINT:  # before the command is done with it: this job may be killed meanwhile
                    self._state.is_over = True
                    self._state.write(self._state_path)
                process.send_signal(number)
            if not self._received:
                self._look()
            if self._state.num_short and (self._received or time.monotonic() - since > SHORT_S):
                self._state.num_short = 0
                self._state.write(self._state_path)
            time.sleep(POLL_S)
        return status

    def _look(self) -> None:
        if time.monotonic() > self._next_look:
            self._see_to_the_next()
            self._next_look = time.monotonic() + QUEUE_S

    def _see_to_the_next(self) -> None:
        """Submit watchers until two wait; who is there is asked first, for `sbatch` may be late with its answer."""
        try:
            for _ in range(NUM_WAITING - len(self._waiting())):
                self._slurm.submit(self._output.slurm_path / SCRIPT)
            self._complaint = ""
        except (SubmissionError, OSError) as error:
            if str(error) != self._complaint:  # once, not every minute of a day
                print(f"the next watcher, asked for again each {QUEUE_S:.0f} s: {error}", flush=True)
            self._complaint = str(error)

    def _waiting(self) -> list[str]:
        """Return the jobs that come after this one; without an answer there is nothing to be done about them now."""
        queue = self._slurm.queue()
        if queue is None:
            return ["unknown"] * NUM_WAITING
        return [job_id for job_id in jobs_named(self._names, queue) if job_id != self._job_id]

    def _end(self) -> None:
        """Let no other watcher come."""
        self._state.is_over = True
        self._state.write(self._state_path)
        # By its own end, or somebody's signal, the command has said that nobody is to come.
        waiting = [job_id for job_id in self._waiting() if job_id != "unknown"]
        cancel_jobs(self._slurm, Because.PERSON, *waiting)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)

    def _ends_soon(self) -> bool:
        """Tell whether a SIGTERM is that of the walltime; else somebody cancelled this job, and knows of the others."""
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        return not end.isdigit() or int(end) - time.time() < WALLTIME_S

    def _is_followed(self, status: int, index_before: int) -> bool:
        """Tell whether the run is to be watched on: the command was asked to leave, was killed, or broke down."""
        if signal.SIGINT in self._received or status == 0:
            return False
        if signal.SIGTERM in self._received or status < 0:
            return True
        if status == EXIT_STOPPED:  # cancelled in Prefect, or a job of it by somebody's scancel
            return False
        if _written_at(self._output.index_path) == index_before:
            return True  # it has not come that far
        try:
            failed = [one for one in self._output.read_index().stages if one.state == StageState.FAILED]
            # Where the flow lost its API, stages are noted as failed whose jobs train on.
            return not failed or any(self._goes_on(record) for record in failed)
        except (RunError, RunDirectoryError, OSError):
            return True

    def _goes_on(self, record: StageRecord) -> bool:
        """Tell whether an attempt at a stage is open, so that its end is still to be read, or none could be begun."""
        if record.attempts == 0 and record.message.startswith(FailureKind.ENVIRONMENT):
            return True  # this machine's filesystem was away, and nothing was tried
        return record.directory is not None and bool(AttemptLedger(self._output.stage_directory(record)).left_open())


def _written_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch a run; the words after the output directory are the command."""
    parser = argparse.ArgumentParser(prog="python -m flows.watcher", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    try:
        watcher = Watcher(OutputDirectory(given.out), os.environ["SLURM_JOB_ID"], Slurm())
    except UserError as error:  # its state is of a newer kdgat, whose jobs go on
        print(f"error: {error}", flush=True)
        return 1
    return watcher.run(given.command)


if __name__ == "__main__":
    sys.exit(main())
