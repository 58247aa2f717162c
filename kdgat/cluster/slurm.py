"""Slurm's own commands: the state of a job, how to end it, and one queue for all who watch jobs.

Sites put wrappers before these commands, and jobs of other projects have any name. A line that is none of ours is left
out; an answer that cannot be read is no answer.
"""

import logging
import math
import os
import re
import subprocess
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from kdgat.base import UserError
from kdgat.base.environment import of_children
from kdgat.cluster.clock import MOST_SAID, Clock
from kdgat.cluster.ending import EndKind
from kdgat.cluster.scheduler import GONE, HOPELESS_REASONS, UNKNOWN, JobStatus, QueuedJob, Scheduler, jobs_named

logger = logging.getLogger(__name__)

COMMAND_TIMEOUT_S: Final = 30.0
HURRY_S: Final = 1.0  # between two questions while somebody expects a change; never less
GROWTH: Final = 1.5  # of the pause, each time that nothing has changed
SLOWEST: Final = 6  # times the site's interval
CONFIGURATION: Final = "SLURM_CONF"  # where Slurm is found, in a job or outside
QUEUE_FORMAT: Final = "%A|%T|%N|%r|%j"  # the name last: it may have any character
_SUBMITTED: Final = re.compile(r"^\s*Submitted batch job ([0-9]+)\b", flags=re.MULTILINE)
_PARSABLE: Final = re.compile(r"^\s*([0-9]+)(?:;\S*)?\s*$", flags=re.MULTILINE)
NO_ANSWER: Final = "did not answer"
# What sbatch says when it is the controller that is in trouble, or the way to it, and neither the job nor a limit.
UNREACHABLE_WORDS: Final = re.compile(
    rf"{NO_ANSWER}|Unable to contact slurm controller|Socket timed out|Slurm temporarily unable to accept job"
    r"|Resource temporarily unavailable|Zero Bytes were transmitted or received|Connection refused"
    r"|Unexpected message received|Munge encode failed|[Aa]uthentication|credential|standby mode"
    r"|Message (send|receive) failure|Communication (connection|shutdown) failure|establish a configuration source"
)
# What sbatch says of a mistake, which no later time mends. All else is "not now".
MISTAKES: Final = re.compile(
    r"[Ii]nvalid [^\n]*(specifi|partition|account|qos|argument|--)|specification (invalid|can not be satisfied)"
    r"|node configuration is not available|Memory required by task is not available"
    r"|More processors requested than permitted|Requested nodes not in this partition|No partition specified"
    r"|time limit is invalid|Time limit specification required|Requested reservation is invalid"
    r"|Access denied to requested reservation|Access/permission denied|not permitted to use this partition"
    r"|unrecognized option|option requires an argument|is ambiguous|parameter too long"
    rf"|{HOPELESS_REASONS.pattern}"
)

# What Slurm's commands read of the environment beside their options, as SBATCH_TIMELIMIT or SCANCEL_STATE: it would
# stand above what kdgat says. Kept is how to find the cluster, and how to be let in.
OPTION_VARIABLES: Final = re.compile(r"(SLURM|SBATCH|SALLOC|SQUEUE|SCANCEL|SCONTROL|SACCT|SINFO)_")
_WAYS_IN: Final = (CONFIGURATION, "SLURM_CONF_SERVER", "SLURM_JWT")
# sbatch hands on its environment, which Slurm may write down.
_SECRET: Final = re.compile(
    r"KDGAT_NOTIFY|PGPASSWORD|(.*_)?(TOKEN|KEY|PASSWORD|PASSWD|SECRET|AUTH_STRING)", re.IGNORECASE
)
# What Slurm's commands say where there is neither a file nor a server that would give them one: no controller is down.
NO_CONFIGURATION: Final = "DNS SRV lookup failed"
_said: Final[set[str]] = set()


class SubmissionError(UserError):
    """Slurm did not take a job; the text has its words."""


