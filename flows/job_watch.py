"""One job, watched from the login node from its submission, or from where another command left it, to its end.

The end is the job's report, by its connection or by its file; where there is none, what Slurm says once the job is
gone. A connection that is lost is no end, and neither is anything else that cannot be understood
(`kdgat.cluster.ending.Because`).
"""

import contextlib
import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from flows.attempts import Attempt
from flows.log_tail import LogTail
from kdgat.cluster import EndKind, Site, decide, format_memory
from kdgat.cluster.child import STOP_GRACE_S, checkpoint_marker, describe_limit, read_progress
from kdgat.cluster.clock import Clock, Heartbeat, Patience, StartTimeout
from kdgat.cluster.decision import Stop
from kdgat.cluster.ending import AttemptEnd, Because, of_outcome
from kdgat.cluster.report import JobFiles, NodeReport
from kdgat.cluster.scheduler import GONE, UNKNOWN, JobStatus, cancel_jobs
from kdgat.cluster.script import SIGNS_OF_LIFE, is_job_of, job_names
from kdgat.cluster.slurm import JobQueue
from kdgat.stage import Failed, FailureKind, Finished, Outcome, Paused, RunDirectoryError

logger = logging.getLogger(__name__)

POLL_S: Final = 0.25
FORWARD_INTERVAL_S: Final = 1.0
FILES_INTERVAL_S: Final = 1.0  # between two looks at the files of a job that runs and is not connected
WAKE_S: Final = 45.0  # from the scancel of a frozen job to giving it up: Slurm's KillWait and some
SEEN_S: Final = 90.0  # how long a network filesystem may hide what a node wrote from who looked there before
LEAVE_S: Final = 3.0  # how long a job that has reported may take to end
COMPLETING_S: Final = 90.0  # how long one that Slurm ends may take: KillWait, the cluster's epilogue
FORGOTTEN_S: Final = 60.0  # for which Slurm does not know a job that gives no sign of life, before it is believed
UNCONNECTED_S: Final = 300.0  # of silence on files alone: a filesystem that hangs recovers within minutes
HOPELESS_S: Final = 10.0  # for which Slurm says that a job never starts, before it is believed
STDERR_LINES: Final = 5


class JobWorker(Protocol):
    """The connection to one job, which may be there or not: what it does not say, files and the scheduler do.

    Over Dask: `flows.dask_jobs`.
    """

    def last_seen(self) -> float | None:
        """Return what changes with each heartbeat of the worker; None while none is connected."""

    def report(self) -> NodeReport | None:
        """Return what the job reported; None while it has not, or is not connected."""

    def let_go(self) -> None:
        """Close the connection, so that the job ends without waiting for anybody."""


