"""Attempts in Slurm: one job, one Dask worker in it, one call.

Prefect's engine stays on the login node: a node needs no route to the Prefect API and no Prefect, and a job that dies
takes with it nothing that somebody else would have to report. Dask's own cures are switched off: it must neither run
the stage twice on its own, nor bring a worker back. What a lost worker means is read from Slurm, and what is done
about it is decided in `kdgat.cluster.decision`.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import dask
import distributed
from dask_jobqueue import SLURMCluster
from dask_jobqueue.slurm import SLURMJob
from distributed.core import Status

from flows.attempts import Attempt
from flows.job_watch import JobWatch
from kdgat.cluster.ending import AttemptEnd, EndKind
from kdgat.cluster.history import AttemptRecord
from kdgat.cluster.script import cluster_arguments
from kdgat.cluster.site import Site
from kdgat.cluster.slurm import cancel_jobs, how_it_ended, job_status, wait_for_verdict, wait_until_over

SETTLE_S: Final = 60.0  # how long a job of a dead flow may take to save and end

# A worker that dies takes its attempt with it; one that is silent is dealt with by JobWatch.
dask.config.set({"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-ttl": None})
# What Dask logs about lost workers and refused jobs is told in our own words, once.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


class Job(SLURMJob):
    """A job that keeps what `sbatch` said, which dask-jobqueue only logs."""

    error: str | None = None

    async def start(self) -> None:
        """Submit."""
        try:
            await super().start()
        except (RuntimeError, ValueError, OSError) as error:
            self.error = str(error)
            raise

    async def close(self) -> None:
        """Cancel."""
        await super().close()
        self.status = Status.closed  # SpecCluster asserts it and dask-jobqueue never says it


class SlurmAttempts:
    """Run each attempt as a job of a site."""

    def __init__(
        self, site: Site, log_directory: Path, environment: Mapping[str, str], binds: Iterable[Path] = ()
    ) -> None:
        self.site = site
        self.log_directory = log_directory
        self.environment = dict(environment)
        self.binds = tuple(binds)

    def run(self, attempt: Attempt) -> AttemptEnd:
        """Submit one job, watch it to its end, and leave nothing of it in the queue."""
        resources = attempt.record.resources
        assert resources is not None
        self.log_directory.mkdir(parents=True, exist_ok=True)
        excluded, directory = attempt.record.excluded_nodes, attempt.directory.path
        arguments = cluster_arguments(self.site, resources, directory, self.log_directory, excluded, self.binds)
        # The connection carries code: encrypted, and only for whoever can read the key in the output directory.
        with (
            SLURMCluster(job_cls=Job, security=True, silence_logs=False, **arguments) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            watch = JobWatch(self.site, attempt, cluster, client)
            end = watch.until_end(self.environment)
        return explain(end, watch)

    def settle(self, record: AttemptRecord) -> str:
        """Take a job that still waits out of the queue; let one that runs save and end."""
        if not record.job_id:
            return "it had not submitted a job"
        status = job_status(record.job_id)
        if not status.is_waiting:
            status = wait_until_over(record.job_id, SETTLE_S)
        if status.is_over:
            return f"job {record.job_id} is over ({status.describe()})"
        words = f"job {record.job_id} was still {status.describe()}"
        return f"{words} and is cancelled" if cancel_jobs([record.job_id]) else f"{words} and cannot be cancelled"


def explain(end: AttemptEnd, watch: JobWatch) -> AttemptEnd:
    """Say why a SIGTERM came: Slurm tells a walltime from a `scancel` or a preemption only when the job is over."""
    if not watch.ended_by_slurm:
        return end
    status = wait_for_verdict(end.job_id)
    kind = how_it_ended(status, had_worker=True)
    words = f"{end.message} ({status.describe()})"
    return replace(end, kind=kind if kind in (EndKind.CANCELLED, EndKind.PREEMPTED) else end.kind, message=words)
