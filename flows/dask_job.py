"""A job of dask-jobqueue with one Dask worker in it, and the one call that the worker is given."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, Final

import dask
import distributed
from distributed.core import Status

from flows.job_worker import CallFailedError, WorkerLostError
from flows.jobqueue import SLURMCluster, SLURMJob
from kdgat.cluster import slurm
from kdgat.cluster.ending import EndKind
from kdgat.cluster.worker import NodeReport, run_attempt

FETCH_S: Final = 10.0  # a report is some hundred bytes

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
            output, errors = await asyncio.wait_for(process.communicate(), slurm.COMMAND_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            raise RuntimeError(f"{cmd[0]} {slurm.NO_ANSWER} in {slurm.COMMAND_TIMEOUT_S:.0f} s") from None
        if process.returncode != 0:
            raise RuntimeError(f"{errors.decode(errors='replace')}{output.decode(errors='replace')}")
        return output.decode()


class DaskJob:
    """The `JobWorker` of a `SLURMCluster` and its client."""

    def __init__(self, cluster: SLURMCluster, client: "distributed.Client") -> None:
        self._cluster, self._client = cluster, client
        self._future: distributed.Future | None = None

    @property
    def job_id(self) -> str:
        """Return the number that `sbatch` printed."""
        return next((job.job_id for job in self._jobs() if job.job_id), "")

    def start(
        self, directory_path: str, environment: Mapping[str, str], stall_timeout_s: float, epilogue: Sequence[str]
    ) -> None:
        """Submit the job; the call waits in Dask's scheduler until the worker is there."""
        self._cluster.scale(jobs=1)
        arguments = (directory_path, dict(environment), stall_timeout_s, epilogue)
        self._future = self._client.submit(run_attempt, *arguments, pure=False, retries=0)

    def refusal(self) -> tuple[EndKind, str] | None:
        """Read what `sbatch` said."""
        error = next((job.error for job in self._jobs() if job.error), None)
        return None if error is None else slurm.refusal(error)

    def last_seen(self) -> float | None:
        """Return when Dask's scheduler last heard of the worker."""
        return next((worker.last_seen for worker in list(self._cluster.scheduler.workers.values())), None)

    def has_ended(self) -> bool:
        """Tell whether the future is done."""
        return self._future is not None and self._future.done()

    def report(self) -> NodeReport:
        """Fetch the report."""
        assert self._future is not None
        try:
            if self._future.status == "finished":
                report: NodeReport = self._future.result(timeout=FETCH_S)
                return report
            error = self._future.exception(timeout=FETCH_S)
        except (TimeoutError, CancelledError, distributed.KilledWorker) as lost:
            raise WorkerLostError(str(lost)) from lost  # it died with its report
        if isinstance(error, distributed.KilledWorker):
            raise WorkerLostError(str(error))
        raise CallFailedError(f"{type(error).__name__}: {error}")

    def let_go(self) -> None:
        """Close the worker."""
        for address in list(self._cluster.scheduler.workers):
            self._cluster.loop.add_callback(self._cluster.scheduler.close_worker, address)

    def error_output(self) -> list[str]:
        """Read the job's file; empty where there is none."""
        for job in self._jobs():
            path = Path(job.log_directory) / f"{job.job_name}-{self.job_id}.err"
            with contextlib.suppress(OSError):
                return [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        return []

    def _jobs(self) -> list[Job]:
        return list(self._cluster.workers.values())


@contextlib.contextmanager
def dask_job(arguments: Mapping[str, Any]) -> Iterator[DaskJob]:
    """Open a connection for a job of these arguments (`kdgat.cluster.script`); no job is left behind it.

    Raises:
        TimeoutError, RuntimeError: if Dask's scheduler does not start, because the login node is busy.
    """
    # The connection carries code: encrypted, and only for whoever can read the key in the log directory.
    with (
        SLURMCluster(job_cls=Job, security=True, silence_logs=False, **arguments) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield DaskJob(cluster, client)