class Slurm:
    """The `Scheduler` that `scontrol`, `squeue` and `scancel` in PATH lead to."""

    def status(self, job_id: str) -> JobStatus:
        """Ask `scontrol show job`."""
        try:
            done = _run("scontrol", "--oneliner", "show", "job", job_id)
        except Exception as error:  # whatever it is, it is no answer
            _say_once("scontrol", error)
            return JobStatus(UNKNOWN)
        if done.returncode != 0:
            return JobStatus(GONE if "Invalid job id" in done.stderr else UNKNOWN)
        return parse_job(done.stdout, job_id)

    def queue(self) -> dict[str, QueuedJob] | None:
        """Ask `squeue` once for all jobs of this user."""
        try:
            done = _run("squeue", "--noheader", "--all", f"--user={os.getuid()}", f"--format={QUEUE_FORMAT}")
            done.check_returncode()
            return dict(filter(None, map(_queued, done.stdout.splitlines())))
        except Exception as error:  # whatever it is, it is no answer
            _say_once("squeue", error)
            return None

    def submit(self, script: Path) -> str:
        """Submit a script and return the number of the job.

        Raises:
            SubmissionError: if the job is refused, or nobody answers.
        """
        try:
            done = _run("sbatch", "--parsable", str(script))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SubmissionError(f"sbatch: {error}") from error
        if done.returncode != 0 and not is_submitted(done.stdout):
            raise SubmissionError(f"sbatch: {refusal(done.stderr)[1]}")
        return job_number(done.stdout)

    def put_off(self, job_id: str, until: str) -> bool:
        """Let a job that waits begin at a time of Slurm's words, at the earliest; return whether Slurm took it."""
        return _told("scontrol", "update", f"JobId={job_id}", f"StartTime={until}")

    def ask_to_leave(self, job_id: str) -> bool:
        """Send SIGUSR1 to the script alone, without Slurm's KillWait behind it."""
        return _scancel("--batch", "--signal=USR1", job_id)

    def cancel(self, *job_ids: str) -> bool:
        """End jobs: SIGTERM, and SIGKILL after Slurm's KillWait."""
        return not job_ids or _scancel(*job_ids)


def parse_job(text: str, job_id: str | None = None) -> JobStatus:
    """Read one line of `scontrol --oneliner show job`; what is cut short, or of another job, is no answer."""
    is_asked = re.compile(rf"\s*JobId={job_id or '[0-9]+'}\s")
    line = next(filter(is_asked.match, text.splitlines(keepends=True)), "")

    def field(name: str) -> str:
        found = re.search(rf"(?:^|\s){name}=(\S*)(?=\s)", line)
        return found[1] if found else ""

    node, user = field("NodeList"), re.search(r"\(([0-9]+)\)$", field("UserId"))
    return JobStatus(
        state=field("JobState") or UNKNOWN,
        reason=field("Reason"),
        node="" if node == "(null)" else node,
        exit_code=field("ExitCode"),
        name=field("JobName"),
        user=user[1] if user else "",
        output=field("StdOut"),
    )


def is_submitted(output: str) -> bool:
    """Tell whether `sbatch` says that it has submitted a job, whatever a wrapper around it says besides."""
    return _SUBMITTED.search(output) is not None


def job_number(output: str) -> str:
    """Read the number of a job from what `sbatch` printed, among greetings and notices of a site's wrapper.

    Raises:
        SubmissionError: if no line says it, or several say different ones.

    >>> job_number("Welcome to Example 77!\\nSubmitted batch job 17 on cluster x\\n3 notices")
    '17'
    """
    found = set(_SUBMITTED.findall(output)) or set(_PARSABLE.findall(output))
    if len(found) != 1:
        raise SubmissionError(
            f"sbatch took the job and did not say its number: squeue lists it by its name; it printed {output[-500:]!r}"
        )
    return str(found.pop())


def _queued(line: str) -> tuple[str, QueuedJob] | None:
    """Read one line of `QUEUE_FORMAT`; None of one that says nothing about a job."""
    fields = line.strip().split("|", 4)
    if len(fields) != 5 or re.fullmatch("[0-9]+", fields[0]) is None:
        if line.strip():
            _say_once("squeue", f"leaving out what is no job: {line[:200]!r}")
        return None
    job_id, state, node, reason, name = fields
    return job_id, QueuedJob(name, JobStatus(state, reason, node))


