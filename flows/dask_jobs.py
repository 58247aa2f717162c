"""The jobs of a run over dask-jobqueue and Dask: their submission, and one scheduler to which those that run report."""

import asyncio
import logging
import signal
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, Final

import dask
import distributed
from distributed.security import Security

from kdgat.cluster import Resources, Site, slurm
from kdgat.cluster.attendance import CONNECTION_FILE, Connection, attend
from kdgat.cluster.report import NodeReport, parse_report
from kdgat.cluster.script import cluster_arguments
from kdgat.cluster.slurm import SubmissionError

_on_interrupt = signal.getsignal(signal.SIGINT)
try:  # the import lets Ctrl-C exit at once, with status 0
    from dask_jobqueue.slurm import SLURMCluster as SLURMCluster
    from dask_jobqueue.slurm import SLURMJob
finally:
    signal.signal(signal.SIGINT, _on_interrupt)

logger = logging.getLogger(__name__)

FETCH_S: Final = 10.0  # a report is some hundred bytes
FUTURE_ADDRESS: Final = "tls://FLOW:PORT"  # where the flow will listen, once it runs

# Dask's own settings: what a person has set for notebooks, in files or in DASK_*, would change jobs and connections.
dask.config.refresh(paths=[], env={})
# A worker that is gone says nothing about its stage: no task is run again by Dask, and none is given up for silence.
dask.config.set({"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-ttl": None})
# What Dask logs about lost workers and refused jobs is told in our own words, once.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


class Job(SLURMJob):
    """A job that waits no longer for `sbatch` than for any command of Slurm."""

    @staticmethod
    async def _call(cmd: Sequence[str], **kwargs: Any) -> str:
        """Run `sbatch` and return what it printed; RuntimeError if it fails or does not answer."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *cmd, stdout=pipe, stderr=pipe, env=slurm.command_environment(), **kwargs
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), slurm.COMMAND_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            raise RuntimeError(f"{cmd[0]} {slurm.NO_ANSWER} in {slurm.COMMAND_TIMEOUT_S:.0f} s") from None
        said = output.decode(errors="replace")
        if process.returncode != 0 and not slurm.is_submitted(said):
            raise RuntimeError(f"{errors.decode(errors='replace')}{said}")
        return said

    def _job_id_from_submit_output(self, out: str) -> str:
        return slurm.job_number(out)


class DaskJobs:
    """One Dask scheduler and client for all jobs of a run, open from the first job on; for several threads."""

    def __init__(self, log_directory: Path, scheduler_options: Mapping[str, Any]) -> None:
        self._path = log_directory / CONNECTION_FILE
        self._options = dict(scheduler_options)
        self._lock = threading.Lock()
        self._opened: tuple[distributed.SpecCluster, distributed.Client] | None = None

    def open(self) -> "tuple[distributed.SpecCluster, distributed.Client]":
        """Start the scheduler and let jobs know of it, unless that is done.

        Raises:
            ConnectionError: if it does not start.
        """
        with self._lock:
            if self._opened is None:
                # The connection carries code: encrypted, and only for whoever can read the file with the key.
                security = Security.temporary()
                options = {**self._options, "protocol": "tls://", "security": security}
                try:
                    cluster = distributed.SpecCluster(
                        workers={},
                        scheduler={"cls": distributed.Scheduler, "options": options},
                        security=security,
                        silence_logs=False,
                    )
                    client = distributed.Client(cluster, set_as_default=False)
                except (TimeoutError, RuntimeError) as error:
                    raise ConnectionError(f"the Dask scheduler did not start: {error}") from error
                connection = Connection(
                    address=cluster.scheduler_address, certificate=security.tls_ca_file, key=security.tls_worker_key
                )
                self._opened = cluster, client
                try:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    connection.write(self._path)
                except OSError as error:
                    logger.warning("%s cannot be written, reports come by files alone: %s", self._path, error)
            return self._opened

    def submit(self, arguments: Mapping[str, Any]) -> str:
        """Submit a job of these arguments (`kdgat.cluster.script`) and return its number, "" where sbatch says none.

        Raises:
            ConnectionError: if Dask's scheduler does not start, or the folder of what jobs print cannot be seen.
            SubmissionError: if the job is refused, or nobody answers.
        """
        cluster, _ = self.open()
        try:
            job = Job(scheduler=cluster.scheduler_address, name=arguments["job_name"], **arguments)
        except FileExistsError as error:  # dask-jobqueue takes a folder that it cannot see for none, and makes it
            raise ConnectionError(f"{error.filename} could not be seen: {error}") from error
        try:
            cluster.sync(job.start)
        except SubmissionError:
            return ""  # it is there, and is found by its name
        except (RuntimeError, ValueError, OSError) as error:
            raise SubmissionError(str(error)) from error
        return str(job.job_id)

    def worker(self, job_id: str) -> "DaskWorker":
        """Return the worker of a job, whoever submitted it; the scheduler must be open for it to connect."""
        return DaskWorker(self, job_id)

    def close(self) -> None:
        """Stop the scheduler; the jobs go on."""
        with self._lock:
            if self._opened is not None:
                cluster, client = self._opened
                self._opened = None
                try:
                    self._path.unlink(missing_ok=True)
                    client.close()
                    cluster.close()
                except (OSError, RuntimeError) as error:  # what was to be known of jobs is known
                    logger.warning("the Dask scheduler did not end in time: %s", error)

    @property
    def opened(self) -> "tuple[distributed.SpecCluster, distributed.Client] | None":
        """Return scheduler and client if they are there."""
        return self._opened


class DaskWorker:
    """The `JobWorker` of one job: a Dask worker whose name is the job's number, with one task."""

    def __init__(self, jobs: DaskJobs, job_id: str) -> None:
        self._jobs, self._job_id = jobs, job_id
        self._address = ""
        self._future: distributed.Future | None = None

    def last_seen(self) -> float | None:
        """Return when Dask's scheduler last heard of the worker; one that has just connected gets its task."""
        if self._jobs.opened is None:
            return None
        cluster, client = self._jobs.opened
        address = cluster.scheduler.aliases.get(self._job_id)
        worker = cluster.scheduler.workers.get(address)
        if worker is None:
            self._address, self._future = "", None
            return None
        if address != self._address:
            self._address = address
            # By address: a name that is not there might be taken for a host's.
            self._future = client.submit(attend, pure=False, retries=0, workers=[address], allow_other_workers=False)
        return float(worker.last_seen)

    def report(self) -> NodeReport | None:
        """Fetch the report."""
        if self._future is None or self._future.status != "finished":
            return None
        try:
            return parse_report(self._future.result(timeout=FETCH_S))
        except (TimeoutError, CancelledError, distributed.KilledWorker):
            return None  # gone with its report, which is on disk

    def let_go(self) -> None:
        """Close the worker."""
        if self._jobs.opened is not None and self._address:
            cluster, _ = self._jobs.opened
            cluster.loop.add_callback(cluster.scheduler.close_worker, self._address)


def job_script(site: Site, resources: Resources, directory: Path, log_directory: Path) -> str:
    """Return the script of the job that would run the stage in `directory`; nothing is started.

    What the stage sees of the machine inside a container image is bound when its inputs are known, and left out here.
    """
    arguments = cluster_arguments(site, resources, directory, log_directory)
    # A job makes its log directory as soon as it is described.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        job = SLURMJob(scheduler=FUTURE_ADDRESS, name="0", **{**arguments, "log_directory": folder})
        return str(job.job_script()).replace(folder, str(log_directory))
