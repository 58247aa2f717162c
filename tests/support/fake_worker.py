"""A job's worker without Dask: a `flows.job_worker.JobWorker` whose job is one of `FakeSlurm`."""

import math
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flows.job_worker import CallFailedError, WorkerLostError
from kdgat.cluster.ending import EndKind
from kdgat.cluster.slurm import refusal
from kdgat.cluster.worker import NodeReport
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished, Outcome, Paused
from tests.support.fake_slurm import FakeJob, FakeSlurm, SubmitError

HEARTBEAT_S: Final = 0.5
SUBMIT_S: Final = 0.3  # what sbatch takes
CHECKPOINT: Final = "checkpoints/checkpoint-00000040.pt"


class FakeWorker:
    """Connects, trains and reports in the time of the fake; a test sets what is different in its case."""

    def __init__(self, slurm: FakeSlurm, directory: RunDirectory) -> None:
        self.slurm, self.clock, self.directory = slurm, slurm.clock, directory
        self.submission: dict[str, Any] = {"name": "kdgat"}  # arguments of FakeSlurm.submit
        self.connects_s = 3.0  # from the job's start
        self.trains_s = 60.0  # from then on
        self.saves_s = 1.0  # from a signal to its report; inf: it takes no notice
        self.leaves_s = 0.5  # from being let go to the end of the job
        self.visible_s = 0.0  # until others see the outcome that it wrote
        self.outcome: Outcome | None = Finished()  # of a stage that nobody asked to leave
        self.reported: dict[str, Any] = {}  # what its report says besides
        self.raises = ""
        self.dies_with_report = False
        self.wakes = True  # at SIGCONT
        self.loss_is_noticed = True  # Dask says that the call was lost; otherwise the worker is just no longer there
        self.printed: list[str] = []
        self.started_with: tuple[Any, ...] = ()
        self._job: FakeJob | None = None
        self._job_id = self._refused = ""
        self._is_connected = self._is_lost = self._is_stopping = False
        self._run = 0
        self._frozen_at: float | None = None
        self._report: NodeReport | None = None

    # What the flow sees.

    @property
    def job_id(self) -> str:
        return self._job_id

    def start(
        self, directory_path: str, environment: Mapping[str, str], stall_timeout_s: float, epilogue: Sequence[str]
    ) -> None:
        self.started_with = (directory_path, dict(environment), stall_timeout_s, tuple(epilogue))
        self.clock.after(SUBMIT_S, self._submit)

    def refusal(self) -> tuple[EndKind, str] | None:
        return refusal(self._refused) if self._refused else None

    def last_seen(self) -> float | None:
        if not self._is_connected:
            return None
        now = self.clock.monotonic() if self._frozen_at is None else self._frozen_at
        return now // HEARTBEAT_S

    def has_ended(self) -> bool:
        return (
            self._report is not None
            or bool(self.raises and self._is_connected)
            or (self._is_lost and self.loss_is_noticed)
        )

    def report(self) -> NodeReport:
        if self.dies_with_report and self._report is not None:
            self.slurm.kill_script(self._job_id)
            raise WorkerLostError
        if self._report is None:
            raise CallFailedError(self.raises) if self.raises else WorkerLostError
        return self._report

    def let_go(self) -> None:
        assert self._job is not None
        job = self._job
        self.clock.after(self.leaves_s, lambda: job.exit("0:0"))

    def error_output(self) -> list[str]:
        return self.printed

    # What its job does with it.

    def begin(self, job: FakeJob) -> None:
        self._job = job
        self._run += 1
        self._is_lost = False
        run = self._run
        self.clock.after(self.connects_s, lambda: self._connect(run))

    def signal(self, job: FakeJob, name: str) -> None:
        if name == "KILL":
            self._is_lost, self._is_connected, self._run = self._is_connected, False, self._run + 1
        elif name == "STOP":
            self.freeze()
        elif name == "CONT":
            self._frozen_at = None if self.wakes else self._frozen_at
        elif self._frozen_at is None and self._is_connected:
            self._stop(f"SIG{name}")
        elif self._frozen_at is None and name == "TERM":
            self.clock.after(0.0, lambda: job.exit("0:15"))

    def freeze(self) -> None:
        """Let nothing be heard of it from now on."""
        self._frozen_at = self.clock.monotonic()

    def thaw(self) -> None:
        self._frozen_at = None

    def end(self, outcome: Outcome | None, **reported: Any) -> None:
        """Report, unless it has or is gone."""
        if self._report is not None or not self._is_connected:
            return
        if outcome is not None:
            self.clock.after(self.visible_s, lambda: self.directory.write_outcome(outcome))
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
        self._report = NodeReport(**{**told, **self.reported, **reported})

    def _submit(self) -> None:
        try:
            self._job_id = self.slurm.submit(self, **self.submission)
        except SubmitError as error:
            self._refused = str(error)

    def _connect(self, run: int) -> None:
        if run == self._run:
            self._is_connected = True
            self.clock.after(
                self.trains_s, lambda: run == self._run and not self._is_stopping and self.end(self.outcome)
            )

    def _stop(self, reason: str) -> None:
        if self.saves_s < math.inf:
            self._is_stopping = True
        saved = Paused(checkpoint=CHECKPOINT, reason=reason)
        self.clock.after(self.saves_s, lambda: self.end(saved, stop_reason=reason))
