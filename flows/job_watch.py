"""One job, watched from the login node from its submission to what is known about its end."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from flows.attempts import Attempt, of_outcome
from flows.job_worker import CallFailedError, JobWorker, WorkerLostError
from flows.log_tail import LogTail
from flows.waiting import REPORT_TIMEOUT_S, Heartbeat, Queue
from kdgat.cluster.child import STOP_GRACE_S, checkpoint_marker, read_progress
from kdgat.cluster.clock import Clock
from kdgat.cluster.decision import Stop, decide
from kdgat.cluster.ending import AttemptEnd, EndKind
from kdgat.cluster.resources import format_memory
from kdgat.cluster.scheduler import Scheduler, wait_for_end, wait_until_over
from kdgat.cluster.site import Site
from kdgat.cluster.worker import NodeReport
from kdgat.stage.outcome import Finished, Paused

logger = logging.getLogger(__name__)

POLL_S: Final = 0.1
FORWARD_INTERVAL_S: Final = 1.0
WAKE_S: Final = 45.0  # from the scancel of a frozen worker to giving it up: Slurm's KillWait and some
SEEN_S: Final = 90.0  # how long a network filesystem may hide what a node wrote from who looked there before
LEAVE_S: Final = 3.0  # how long a worker that has done its work may take to end its job
STDERR_LINES: Final = 5


class JobWatch:
    """Watch one attempt; `until_end` is the whole of its life."""

    def __init__(self, site: Site, attempt: Attempt, worker: JobWorker, scheduler: Scheduler, clock: Clock) -> None:
        self.site, self.attempt = site, attempt
        self._worker, self._scheduler, self._clock = worker, scheduler, clock
        self.job_id = ""
        self.ended_by_slurm = False  # the stage left with a checkpoint because Slurm was ending its job
        self._was_seen = False  # the worker reported at least once
        self._asked_at: float | None = None  # when the stage was asked to leave
        self._woken_at: float | None = None  # when the job of a frozen worker was cancelled
        self._queue, self._heartbeat = Queue(site, scheduler, clock), Heartbeat(clock)
        self._before = checkpoint_marker(attempt.directory)
        self._log = LogTail(attempt.directory.log_path)
        self._progress: dict[str, Any] = read_progress(attempt.directory)
        self._next_forward = 0.0

    def until_end(self, environment: Mapping[str, str]) -> AttemptEnd:
        """Submit the job, watch it, and say how it ended."""
        path = str(self.attempt.directory.path)
        self._worker.start(path, environment, self.site.stall_timeout_s, self.site.epilogue)
        end = None
        while end is None:
            self._clock.sleep(POLL_S)
            self._note_job()
            end = self._of_call() if self._worker.has_ended() else self._look()
            self._forward()
        self._forward(at_once=True)
        return end

    def _look(self) -> AttemptEnd | None:
        """Look once at a job that has not reported its end; return the end if there is one all the same."""
        refusal = self._worker.refusal() if self.job_id == "" else None
        if refusal is not None:
            return self._end(*refusal)
        last_seen = self._worker.last_seen()
        if last_seen is not None:
            self._note_worker()
            return self._while_working(self._heartbeat.silence_s(last_seen))
        return self._of_lost_worker() if self._was_seen else self._while_waiting()

    def _while_working(self, silence_s: float) -> AttemptEnd | None:
        """Pass on a wish to stop; wake a worker that is silent, and give it up if it stays so."""
        stop, now = self.attempt.stop, self._clock.monotonic()
        if stop.is_set() and self._asked_at is None:
            self._asked_at = now
            self.attempt.on_state("Stopping", f"job {self.job_id} is asked for a checkpoint")
            self._scheduler.ask_to_leave(self.job_id)
        if stop.insisted or (self._asked_at is not None and now - self._asked_at > STOP_GRACE_S):
            return self._end(EndKind.PAUSED, stop.reason)
        text = f"no heartbeat of its worker for {silence_s:.0f} s"
        if self._woken_at is not None:
            return self._end(EndKind.FROZEN, text) if now - self._woken_at > WAKE_S else None
        if silence_s > self.site.silence_timeout_s:
            if self._scheduler.status(self.job_id).state == "SUSPENDED":  # by Slurm, for another job: it will go on
                self.attempt.on_state("SlurmSuspended", f"job {self.job_id} is suspended by Slurm")
                self._heartbeat.restart()
                return None
            logger.warning("job %s: %s; cancelling it", self.job_id, text)
            self.attempt.on_state(EndKind.FROZEN.value, f"job {self.job_id}: {text}; it is cancelled")
            self._woken_at = now
            # Begins with SIGCONT and SIGTERM: a worker that was only stopped can still save.
            self._scheduler.cancel(self.job_id)
        return None

    def _while_waiting(self) -> AttemptEnd | None:
        """Watch a job whose worker has not reported."""
        if self.attempt.stop.is_set():
            return self._end(EndKind.PAUSED, f"{self.attempt.stop.reason}, before the job began")
        status = self._queue.ask(self.job_id)
        if status is None:
            return None
        if status.is_over:
            kind = status.how_it_ended(had_worker=False)
            return self._end(kind, f"{status.describe()} before its worker reported{self._stderr()}", status.node)
        if self._queue.is_silent():
            message = f"{REPORT_TIMEOUT_S:.0f} s without a word from its worker{self._stderr()}"
            return self._end(EndKind.NOT_STARTED, message, status.node)
        if status.is_hopeless and not self._queue.has_changed():  # said twice: no passing state of the controller
            self._scheduler.cancel(self.job_id)
            return self._end(EndKind.CANNOT_START, f"job {self.job_id} would wait for ever: {status.describe()}")
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

    def _of_call(self) -> AttemptEnd:
        """Read how the attempt ended from what the worker reported, or from why it did not."""
        try:
            report = self._worker.report()
        except WorkerLostError:
            return self._of_lost_worker()
        except CallFailedError as error:
            return self._end(EndKind.NOT_STARTED, f"the worker raised {error}")
        return self._of_report(report)

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
        if by_signal and isinstance(outcome, Paused):
            self.ended_by_slurm = self._scheduler.status(self.job_id).state != "RUNNING"
        self._worker.let_go()
        wait_until_over(self._scheduler, self.job_id, LEAVE_S, self._clock, POLL_S)
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
        return AttemptEnd(
            EndKind.PROCESS_KILLED, f"the stage was killed by signal {-report.status}", **common, signal=-report.status
        )

    def _wait_until_visible(self) -> None:
        """Wait until the outcome can be read here, too: what follows reads it."""
        directory, began = self.attempt.directory, self._clock.monotonic()
        while not directory.is_finished() and self._clock.monotonic() - began < SEEN_S:
            list(directory.path.iterdir())  # asks the server for the names anew
            self._clock.sleep(POLL_S)

    def _of_lost_worker(self) -> AttemptEnd:
        """Ask Slurm what became of the job; it may take a moment to know."""
        status = wait_for_end(self._scheduler, self.job_id, self._clock)
        kind = status.how_it_ended(had_worker=True)
        if self._woken_at is not None:
            kind = EndKind.FROZEN
        elif self.attempt.stop.is_set():
            kind = EndKind.PAUSED
        return self._end(kind, f"its worker is gone; Slurm says {status.describe()}", status.node)

    def _note_job(self) -> None:
        """Write the job's number down as soon as there is one: a flow that dies now must find it again."""
        if self.job_id == "" and (job_id := self._worker.job_id):
            self.job_id = job_id
            self.attempt.ledger.submitted(self.attempt.record, job_id)
            self._queue.begin()

    def _note_worker(self) -> None:
        if self._was_seen:
            return
        self._was_seen = True
        self.attempt.record.node = self._scheduler.status(self.job_id).node
        self.attempt.ledger.started(self.attempt.record)
        resources = self.attempt.record.resources
        text = resources.describe() if resources is not None else ""
        self.attempt.on_state("Running", f"job {self.job_id} on {self.attempt.record.node}: {text}")

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
        now = self._clock.monotonic()
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
        lines = self._worker.error_output()[-STDERR_LINES:]
        return f"; its error output ends with: {' | '.join(lines)}" if lines else ""
