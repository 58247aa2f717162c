"""Slurm's own commands: how a job stands, how it ended, and how to end it."""

import logging
import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kdgat.cluster.ending import EndKind

logger = logging.getLogger(__name__)

COMMAND_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.25
VERDICT_S: Final = 3.0  # how long Slurm may take to notice that a job's script is gone; a dead node takes it minutes
COMPLETING_S: Final = 90.0
NO_ANSWER: Final = "did not answer"
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
    "REVOKED": EndKind.CANCELLED,
}
# What sbatch says when it is the controller that is in trouble, not the job.
UNREACHABLE_WORDS: Final = (
    NO_ANSWER,
    "Unable to contact slurm controller",
    "Socket timed out",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
    "Zero Bytes were transmitted or received",
    "Connection refused",
    "Unexpected message received",
    "Munge encode failed",  # the login node's credential service is being restarted
)


@dataclass(frozen=True)
class JobStatus:
    """What `scontrol show job` says."""

    state: str
    reason: str = ""
    node: str = ""
    exit_code: str = ""  # "status:signal"

    @property
    def is_waiting(self) -> bool:
        """Tell whether the job has not begun."""
        return self.state in WAITING_STATES

    @property
    def is_over(self) -> bool:
        """Tell whether nothing of the job runs any more, as far as Slurm knows."""
        return self.state in OVER_STATES

    @property
    def was_killed(self) -> bool:
        """Tell whether a signal ended the job's script, or the shell around it saw one do so."""
        status, _, number = self.exit_code.partition(":")
        return number not in ("", "0") or (status.isdigit() and int(status) > 128)

    def describe(self) -> str:
        """Say it in Slurm's words."""
        words = [self.state, self.reason if self.reason not in ("", "None") else ""]
        return " ".join(word for word in (*words, f"exit code {self.exit_code}" if self.was_killed else "") if word)


def job_status(job_id: str) -> JobStatus:
    """Ask Slurm how a job stands; `UNKNOWN` where Slurm does not answer, `GONE` where it has forgotten the job."""
    try:
        done = subprocess.run(
            ["scontrol", "--oneliner", "show", "job", job_id],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return JobStatus(UNKNOWN)
    if done.returncode != 0:
        return JobStatus(GONE if "Invalid job id" in done.stderr else UNKNOWN)
    return parse_job(done.stdout)


def parse_job(text: str) -> JobStatus:
    """Read one line of `scontrol --oneliner show job`."""

    def field(name: str) -> str:
        found = re.search(rf"(?:^|\s){name}=(\S*)", text)
        return found[1] if found else ""

    node = field("NodeList")
    return JobStatus(
        state=field("JobState") or UNKNOWN,
        reason=field("Reason"),
        node="" if node == "(null)" else node,
        exit_code=field("ExitCode"),
    )


def wait_until_over(job_id: str, timeout_s: float, poll_s: float = POLL_S) -> JobStatus:
    """Ask until the job is over, at most `timeout_s` seconds, and return how it stands then."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        status = job_status(job_id)
        if status.is_over or time.monotonic() >= give_up_at:
            return status
        time.sleep(poll_s)


def find_jobs(name: str) -> list[str]:
    """Return the jobs of that name that wait or run, of this user; none where Slurm does not answer."""
    command = ["squeue", "--noheader", f"--user={os.getuid()}", f"--name={name}", "--format=%A"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("squeue: %s", error)
        return []
    return done.stdout.split()


def wait_for_verdict(job_id: str) -> JobStatus:
    """Ask what became of a job whose worker is gone, until Slurm knows, or plainly has not noticed.

    While a job is `COMPLETING` (KillWait, the cluster's epilogue) Slurm does not say yet whether it was cancelled.
    """
    began = time.monotonic()
    while True:
        status, waited_s = job_status(job_id), time.monotonic() - began
        limit_s = COMPLETING_S if status.state == "COMPLETING" else VERDICT_S
        if status.is_over or status.reason == TIME_LIMIT or waited_s >= limit_s:
            return status
        time.sleep(POLL_S)


def ask_to_leave(job_id: str) -> bool:
    """Send SIGUSR1 to the job's script alone: write a checkpoint and leave, without Slurm's KillWait behind it.

    Returns whether Slurm took it.
    """
    return _scancel("--batch", "--signal=USR1", job_id)


def cancel_jobs(job_ids: Sequence[str]) -> bool:
    """End jobs: SIGTERM, and SIGKILL after Slurm's KillWait; jobs that are over already are no mistake.

    Returns whether Slurm took it.
    """
    return not job_ids or _scancel(*job_ids)


def _scancel(*arguments: str) -> bool:
    """Run `scancel`; a controller that does not answer must not end whoever watches a job."""
    try:
        done = subprocess.run(
            ["scancel", *arguments], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("scancel %s: %s", " ".join(arguments), error)
        return False
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        logger.warning("scancel %s: %s", " ".join(arguments), done.stderr.strip())
        return False
    return True


def how_it_ended(status: JobStatus, *, had_worker: bool) -> EndKind:
    """Name the end of a job whose worker is gone, or never came."""
    if status.state in ENDS:
        return ENDS[status.state]
    if status.reason == TIME_LIMIT:
        return EndKind.TIMEOUT
    if status.state in ALIVE_STATES and status.state != "COMPLETING" and had_worker:
        # The worker's connection broke and Slurm noticed nothing: the node, or its network, is gone.
        return EndKind.NODE_FAILURE
    return EndKind.JOB_LOST if had_worker or status.was_killed else EndKind.NOT_STARTED


def is_unreachable(submit_error: str) -> bool:
    """Tell a controller in trouble from a job that it refuses."""
    return any(word in submit_error for word in UNREACHABLE_WORDS)


def submit_words(submit_error: str) -> str:
    """Return what `sbatch` itself said, out of all that was wrapped around it."""
    said = re.findall(r"^.*sbatch: (?:error: |fatal: )?(.+)$", submit_error, flags=re.MULTILINE)
    return " ".join(said) or submit_error.strip()
