"""The runs of one installation, as processes of this machine: which there are, and stopping them in order.

Whoever has read installation.env has `KDGAT_HOME` in the environment as well, and may train by hand. What belongs to a
run is told by the variable that Prefect gives to its process, and which its stages inherit.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import psutil

from flows.deployment.installation import HOME_VARIABLE
from flows.deployment.service import ask_to_end, have_ended, is_alive, kill, processes_with

SAVE_TIMEOUT_S: Final = 180.0  # for runs that are stopped: their stages write their checkpoints, their jobs leave
LEAVE_TIMEOUT_S: Final = 20.0  # for a stage that is asked once more, before it is killed
KILL_TIMEOUT_S: Final = 5.0
RUN_VARIABLE: Final = "PREFECT__FLOW_RUN_ID"
WORKER_VARIABLE: Final = "KDGAT_WORKER"  # in the environment of what a worker starts: who started the worker
DEPLOY: Final = "deploy"
ENGINE: Final = "prefect.engine"
STAGE: Final = "kdgat.stage"
WORKER: Final = "worker"


def run_processes(home: Path, worker: str | None = None, word: str = ENGINE) -> list[psutil.Process]:
    """List the processes of flow runs, or of their stages: those of one worker, or of all."""
    variables = {HOME_VARIABLE: str(home)} | ({} if worker is None else {WORKER_VARIABLE: worker})
    return [process for process in processes_with(variables, word) if process.info["environ"].get(RUN_VARIABLE)]


def run_ids(home: Path) -> set[UUID]:
    """Return the ids of the flow runs that have a process."""
    return {UUID(process.info["environ"][RUN_VARIABLE]) for process in run_processes(home)}


def has_worker(home: Path) -> bool:
    """Tell whether a worker runs, whoever started it."""
    return bool(processes_with({HOME_VARIABLE: str(home)}, WORKER))


def stop_runs(
    home: Path,
    log: Callable[[str], None],
    worker: str | None = None,
    save_timeout_s: float = SAVE_TIMEOUT_S,
    leave_timeout_s: float = LEAVE_TIMEOUT_S,
) -> None:
    """Ask runs to save and stop, and wait until they and their stages have: those of one worker, or of all.

    Runs and stages have `save_timeout_s` seconds in common. Then a run is killed, and a stage, which misses its run and
    saves by itself, is killed after another `leave_timeout_s`.
    """
    give_up_at = time.monotonic() + save_timeout_s
    asked: list[psutil.Process] = []
    while new := [process for process in run_processes(home, worker) if process not in asked]:
        for process in new:
            log(f"run of pid {process.pid}: its stages write their checkpoints and stop ...")
            _interrupt(process)
        asked += new
        have_ended(asked, give_up_at - time.monotonic())
    _kill(asked, "run", log)
    stages = run_processes(home, worker, STAGE)
    if have_ended(stages, give_up_at - time.monotonic()):
        return
    for process in stages:
        ask_to_end(process)
    have_ended(stages, leave_timeout_s)
    _kill(stages, "stage", log)


def _interrupt(process: psutil.Process) -> None:
    """Ask a run to stop as Ctrl-C does: at a SIGTERM its jobs on a cluster would go on without it.

    One that was started with Ctrl-C ignored, and has not come to heed it yet, has no jobs.
    """
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        ignored = next((line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), "0")
        is_ignored = int(ignored, 16) >> (signal.SIGINT - 1) & 1
        process.send_signal(signal.SIGTERM if is_ignored else signal.SIGINT)


def _kill(processes: Sequence[psutil.Process], what: str, log: Callable[[str], None]) -> None:
    for process in filter(is_alive, processes):
        kill(process)
        have_ended([process], KILL_TIMEOUT_S)
        log(f"{what} of pid {process.pid}: ended by force")
