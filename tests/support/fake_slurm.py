"""A Slurm without daemons, in a time that passes at once; `scheduler_cases.py` checks it against the real one.

`FakeSlurm` is a `kdgat.cluster.scheduler.Scheduler` with an administrator's commands besides. A job is a `Script`: it
is told when it begins and which signals it gets, and it calls `FakeJob.exit`.
"""

import errno
import heapq
import itertools
import math
import os
import random
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from kdgat.cluster.scheduler import GONE, TIME_LIMIT, UNKNOWN, JobStatus, QueuedJob

START_S: Final = 0.1  # from sbatch to the job's script on an idle node
KILL_WAIT_S: Final = 30.0  # from SIGTERM to SIGKILL
NODE_TIMEOUT_S: Final = 15.0  # until a node that says nothing is down
REQUEUE_S: Final = 120.0  # until a job that was queued again may begin
REFUSED: Final = (
    "sbatch: error: invalid partition specified: nosuch\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified"
)
NO_NODE: Final = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
UNREACHABLE: Final = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"


class FakeClock:
    """A `kdgat.cluster.clock.Clock` in which only `sleep` lets time pass, and what was to happen meanwhile happens."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.is_elsewhere = False  # what runs now is not whoever waits

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float, /) -> None:
        until, self.is_elsewhere = self._now + seconds, True
        while self._due and self._due[0][0] <= until:
            self._now, _, action = heapq.heappop(self._due)
            action()
        self._now, self.is_elsewhere = until, False

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Let something happen once that much time has passed."""
        if seconds < math.inf:
            heapq.heappush(self._due, (self._now + seconds, next(self._order), action))


class Script(Protocol):
    """What a job does."""

    def begin(self, job: "FakeJob") -> None:
        """Start on a node."""

    def signal(self, job: "FakeJob", name: str) -> None:
        """Get TERM, USR1, CONT, STOP or KILL."""


@dataclass(frozen=True)
class ShellScript:
    """Lines of bash that a real Slurm runs, and what they come to; an exit code is `status:signal`."""

    shell: str
    seconds: float = math.inf  # until it ends by itself
    exit_code: str = "0:0"  # then
    on_term: str | None = "0:15"  # exit code after SIGTERM; None: it takes no notice
    term_s: float = 0.0  # from SIGTERM to its end
    on_usr1: str | None = "0:10"
    exceeds_memory: bool = False

    def begin(self, job: "FakeJob") -> None:
        ended = job.out_of_memory if self.exceeds_memory else lambda: job.exit(self.exit_code)
        job.slurm.clock.after(self.seconds, ended)

    def signal(self, job: "FakeJob", name: str) -> None:
        if name == "KILL":
            job.exit("0:9")
        elif name == "TERM" and self.on_term is not None:
            code = self.on_term
            job.slurm.clock.after(self.term_s, lambda: job.exit(code))
        elif name == "USR1" and self.on_usr1 is not None:
            job.exit(self.on_usr1)


SLEEPS: Final = ShellScript("sleep 600")
ENDS: Final = ShellScript("true", seconds=0.0)
FAILS: Final = ShellScript("exit 3", seconds=0.0, exit_code="3:0")
IS_KILLED: Final = ShellScript("kill -KILL $$", seconds=0.0, exit_code="0:9")
TAKES_MEMORY: Final = ShellScript("""python3 -c 'held = bytearray(400 << 20)'""", seconds=0.5, exceeds_memory=True)
SAVES: Final = ShellScript("trap 'exit 0' USR1; sleep 600 & wait", on_usr1="0:0")
LEAVES_SLOWLY: Final = ShellScript("trap 'sleep 4; exit 0' TERM; sleep 600 & wait", on_term="0:0", term_s=4.0)
STUBBORN: Final = ShellScript("trap '' TERM; while true; do sleep 1; done", on_term=None)


class SubmitError(RuntimeError):
    """`sbatch` says no; the text is what it prints."""


