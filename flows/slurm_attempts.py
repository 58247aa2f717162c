"""Attempts in Slurm: one job, one Dask worker in it, one call.

Prefect's engine stays on the login node: a node needs no route to the Prefect API and no Prefect, and a job that dies
takes with it nothing that somebody else would have to report. Dask's own cures are switched off: it must neither run
the stage twice on its own, nor bring a worker back. What a lost worker means is read from Slurm, and what is done
about it is decided in `kdgat.cluster.decision`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import dask
import distributed
from distributed.core import Status

from flows.attempts import Attempt
from flows.job_watch import JobWatch
from flows.jobqueue import SLURMCluster, SLURMJob
from flows.node_image import NodeImage
from kdgat.cluster.binds import Bind, stage_binds
from kdgat.cluster.child import STOP_GRACE_S, StopRequest
from kdgat.cluster.ending import AttemptEnd, EndKind
from kdgat.cluster.history import AttemptRecord
from kdgat.cluster.script import cluster_arguments, job_name
from kdgat.cluster.site import Site
from kdgat.cluster.slurm import (
    COMMAND_TIMEOUT_S,
    NO_ANSWER,
    cancel_jobs,
    find_jobs,
    how_it_ended,
    job_status,
    wait_for_verdict,
)
from kdgat.stage.directory import RunDirectory
from kdgat.stage.files import sync_to_disk
from kdgat.stage.provenance import IMAGE_STAMP_VARIABLE

SETTLE_S: Final = STOP_GRACE_S + 30.0  # how long a job of a dead flow may take to save and end
SETTLE_POLL_S: Final = 1.0
KEY_FILES: Final = ".dask-jobqueue.worker.*"

# A worker that dies takes its attempt with it; one that is silent is dealt with by JobWatch.
dask.config.set({"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-ttl": None})
# What Dask logs about lost workers and refused jobs is told in our own words, once.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


class Job(SLURMJob):
    """A job that keeps what `sbatch` said, which dask-jobqueue only logs, and waits for no command for ever."""

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

    @staticmethod
    async def _call(cmd: Sequence[str], **kwargs: Any) -> str:
        """Run `sbatch` or `scancel` and return what it printed; RuntimeError if it fails or does not answer."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*cmd, stdout=pipe, stderr=pipe, **kwargs)
        try:
            output, errors = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            raise RuntimeError(f"{cmd[0]} {NO_ANSWER} in {COMMAND_TIMEOUT_S:.0f} s") from None
        if process.returncode != 0:
            raise RuntimeError(f"{errors.decode(errors='replace')}{output.decode(errors='replace')}")
        return output.decode()


class SlurmAttempts:
    """Run each attempt as a job of a site."""

    def __init__(
        self, site: Site, log_directory: Path, environment: Mapping[str, str], image: NodeImage | None = None
    ) -> None:
        self.site = site
        self.log_directory = log_directory
        self.environment = dict(environment)
        self.image = image or NodeImage(site)

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
        self._cancel_strays(attempt)
        with ExitStack() as stack:
            try:
                # The connection carries code: encrypted, and only for whoever can read the key in the log directory.
                cluster = SLURMCluster(job_cls=Job, security=True, silence_logs=False, **arguments)
                stack.enter_context(cluster)
                client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
            except (TimeoutError, RuntimeError) as error:  # a login node that is busy
                words = f"the Dask scheduler did not start: {error}"
                return AttemptEnd(EndKind.UNREACHABLE, words, checkpoint=attempt.directory.newest_checkpoint())
            self._write_keys()
            watch = JobWatch(self.site, attempt, cluster, client)
            end = watch.until_end(environment)
        return explain(end, watch)

    def _binds(self, directory: RunDirectory) -> list[Bind]:
        """List what the stage sees inside an image; beside its own, the key for the connection in the log directory."""
        if self.image.name is None:
            return []
        return stage_binds(directory, directory.read_spec(), [self.log_directory])

    def settle(self, directory: RunDirectory, record: AttemptRecord, stop: StopRequest) -> str:
        """Take a job that still waits out of the queue; let one that runs save and end."""
        if not record.job_id:
            return "it had noted no job"
        give_up_at = time.monotonic() + SETTLE_S
        # By its name: after a while another job has the same number.
        while record.job_id in find_jobs(job_name(directory.path)):
            status = job_status(record.job_id)
            if status.is_over:
                break
            if status.is_waiting or stop.is_set() or time.monotonic() >= give_up_at:
                words = f"job {record.job_id} was still {status.describe()}"
                return f"{words} and is cancelled" if cancel_jobs([record.job_id]) else f"{words}, not cancelled"
            stop.wait(SETTLE_POLL_S)
        return f"job {record.job_id} is over ({job_status(record.job_id).describe()})"

    def _cancel_strays(self, attempt: Attempt) -> None:
        """Cancel jobs for this directory that nobody has noted.

        They are there if the flow died right after `sbatch`, or if `sbatch` gave up on an answer that came.
        """
        noted = {record.job_id for record in attempt.ledger.records}
        strays = [job for job in find_jobs(job_name(attempt.directory.path)) if job not in noted]
        if strays:
            attempt.on_line(f"cancelling what nobody waits for any more: job {', '.join(strays)}")
            cancel_jobs(strays)

    def _write_keys(self) -> None:
        """Send the keys for the connection to the disk: they are still open here, and NFS may hold them back."""
        for path in self.log_directory.glob(KEY_FILES):
            with contextlib.suppress(FileNotFoundError):  # of another attempt, which has just ended
                sync_to_disk(path)


def remove_left_keys(log_directory: Path) -> None:
    """Remove the keys that a killed flow left; only where no other flow uses the directory."""
    for path in log_directory.glob(KEY_FILES):
        path.unlink(missing_ok=True)


def explain(end: AttemptEnd, watch: JobWatch) -> AttemptEnd:
    """Say why a SIGTERM came: Slurm tells a walltime from a `scancel` or a preemption only when the job is over."""
    if not watch.ended_by_slurm:
        return end
    status = wait_for_verdict(end.job_id)
    kind = how_it_ended(status, had_worker=True)
    words = f"{end.message} ({status.describe()})"
    return replace(end, kind=kind if kind in (EndKind.CANCELLED, EndKind.PREEMPTED) else end.kind, message=words)
