"""The worker in a job, as whoever watches the job sees it while it is connected; over Dask: `flows.dask_jobs`."""

from typing import Protocol

from kdgat.cluster.report import NodeReport


class JobWorker(Protocol):
    """The connection to one job, which may be there or not: what it does not say, files and the scheduler do."""

    def last_seen(self) -> float | None:
        """Return what changes with each heartbeat of the worker; None while none is connected."""

    def report(self) -> NodeReport | None:
        """Return what the job reported; None while it has not, or is not connected."""

    def let_go(self) -> None:
        """Close the connection, so that the job ends without waiting for anybody."""
