"""What runs inside a job: the Dask worker's preload, and the one function that it is given.

The worker only starts and watches the process that trains. `SIGTERM` (Slurm at walltime, `scancel`, preemption) and
`SIGUSR1` therefore mean "write a checkpoint, then leave" and not "die": the report still reaches the flow. Nothing here
imports Dask or Prefect; a node needs no route to the Prefect API.
"""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from kdgat.cluster.child import STOP_GRACE_S, ChildEnd, StopRequest, checkpoint_marker, run_child
from kdgat.cluster.memory import num_oom_kills
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Outcome
from kdgat.stage.polling import wait_until

EPILOGUE_TIMEOUT_S: Final = 60.0
OOM_NOTICE_S: Final = 0.5  # the kernel counts the kill a moment after the process is gone

_stop = StopRequest()
_idle = threading.Event()
_idle.set()


@dataclass(frozen=True)
class NodeReport:
    """What the worker tells about an attempt."""

    status: int  # exit status of the stage; negative: the signal that ended it
    outcome: Outcome | None
    node: str
    stop_reason: str  # who asked it to leave; empty: nobody
    checkpoint: str
    made_progress: bool
    peak_memory_mib: int
    was_oom_killed: bool
    stalled: bool


def run_attempt(
    directory_path: str, environment: Mapping[str, str], stall_timeout_s: float, epilogue: Sequence[str]
) -> NodeReport:
    """Run one attempt at the stage of a directory and report how it ended; called by Dask in the worker's thread."""
    directory = RunDirectory(directory_path)
    before, oom_kills = checkpoint_marker(directory), num_oom_kills()
    _idle.clear()
    try:
        end = run_child(
            directory,
            stop=_stop,
            environment=environment,
            on_line=lambda line: print(line, flush=True),
            stall_timeout_s=stall_timeout_s,
        )
        report = _report(directory, end, before, oom_kills)
        _run_epilogue(epilogue)
        return report
    finally:
        _idle.set()


def dask_setup(worker: Any) -> None:
    """Take over the signals when the worker starts."""
    previous: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1 or not _idle.is_set():
            # SIGUSR1 is remembered by an idle worker, too: the flow may ask before the attempt has arrived.
            _stop.set(signal.Signals(number).name)
            return
        chained = previous[number]
        if callable(chained):
            chained(number, frame)  # nothing to save: Dask's own clean exit

    for number in (signal.SIGTERM, signal.SIGUSR1):
        previous[number] = signal.signal(number, handle)


def dask_teardown(worker: Any) -> None:
    """Let the stage save when the worker closes under it: the scheduler, and with it the flow, is gone."""
    if not _idle.is_set():
        _stop.set("the flow is gone")
        _idle.wait(STOP_GRACE_S)


def _report(directory: RunDirectory, end: ChildEnd, before: tuple[tuple[str, int], ...], oom_kills: int) -> NodeReport:
    if end.status == -signal.SIGKILL and num_oom_kills() == oom_kills:
        time.sleep(OOM_NOTICE_S)
    return NodeReport(
        status=end.status,
        outcome=end.outcome,
        node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        stop_reason=_stop.reason,
        checkpoint=directory.newest_checkpoint(),
        made_progress=checkpoint_marker(directory) != before,
        peak_memory_mib=end.peak_memory_mib,
        was_oom_killed=num_oom_kills() > oom_kills,
        stalled=end.stalled,
    )


def _run_epilogue(lines: Sequence[str]) -> None:
    """Run the site's shell lines; what they print goes to the job's output, and their failure fails nothing.

    They end when somebody wants the job to leave: Slurm's SIGKILL may be seconds away, and the report matters more.
    """
    if not lines or _stop.is_set():
        return
    try:
        shell = subprocess.Popen(["bash", "-c", "\n".join(lines)], start_new_session=True)
    except OSError as error:
        print(f"epilogue: {error}", flush=True)
        return
    wait_until(lambda: shell.poll() is not None or _stop.is_set(), EPILOGUE_TIMEOUT_S)
    if shell.poll() is None:
        os.killpg(shell.pid, signal.SIGKILL)  # not reaped yet: the number is still the shell's
        shell.wait()
        print(f"epilogue: ended by {_stop.reason or f'its limit of {EPILOGUE_TIMEOUT_S:g} s'}", flush=True)
    elif shell.returncode != 0:
        print(f"epilogue: exit status {shell.returncode}", flush=True)
