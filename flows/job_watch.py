"""One job, watched from the login node from its submission to what is known about its end."""

import contextlib
import logging
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, Final

import distributed

from flows.attempts import Attempt, of_outcome
from flows.jobqueue import SLURMCluster
from flows.log_tail import LogTail
from flows.waiting import REPORT_TIMEOUT_S, Heartbeat, Queue
from kdgat.cluster.child import STOP_GRACE_S, checkpoint_marker, read_progress
from kdgat.cluster.decision import Stop, decide
from kdgat.cluster.ending import AttemptEnd, EndKind
from kdgat.cluster.resources import format_memory
from kdgat.cluster.site import Site
from kdgat.cluster.slurm import (
    ask_to_leave,
    cancel_jobs,
    how_it_ended,
    is_unreachable,
    job_status,
    submit_words,
    wait_for_verdict,
    wait_until_over,
)
from kdgat.cluster.worker import NodeReport, run_attempt
from kdgat.stage.outcome import Finished, Paused

logger = logging.getLogger(__name__)

POLL_S: Final = 0.1
FORWARD_INTERVAL_S: Final = 1.0
WAKE_S: Final = 45.0  # from the scancel of a frozen worker to giving it up: Slurm's KillWait and some
FETCH_S: Final = 10.0  # a report is some hundred bytes
SEEN_S: Final = 90.0  # how long a network filesystem may hide what a node wrote from who looked there before
LEAVE_S: Final = 3.0  # how long a worker that has done its work may take to end its job
STDERR_LINES: Final = 5