@dataclass
class FakeJob:
    """One job, as Slurm keeps it."""

    slurm: "FakeSlurm"
    job_id: str
    name: str
    script: Script
    excluded: frozenset[str]
    may_requeue: bool
    state: str = "PENDING"
    reason: str = "None"
    node: str = ""
    exit_code: str = "0:0"
    _ends_as: str = ""  # the state once its processes have left
    _run: int = 0  # how often it has begun: what an earlier run had in mind no longer counts
    begin_time: float = field(default=-math.inf)
    output: str = ""  # file

    @property
    def status(self) -> JobStatus:
        return JobStatus(
            self.state,
            self.reason,
            self.node,
            self.exit_code,
            name=self.name,
            user=str(self.slurm.user),
            output=self.output,
        )

    def exit(self, code: str) -> None:
        """End the script."""
        if self.slurm.is_dead(self.node):
            return  # nobody is there to tell
        if self.state == "COMPLETING":
            self.over(self._ends_as, code, self.reason)
        elif self.state in ("RUNNING", "SUSPENDED"):
            status, _, number = code.partition(":")
            failed = {"state": "FAILED", "reason": "JobLaunchFailure" if number == "9" else "NonZeroExitCode"}
            ended = {"state": "COMPLETED", "reason": "None"} if (status, number) == ("0", "0") else failed
            # Slurm hears of it from the node.
            run = self._run
            self.slurm.clock.after(
                self.slurm.notices_s, lambda: self._run == run and self.over(ended["state"], code, ended["reason"])
            )

    def out_of_memory(self) -> None:
        """Let the kernel kill the script for what it holds."""
        self.script.signal(self, "KILL")
        self.over("OUT_OF_MEMORY", "0:125", "OutOfMemory")

    def end(self, state: str, reason: str = "None") -> None:
        """Ask the script to leave, wait for that, and kill it in the end."""
        self.state, self.reason, self._ends_as = "COMPLETING", reason, state
        self.slurm.clock.after(KILL_WAIT_S, self._insist)
        for name in ("CONT", "TERM"):
            self.script.signal(self, name)

    def over(self, state: str, code: str, reason: str) -> None:
        """Note the end and let others have the node."""
        if not self.status.is_over:
            self.state, self.exit_code, self.reason = state, code, reason
            self.slurm.schedule()

    def start(self, node: str) -> None:
        self.state, self.reason, self.node = "RUNNING", "None", node
        self._run += 1
        self.script.begin(self)

    def _insist(self) -> None:
        if self.state == "COMPLETING":
            self.script.signal(self, "KILL")
            self.exit("0:9")