class JobWatch:
    """Watch one attempt, whose record has the job's number; `until_end` is the whole of its life."""

    def __init__(
        self, site: Site, attempt: Attempt, worker: JobWorker, queue: JobQueue, clock: Clock, log_directory: Path
    ) -> None:
        self.site, self.attempt = site, attempt
        self.job_id, self._names = attempt.record.job_id, job_names(attempt.directory.path)
        self._worker, self._queue, self._clock = worker, queue, clock
        self._log_directory = log_directory
        self._files = JobFiles(attempt.directory, self.job_id)
        self._since = clock.monotonic()
        self._start_timeout, self._heartbeat = StartTimeout(site.start_timeout_s, clock), Heartbeat(clock)
        self._status = JobStatus(UNKNOWN)
        self._is_connected = False
        self._sign: tuple[str, int] | None = None  # of life
        self._has_begun = False
        self._next_files = self._next_forward = 0.0
        self._prologue_over_at: float | None = None
        self._asked_at: float | None = None  # when the stage was asked to leave
        self._woken_at: float | None = None  # when a frozen job was cancelled
        self._completed_at: float | None = None
        self._hopeless_since: float | None = None  # of a job that waits
        self._patience = Patience(clock, lambda text: logger.warning("job %s: %s; looking again", self.job_id, text))
        self._own, self._next_own = JobStatus(UNKNOWN), -math.inf  # what Slurm says of this job alone
        self._unknown_since: float | None = None  # to Slurm
        self._last_sign: object = None  # of life, from whatever has any
        # Of a job that began before this command, what is newer than the attempt before is its own: no clock says so.
        self._before = () if attempt.is_left else checkpoint_marker(attempt.directory)
        self._log = LogTail(attempt.directory.log_path)
        self._progress: dict[str, Any] = read_progress(attempt.directory)

    def until_end(self) -> AttemptEnd:
        """Watch the job and say how it ended; `DETACHED` where it goes on."""
        self._queue.hurry()
        while (end := self._look_again()) is None:
            self._forward()
            self._clock.sleep(POLL_S)
        self._forward(at_once=True)
        if end.because is not None:
            self._see_off(end.because)
        return end

    def _look_again(self) -> AttemptEnd | None:
        """Look, and bear with whatever keeps this machine from it: the job may know nothing of it."""
        if not self._patience.is_due():
            return self._without_files()
        try:
            end = self._look()
        except Exception as error:  # an errno, a file cut short, an API that is gone
            self._patience.bear(error)
            # Of what cannot be read nobody knows whether it is silent, or late.
            self._heartbeat.restart()
            self._prologue_over_at = self._hopeless_since = self._unknown_since = None
            return self._without_files()
        self._patience.end()
        return end

    def _without_files(self) -> AttemptEnd | None:
        """Heed somebody who wants to leave, or the job to end, while nothing can be read."""
        stop = self.attempt.stop
        if stop.leaves_jobs and not stop.insisted:
            return self._end(EndKind.DETACHED, f"{stop.reason}: job {self.job_id} goes on")
        if not self._is_stopping():
            return None
        self._status = self._queue.status(self.job_id, self._names, self._since)
        self._has_begun = self._has_begun or not self._status.is_waiting
        return self._while_stopping()

    def _look(self) -> AttemptEnd | None:
        """Look once; return the end if there is one."""
        stop = self.attempt.stop
        last_seen, report = self._hear()
        if (last_seen is not None) != self._is_connected:
            self._is_connected, self._next_files = last_seen is not None, 0.0
            self._queue.hurry()
        if report := report or self._look_at_files():
            return self._of_report(report)
        is_stopping = self._is_stopping()  # asked once: it may change while Slurm is asked
        if stop.leaves_jobs and not stop.insisted:
            return self._end(EndKind.DETACHED, f"{stop.reason}: job {self.job_id} goes on")
        self._status, before = self._queue.status(self.job_id, self._names, self._since), self._status
        if self._status.state == GONE:
            self._status = self._own_status((last_seen, self._sign))
            if self._status.is_over:
                return self._of_gone(self._status)
            if self._status.user not in ("", str(os.getuid())):
                whose = f"user {self._status.user}, who alone can watch or end it"
                return self._end(EndKind.DETACHED, f"job {self.job_id} goes on as one of {whose}")
        else:
            self._next_own, self._unknown_since = -math.inf, None
        if self._is_connected or (self._sign is not None and self._sign[0]):
            self._note_begin()
        if is_stopping:
            return self._while_stopping()
        if self._status.is_waiting:
            if self._status != before and self._status.reason != "None":  # Slurm has not looked at it yet
                self.attempt.on_state("SlurmPending", f"job {self.job_id} waits: {self._status.describe()}")
            return self._while_waiting()
        if self._has_begun:
            return self._while_working(self._heartbeat.silence_s((last_seen, self._sign)))
        return self._while_starting()

    def _hear(self) -> tuple[float | None, NodeReport | None]:
        """Listen to the connection; one that breaks, in whatever way, says nothing, and the files do."""
        try:
            return self._worker.last_seen(), self._worker.report()
        except Exception as error:
            logger.debug("job %s: the connection: %s", self.job_id, error)
            return None, None

    def _is_stopping(self) -> bool:
        """Tell whether somebody wants the job to end, and not only this command to leave it alone."""
        stop = self.attempt.stop
        return stop.insisted or (stop.is_set() and not stop.leaves_jobs)

    def _look_at_files(self) -> NodeReport | None:
        """Look what the job has written, as often as makes sense."""
        now = self._clock.monotonic()
        if now < self._next_files or (self._status.is_waiting and not self._is_connected):
            return None
        seldom_s = self.site.silence_timeout_s / SIGNS_OF_LIFE
        self._next_files = now + (seldom_s if self._is_connected else FILES_INTERVAL_S)
        self._sign = self._files.sign_of_life()
        return self._files.read_report()

    def _while_waiting(self) -> AttemptEnd | None:
        if self._waits_in_vain() and self._queue.scheduler.status(self.job_id).is_hopeless:
            return self._end(EndKind.CANNOT_START, f"job {self.job_id} would wait for ever: {self._status.describe()}")
        if waited_s := self._start_timeout.overdue_s():
            message = f"job {self.job_id} has been {self._status.describe()} for {waited_s:.0f} s"
            pending = self._end(EndKind.STILL_PENDING, message)
            decision = decide(pending, self.attempt.history, self.site)
            if isinstance(decision, Stop):
                return pending if self._queue.scheduler.status(self.job_id).is_waiting else None
            self.attempt.on_line(decision.reason)
            self.attempt.on_state(EndKind.STILL_PENDING.value, decision.reason)
        return None

    def _waits_in_vain(self) -> bool:
        """Tell whether Slurm has said more than once that the job never starts: no passing state of the controller."""
        now = self._clock.monotonic()
        if not self._status.is_hopeless:
            self._hopeless_since = None
        elif self._hopeless_since is None:
            self._hopeless_since = now
            self._queue.hurry()  # the answer may be old
        enough_s = max(HOPELESS_S, 2 * self.site.poll_interval_s)
        return self._hopeless_since is not None and now - self._hopeless_since > enough_s

    def _while_starting(self) -> AttemptEnd | None:
        """Count the time that the job's process takes to begin; the prologue may take as long as it likes."""
        if self._sign is None:
            return None
        now = self._clock.monotonic()
        self._prologue_over_at = self._prologue_over_at or now
        if now - self._prologue_over_at > self.site.report_timeout_s:
            text = f"{self.site.report_timeout_s:.0f} s after its prologue its process has not begun{self._stderr()}"
            return self._end(EndKind.NOT_STARTED, text, self._status.node)
        return None

    def _while_stopping(self) -> AttemptEnd | None:
        """Pass on a wish to stop."""
        stop, now = self.attempt.stop, self._clock.monotonic()
        if not self._has_begun:
            return self._end(EndKind.PAUSED, f"{stop.reason}, before the job began")
        if self._asked_at is None:
            self._asked_at = now
            self.attempt.on_state("Stopping", f"job {self.job_id} is asked for a checkpoint")
            self._queue.scheduler.ask_to_leave(self.job_id)
        if stop.insisted or now - self._asked_at > STOP_GRACE_S:
            return self._end(EndKind.PAUSED, stop.reason)
        return None

    def _while_working(self, silence_s: float) -> AttemptEnd | None:
        """Wake a job that gives no sign of life, and give it up if it stays silent."""
        text = f"no sign of life for {silence_s:.0f} s"
        if self._woken_at is not None:
            is_given_up = self._clock.monotonic() - self._woken_at > WAKE_S
            return self._end(EndKind.FROZEN, text) if is_given_up else None
        is_stated = self._is_connected or "silence_timeout_s" in self.site.model_fields_set
        if silence_s <= (self.site.silence_timeout_s if is_stated else UNCONNECTED_S):
            return None
        state = self._queue.scheduler.status(self.job_id).state
        if state != "RUNNING":  # suspended by Slurm for another job: it will go on; or nobody knows
            if state == "SUSPENDED":
                self.attempt.on_state("SlurmSuspended", f"job {self.job_id} is suspended by Slurm")
            self._heartbeat.restart()
            self._queue.hurry()
            return None
        logger.warning("job %s: %s; cancelling it", self.job_id, text)
        self.attempt.on_state(EndKind.FROZEN.value, f"job {self.job_id}: {text}; it is cancelled")
        self._woken_at = self._clock.monotonic()
        # Begins with SIGCONT and SIGTERM: a process that was only stopped can still save.
        cancel_jobs(self._queue.scheduler, Because.FILES, self.job_id)
        return None

    def _of_report(self, report: NodeReport) -> AttemptEnd:
        with contextlib.suppress(Exception):  # of a connection that is broken: then it does not wait
            self._worker.let_go()  # before Slurm is asked: the job waits for us
        self._queue.hurry()
        common: dict[str, Any] = {
            "job_id": self.job_id,
            "node": report.node,
            "checkpoint": report.checkpoint,
            "made_progress": report.made_progress,
            "peak_memory_mib": report.peak_memory_mib,
        }
        outcome = report.outcome
        if outcome is None and report.stop_reason and not report.was_oom_killed:
            # The signal found it importing: nothing was begun, nothing is lost.
            outcome = Paused(checkpoint=report.checkpoint, reason=f"{report.stop_reason} before training began")
        if report.was_oom_killed and not isinstance(outcome, Finished | Paused):
            resources = self.attempt.record.resources
            assert resources is not None
            message = f"the kernel killed the stage for memory, of which it had {format_memory(resources.memory_mib)}"
            return AttemptEnd(EndKind.HOST_OOM, message, **common)
        if report.stalled and not isinstance(outcome, Finished):
            message = f"the stage used no processor time for {self.site.stall_timeout_s:.0f} s"
            return AttemptEnd(EndKind.FROZEN, message, outcome, **common)
        if isinstance(outcome, Finished):
            self._wait_until_visible()
        if outcome is None:
            message = f"the stage was killed by signal {-report.status}{describe_limit(-report.status)}"
            return AttemptEnd(EndKind.PROCESS_KILLED, message, **common, signal=-report.status)
        by_signal = report.stop_reason == "SIGTERM" and not self._is_stopping() and self._woken_at is None
        end = of_outcome(outcome, **common)
        return self._explain(end) if by_signal and isinstance(outcome, Paused) else end

    def _explain(self, end: AttemptEnd) -> AttemptEnd:
        """Find why SIGTERM came: Slurm tells a walltime from a `scancel` or a preemption only when the job is over."""
        self._wait_until_gone(COMPLETING_S)
        status = self._queue.scheduler.status(self.job_id)
        if status.state == "COMPLETED":  # by hand, or from a preemption that grants time
            return end
        kind = status.how_it_ended(had_begun=True)
        kind = kind if kind in (EndKind.CANCELLED, EndKind.PREEMPTED) else end.kind
        return replace(end, kind=kind, message=f"{end.message} ({status.describe()})")

    def _own_status(self, sign: object) -> JobStatus:
        """Ask Slurm about this job alone, which the queue does not list: that may be late, or of another user.

        A job that is not known, or whose number another one has by now, is gone if that is said for a while in which
        there is no sign of its life.
        """
        now = self._clock.monotonic()
        if sign != self._last_sign:
            self._last_sign, self._unknown_since = sign, None
        if now >= self._next_own:
            self._next_own = now + self.site.poll_interval_s
            self._own = self._queue.scheduler.status(self.job_id)
            if self._own.name and not self._is_ours(self._own):
                self._own = JobStatus(GONE)
            if self._own.state != GONE:
                self._unknown_since = None
        if self._own.state != GONE:
            return self._own
        self._unknown_since = now if self._unknown_since is None else self._unknown_since
        enough_s = max(FORGOTTEN_S, self.site.silence_timeout_s)
        return self._own if now - self._unknown_since > enough_s else JobStatus(UNKNOWN)

    def _of_gone(self, status: JobStatus) -> AttemptEnd | None:
        """Read how a job ended that is no longer in the queue: from its report, else from what Slurm says."""
        if report := self._files.read_report():
            return self._of_report(report)
        now = self._clock.monotonic()
        self._completed_at = self._completed_at or now
        if status.state == "COMPLETED" and now - self._completed_at < SEEN_S:
            list(self.attempt.directory.path.iterdir())  # asks the server for the names anew
            self._clock.sleep(FILES_INTERVAL_S)
            return None
        sign, record = self._files.sign_of_life(), self.attempt.record
        had_begun = self._has_begun or record.started > 0 or (sign is not None and sign[0] != "")
        kind = status.how_it_ended(had_begun=had_begun)
        if self._woken_at is not None:
            kind = EndKind.FROZEN
        elif self._is_stopping():
            kind = EndKind.PAUSED
        if status.is_of_environment and kind in (EndKind.JOB_LOST, EndKind.NOT_STARTED):
            evidence = f"the job found its node or filesystem broken{self._stderr()}"
            outcome = Failed(kind=FailureKind.ENVIRONMENT, evidence=evidence)
            return self._end(EndKind.FAILED, f"{outcome.kind}: {evidence}", status.node, outcome)
        if had_begun:
            return self._end(kind, f"it left no report; Slurm says {status.describe()}", status.node)
        return self._end(kind, f"{status.describe()} before its process began{self._stderr()}", status.node)

    def _wait_until_visible(self) -> None:
        """Wait until the outcome can be read here, too: what follows reads it."""
        directory, began = self.attempt.directory, self._clock.monotonic()
        while self._clock.monotonic() - began < SEEN_S:
            with contextlib.suppress(RunDirectoryError):  # half of it
                if directory.is_finished():
                    return
            list(directory.path.iterdir())  # asks the server for the names anew
            self._clock.sleep(POLL_S)

    def _wait_until_gone(self, limit_s: float) -> bool:
        give_up_at = self._clock.monotonic() + limit_s
        while not self._is_gone():
            if self._clock.monotonic() >= give_up_at:
                return False
            self._clock.sleep(POLL_S)
        return True

    def _is_gone(self) -> bool:
        """Tell whether neither the queue has the job, nor Slurm, asked about it alone, says that it goes on."""
        if self._queue.status(self.job_id, self._names, self._since).state != GONE:
            return False
        own = self._queue.scheduler.status(self.job_id)
        is_known = own.state not in (UNKNOWN, GONE) and not own.is_over
        return not (is_known and self._is_ours(own) and own.user in ("", str(os.getuid())))

    def _is_ours(self, status: JobStatus) -> bool:
        return status.name in self._names or is_job_of(status, self.attempt.directory.path, self._log_directory)

    def _see_off(self, because: Because) -> None:
        """Leave nothing in the queue: a job that has reported ends by itself, any other is cancelled."""
        has_reported = False
        with contextlib.suppress(OSError):
            has_reported = self._files.read_report() is not None
        if not self._wait_until_gone(LEAVE_S if has_reported else 0.0):
            cancel_jobs(self._queue.scheduler, because, self.job_id)
            self._queue.hurry()
            self._wait_until_gone(LEAVE_S)

    def _note_begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        sign, record = self._sign or ("", 0), self.attempt.record
        record.node = sign[0] or self._status.node or self._queue.scheduler.status(self.job_id).node
        self.attempt.ledger.started(record)
        text = record.resources.describe() if record.resources is not None else ""
        self.attempt.on_state("Running", f"job {self.job_id} on {record.node}: {text}")

    def _end(self, kind: EndKind, message: str, node: str = "", outcome: Failed | None = None) -> AttemptEnd:
        """Name an end that nobody reported; what the stage itself wrote before counts more than how its job ended."""
        common: dict[str, Any] = {"job_id": self.job_id, "node": node or self.attempt.record.node}
        try:
            written = self._written(common)
        except OSError:
            if kind is not EndKind.DETACHED and not self._is_stopping():
                raise  # it may say that the stage has finished
            written = None
        if isinstance(written, Finished):
            return of_outcome(written, **common)
        return AttemptEnd(kind, message, outcome, **common)

    def _written(self, common: dict[str, Any]) -> Outcome | None:
        """Add what the stage has saved, and return the outcome that it wrote; None where that is damaged."""
        directory = self.attempt.directory
        common["checkpoint"] = checkpoint = directory.newest_checkpoint()
        if self.attempt.is_left:
            common["made_progress"] = checkpoint not in ("", self.attempt.ledger.checkpoint_before(self.attempt.record))
        else:
            common["made_progress"] = checkpoint_marker(directory) != self._before
        try:
            return directory.read_outcome()
        except RunDirectoryError as error:
            logger.warning("job %s: %s", self.job_id, error)
            return None

    def _forward(self, at_once: bool = False) -> None:
        """Pass on what the stage logged and how far it is."""
        now = self._clock.monotonic()
        if not at_once and (now < self._next_forward or not self._has_begun):
            return
        self._next_forward = now + FORWARD_INTERVAL_S
        try:
            for line in self._log.new_lines():
                self.attempt.on_line(line)
            progress = read_progress(self.attempt.directory)
            if progress and progress != self._progress:
                self._progress = progress
                self.attempt.on_progress(progress)
        except Exception as error:  # of a terminal, an API: who only looks ends nothing
            logger.debug("job %s: nothing is shown: %s", self.job_id, error)

    def _stderr(self) -> str:
        """Return the end of what the job printed, for jobs that died before they could say anything better."""
        path = self._log_directory / f"{self._names[0]}-{self.job_id}.err"
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        found = [line.strip() for line in lines if line.strip()][-STDERR_LINES:]
        return f"; its error output ends with: {' | '.join(found)}" if found else ""
