"""How a job stands and how it ended, asked of a `Scheduler`: the real one is `kdgat.cluster.slurm.Slurm`.

A job enters the queue by dask-jobqueue, which writes its script (`flows.dask_job`); all else goes through here.
"""

import re
from dataclasses import dataclass
from typing import Final, Protocol

from kdgat.cluster.clock import Clock
from kdgat.cluster.ending import EndKind

POLL_S: Final = 0.25
VERDICT_S: Final = 3.0  # how long Slurm may take to notice that a job's script is gone; a dead node takes it minutes
COMPLETING_S: Final = 90.0
TIME_LIMIT: Final = "TimeLimit"  # a job's reason once its walltime has passed
GONE: Final = "GONE"  # Slurm has forgotten the job
UNKNOWN: Final = "UNKNOWN"  # Slurm did not answer
WAITING_STATES: Final = ("PENDING", "CONFIGURING", "REQUEUED", "RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD")
ALIVE_STATES: Final = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
# A list of ends: what a newer Slurm calls a job that still goes on is none of them.
OVER_STATES: Final = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "SPECIAL_EXIT",
    "TIMEOUT",
    GONE,
)
ENDS: Final = {
    "TIMEOUT": EndKind.TIMEOUT,
    "DEADLINE": EndKind.TIMEOUT,
    "OUT_OF_MEMORY": EndKind.HOST_OOM,
    "NODE_FAIL": EndKind.NODE_FAILURE,
    "BOOT_FAIL": EndKind.NODE_FAILURE,
    "PREEMPTED": EndKind.PREEMPTED,
    "CANCELLED": EndKind.CANCELLED,
}
# Why a job waits, where waiting does not help: no job gets what this one asks for, until somebody changes the job, or
# what Slurm grants. All else passes: nodes that are down, reservations, licences, limits on what runs at a time, and a
# hold (JobHeldUser, JobHeldAdmin), which a person puts on a job and takes off again.
HOPELESS_REASONS: Final = re.compile(
    r"PartitionTimeLimit|PartitionNodeLimit|MaxMemPerLimit|BadConstraints|DependencyNeverSatisfied"
    r"|Invalid(Account|QOS)|(Account|QOS)NotAllowed"
    r"|(QOS|Assoc)Max(WallDurationPerJobLimit|\w+(PerJob(Limit)?|PerNode(Limit)?))|QOSMin\w+"
)


@dataclass(frozen=True)
class JobStatus:
    """What the scheduler says about a job, in Slurm's words."""

    state: str
    reason: str = ""
    node: str = ""
    exit_code: str = ""  # "status:signal"

    @property
    def is_waiting(self) -> bool:
        """Return whether the job has not begun."""
        return self.state in WAITING_STATES

    @property
    def is_alive(self) -> bool:
        """Return whether the job has begun and not ended."""
        return self.state in ALIVE_STATES

    @property
    def is_over(self) -> bool:
        """Return whether nothing of the job runs any more, as far as the scheduler knows."""
        return self.state in OVER_STATES

    @property
    def is_hopeless(self) -> bool:
        """Return whether the job waits for what never comes."""
        return self.is_waiting and HOPELESS_REASONS.fullmatch(self.reason) is not None

    @property
    def was_killed(self) -> bool:
        """Return whether a signal ended the job's script, or the shell around it saw one do so."""
        status, _, number = self.exit_code.partition(":")
        return number not in ("", "0") or (status.isdigit() and int(status) > 128)

    def describe(self) -> str:
        """Say it in Slurm's words."""
        words = [self.state, self.reason if self.reason not in ("", "None") else ""]
        return " ".join(word for word in (*words, f"exit code {self.exit_code}" if self.was_killed else "") if word)

    def how_it_ended(self, *, had_worker: bool) -> EndKind:
        """Name the end of a job whose worker is gone, or never came."""
        if self.state in ENDS:
            return ENDS[self.state]
        if self.reason == TIME_LIMIT:
            return EndKind.TIMEOUT
        if self.is_alive and self.state != "COMPLETING" and had_worker:
            # The worker's connection broke and Slurm noticed nothing: the node, or its network, is gone.
            return EndKind.NODE_FAILURE
        return EndKind.JOB_LOST if had_worker or self.was_killed else EndKind.NOT_STARTED


class Scheduler(Protocol):
    """What the flow asks of a cluster's scheduler; none of it raises where the controller does not answer."""

    def status(self, job_id: str) -> JobStatus:
        """State how a job stands: state `UNKNOWN` without an answer, `GONE` where the job is forgotten."""

    def find(self, name: str) -> list[str] | None:
        """Return this user's jobs of that name that wait or run; None without an answer."""

    def ask_to_leave(self, job_id: str) -> bool:
        """Send SIGUSR1 to the job's script: write a checkpoint and leave; return whether the scheduler took it."""

    def cancel(self, *job_ids: str) -> bool:
        """End jobs by SIGTERM, then SIGKILL; return whether the scheduler took it. Ended jobs are no mistake."""


def wait_until_over(
    scheduler: Scheduler, job_id: str, timeout_s: float, clock: Clock, poll_s: float = POLL_S
) -> JobStatus:
    """Ask until the job is over, at most `timeout_s` seconds, and return how it stands then."""
    give_up_at = clock.monotonic() + timeout_s
    while True:
        status = scheduler.status(job_id)
        if status.is_over or clock.monotonic() >= give_up_at:
            return status
        clock.sleep(poll_s)


def wait_for_end(scheduler: Scheduler, job_id: str, clock: Clock) -> JobStatus:
    """Ask what became of a job whose worker is gone, until the scheduler knows, or plainly has not noticed.

    While a job is `COMPLETING` (KillWait, the cluster's epilogue) Slurm does not say yet whether it was cancelled.
    """
    began = clock.monotonic()
    while True:
        status, waited_s = scheduler.status(job_id), clock.monotonic() - began
        limit_s = COMPLETING_S if status.state == "COMPLETING" else VERDICT_S
        if status.is_over or status.reason == TIME_LIMIT or waited_s >= limit_s:
            return status
        clock.sleep(POLL_S)
