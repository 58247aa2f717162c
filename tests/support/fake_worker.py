"""A job's process without Dask: the script of a `FakeSlurm` job and the `flows.job_watch.JobWorker` in it."""

import math
import signal
from typing import Any, Final

from kdgat.cluster.report import JobFiles, NodeReport
from kdgat.stage import Finished, Outcome, Paused, RunDirectory
from tests.support.fake_slurm import FakeJob, FakeSlurm

HEARTBEAT_S: Final = 0.5
CHECKPOINT: Final = "checkpoints/checkpoint-00000040.pt"


class FakeWorker:
    """Begins, trains and reports in the time of the fake; a test sets what is different in its case."""

    def __init__(self, slurm: FakeSlurm, directory: RunDirectory) -> None:
        self.slurm, self.clock, self.directory = slurm, slurm.clock, directory
        self.prologue_s = 0.0  # from the job's start
        self.begins_s = 3.0  # from then on, to its first word
        self.trains_s = 60.0  # from then on
        self.saves_s = 1.0  # from a signal to its report; inf: it takes no notice
        self.leaves_s = 0.5  # from being let go to the end of the job
        self.waits_s = 3.0  # for being let go
        self.visible_s = 0.0  # until others see what it wrote at its end
        self.connects = True
        self.alive_interval_s = 5.0
        self.outcome: Outcome | None = Finished()  # of a stage that nobody asked to leave
        self.reported: dict[str, Any] = {}  # what its report says besides
        self.wakes = True  # at SIGCONT
        self._job: FakeJob | None = None
        self._is_alive = self._is_stopping = False
        self._run = 0
        self._frozen_at: float | None = None
        self._report: NodeReport | None = None

    # What the flow sees.

    def last_seen(self) -> float | None:
        if not self._is_alive or not self.connects:
            return None
        now = self.clock.monotonic() if self._frozen_at is None else self._frozen_at
        return now // HEARTBEAT_S

    def report(self) -> NodeReport | None:
        return self._report if self.connects and self._is_alive else None

    def let_go(self) -> None:
        if self._job is not None and self.connects:
            self._leave_after(self.leaves_s)

    # What its job does with it.

    @property
    def files(self) -> JobFiles:
        assert self._job is not None
        return JobFiles(self.directory, self._job.job_id)

    def begin(self, job: FakeJob) -> None:
        self._job = job
        self._run += 1
        run = self._run
        self.clock.after(self.prologue_s, lambda: run == self._run and self.files.begin(""))
        self.clock.after(self.prologue_s + self.begins_s, lambda: run == self._run and self._begin(run))

    def signal(self, job: FakeJob, name: str) -> None:
        if name == "KILL":
            self._is_alive, self._run = False, self._run + 1
        elif name == "STOP":
            self.freeze()
        elif name == "CONT":
            self._frozen_at = None if self.wakes else self._frozen_at
        elif self._frozen_at is None and self._is_alive:
            self._stop(f"SIG{name}")
        elif self._frozen_at is None:  # a shell, in the prologue
            self._run += 1
            self.clock.after(0.0, lambda: job.exit("0:15" if name == "TERM" else "0:10"))

    def freeze(self) -> None:
        """Let nothing be heard of it from now on."""
        self._frozen_at = self.clock.monotonic()

    def thaw(self) -> None:
        self._frozen_at = None

    def end(self, outcome: Outcome | None, **reported: Any) -> None:
        """Report, unless it has or is gone."""
        if self._report is not None or not self._is_alive:
            return
        checkpoint = outcome.checkpoint if isinstance(outcome, Paused) else ""
        told: dict[str, Any] = {
            "status": 0 if outcome is not None else -signal.SIGKILL,
            "outcome": outcome,
            "node": self._job.node if self._job is not None else "",
            "stop_reason": "",
            "checkpoint": checkpoint,
            "made_progress": bool(checkpoint),
            "peak_memory_mib": 100,
            "was_oom_killed": False,
            "stalled": False,
        }
        report = self._report = NodeReport(**{**told, **self.reported, **reported})
        self.clock.after(self.visible_s, lambda: self._write(outcome, report))
        self._leave_after(self.waits_s + self.leaves_s if self.connects else self.leaves_s)

    def _write(self, outcome: Outcome | None, report: NodeReport) -> None:
        if outcome is not None and not self.directory.is_finished():
            self.directory.write_outcome(outcome)
        self.files.write_report(report)

    def _leave_after(self, seconds: float) -> None:
        job, run = self._job, self._run
        assert job is not None

        def leave() -> None:
            if run == self._run:
                self._is_alive, self._run = False, self._run + 1
                job.exit("0:0")

        self.clock.after(seconds, leave)

    def _begin(self, run: int) -> None:
        self._is_alive = True
        assert self._job is not None
        self.files.begin(self._job.node)
        self._live(run)
        self.clock.after(self.trains_s, lambda: run == self._run and not self._is_stopping and self.end(self.outcome))

    def _live(self, run: int) -> None:
        if run == self._run and self._report is None:
            if self._frozen_at is None:
                self.files.touch()
            self.clock.after(self.alive_interval_s, lambda: self._live(run))

    def _stop(self, reason: str) -> None:
        if self.saves_s < math.inf:
            self._is_stopping = True
        saved = Paused(checkpoint=CHECKPOINT, reason=reason)
        self.clock.after(self.saves_s, lambda: self.end(saved, stop_reason=reason))
