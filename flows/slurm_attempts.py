"""Attempts in Slurm: a job each, which goes on without the command that submitted it and is taken over by the next.

Prefect's engine stays on the login node: a node needs no route to the Prefect API and no Prefect, and a job that dies
takes with it nothing that somebody else would have to report. What has become of a job is read from its report and
from Slurm (`flows.job_watch`), and what is done about it is decided in `kdgat.cluster.decision`.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flows.attempts import Attempt
from flows.dask_jobs import DaskJobs
from flows.job_watch import POLL_S, JobWatch
from flows.node_image import NodeImage
from kdgat.cluster import AttemptLedger, EndKind, Site, Slurm
from kdgat.cluster.clock import SYSTEM_CLOCK, Clock, Patience
from kdgat.cluster.ending import AttemptEnd, Because
from kdgat.cluster.report import jobs_with_files, remove_job_files
from kdgat.cluster.scheduler import UNKNOWN, Scheduler, cancel_jobs
from kdgat.cluster.script import cluster_arguments, is_job_of, job_names, scheduler_options
from kdgat.cluster.slurm import JobQueue, SubmissionError, refusal
from kdgat.container.binds import Bind, stage_binds
from kdgat.stage import RunDirectory
from kdgat.stage.faults import is_environment_fault
from kdgat.stage.provenance import GPUS_VARIABLE

logger = logging.getLogger(__name__)

ORPHANED: Final = "Orphaned"
MOST_LOOKS: Final = 3  # that files refuse before a job is submitted, until that counts as an attempt


class SlurmAttempts:
    """Run each attempt as a job of a site; one for all stages of a run, used by several threads."""

    jobs_outlive = True

    def __init__(
        self,
        site: Site,
        log_directory: Path,
        environment: Mapping[str, str],
        image: NodeImage | None = None,
        *,
        scheduler: Scheduler | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.site = site
        self.log_directory = log_directory
        self.environment = dict(environment)
        self.image = image or NodeImage(site)
        self.clock = clock
        self.queue = JobQueue(scheduler or Slurm(), site.poll_interval_s, clock)
        self.jobs = DaskJobs(log_directory, scheduler_options(site))

    def run(self, attempt: Attempt) -> AttemptEnd:
        """Watch the attempt's job to its end: the one that is there, else one that is submitted now."""
        patience = Patience(self.clock, lambda text: attempt.on_line(f"{attempt.directory.path}: {text}; again"))
        may_have_job = attempt.is_left
        looks = MOST_LOOKS
        while not attempt.stop.is_set() or patience.is_due():
            if not patience.is_due():
                self.clock.sleep(POLL_S)
                continue
            try:
                self.log_directory.mkdir(parents=True, exist_ok=True)
                if not self.adopt(attempt):
                    if may_have_job and attempt.stop.is_set():  # Slurm does not say whether there is a job
                        break
                    may_have_job = False
                    job_id = self._submit(attempt)
                    may_have_job = True
                    attempt.ledger.submitted(attempt.record, job_id)
                    if not attempt.record.job_id and not self.adopt(attempt):
                        continue  # as one that is left
                worker = self.jobs.worker(attempt.record.job_id)
                return JobWatch(self.site, attempt, worker, self.queue, self.clock, self.log_directory).until_end()
            except SubmissionError as error:
                return self._not_submitted(attempt, *refusal(str(error)))
            except (ValueError, OSError) as error:
                if may_have_job or attempt.record.job_id:  # of this machine: the job knows nothing of it
                    patience.bear(error)
                elif isinstance(error, ConnectionError):
                    return self._not_submitted(attempt, EndKind.UNREACHABLE, str(error))
                elif is_environment_fault(error) and looks:  # a look at a file says little of the next one
                    looks -= 1
                    patience.bear(error)
                else:
                    raise
        if attempt.record.job_id and not attempt.stop.leaves_jobs:
            self.queue.scheduler.ask_to_leave(attempt.record.job_id)
        return AttemptEnd(EndKind.DETACHED, attempt.stop.reason, job_id=attempt.record.job_id)

    def adopt(self, attempt: Attempt) -> bool:
        """Find the job that the attempt has already, by number or by name; tell whether there is one.

        No number was noted if the command died right after `sbatch`, or if `sbatch` gave up on an answer that came.
        """
        record, ledger = attempt.record, attempt.ledger
        if not record.job_id:
            names = job_names(attempt.directory.path)
            found = self.queue.named(*names)
            # Submitted as well, where sbatch did not say its number.
            while found is None and (attempt.is_left or record.submitted) and not attempt.stop.is_set():
                self.clock.sleep(POLL_S * 4)
                found = self.queue.named(*names)
            noted = {one.job_id for one in ledger.records}
            alive = [job for job in found or () if job not in noted]
            ended = [job for job in jobs_with_files(attempt.directory) if job not in noted] if attempt.is_left else []
            if not alive and not ended:
                return False
            alive.sort(key=self._waits)  # one that has begun is before any that waits
            ledger.submitted(record, [*alive, *ended][0])
            cancel_jobs(self.queue.scheduler, Because.SLURM, *filter(self._waits, alive[1:]))
        attempt.on_line(f"watching job {record.job_id}, which was submitted before")
        try:
            self.jobs.open()
        except OSError as error:
            logger.warning("%s; reports come by files alone", error)
        return True

    def cancel_orphan(self, directory: RunDirectory) -> str:
        """Cancel the jobs of a stage that nobody asks for any more, and note it; say what was done."""
        text = f"nobody asks for {directory.path.name} any more"
        ledger, jobs = AttemptLedger(directory), self.queue.named(*job_names(directory.path))
        noted = {record.job_id: self.queue.scheduler.status(record.job_id) for record in ledger.left_open()}
        for job, status in noted.items():  # what squeue does not list, Slurm may know all the same
            if jobs is None or not job or job in jobs or status.is_over:
                continue
            if status.state == UNKNOWN:
                jobs = None
            elif is_job_of(status, directory.path, self.log_directory):
                jobs.append(job)
        if jobs is None or not cancel_jobs(self.queue.scheduler, Because.PERSON, *jobs):
            return f"{text}, but Slurm does not answer: the next command cancels what is left of it"
        text += f": cancelled job {', '.join(jobs)}" if jobs else ""
        for record in ledger.left_open():
            ledger.abandon(record, ORPHANED, text, Because.PERSON)
        return text

    def _waits(self, job_id: str) -> bool:
        return self.queue.scheduler.status(job_id).is_waiting

    def close(self) -> None:
        """Stop what listens here; the jobs go on."""
        self.jobs.close()

    def _submit(self, attempt: Attempt) -> str:
        resources = attempt.record.resources
        assert resources is not None
        arguments = cluster_arguments(
            self.site,
            resources,
            attempt.directory.path,
            self.log_directory,
            attempt.record.excluded_nodes,
            self._binds(attempt.directory),
            {**self.environment, **self.image.check(attempt.on_line), GPUS_VARIABLE: str(resources.gpus)},
        )
        remove_job_files(attempt.directory)
        return self.jobs.submit(arguments)

    def _not_submitted(self, attempt: Attempt, kind: EndKind, message: str) -> AttemptEnd:
        return AttemptEnd(kind, message, checkpoint=attempt.directory.newest_checkpoint())

    def _binds(self, directory: RunDirectory) -> list[Bind]:
        """List what the stage sees inside an image; beside its own, where whoever watches it listens."""
        if self.image.name is None:
            return []
        return stage_binds(directory, directory.read_spec(), [self.log_directory])
