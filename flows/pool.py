"""A pool of short jobs that make the parts of a stage ahead of it, each part by whichever worker is free.

Nothing depends on it: the stage joins the parts that are there and makes those that are not. A worker that dies costs
the part that it was at; its job is replaced as long as parts are left.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import distributed
from distributed.core import Status
from distributed.security import Security
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from flows.dask_jobs import Job, SLURMCluster
from flows.node_image import NodeImage
from flows.node_tasks import NodeTaskRunner
from kdgat.cluster import Resources, Site, Slurm, StopRequest
from kdgat.cluster.scheduler import Scheduler
from kdgat.cluster.script import LOOPBACK, POOL_FAILURES, pool_arguments
from kdgat.container.binds import stage_binds
from kdgat.stage import RunDirectory
from kdgat.training.parts import make_part, missing_parts

POLL_S: Final = 0.5
MAX_FRUITLESS_JOBS: Final = 3  # times the size of the pool: so many jobs that make no part, and the pool is given up

part = task(name="part", task_run_name="{name}", cache_policy=NO_CACHE, retries=0, persist_result=False)(make_part)


@dataclass(frozen=True)
class Pool:
    """Where the workers of a pool run, and how many of them at most."""

    site: Site
    num_workers: int
    log_directory: Path
    image: NodeImage
    environment: Mapping[str, str]

    def make_parts(
        self,
        function: str,
        directory: RunDirectory,
        resources: Resources | None,
        stop: StopRequest,
        log: Callable[[str], None],
    ) -> None:
        """Make the parts of a stage that are missing, as task runs of the flow run around; returns early when asked to.

        Args:
            function: of `PlannedStage.parts`.
            directory: the run directory of the stage, which nobody runs meanwhile.
            resources: of each job; None where the workers are processes of this machine.
            stop: when it is set, the pool leaves; parts that are made stay.
            log: gets what happens, a sentence each.
        """
        path = str(directory.path)
        try:
            with self._runner(directory, resources) as runner:
                keeper = _Keeper(runner, self.site, log) if self.site.scheduler == "slurm" else None
                if keeper is not None:
                    log("the pool waits for its first worker")
                    keeper.scale(1)
                names = _ask(runner, keeper, stop, self.site.start_timeout_s, missing_parts, function, path)
                if not names:
                    return
                size = min(self.num_workers, len(names))
                log(f"{len(names)} parts are made ahead by up to {size} workers")
                if keeper is not None:
                    keeper.scale(size)
                else:
                    runner.client.cluster.scale(size)
                _make(runner, keeper, stop, function, path, names)
        except _PoolLostError as error:
            log(f"{error}; the stage makes what is missing")
        except (TimeoutError, RuntimeError, OSError) as error:  # a login node that is busy
            log(f"the pool did not start ({type(error).__name__}: {error}); the stage makes all parts")

    def _runner(self, directory: RunDirectory, resources: Resources | None) -> NodeTaskRunner:
        """Return the task runner of a cluster for parts of the stage, which opens the cluster when it is entered."""
        if self.site.scheduler == "local":
            environment = dict(self.environment)
            return NodeTaskRunner(cluster_class=_local_cluster, cluster_kwargs={"environment": environment})
        assert resources is not None
        environment = {**self.environment, **self.image.check()}
        logs = self.log_directory
        logs.mkdir(parents=True, exist_ok=True)
        binds = stage_binds(directory, directory.read_spec(), [logs]) if self.image.name is not None else ()
        arguments = pool_arguments(self.site, resources, directory.path, logs, binds, environment)
        return NodeTaskRunner(cluster_class=_slurm_cluster, cluster_kwargs={"arguments": arguments})


class PoolJob(Job):
    """A job of a pool, which keeps what `sbatch` said: dask-jobqueue only logs it."""

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


class _PoolLostError(Exception):
    """No worker of the pool comes, or stays."""


class _Keeper:
    """Replaces jobs that Slurm no longer has, which SLURMCluster never notices, as long as they are of use."""

    def __init__(
        self,
        runner: NodeTaskRunner,
        site: Site,
        log: Callable[[str], None],
    ) -> None:
        self._cluster: SLURMCluster = runner.client.cluster
        self._log = log
        self._scheduler: Scheduler = Slurm()
        self._interval_s = site.poll_interval_s
        self._next_look = time.monotonic() + self._interval_s
        self._size = 0
        self._lost_in_vain = 0  # jobs that were lost since a part was made
        self._seen: set[Any] = set()  # jobs that were there at the last look

    def scale(self, size: int) -> None:
        """Ask for so many jobs."""
        self._size = size
        self._cluster.scale(size)

    def note_progress(self) -> None:
        """A part was made: the pool is of use."""
        self._lost_in_vain = 0

    def look(self) -> None:
        """Replace what is lost, from time to time; _PoolLostError if that happens again and again."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._interval_s
        jobs: dict[Any, PoolJob] = dict(self._cluster.workers)
        alive = self._scheduler.queue()
        if alive is None:
            return
        statuses = [alive[job.job_id].status for job in jobs.values() if job.job_id in alive]
        if hopeless := next((status for status in statuses if status.is_hopeless), None):
            raise _PoolLostError(f"jobs of the pool would wait for ever: {hopeless.describe()}")
        # SpecCluster itself forgets a job some seconds after it has lost the worker, and asks for no other.
        lost = [*(self._seen - jobs.keys())]
        lost += [key for key, job in jobs.items() if job.error or (job.job_id and job.job_id not in alive)]
        self._seen = jobs.keys() - set(lost)
        if not lost:
            return
        self._lost_in_vain += len(lost)
        words = next((job.error for job in jobs.values() if job.error), None) or "they ended before they made a part"
        if self._lost_in_vain >= MAX_FRUITLESS_JOBS * self._size:
            raise _PoolLostError(f"{self._lost_in_vain} jobs of the pool were lost in a row: {words.strip()}")
        self._log(f"{len(lost)} of {self._size} jobs of the pool are gone, and asked for again")
        for key in lost:
            self._cluster.workers.pop(key, None)
        self._cluster.scale(self._size)