class JobWatch:
    """Watch one attempt; `until_end` is the whole of its life."""

    def __init__(self, site: Site, attempt: Attempt, cluster: SLURMCluster, client: "distributed.Client") -> None:
        self.site, self.attempt = site, attempt
        self.cluster, self.client = cluster, client
        self.job_id = ""
        self.ended_by_slurm = False  # the stage left with a checkpoint because Slurm was ending its job
        self._was_seen = False  # the worker reported at least once
        self._asked_at: float | None = None  # when the stage was asked to leave
        self._woken_at: float | None = None  # when the job of a frozen worker was cancelled
        self._queue, self._heartbeat = Queue(site), Heartbeat()
        self._before = checkpoint_marker(attempt.directory)
        self._log = LogTail(attempt.directory.log_path)
        self._progress: dict[str, Any] = read_progress(attempt.directory)
        self._next_forward = 0.0

    def until_end(self, environment: Mapping[str, str]) -> AttemptEnd:
        """Submit the job, watch it, and say how it ended."""
        self.cluster.scale(jobs=1)
        future = self.client.submit(
            run_attempt,
            str(self.attempt.directory.path),
            dict(environment),
            self.site.stall_timeout_s,
            self.site.epilogue,
            pure=False,
            retries=0,
        )
        end = None
        while end is None:
            time.sleep(POLL_S)
            self._note_job()
            end = self._of_future(future) if future.done() else self._look()
            self._forward()
        self._forward(at_once=True)
        return end

    def _look(self) -> AttemptEnd | None:
        """Look once at a job that has not reported its end; return the end if there is one all the same."""
        if self.job_id == "":
            error = self._submit_error()
            if error is not None:
                kind = EndKind.UNREACHABLE if is_unreachable(error) else EndKind.REFUSED
                return self._end(kind, submit_words(error))
        workers = list(self.cluster.scheduler.workers.values())
        if workers:
            self._note_worker()
            return self._while_working(self._heartbeat.silence_s(workers[0].last_seen))
        return self._of_lost_worker() if self._was_seen else self._while_waiting()

    def _while_working(self, silence_s: float) -> AttemptEnd | None:
        """Pass on a wish to stop; wake a worker that is silent, and give it up if it stays so."""
        stop, now = self.attempt.stop, time.monotonic()
        if stop.is_set() and self._asked_at is None:
            self._asked_at = now
            self.attempt.on_state("Stopping", f"job {self.job_id} is asked for a checkpoint")
            ask_to_leave(self.job_id)
        if stop.insisted or (self._asked_at is not None and now - self._asked_at > STOP_GRACE_S):
            return self._end(EndKind.PAUSED, stop.reason)
        words = f"no heartbeat of its worker for {silence_s:.0f} s"
        if self._woken_at is not None:
            return self._end(EndKind.FROZEN, words) if now - self._woken_at > WAKE_S else None
        if silence_s > self.site.silence_timeout_s:
            if job_status(self.job_id).state == "SUSPENDED":  # by Slurm, for another job: it will go on
                self.attempt.on_state("SlurmSuspended", f"job {self.job_id} is suspended by Slurm")
                self._heartbeat.restart()
                return None
            logger.warning("job %s: %s; cancelling it", self.job_id, words)
            self.attempt.on_state(EndKind.FROZEN.value, f"job {self.job_id}: {words}; it is cancelled")
            self._woken_at = now
            cancel_jobs([self.job_id])  # begins with SIGCONT and SIGTERM: a worker that was only stopped can still save
        return None

    def _while_waiting(self) -> AttemptEnd | None:
        """Watch a job whose worker has not reported."""
        if self.attempt.stop.is_set():
            return self._end(EndKind.PAUSED, f"{self.attempt.stop.reason}, before the job began")
        status = self._queue.ask(self.job_id)
        if status is None:
            return None
        if status.is_over:
            kind = how_it_ended(status, had_worker=False)
            return self._end(kind, f"{status.describe()} before its worker reported{self._stderr()}", status.node)
        if self._queue.is_silent():
            message = f"{REPORT_TIMEOUT_S:.0f} s without a word from its worker{self._stderr()}"
            return self._end(EndKind.NOT_STARTED, message, status.node)
        if status.is_waiting and self._queue.has_changed():
            self.attempt.on_state("SlurmPending", f"job {self.job_id} waits: {status.describe()}")
        if waited_s := self._queue.overdue_s():
            message = f"job {self.job_id} has been {status.describe()} for {waited_s:.0f} s"
            pending = self._end(EndKind.STILL_PENDING, message)
            decision = decide(pending, self.attempt.history, self.attempt.limits)
            if isinstance(decision, Stop):
                return pending
            self.attempt.on_line(decision.reason)
            self.attempt.on_state(EndKind.STILL_PENDING.value, decision.reason)
        return None

    def _of_future(self, future: "distributed.Future") -> AttemptEnd:
        """Read how the attempt ended from what the worker reported, or from why it did not."""
        try:
            if future.status == "finished":
                return self._of_report(future.result(timeout=FETCH_S))
            error = future.exception(timeout=FETCH_S)
        except (TimeoutError, CancelledError, distributed.KilledWorker):
            return self._of_lost_worker()  # it died with its report
        if isinstance(error, distributed.KilledWorker):
            return self._of_lost_worker()
        return self._end(EndKind.NOT_STARTED, f"the worker raised {type(error).__name__}: {error}")

    def _of_report(self, report: NodeReport) -> AttemptEnd:
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
        by_signal = report.stop_reason == "SIGTERM" and not self.attempt.stop.is_set() and self._woken_at is None
        # A job that still runs got its signal by hand, or from a preemption that grants time.
        self.ended_by_slurm = by_signal and isinstance(outcome, Paused) and job_status(self.job_id).state != "RUNNING"
        self._let_worker_leave()
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
        if outcome is not None:
            return of_outcome(outcome, **common)
        return AttemptEnd(EndKind.PROCESS_KILLED, f"the stage was killed by signal {-report.status}", **common)

    def _wait_until_visible(self) -> None:
        """Wait until the outcome can be read here, too: what follows reads it."""
        directory, began = self.attempt.directory, time.monotonic()
        while not directory.is_finished() and time.monotonic() - began < SEEN_S:
            list(directory.path.iterdir())  # asks the server for the names anew
            time.sleep(POLL_S)

    def _let_worker_leave(self) -> None:
        """End the job by ending its worker, so that Slurm counts it as completed and not as cancelled."""
        for address in list(self.cluster.scheduler.workers):
            self.cluster.loop.add_callback(self.cluster.scheduler.close_worker, address)
        wait_until_over(self.job_id, LEAVE_S, POLL_S)

    def _of_lost_worker(self) -> AttemptEnd:
        """Ask Slurm what became of the job; it may take a moment to know."""
        status = wait_for_verdict(self.job_id)
        kind = how_it_ended(status, had_worker=True)
        if self._woken_at is not None:
            kind = EndKind.FROZEN
        elif self.attempt.stop.is_set():
            kind = EndKind.PAUSED
        return self._end(kind, f"its worker is gone; Slurm says {status.describe()}", status.node)

    def _note_job(self) -> None:
        """Write the job's number down as soon as there is one: a flow that dies now must find it again."""
        if self.job_id:
            return
        for job in list(self.cluster.workers.values()):
            if job.job_id:
                self.job_id = job.job_id
                self.attempt.ledger.submitted(self.attempt.record, self.job_id)
                self._queue.begin()

    def _note_worker(self) -> None:
        if self._was_seen:
            return
        self._was_seen = True
        self.attempt.record.node = job_status(self.job_id).node
        self.attempt.ledger.started(self.attempt.record)
        resources = self.attempt.record.resources
        words = resources.describe() if resources is not None else ""
        self.attempt.on_state("Running", f"job {self.job_id} on {self.attempt.record.node}: {words}")

    def _submit_error(self) -> str | None:
        return next((job.error for job in list(self.cluster.workers.values()) if job.error), None)

    def _end(self, kind: EndKind, message: str, node: str = "") -> AttemptEnd:
        """Name an end that nobody reported; what the stage itself wrote before counts more than how its job ended."""
        directory = self.attempt.directory
        common: dict[str, Any] = {
            "job_id": self.job_id,
            "node": node or self.attempt.record.node,
            "checkpoint": directory.newest_checkpoint(),
            "made_progress": checkpoint_marker(directory) != self._before,
        }
        outcome = directory.read_outcome()
        if isinstance(outcome, Finished):
            return of_outcome(outcome, **common)
        return AttemptEnd(kind, message, **common)

    def _forward(self, at_once: bool = False) -> None:
        """Pass on what the stage logged and how far it is."""
        now = time.monotonic()
        if now < self._next_forward and not at_once:
            return
        self._next_forward = now + FORWARD_INTERVAL_S
        for line in self._log.new_lines():
            self.attempt.on_line(line)
        progress = read_progress(self.attempt.directory)
        if progress and progress != self._progress:
            self._progress = progress
            self.attempt.on_progress(progress)

    def _stderr(self) -> str:
        """Return the end of what the job printed, for jobs that died before they could say anything better."""
        for job in list(self.cluster.workers.values()):
            path = Path(job.log_directory) / f"{job.job_name}-{self.job_id}.err"
            with contextlib.suppress(OSError):
                lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
                return f"; its error output ends with: {' | '.join(lines[-STDERR_LINES:])}" if lines else ""
        return ""
