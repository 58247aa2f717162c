"""The runs of one installation, as processes of this machine: which there are, and stopping them in order."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

from flows.deployment.installation import HOME_VARIABLE
from flows.deployment.service import Process, processes_with

SAVE_TIMEOUT_S: Final = 180.0  # for a run that is stopped: its stages write their checkpoints, its jobs leave
RUN_VARIABLE: Final = "PREFECT__FLOW_RUN_ID"
ENGINE: Final = "prefect.engine"
STAGE: Final = "kdgat.stage"
WORKER: Final = "worker"


def run_processes(home: Path) -> list[Process]:
    """List the processes of flow runs."""
    return list(_processes(home, ENGINE))


def run_ids(home: Path) -> set[UUID]:
    """Return the ids of the flow runs that have a process."""
    found = (process.variable(RUN_VARIABLE) for process in run_processes(home))
    return {UUID(run_id) for run_id in found if run_id}


def has_worker(home: Path) -> bool:
    """Tell whether a worker runs, whoever started it."""
    return any(_processes(home, WORKER))


def stop_runs(home: Path, tell: Callable[[str], None]) -> None:
    """Ask all runs to save and stop, and wait until they and their stages have."""
    runs = run_processes(home)
    for process in runs:
        tell(f"run of pid {process.pid}: its stages write their checkpoints and stop ...")
        process.send(signal.SIGTERM)
    give_up_at = time.monotonic() + SAVE_TIMEOUT_S
    for process in runs:
        if not process.wait(max(0.0, give_up_at - time.monotonic())):
            process.send(signal.SIGKILL)  # what it started saves and leaves when it misses it
            tell(f"run of pid {process.pid}: ended by force")
    for process in _processes(home, STAGE):
        if not process.wait(SAVE_TIMEOUT_S):
            process.send(signal.SIGKILL)


def _processes(home: Path, word: str) -> Iterator[Process]:
    return processes_with({HOME_VARIABLE: str(home)}, word)