def refusal(submit_error: str) -> tuple[EndKind, str]:
    """Tell whether a controller is in trouble, refuses the job, or takes it not now; and what `sbatch` itself said."""
    messages = re.findall(r"^.*sbatch: (?:error: |fatal: )?(.+)$", submit_error, flags=re.MULTILINE)
    said = "\n".join(messages) or submit_error  # a wrapper's greeting may have any word
    if UNREACHABLE_WORDS.search(submit_error):
        kind = EndKind.UNREACHABLE
    else:
        kind = EndKind.REFUSED if MISTAKES.search(said) else EndKind.DEFERRED
    return kind, " ".join(messages) or submit_error.strip()


def missing_configuration() -> str:
    """Say why Slurm's commands cannot know any controller from this shell; empty if they know one, up or not."""
    named = os.environ.get(CONFIGURATION)
    if named:  # asking would take a minute: they wait for the file
        return "" if Path(named).is_file() else f"{CONFIGURATION}={named!r} is no file"
    try:
        done = _run("sbatch", "--version")
    except (OSError, subprocess.TimeoutExpired):
        return ""  # no answer is no proof
    if done.returncode == 0 or NO_CONFIGURATION not in done.stderr:
        return ""
    return f"Slurm has no configuration on this machine, and {CONFIGURATION} is not set"


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what Slurm says in it about the job that this process is in."""
    return {name: value for name, value in environment.items() if name in _WAYS_IN or not name.startswith("SLURM_")}


def command_environment() -> dict[str, str]:
    """Return the environment of Slurm's commands, and with it that of jobs: without others' options, and secrets."""
    return {
        name: value
        for name, value in of_children(os.environ).items()
        if name in _WAYS_IN or not (OPTION_VARIABLES.match(name) or _SECRET.fullmatch(name) or name == "PYTHONSAFEPATH")
    }


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        env=command_environment(),
    )


def _say_once(command: str, error: object) -> None:
    text = f"{command}: {error}"
    if text not in _said and len(_said) < MOST_SAID:
        _said.add(text)
        logger.warning("%s", text)


def _scancel(*arguments: str) -> bool:
    return _told("scancel", *arguments)


def _told(*command: str) -> bool:
    """Run a command that changes jobs; a controller that does not answer must not end whoever watches one."""
    try:
        done = _run(*command)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.warning("%s: %s", " ".join(command), error)
        return False
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        logger.warning("%s: %s", " ".join(command), done.stderr.strip())
        return False
    return True


class JobQueue:
    """What `squeue` says, for several threads; whoever looks when it is time asks, the others get the last answer."""

    def __init__(self, scheduler: Scheduler, interval_s: float, clock: Clock) -> None:
        self.scheduler = scheduler
        self._interval_s, self._clock = interval_s, clock
        self._lock = threading.Lock()
        self._jobs: dict[str, QueuedJob] = {}
        self._tried = self._asked = self._next = -math.inf  # the last question, the last that was answered, the next
        self._pause_s = self._hurry_s = min(HURRY_S, interval_s)

    def status(self, job_id: str, names: Collection[str], since: float) -> JobStatus:
        """State how a job stands: `GONE` where it is not listed any more, `UNKNOWN` without an answer `since` then."""
        if self._clock.monotonic() >= self._next and self._lock.acquire(blocking=False):
            try:
                self._ask()
            finally:
                self._lock.release()
        if self._asked <= since:
            return JobStatus(UNKNOWN)
        found = self._jobs.get(job_id)
        return found.status if found is not None and found.name in names else JobStatus(GONE)

    def named(self, *names: str) -> list[str] | None:
        """Return the jobs of these names, as of now; None without an answer."""
        since = self._clock.monotonic() - self._hurry_s
        with self._lock:
            if self._asked < since:
                self._ask()
            return jobs_named(names, self._jobs) if self._asked >= since else None

    def hurry(self) -> None:
        """Ask soon, and often for a while: somebody knows of a change."""
        self._pause_s = self._hurry_s
        self._next = min(self._next, self._tried + self._hurry_s)

    def _ask(self) -> None:
        self._tried = self._clock.monotonic()
        jobs = self.scheduler.queue()
        if jobs is not None and jobs != self._jobs:
            self._pause_s = min(self._pause_s, self._interval_s)
        else:
            self._pause_s = min(self._pause_s * GROWTH, self._interval_s * SLOWEST)
        if jobs is not None:
            self._jobs, self._asked = jobs, self._tried
        self._next = self._clock.monotonic() + self._pause_s
