"""How an attempt at a stage ended, as far as it matters for what to do next and for the person who watches."""

from dataclasses import dataclass
from enum import StrEnum

from kdgat.stage.outcome import Failed, FailureKind, Outcome, Paused


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
    UNREACHABLE = "SlurmUnreachable"  # the controller does not answer
    DETACHED = "SlurmJobGoesOn"  # not an end: whoever watched the job leaves
    STILL_PENDING = "SlurmStillPending"  # not an end: the job waits longer than the start timeout


# The stage did nothing wrong and neither did its resources: these ends say nothing about progress.
UNCOUNTED = (EndKind.PREEMPTED, EndKind.UNREACHABLE, EndKind.REFUSED)


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

    @property
    def failure(self) -> FailureKind | None:
        """Return why the stage itself failed, if it did."""
        return self.outcome.kind if isinstance(self.outcome, Failed) else None

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