class FakeSlurm:
    """Nodes that take one job each, and the jobs."""

    def __init__(self, clock: FakeClock | None = None, nodes: Iterable[str] = ("n1", "n2", "n3")) -> None:
        self.clock = clock or FakeClock()
        self.scheduler = self
        self.nodes = tuple(nodes)
        self.jobs: dict[str, FakeJob] = {}
        self.notices_s = 0.0  # how long the end of a script goes unnoticed
        self.is_reachable = True
        self.user = os.getuid()  # of all jobs
        self.num_questions = 0
        self._drained: set[str] = set()
        self._dead: set[str] = set()

    # What the flow asks for.

    def submit(
        self,
        script: Script,
        name: str = "wrap",
        partition: str = "gpu",
        excluded: Iterable[str] = (),
        requeue: bool = False,
    ) -> str:
        """Do what `sbatch` does; SubmitError with its words."""
        if not self.is_reachable:
            raise SubmitError(UNREACHABLE)
        if partition not in ("debug", "gpu"):
            raise SubmitError(REFUSED)
        if set(self.nodes) <= set(excluded):
            raise SubmitError(NO_NODE)
        job = FakeJob(self, str(len(self.jobs) + 1), name, script, frozenset(excluded), requeue)
        self.jobs[job.job_id] = job
        self.clock.after(START_S, self.schedule)
        return job.job_id

    def status(self, job_id: str) -> JobStatus:
        if not self.is_reachable:
            return JobStatus(UNKNOWN)
        return self.jobs[job_id].status if job_id in self.jobs else JobStatus(GONE)

    def queue(self) -> dict[str, QueuedJob] | None:
        self.num_questions += 1
        if not self.is_reachable:
            return None
        listed = [job for job in self.jobs.values() if not job.status.is_over]
        return {job.job_id: QueuedJob(job.name, replace(job.status, exit_code="")) for job in listed}

    def ask_to_leave(self, job_id: str) -> bool:
        if self.is_reachable and (job := self.jobs.get(job_id)) is not None and job.state == "RUNNING":
            job.script.signal(job, "USR1")
        return self.is_reachable

    def cancel(self, *job_ids: str) -> bool:
        if not job_ids or not self.is_reachable:
            return not job_ids
        for job in (self.jobs[job_id] for job_id in job_ids if job_id in self.jobs):
            if job.status.is_waiting:
                job.over("CANCELLED", "0:0", job.reason)
            elif job.state in ("RUNNING", "SUSPENDED"):
                job.end("CANCELLED")
        return True

    # What an administrator does, or chance.

    def stop_controller(self) -> None:
        self.is_reachable = False

    def start_controller(self) -> None:
        self.is_reachable = True

    def drain(self) -> None:
        """Let no node take another job."""
        self._drained = set(self.nodes)

    def undrain(self) -> None:
        self._drained = set()
        self.schedule()

    def suspend(self, job_id: str) -> None:
        self.jobs[job_id].state = "SUSPENDED"
        self.jobs[job_id].script.signal(self.jobs[job_id], "STOP")

    def resume(self, job_id: str) -> None:
        self.jobs[job_id].state = "RUNNING"
        self.jobs[job_id].script.signal(self.jobs[job_id], "CONT")

    def requeue(self, job_id: str) -> None:
        """End what the job does and put it back into the queue, as Slurm does without `--no-requeue`."""
        job = self.jobs[job_id]
        assert job.may_requeue
        job.state, job.reason, job.node, job.begin_time = "PENDING", "BeginTime", "", self.clock.monotonic() + REQUEUE_S
        job.script.signal(job, "KILL")
        self.clock.after(REQUEUE_S, self.schedule)

    def preempt(self, job_id: str) -> None:
        """Take the node away for a job of higher priority."""
        self.jobs[job_id].end("PREEMPTED")

    def end_walltime(self, job_id: str) -> None:
        self.jobs[job_id].end("TIMEOUT", TIME_LIMIT)

    def kill_script(self, job_id: str) -> None:
        """Kill all processes of a job on its node."""
        job = self.jobs[job_id]
        job.script.signal(job, "KILL")
        job.exit("0:9")

    def kill_node(self, node: str) -> None:
        """Let a node die as by a power cut; Slurm notices when it has not answered for a while."""
        self._dead.add(node)
        for job in self._on(node):
            job.script.signal(job, "KILL")
            self.clock.after(NODE_TIMEOUT_S, lambda job=job: job.over("NODE_FAIL", "0:0", "NodeDown"))

    def revive_node(self, node: str) -> None:
        """Start a node again; what ran on it is lost."""
        self._dead.discard(node)
        for job in self._on(node):
            job.over("NODE_FAIL", "0:0", "NodeDown")
        self.schedule()

    def forget(self, job_id: str) -> None:
        """Let Slurm forget a job, as it does some minutes after its end."""
        del self.jobs[job_id]

    def schedule(self) -> None:
        """Start what waits on the nodes that are free."""
        for job in [job for job in self.jobs.values() if job.state == "PENDING"]:
            if job.begin_time > self.clock.monotonic():
                continue
            taking = [n for n in self.nodes if n not in self._drained | self._dead | job.excluded and not self._on(n)]
            if taking:
                job.start(taking[0])
            else:
                job.reason = "Resources"

    def is_dead(self, node: str) -> bool:
        return node in self._dead

    def _on(self, node: str) -> list[FakeJob]:
        return [job for job in self.jobs.values() if job.node == node and job.status.is_alive]


