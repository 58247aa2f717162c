"""Attempts in Slurm: one job, one Dask worker in it, one call.

Prefect's engine stays on the login node: a node needs no route to the Prefect API and no Prefect, and a job that dies
takes with it nothing that somebody else would have to report. Dask's own cures are switched off: it must neither run
the stage twice on its own, nor bring a worker back. What a lost worker means is read from Slurm, and what is done
about it is decided in `kdgat.cluster.decision`.
"""

import contextlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from flows.attempts import Attempt
from flows.dask_job import dask_job
from flows.job_watch import JobWatch
from flows.node_image import NodeImage
from kdgat.cluster.child import STOP_GRACE_S, StopRequest
from kdgat.cluster.clock import SYSTEM_CLOCK, Clock
from kdgat.cluster.ending import AttemptEnd, EndKind
from kdgat.cluster.history import AttemptRecord
from kdgat.cluster.scheduler import UNKNOWN, JobStatus, Scheduler, wait_for_end
from kdgat.cluster.script import cluster_arguments, job_name
from kdgat.cluster.site import Site
from kdgat.cluster.slurm import Slurm
from kdgat.container.binds import Bind, stage_binds
from kdgat.stage.directory import RunDirectory
from kdgat.stage.files import sync_to_disk
from kdgat.stage.provenance import IMAGE_STAMP_VARIABLE

SETTLE_S: Final = STOP_GRACE_S + 30.0  # how long a job of a dead flow may take to save and end
SETTLE_POLL_S: Final = 1.0
KEY_FILES: Final = ".dask-jobqueue.worker.*"


class SlurmAttempts:
    """Run each attempt as a job of a site."""

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
        self.scheduler, self.clock = scheduler or Slurm(), clock

    def run(self, attempt: Attempt) -> AttemptEnd:
        """Submit one job, watch it to its end, and leave nothing of it in the queue."""
        resources = attempt.record.resources
        assert resources is not None
        self.log_directory.mkdir(parents=True, exist_ok=True)
        environment = {**self.environment, **self.image.check(attempt.on_line)}
        arguments = cluster_arguments(
            self.site,
            resources,
            attempt.directory.path,
            self.log_directory,
            attempt.record.excluded_nodes,
            self._binds(attempt.directory),
            environment.get(IMAGE_STAMP_VARIABLE, ""),
        )
        self.cancel_strays(attempt)
        with ExitStack() as stack:
            try:
                worker = stack.enter_context(dask_job(arguments))
            except (TimeoutError, RuntimeError) as error:  # a login node that is busy
                text = f"the Dask scheduler did not start: {error}"
                return AttemptEnd(EndKind.UNREACHABLE, text, checkpoint=attempt.directory.newest_checkpoint())
            self._write_keys()
            watch = JobWatch(self.site, attempt, worker, self.scheduler, self.clock)
            end = watch.until_end(environment)
        return self.explain(end) if watch.ended_by_slurm else end

    def _binds(self, directory: RunDirectory) -> list[Bind]:
        """List what the stage sees inside an image; beside its own, the key for the connection in the log directory."""
        if self.image.name is None:
            return []
        return stage_binds(directory, directory.read_spec(), [self.log_directory])

    def settle(self, directory: RunDirectory, record: AttemptRecord, stop: StopRequest) -> str:
        """Take a job that still waits out of the queue; let one that runs save and end."""
        if not record.job_id:
            return "it had noted no job"
        give_up_at = self.clock.monotonic() + SETTLE_S
        # By its name: after a while another job has the same number.
        while (found := self.scheduler.find(job_name(directory.path))) is None or record.job_id in found:
            status = JobStatus(UNKNOWN) if found is None else self.scheduler.status(record.job_id)
            if status.is_over:
                break
            if status.is_waiting or stop.is_set() or self.clock.monotonic() >= give_up_at:
                text = f"job {record.job_id} was still {status.describe()}"
                is_cancelled = found is not None and self.scheduler.cancel(record.job_id)
                return f"{text} and is cancelled" if is_cancelled else f"{text}, not cancelled"
            self.clock.sleep(SETTLE_POLL_S)
        return f"job {record.job_id} is over ({self.scheduler.status(record.job_id).describe()})"

    def cancel_strays(self, attempt: Attempt) -> None:
        """Cancel jobs for this directory that nobody has noted.

        They are there if the flow died right after `sbatch`, or if `sbatch` gave up on an answer that came.
        """
        noted = {record.job_id for record in attempt.ledger.records}
        found = self.scheduler.find(job_name(attempt.directory.path)) or []  # without an answer the lock must do
        strays = [job for job in found if job not in noted]
        if strays:
            attempt.on_line(f"cancelling what nobody waits for any more: job {', '.join(strays)}")
            self.scheduler.cancel(*strays)

    def _write_keys(self) -> None:
        """Send the keys for the connection to the disk: they are still open here, and NFS may hold them back."""
        for path in self.log_directory.glob(KEY_FILES):
            with contextlib.suppress(FileNotFoundError):  # of another attempt, which has just ended
                sync_to_disk(path)

    def explain(self, end: AttemptEnd) -> AttemptEnd:
        """Find why SIGTERM came: Slurm tells a walltime from a `scancel` or a preemption only when the job is over."""
        status = wait_for_end(self.scheduler, end.job_id, self.clock)
        kind = status.how_it_ended(had_worker=True)
        text = f"{end.message} ({status.describe()})"
        return replace(end, kind=kind if kind in (EndKind.CANCELLED, EndKind.PREEMPTED) else end.kind, message=text)


def remove_left_keys(log_directory: Path) -> None:
    """Remove the keys that a killed flow left; only where no other flow uses the directory."""
    for path in log_directory.glob(KEY_FILES):
        path.unlink(missing_ok=True)
