"""How a job stands and how it ended, asked of a `Scheduler`: the real one is `kdgat.cluster.slurm.Slurm`.

A job enters the queue by dask-jobqueue, which writes its script (`flows.dask_jobs`); all else goes through here.
"""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kdgat.cluster.ending import Because, EndKind
from kdgat.stage.outcome import EXIT_ENVIRONMENT

logger = logging.getLogger(__name__)

TIME_LIMIT: Final = "TimeLimit"  # a job's reason once its walltime has passed
GONE: Final = "GONE"  # Slurm has forgotten the job
UNKNOWN: Final = "UNKNOWN"  # Slurm did not answer
WAITING_STATES: Final = (
    *("PENDING", "CONFIGURING", "REQUEUED", "RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD"),
    "SPECIAL_EXIT",  # queued again, and held
)
ALIVE_STATES: Final = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
# A list of ends: what a newer Slurm calls a job that still goes on is none of them. Nor is REVOKED: another cluster of
# the federation has started the job, and what it writes says how it ends.
OVER_STATES: Final = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
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
    r"PartitionTimeLimit|MaxMemPerLimit|BadConstraints|DependencyNeverSatisfied"
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
    # Whose job it is, where that was asked; no part of how it stands.
    name: str = field(default="", compare=False)
    user: str = field(default="", compare=False)  # number
    output: str = field(default="", compare=False)  # file

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

    @property
    def is_of_environment(self) -> bool:
        """Return whether the job's own process found node or filesystem broken (`kdgat.cluster.job`)."""
        return self.exit_code == f"{EXIT_ENVIRONMENT}:0"

    def describe(self) -> str:
        """Say it in Slurm's words."""
        words = [self.state, self.reason if self.reason not in ("", "None") else ""]
        return " ".join(word for word in (*words, f"exit code {self.exit_code}" if self.was_killed else "") if word)

    def how_it_ended(self, *, had_begun: bool) -> EndKind:
        """Name the end of a job that left no report."""
        if self.state in ENDS:
            return ENDS[self.state]
        if self.reason == TIME_LIMIT:
            return EndKind.TIMEOUT
        return EndKind.JOB_LOST if had_begun or self.was_killed else EndKind.NOT_STARTED


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits or runs, with its name: after a while another one has the same number."""

    name: str
    status: JobStatus


def jobs_named(names: Collection[str], queue: Mapping[str, QueuedJob]) -> list[str]:
    """Return the jobs of one of these names in a queue, the oldest first."""
    return sorted((job_id for job_id, job in queue.items() if job.name in names), key=int)


def describe_watching(names: Collection[str], queue: Mapping[str, QueuedJob]) -> str | None:
    """Say which job watches a run, and how it ends for good: after `scancel ID` the next takes over."""
    watching = jobs_named(names, queue)
    if not watching:
        return None
    name = queue[watching[0]].name
    return f"job {watching[0]} watches this run: let it, or end it by `scancel --name={name}` first"


def cancel_jobs(scheduler: "Scheduler", because: Because, *job_ids: str) -> bool:
    """Cancel jobs for a reason, the only way in which kdgat cancels any; return whether the scheduler took it."""
    if job_ids:
        logger.info("cancelling job %s: %s", ", ".join(job_ids), because.value)
    return scheduler.cancel(*job_ids)


class Scheduler(Protocol):
    """What the flow asks of a cluster's scheduler; none of it raises where the controller does not answer."""

    def status(self, job_id: str) -> JobStatus:
        """State how a job stands: state `UNKNOWN` without an answer, `GONE` where the job is forgotten."""

    def queue(self) -> dict[str, QueuedJob] | None:
        """Return all jobs of this user that are not over, by number; None without an answer."""

    def ask_to_leave(self, job_id: str) -> bool:
        """Send SIGUSR1 to the job's script: write a checkpoint and leave; return whether the scheduler took it."""

    def cancel(self, *job_ids: str) -> bool:
        """End jobs by SIGTERM, then SIGKILL; return whether the scheduler took it. Ended jobs are no mistake."""
