"""How an attempt at a stage ended, as far as it matters for what to do next and for the person who watches."""

import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kdgat.stage import Failed, FailureKind, Finished, Outcome, Paused


class Because(StrEnum):
    """Why an attempt may be closed, and its job cancelled: an answer that was understood. There is no fourth reason.

    A text, an errno or a file that nobody foresaw is none: the job is left alone, that is said once, and it is asked
    again with growing pauses (`kdgat.cluster.clock.Patience`).
    """

    SLURM = "Slurm says that the job is over, or that there will be none"
    FILES = "the files of the attempt say so, or its process on this machine has ended"
    PERSON = "somebody asked for it, by a signal, a command or a site file"


class EndKind(StrEnum):
    """What happened to an attempt; the value is the name that the Prefect UI shows."""

    FINISHED = "Completed"
    PAUSED = "Paused"  # left with a checkpoint: deadline, or a signal that came with time to save
    FAILED = "StageFailed"  # the stage itself says why
    PROCESS_KILLED = "ProcessKilled"  # the training process, by a signal; the job around it lives
    JOB_LOST = "SlurmJobLost"  # the worker is gone
    TIMEOUT = "SlurmTimeout"  # walltime, without time to save
    NODE_FAILURE = "SlurmNodeFailure"
    PREEMPTED = "SlurmPreempted"
    HOST_OOM = "HostOutOfMemory"
    CANCELLED = "SlurmCancelled"  # by somebody's scancel
    FROZEN = "WorkerFrozen"  # no heartbeat, or no processor time used
    NOT_STARTED = "SlurmJobNotStarted"  # the job ended before its worker reported
    REFUSED = "SlurmSubmitRefused"
    CANNOT_START = "SlurmJobCannotStart"  # it waits for what never comes: Slurm grants no job what this one asks for
    DEFERRED = "SlurmSubmitDeferred"  # not now: a submit limit is reached, or nothing known as a mistake was said
    UNREACHABLE = "SlurmUnreachable"  # the controller does not answer
    DETACHED = "SlurmJobGoesOn"  # not an end: whoever watched the job leaves
    STILL_PENDING = "SlurmStillPending"  # not an end: the job waits longer than the start timeout


# No job came of these: Slurm is asked again.
NOT_NOW = (EndKind.UNREACHABLE, EndKind.DEFERRED)
# Nor of these: asked for so much, Slurm starts none.
NEVER = (EndKind.REFUSED, EndKind.CANNOT_START)
# The stage did nothing wrong and neither did its resources: these ends say nothing about progress.
UNCOUNTED = (EndKind.PREEMPTED, *NOT_NOW, *NEVER)
_BECAUSE: Final = {
    EndKind.STILL_PENDING: Because.PERSON,
    **dict.fromkeys((EndKind.FINISHED, EndKind.PAUSED, EndKind.FAILED), Because.FILES),
    **dict.fromkeys((EndKind.PROCESS_KILLED, EndKind.FROZEN), Because.FILES),
    **dict.fromkeys((EndKind.JOB_LOST, EndKind.TIMEOUT, EndKind.NODE_FAILURE, EndKind.PREEMPTED), Because.SLURM),
    **dict.fromkeys((EndKind.HOST_OOM, EndKind.CANCELLED, EndKind.NOT_STARTED, *NEVER, *NOT_NOW), Because.SLURM),
}
# Signals that a process brings upon itself. Others come from outside: from a person, the kernel (SIGBUS: a memory map
# whose file is out of reach), a processor without an instruction (SIGILL).
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS)


@dataclass(frozen=True)
class AttemptEnd:
    """One end, with what a person needs to see."""

    kind: EndKind
    message: str  # what happened, with the evidence
    outcome: Outcome | None = None  # what the stage wrote, where it could
    job_id: str = ""
    node: str = ""
    checkpoint: str = ""  # newest one after the attempt, relative to the run directory
    made_progress: bool = False  # a checkpoint was written in this attempt
    peak_memory_mib: int | None = None
    signal: int = 0  # that ended the process of the stage

    @property
    def because(self) -> Because | None:
        """Return what was understood; None where the attempt goes on, and stays open."""
        return _BECAUSE.get(self.kind)

    @property
    def failure(self) -> FailureKind | None:
        """Return why the stage itself failed, if it did."""
        return self.outcome.kind if isinstance(self.outcome, Failed) else None

    @property
    def is_of_environment(self) -> bool:
        """Return whether node, filesystem or GPU kept the stage from going on, as it says itself."""
        return self.kind is EndKind.FAILED and self.failure is FailureKind.ENVIRONMENT

    @property
    def is_loss(self) -> bool:
        """Return whether the attempt was ended from outside."""
        if self.kind is EndKind.PROCESS_KILLED:
            return self.signal not in CRASHES
        return self.kind in (EndKind.JOB_LOST, EndKind.NODE_FAILURE, EndKind.FROZEN)

    @property
    def is_fault(self) -> bool:
        """Return whether the stage itself, or what it asked for, kept it from getting further."""
        if self.kind is EndKind.FAILED:  # after another failure a person has mended something
            return self.failure in (FailureKind.HOST_OOM, FailureKind.CUDA_OOM) and not self.made_progress
        others = (*UNCOUNTED, EndKind.NOT_STARTED, EndKind.CANCELLED)
        return not (self.made_progress or self.is_loss or self.kind in others)

    @property
    def needed_walltime_s(self) -> float | None:
        """Return how long a job must last for the stage to get anywhere, if the stage refused to train for that."""
        return self.outcome.needed_s if isinstance(self.outcome, Paused) else None

    def describe(self, *, name_checkpoint: bool = True) -> str:
        """Describe in one line what happened, where, and what there is to resume from."""
        job = f"job {self.job_id}" + (f" on {self.node}" if self.node else "") if self.job_id else ""
        checkpoint = f"last checkpoint {self.checkpoint}" if self.checkpoint else "no checkpoint yet"
        if self.kind is EndKind.FINISHED or not name_checkpoint:
            checkpoint = ""
        return "; ".join(part for part in (job, self.message, checkpoint) if part)


def of_outcome(outcome: Outcome, **common: Any) -> AttemptEnd:
    """Translate what the stage wrote about itself."""
    match outcome:
        case Finished():
            return AttemptEnd(EndKind.FINISHED, outcome.describe_metrics() or "finished", outcome, **common)
        case Paused(reason=reason):
            return AttemptEnd(EndKind.PAUSED, reason, outcome, **common)
        case Failed():
            return AttemptEnd(EndKind.FAILED, outcome.describe(), outcome, **common)