# All that job_state_string() of Slurm 25.05 says of a job that may go on, and what none says.
GOES_ON: Final = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED"),
    *("REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING", "STAGE_OUT", "UPDATE_DB"),
    *("LAUNCH_FAILED", "RECONFIG_FAIL", "POWER_UP_NODE", "EXPEDITING"),
    *("", "?", "LÄUFT", "RUNNING+", "COMPLETED+", "CANCELLED+", "OUT_OF_ME+", "FAILED,REQUEUED", "0", "None"),
)


class OddCommands:
    """Slurm's commands over a `FakeSlurm`, in place of `kdgat.cluster.slurm._run`; any share of answers is odd."""

    def __init__(self, slurm: FakeSlurm, chance: random.Random, share: float = 0.0) -> None:
        self.slurm, self.chance, self.share = slurm, chance, share
        self.num_odd = 0

    def __call__(self, *command: str) -> "subprocess.CompletedProcess[str]":
        done = self._answer(*command)
        if self.chance.random() >= self.share:
            return done
        self.num_odd += 1
        return self._odd(done)

    def _answer(self, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.CompletedProcess([name, *words], 0, "", "")
        match name:
            case "squeue":
                jobs = (self.slurm.queue() or {}).items()
                lines = (
                    f"{key}|{job.status.state}|{job.status.node}|{job.status.reason}|{job.name}" for key, job in jobs
                )
                done.stdout = "".join(f"{line}\n" for line in lines)
            case "scontrol" if words[-1] in self.slurm.jobs:
                job = self.slurm.status(words[-1])
                done.stdout = (
                    f"JobId={words[-1]} JobName={job.name} UserId=me({job.user}) JobState={job.state} "
                    f"Reason={job.reason} ExitCode={job.exit_code} NodeList={job.node} WorkDir=/\n"
                )
            case "scontrol":
                done.returncode, done.stderr = 1, "slurm_load_jobs error: Invalid job id specified\n"
            case "scancel" if "--signal=USR1" in words:
                self.slurm.ask_to_leave(words[-1])
            case "scancel":
                self.slurm.cancel(*words)
        return done

    def _odd(self, done: "subprocess.CompletedProcess[str]") -> "subprocess.CompletedProcess[str]":
        number, chance = self.chance.randrange(11), self.chance
        notice = chance.choice(
            ["NOTE: 3 nodes down", "CLUSTER: x", "a|b|c|d|e", "41|PENDING||Priority|Pr\ufffdfung", "\x85|", "77"]
        )
        state = next((word for word in GOES_ON[:4] if word in done.stdout), None)
        if number == 0:
            raise OSError(chance.choice(list(errno.errorcode)), "odd")
        if number == 1:
            raise subprocess.TimeoutExpired(done.args, 30)
        if number == 2:
            raise UnicodeDecodeError("utf-8", b"\xfc", 0, 1, "invalid start byte")
        if number == 3:
            done.returncode, done.stderr = chance.randrange(1, 256), notice
        elif number == 4:
            done.stdout = done.stdout[: chance.randrange(len(done.stdout) + 1)]
        elif number == 5:
            done.stdout = f"{notice}\n{done.stdout}{notice}\n"
        elif number == 6 and state is not None:
            done.stdout = done.stdout.replace(state, chance.choice(GOES_ON))
        elif number == 7:
            other = chance.choice(["OTHER", "k\ufffd", "other"])
            done.stdout = re.sub(r"[a-z0-9]+(?=-[0-9a-f]{8}\b)", other, done.stdout)
        elif number == 8:
            done.stdout = done.stdout.replace("|", chance.choice([" ", "", "||"])).replace("=", ": ")
        elif number == 9:
            done.returncode, done.stdout, done.stderr = 1, "", "slurm_load_jobs error: Invalid job id specified"
        else:
            done.stdout = ""
        return done
