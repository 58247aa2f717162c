"""A job and the worker in it, as whoever watches them sees both; over Dask it is `flows.dask_job.DaskJob`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from kdgat.cluster.ending import EndKind
from kdgat.cluster.worker import NodeReport


class WorkerLostError(Exception):
    """The worker is gone, and its report with it."""


class CallFailedError(Exception):
    """The call raised instead of reporting; the text names what."""


class JobWorker(Protocol):
    """One job that runs one attempt and reports how it ended."""

    @property
    def job_id(self) -> str:
        """Return the job's number; empty until the scheduler has taken it."""

    def start(
        self, directory_path: str, environment: Mapping[str, str], stall_timeout_s: float, epilogue: Sequence[str]
    ) -> None:
        """Submit the job and have its worker call `kdgat.cluster.worker.run_attempt` with this."""

    def refusal(self) -> tuple[EndKind, str] | None:
        """State why the job could not be submitted: `REFUSED` or `UNREACHABLE`, and the scheduler's words."""

    def last_seen(self) -> float | None:
        """Return what changes with each heartbeat of the worker; None while none is connected."""

    def has_ended(self) -> bool:
        """Tell whether the call has ended, with a report or without."""

    def report(self) -> NodeReport:
        """Return what the worker reported.

        Raises:
            WorkerLostError: if the worker is gone, before it reported or with its report.
            CallFailedError: if the call raised.
        """

    def let_go(self) -> None:
        """End the worker, and with it the job, so that the scheduler counts it as completed and not as cancelled."""

    def error_output(self) -> list[str]:
        """Return the lines that the job has printed to its standard error, without empty ones."""
