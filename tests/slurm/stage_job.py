"""One small training stage that runs as jobs of the test cluster, without Prefect around it, and what is done to it."""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from flows.attempts import AttemptRunner, Conclusion, LocalAttempts, Stage, run_to_end
from flows.slurm_attempts import SlurmAttempts
from kdgat.cluster import AttemptLedger, AttemptRecord, ResourceRequest, Site, StopRequest, load_site
from kdgat.cluster.request import stage_resources
from kdgat.stage import RunDirectory
from tests.can.stage_inputs import FAST, SMALL_GAT, make_stage, make_stores
from tests.slurm.cluster_run import stray_processes
from tests.slurm.processes import command_line, is_alive
from tests.slurm.slurm import PrivateSlurm
from tests.support.commands import write_commands
from tests.support.waiting import wait_until

Found = TypeVar("Found")
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
WORKER = "kdgat.cluster.job"
TABLE_VARIABLE = "KDGAT_FAULT_TABLE"  # a file that gets a row per fault
STEPS_PER_EPOCH = 8  # of the planted windows in batches of 32
CHECKPOINT_STEPS = 20
# Nothing ends it but its last epoch, and steps alone say when it saves.
STEADY: dict[str, Any] = {
    "patience": None,
    "checkpoint_interval_s": 1_000_000,
    "checkpoint_every_steps": CHECKPOINT_STEPS,
    "checkpoint_margin_s": 3,
}
EPOCH = re.compile(r"epoch \d+: ")
RESUMED = re.compile(r"going on from \S+: epoch (\d+) step (\d+)")
PAUSED = re.compile(r"paused at epoch (\d+) step (\d+)")


def site(**changes: Any) -> Site:
    """Return the site of the test cluster, with some keys changed."""
    return Site.model_validate(load_site("slurm-test").model_dump(exclude_none=True) | changes)


