"""The job in which a detached command watches a run: `kdgat train ... --detach`.

Such jobs have one name, and Slurm runs one of that name at a time. Each sees to it that two others wait, so that the
next one begins whatever ends this one: walltime, a kill, a node that fails. The last one begins no earlier than an hour
from now, for whatever a node lacks that ends the next one at once. When the command has come to an end of its own, or
somebody has stopped it, that is noted before the others are cancelled: one that begins all the same leaves at once.
Jobs of stages go on between two watchers, and the next one takes them over.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Final

from kdgat.base import UserError, write_bytes_atomically
from kdgat.base.environment import of_children
from kdgat.base.kept import refuse_newer
from kdgat.cluster import AttemptLedger, Slurm
from kdgat.cluster.clock import SYSTEM_CLOCK, Patience
from kdgat.cluster.ending import Because
from kdgat.cluster.scheduler import UNKNOWN, QueuedJob, cancel_jobs, jobs_named
from kdgat.cluster.script import watcher_names
from kdgat.cluster.slurm import SubmissionError, outside_of_jobs
from kdgat.run import OutputDirectory, RunError, StageRecord, StageState
from kdgat.run.end import EXIT_STOPPED
from kdgat.stage import FailureKind, RunDirectoryError, StageBusyError
from kdgat.stage.owner import require_free

SCRIPT: Final = "watcher.sh"  # both in the folder of what jobs print
STATE: Final = "watcher.json"
NUM_WAITING: Final = 2  # one may be sent to a node on which it cannot begin
RESERVE: Final = "now+60minutes"  # when the other one begins, if that one ends at once
RENEW_S: Final = 1200.0  # so that "now" is never long ago
QUEUE_S: Final = 60.0  # between two looks at who waits
SHORT_S: Final = 900.0  # a watcher that was there for longer has done something
GIVE_UP_S: Final = 86_400.0  # of nothing but short ones, which is as long as a stage asks Slurm for a job
FEWEST_SHORT: Final = 10  # that is too few where they wait in the queue for hours
LONGEST_PAUSE_S: Final = 1800.0
WALLTIME_S: Final = 600.0  # a SIGTERM so soon before the end of the job is that of its walltime
POLL_S: Final = 0.5


@dataclass
class WatcherState:
    """What watchers of one run leave each other."""

    num_short: int = 0  # that ended soon, one after the other
    short_since: float = 0.0  # when the first of these began, seconds since the epoch
    is_over: bool = False  # the command came to an end of its own, or somebody stopped it
    pauses_until: float = 0.0  # when the command is given again, seconds since the epoch; 0: nobody pauses
    noted: int = 0  # bytes that all attempts had noted when the command was given last

    @staticmethod
    def read(path: Path) -> "WatcherState":
        """Read it; a file that is not there, or damaged, says nothing. UserError for that of a newer kdgat.

        Raises:
            OSError: if it cannot be read now: it may say that the run is over.
        """
        try:
            content = dict(json.loads(path.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return WatcherState()
        refuse_newer(content, path)
        return WatcherState(**{one.name: content[one.name] for one in fields(WatcherState) if one.name in content})

    def write(self, path: Path) -> bool:
        """Keep it for the next one; tell whether that was possible."""
        try:
            write_bytes_atomically(path, json.dumps(asdict(self)).encode())
        except OSError as error:
            _say(f"{path} cannot be written: {error}")
            return False
        return True

    def is_late(self) -> bool:
        """Tell whether there has been nothing but watchers that ended soon for so long that there is no hope."""
        return self.num_short >= FEWEST_SHORT and time.time() - self.short_since > GIVE_UP_S


class Watcher:
    """One job that watches a run by a command, in the process that Slurm signals.

    Args:
        output: of the run, with the script of the job.
        job_id: of this job.
        slurm: takes the next jobs, and cancels them.

    Raises:
        OSError: if the output cannot be looked at now.
        UserError: if a newer kdgat watches the run.
    """

    def __init__(self, output: OutputDirectory, job_id: str, slurm: Slurm) -> None:
        self._output, self._job_id, self._slurm = output, job_id, slurm
        self._names = watcher_names(output.path)
        self._state_path = output.slurm_path / STATE
        self._state = WatcherState.read(self._state_path)
        self._index_before = _written_at(output.index_path)
        self._next_look = 0.0
        self._in_order: list[str] = []  # that wait, and know when they begin
        self._next_order = 0.0
        self._complaint = ""
        self._received: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end and return its exit status; another watcher comes unless that end was its own."""
        if self._state.is_over:
            _say("the run is over, or somebody stopped it")
            return 0
        if self._state.is_late():
            _say(
                f"for {GIVE_UP_S / 3600:.0f} hours each watcher has ended within {SHORT_S / 60:.0f} minutes, "
                f"{self._state.num_short} in a row: none is tried any more; give the command again"
            )
            return 1
        self._pause_and_count()
        status = self._watch(command)
        if self._is_followed(status):
            if not self._received or self._ends_soon():
                self._see_to_the_next()
            _say(f"watcher {self._job_id} leaves with status {status}; waiting: {', '.join(self._waiting()) or 'none'}")
        else:
            self._end()
        return status

    def _pause_and_count(self) -> None:
        """Wait before the command is given again: the longer, the more watchers have ended soon and to no end.

        One that dies while it waits is none of these, and the next one waits for the rest: where nodes die all the time
        nobody would come to an end of it.
        """
        state, noted = self._state, self._noted()
        if noted is not None and noted > state.noted:  # attempts have begun or ended since
            state.num_short, state.short_since, state.pauses_until, state.noted = 0, 0.0, 0.0, noted
        pause_s = min(60.0 * 2.0 ** (state.num_short - 1), LONGEST_PAUSE_S) if state.num_short else 0.0
        if pause_s and not state.pauses_until:
            state.pauses_until = time.time() + pause_s
            state.write(self._state_path)
        self._wait(min(state.pauses_until - time.time(), pause_s))  # whatever the other node's clock said
        if self._received:
            return
        state.num_short, state.pauses_until = state.num_short + 1, 0.0
        state.short_since = state.short_since or time.time()
        # Without a note of it nobody would know how many were short: it is tried again, and only then waited for long.
        began, again_s = time.monotonic(), 1.0
        while not state.write(self._state_path) and not self._received:
            if (left_s := LONGEST_PAUSE_S - (time.monotonic() - began)) <= 0:
                break
            self._wait(min(again_s, left_s))
            again_s *= 2.0

    def _wait(self, seconds: float) -> None:
        """Wait, seeing to the watchers behind, until a signal comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._received:
            self._look()
            time.sleep(POLL_S)

    def _noted(self) -> int | None:
        """Return how many bytes the attempts of all stages have noted; None where that is not known now."""
        try:
            return sum(path.stat().st_size for path in self._output.stages_path.glob("*/attempts.jsonl"))
        except OSError:
            return None

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
                self._state.num_short, self._state.short_since = 0, 0.0
                self._state.write(self._state_path)
            time.sleep(POLL_S)
        return status

    def _look(self) -> None:
        if time.monotonic() > self._next_look:
            self._see_to_the_next()
            self._next_look = time.monotonic() + QUEUE_S

    def _see_to_the_next(self) -> None:
        """Submit watchers until two wait; who is there is asked first, for `sbatch` may be late with its answer."""
        waiting = self._waiting()
        try:
            while len(waiting) < NUM_WAITING:
                waiting.append(self._slurm.submit(self._output.slurm_path / SCRIPT))
            self._complaint = ""
        except (SubmissionError, OSError) as error:
            if str(error) != self._complaint:  # once, not every minute of a day
                _say(f"the next watcher, asked for again each {QUEUE_S:.0f} s: {error}")
            self._complaint = str(error)
        self._order(waiting)

    def _order(self, waiting: list[str]) -> None:
        """Let the first of those that wait begin when this one ends, and the others later: see `RESERVE`."""
        if UNKNOWN in waiting or (waiting == self._in_order and time.monotonic() < self._next_order):
            return
        begins = ("now", *[RESERVE] * len(waiting))
        done = [self._slurm.put_off(job_id, begin) for job_id, begin in zip(waiting, begins, strict=False)]
        self._in_order, self._next_order = waiting, time.monotonic() + (RENEW_S if all(done) else QUEUE_S)

    def _waiting(self) -> list[str]:
        """Return the jobs that come after this one; without an answer there is nothing to be done about them now."""
        queue = self._slurm.queue()
        if queue is None:
            return [UNKNOWN] * NUM_WAITING
        return [job_id for job_id in jobs_named(self._names, queue) if job_id != self._job_id]

    def _end(self) -> None:
        """Let no other watcher come."""
        self._state.is_over = True
        self._state.write(self._state_path)
        # By its own end, or somebody's signal, the command has said that nobody is to come.
        waiting = [job_id for job_id in self._waiting() if job_id != UNKNOWN]
        cancel_jobs(self._slurm, Because.PERSON, *waiting)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)

    def _ends_soon(self) -> bool:
        """Tell whether a SIGTERM is that of the walltime; else somebody cancelled this job, and knows of the others."""
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        return not end.isdigit() or int(end) - time.time() < WALLTIME_S

    def _is_followed(self, status: int) -> bool:
        """Tell whether the run is to be watched on: the command was asked to leave, was killed, or broke down."""
        if signal.SIGINT in self._received or status == 0:
            return False
        if signal.SIGTERM in self._received or status < 0:
            return True
        if status == EXIT_STOPPED:  # cancelled in Prefect, or a job of it by somebody's scancel
            return False
        try:
            if _written_at(self._output.index_path) == self._index_before:
                return True  # it has not come that far
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


def describe_unwatched(output: OutputDirectory, queue: Mapping[str, QueuedJob] | None) -> str | None:
    """Say of a run that is not done that jobs were to watch it, and none does, or that this is not known.

    `queue` has this user's jobs; None where Slurm gave no answer.
    """
    try:
        state = WatcherState.read(output.slurm_path / STATE)
        if state.is_over or (output.slurm_path / SCRIPT).stat().st_uid != os.getuid():
            return None  # it stopped in order; or it is another user's, whose jobs are not listed here
        require_free(output.lock_path, output.owner_path)
        if queue is not None:
            if jobs_named(watcher_names(output.path), queue):
                return None
            return "no watcher of it waits or runs: the same command (kdgat train ... --detach) goes on from there"
    except (FileNotFoundError, StageBusyError):  # nobody detached it; or a command watches it at this moment
        return None
    except (OSError, ValueError) as error:
        return f"whether a watcher of it waits or runs is not known: {error}"
    return "whether a watcher of it waits or runs is not known: squeue does not say"


def _written_at(path: Path) -> int:
    """Return when a file was written; 0 if it is not there, OSError if that is not known."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _say(text: str) -> None:
    """Print it; where it goes may be away, too."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch a run; the words after the output directory are the command."""
    parser = argparse.ArgumentParser(prog="python -m flows.watcher", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    patience, slurm = Patience(SYSTEM_CLOCK, lambda text: _say(f"{text}; looking again")), Slurm()
    try:
        while True:
            try:
                watcher = Watcher(OutputDirectory(given.out), os.environ["SLURM_JOB_ID"], slurm)
                break
            except UserError as error:  # its state is of a newer kdgat, whose jobs go on
                _say(f"error: {error}")
                return 1
            except OSError as error:
                patience.bear(error)
            while not patience.is_due():
                time.sleep(POLL_S)
    except KeyboardInterrupt:  # whoever stops the run: that can be noted nowhere, and the next one would begin
        found = jobs_named(watcher_names(given.out.absolute()), slurm.queue() or {})
        cancel_jobs(slurm, Because.PERSON, *(job_id for job_id in found if job_id != os.environ["SLURM_JOB_ID"]))
        return 128 + signal.SIGINT
    return watcher.run(given.command)


if __name__ == "__main__":
    sys.exit(main())