def _ask(
    runner: NodeTaskRunner,
    keeper: _Keeper | None,
    stop: StopRequest,
    limit_s: float,
    function: Callable[..., Any],
    *arguments: str,
) -> Any:
    """Call a function on the first worker that comes; None if somebody asked to stop before.

    Raises:
        _PoolLostError: if no worker comes in time, or none lives long enough, or the function raises there.
    """
    future = runner.client.submit(function, *arguments, pure=False)
    give_up_at = time.monotonic() + limit_s
    while not stop.is_set():
        if future.done():
            try:
                return future.result()
            except Exception as error:  # whatever it is, the stage meets it too, and says it better
                raise _PoolLostError(f"the pool's first worker: {type(error).__name__}: {error}") from error
        if time.monotonic() > give_up_at:
            raise _PoolLostError(f"no worker of the pool has come within {limit_s:.0f} s")
        if keeper is not None:
            keeper.look()
        time.sleep(POLL_S)
    return None


def _make(
    runner: NodeTaskRunner, keeper: _Keeper | None, stop: StopRequest, function: str, path: str, names: list[str]
) -> None:
    left = [runner.submit(part, {"function": function, "path": path, "name": name}) for name in names]
    try:
        while left:
            ended = [future for future in left if future.wrapped_future.done()]
            left = [future for future in left if not future.wrapped_future.done()]
            states: list[State[Any]] = [future.wrapped_future.result() for future in ended]
            if keeper is not None and any(state.is_completed() for state in states):
                keeper.note_progress()
            # What a part raises, the stage will raise too, and say it better.
            if stop.is_set() or any(state.is_failed() for state in states):
                return
            if keeper is not None:
                keeper.look()
            time.sleep(POLL_S)
    finally:
        if left:
            runner.cancel_all()


def _local_cluster(environment: Mapping[str, str]) -> distributed.LocalCluster:
    """Open a pool of processes of this machine, one at first; each has a nanny that starts it again."""
    return distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=True,
        host=LOOPBACK,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
        security=Security.temporary(),  # the loopback is everybody's, and the connection carries code
        protocol="tls://",
        scheduler_kwargs={"allowed_failures": POOL_FAILURES},
        env=dict(environment),
        memory_limit=None,
    )


def _slurm_cluster(arguments: Mapping[str, Any]) -> SLURMCluster:
    """Open a pool of jobs, none at first."""
    return SLURMCluster(job_cls=PoolJob, security=True, silence_logs=False, **arguments)
