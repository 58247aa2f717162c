"""A run directory, and commands that run its stage as jobs of a fake Slurm, one after the other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.attempts import Conclusion, Stage, run_to_end
from flows.slurm_attempts import SlurmAttempts
from kdgat.cluster import AttemptLedger, AttemptRecord, Resources, Site, StopRequest
from kdgat.cluster.script import job_name
from kdgat.cluster.slurm import SubmissionError
from kdgat.stage import RunDirectory, StageSpec
from tests.support import fake_slurm
from tests.support.fake_slurm import FakeSlurm
from tests.support.fake_worker import FakeWorker

SITE = Site(name="here", scheduler="slurm")
RESOURCES = Resources(walltime_s=600, memory_mib=1500, cores=1, gpus=0)
LARGER = RESOURCES.model_copy(update={"memory_mib": 4000})


class FakeJobs:
    """What `DaskJobs` is to the flow."""

    def __init__(self, slurm: FakeSlurm, directory: RunDirectory) -> None:
        self.slurm, self.directory = slurm, directory
        self.workers: dict[str, FakeWorker] = {}
        self.submitted: list[dict[str, Any]] = []
        self.answers = True  # sbatch, which may have been heard all the same

    def open(self) -> None:
        pass

    def submit(self, arguments: Mapping[str, Any]) -> str:
        self.submitted.append(dict(arguments))
        worker = FakeWorker(self.slurm, self.directory)
        try:
            job_id = self.slurm.submit(worker, arguments["job_name"])
        except fake_slurm.SubmitError as error:
            raise SubmissionError(str(error)) from error
        self.workers[job_id] = worker
        if not self.answers:
            self.answers = True
            self.slurm.clock.sleep(30)
            raise SubmissionError("sbatch did not answer in 30 s")
        return job_id

    def worker(self, job_id: str) -> FakeWorker:
        return self.workers.get(job_id) or FakeWorker(self.slurm, self.directory)


class Place:
    """A run directory and commands that run its stage, one after the other."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path / "run").create(StageSpec(family="nowhere", stage="none", seed=0))
        self.slurm, self.stop = FakeSlurm(), StopRequest()
        self.name = job_name(self.directory.path)
        self.attempts = SlurmAttempts(SITE, path / "slurm", {}, scheduler=self.slurm, clock=self.slurm.clock)
        self.jobs = FakeJobs(self.slurm, self.directory)
        self.attempts.jobs = self.jobs  # type: ignore[assignment]
        self.lines: list[str] = []

    def run(self, resources: Resources = RESOURCES) -> Conclusion:
        """Give the command."""
        lines = self.lines.append
        return run_to_end(
            Stage(
                self.directory,
                runner=self.attempts,
                stop=self.stop,
                attempt_context=lambda record, body: body(lines, lambda progress: None, lambda *words: None),
                on_line=lines,
                resources=resources,
            )
        )

    def leave(self, seconds: float) -> Conclusion:
        """Give the command, whose process gets SIGTERM after so many seconds."""
        self.slurm.clock.after(seconds, lambda: self.stop.detach("SIGTERM"))
        conclusion = self.run()
        self.stop = StopRequest()
        return conclusion

    @property
    def records(self) -> list[AttemptRecord]:
        return AttemptLedger(self.directory).records

    @property
    def states(self) -> list[str]:
        return [job.state for job in self.slurm.jobs.values()]