class StageJob:
    """The stage, its attempts, and what was told about them."""

    def __init__(self, path: Path, **training: Any) -> None:
        config = {"gat": SMALL_GAT, "training": {**FAST, **training}}
        self.path = path
        self.directory: RunDirectory = make_stage(path / "run", "normal", config, make_stores(path))
        self.lines: list[str] = []
        self.states: list[tuple[str, str]] = []
        self.stop = StopRequest()
        self._thread: threading.Thread | None = None
        self._ended: list[Conclusion | BaseException] = []

    def run(self, site: Site, **request: Any) -> Conclusion:
        """Run it to its end as jobs of a site."""
        return self._run(SlurmAttempts(site, self.path / "slurm", ENVIRONMENT), site, ResourceRequest(**request))

    def run_here(self) -> Conclusion:
        """Run it to its end as processes of this machine."""
        return self._run(LocalAttempts(ENVIRONMENT), None, ResourceRequest())

    def start(self, site: Site, **request: Any) -> "StageJob":
        """Run it in another thread, so that this one can hurt it."""

        def run() -> None:
            try:
                self._ended.append(self.run(site, **request))
            except BaseException as error:
                self._ended.append(error)

        self.stop = StopRequest()
        self._ended.clear()
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return self

    def finish(self) -> Conclusion:
        """Wait for the end of what `start` began."""
        ended = self.wait_until(lambda: self._ended, "the end of the stage", may_end=True)[0]
        if isinstance(ended, BaseException):
            raise ended
        return ended

    def close(self) -> None:
        """Leave nothing behind if a test gave up."""
        if self._thread is not None and self._thread.is_alive():
            self.stop.set("the end of the test")
            self.stop.insist()
            self._thread.join(60)

    @property
    def attempts(self) -> list[AttemptRecord]:
        return AttemptLedger(self.directory).records

    @property
    def ends(self) -> list[str]:
        return [record.end for record in self.attempts]

    @property
    def job_id(self) -> str:
        """Return the job of the attempt that runs now, once it has one."""
        return self.wait_until(lambda: self.attempts and self.attempts[-1].job_id, "a job")

    @property
    def log(self) -> str:
        path = self.directory.log_path
        return path.read_text() if path.exists() else ""

    @property
    def output(self) -> str:
        """Return what its jobs have printed."""
        return "".join(path.read_text() for path in sorted((self.path / "slurm").glob("*.out")))

    @property
    def result(self) -> tuple[bytes, bytes]:
        """Return weights and metric rows, to be compared byte by byte."""
        return self.directory.weights_path.read_bytes(), self.directory.metrics_path.read_bytes()

    def wait_until(self, condition: Callable[[], Found], what: str, *, may_end: bool = False) -> Found:
        """Wait for something that happens while the stage runs."""

        def holds() -> Found:
            found = condition()
            assert found or may_end or not self._ended, f"ended before {what}: {self._ended}\n{self.log}"
            return found

        return wait_until(holds, what, interval_s=0.02, log=lambda: "\n".join([*self.lines, self.log]))

    def wait_for_checkpoint(self, other_than: str = "") -> str:
        """Wait for a checkpoint, or for another one."""
        return self.wait_until(
            lambda: (found := self.directory.newest_checkpoint()) != other_than and found, "a checkpoint"
        )

    def child(self) -> int:
        """Return the process that trains now."""

        def owner() -> int:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                pid = int(json.loads(self.directory.owner_path.read_bytes())["pid"])
                return pid if is_alive(pid) else 0
            return 0

        return self.wait_until(owner, "the process that trains")

    def worker(self, slurm: PrivateSlurm) -> int:
        """Return the worker of the current job."""

        def found() -> int:
            return next((pid for pid in slurm.processes_of(self.job_id) if WORKER in command_line(pid)), 0)

        return self.wait_until(found, "the worker")

    def hold(self) -> int:
        """Let the stage get to a checkpoint and stop it there, however quick this machine is; return its process.

        It goes on when somebody asks it to leave: SIGCONT comes with that.
        """
        self.wait_for_checkpoint()
        pid = self.child()
        os.kill(pid, signal.SIGSTOP)
        return pid

    def steps_done(self) -> int:
        """Return how many steps are known to be done; progress is written once a second."""
        found = json.loads(self.directory.progress_path.read_bytes())
        return int(found["epoch"]) * STEPS_PER_EPOCH + int(found["step"])

    def steps(self, pattern: re.Pattern[str]) -> list[int]:
        """Return the steps at which the stage paused, or went on."""
        return [int(epoch) * STEPS_PER_EPOCH + int(step) for epoch, step in pattern.findall(self.log)]

    def startup_s(self, began: float) -> float:
        """Return how long it took from a moment (seconds since the epoch) to the end of the first epoch."""
        (line, *_) = [line for line in self.log.splitlines() if EPOCH.search(line)]
        return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() - began

    def _run(self, runner: AttemptRunner, site: Site | None, request: ResourceRequest) -> Conclusion:
        stage = Stage(
            self.directory,
            runner=runner,
            stop=self.stop,
            attempt_context=lambda record, body: body(
                self.lines.append, lambda progress: None, lambda *words: self.states.append(words)
            ),
            on_line=self.lines.append,
            resources=None if site is None else stage_resources("normal", {}, site, request),
            site=Site(name="local") if site is None else site,
        )
        with contextlib.closing(runner):
            return run_to_end(stage)


@contextlib.contextmanager
def watched(job: StageJob, slurm: PrivateSlurm) -> Iterator[StageJob]:
    """Leave nothing of a job behind, and see that it leaves nothing itself."""
    try:
        yield job
    finally:
        job.close()
    assert slurm.jobs() == []
    assert stray_processes(job.path) == []


def keep_row(row: Mapping[str, Any]) -> None:
    """Print what a fault did, and write it where that is asked for."""
    print(json.dumps(row))
    if TABLE_VARIABLE in os.environ:
        with Path(os.environ[TABLE_VARIABLE]).open("a") as file:
            file.write(json.dumps(row) + "\n")


def deadline_once(path: Path, seconds: float, *, jobs: str = "*") -> list[str]:
    """Return the prologue that gives each stage's first job that many seconds, as a walltime would that Slurm knows.

    The stage reads the end of its job from the variable, and before it leaves once more from `squeue`
    (`kdgat.training.deadline`); Slurm's own shortest walltime is a minute, and it looks at it every half minute. Jobs
    whose names do not fit `jobs`, a pattern of the shell, are left alone.
    """
    path.mkdir(exist_ok=True)
    commands = path.with_name(f"{path.name}-bin")
    write_commands(commands, squeue="date -d @$SLURM_JOB_END_TIME +%FT%T")
    end = f"export SLURM_JOB_END_TIME=$(( $(date +%s) + {seconds:.0f} )); echo $SLURM_JOB_END_TIME > $first"
    known = f"export PATH={commands}:$PATH"
    once = f"first={path}/$SLURM_JOB_NAME; if [ ! -e $first ]; then {end}; {known}; fi"
    return [f"case $SLURM_JOB_NAME in {jobs}) {once};; esac"]
