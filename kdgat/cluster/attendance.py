"""A job's connection to the Dask scheduler of whoever watches it now: it makes reports fast, and nothing hangs on it.

A daemon thread is a Dask worker of the scheduler that `connection.json` names, anew for each one. Whatever goes wrong
in it is printed and harms nothing; a job that never finds a scheduler trains all the same.
"""

import asyncio
import logging
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from kdgat.base import write_bytes_atomically
from kdgat.cluster.child import StopRequest, say

CONNECTION_FILE: Final = "connection.json"  # which each new scheduler writes anew
POLL_S: Final = 0.2
FIRST_PAUSE_S: Final = 2.0  # between two attempts to find a scheduler; doubled up to the longest
LONGEST_PAUSE_S: Final = 30.0
ANSWER_S: Final = 5.0
REGISTER_S: Final = 30.0
LEAVE_S: Final = 3.0  # how long a report may take to be fetched; it is on disk, too
LOST_S: Final = 30.0  # without a scheduler, after which a job leaves whose flow wants it so
NO_DASHBOARD: Final = "127.0.0.1:0"  # Dask serves its metrics somewhere in any case: where nobody else gets at them

# Here and not in the module that the job runs: that one is `__main__`, and Dask would import it a second time.
_ended = threading.Event()
_report = ""


class Connection(BaseModel):
    """An address, and a certificate with its key: whoever has them can run code in the jobs of a run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    address: str
    certificate: str
    key: str

    def write(self, path: Path) -> None:
        """Write it; at no time can anybody else read it."""
        write_bytes_atomically(path, self.model_dump_json().encode(), mode=0o600)


def read_connection(path: Path) -> Connection | None:
    """Read it; None where no scheduler has been yet."""
    try:
        return Connection.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


async def attend() -> str:
    """Wait for the end of the stage and return its report as JSON: the one task of the worker.

    A coroutine, because a worker that closes cancels it at once; for a thread it would wait.
    """
    while not _ended.is_set():
        await asyncio.sleep(POLL_S)
    return _report


class Attendance:
    """The thread that keeps the connection."""

    def __init__(self, path: Path, job_id: str, options: Namespace, stop: StopRequest) -> None:
        self._path, self._job_id, self._options, self._stop = path, job_id, options, stop
        self._connected_at = time.monotonic()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._stay_connected()), daemon=True)

    def start(self) -> None:
        """Begin to look for a scheduler."""
        self._thread.start()

    def end(self, report: str) -> None:
        """Hand over the report, and give whoever watches a moment to fetch it."""
        global _report
        _report = report
        _ended.set()
        self._thread.join(LEAVE_S + 1.0)

    async def _stay_connected(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not _ended.is_set():
            began = time.monotonic()
            connection = read_connection(self._path)
            if connection is not None:
                try:
                    await self._serve(connection)
                except Exception as error:  # of a library that may raise anything; the stage goes on
                    say(f"no scheduler: {type(error).__name__}: {error}")
            if self._connected_at > began:
                pause_s = FIRST_PAUSE_S
            until = time.monotonic() + pause_s
            while not _ended.is_set() and time.monotonic() < until:
                self._leave_if_lost()
                await asyncio.sleep(POLL_S)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _serve(self, connection: Connection) -> None:
        """Be a worker until the connection breaks or the report is fetched."""
        # Here: the stage does not wait for these imports, and trains on where they fail.
        import dask
        from distributed import Worker
        from distributed.comm import get_address_host_port
        from distributed.security import Security

        dask.config.refresh(paths=[], env={})  # nothing that a person has set for notebooks
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        host, port = get_address_host_port(connection.address)
        # A worker would wait long for a scheduler that is dead, and overlook the next one meanwhile.
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), ANSWER_S)
        writer.close()
        options: dict[str, Any] = {
            "name": self._job_id,
            "host": self._options.host,
            "interface": self._options.interface,
            "local_directory": self._options.local_directory,
            "security": Security(
                tls_ca_file=connection.certificate,
                tls_worker_cert=connection.certificate,
                tls_worker_key=connection.key,
                require_encryption=True,
            ),
        }
        quiet = {"dashboard": False, "dashboard_address": NO_DASHBOARD, "memory_limit": 0, "nthreads": 1}
        worker = await Worker(connection.address, **options, **quiet, death_timeout=REGISTER_S)
        say(f"connected to {connection.address}")
        try:
            give_up_at = float("inf")
            while worker.status.name == "running" and time.monotonic() < give_up_at:
                self._connected_at = time.monotonic()
                await asyncio.sleep(POLL_S)
                if _ended.is_set():
                    give_up_at = min(give_up_at, time.monotonic() + LEAVE_S)  # whoever fetches the report closes us
        finally:
            await worker.close(executor_wait=False, timeout=2)

    def _leave_if_lost(self) -> None:
        if self._options.on_lost_flow == "stop" and time.monotonic() - self._connected_at > LOST_S:
            self._stop.set("the flow is gone")
