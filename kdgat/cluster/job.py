"""What runs inside a job: `python -m kdgat.cluster.job`, which dask-jobqueue's script starts.

It starts the process that trains, watches it, and writes down how it ended; exit status 0 means that the report is on
disk, 69 that node or filesystem do not let it be there. Nothing of that needs whoever submitted the job:
`kdgat.cluster.attendance` reports to them while they are there.
`SIGTERM` (Slurm at walltime, `scancel`, preemption) and `SIGUSR1` mean "write a checkpoint, then leave" and not "die".
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, TypeGuard

from kdgat.base import wait_until
from kdgat.cluster.attendance import Attendance
from kdgat.cluster.child import ChildEnd, StopRequest, checkpoint_marker, run_child, say
from kdgat.cluster.memory import num_oom_kills
from kdgat.cluster.report import JobFiles, NodeReport
from kdgat.stage import Failed, FailureKind, Outcome, RunDirectory
from kdgat.stage.errors import TAKEN_OVER, RunDirectoryMissingError
from kdgat.stage.faults import Answer, is_environment_fault, patiently
from kdgat.stage.gpus import OF_THE_CARD
from kdgat.stage.outcome import EXIT_ENVIRONMENT, EXIT_FAILED

EPILOGUE_TIMEOUT_S: Final = 60.0
PAUSES_S: Final = (2.0, 10.0, 30.0)  # before the same job tries again: another one may wait for days in the queue
LEAVING_PAUSE_S: Final = 2.0  # the longest of these once the job is asked to leave
OOM_NOTICE_S: Final = 0.5  # the kernel counts the kill a moment after the process is gone
JOB_VARIABLE: Final = "SLURM_JOB_ID"


def main() -> None:
    """Run one attempt as the command line says, and leave its report."""
    options = parse_options(sys.argv[1:])
    stop, over = StopRequest(), threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, handle)
    directory, job_id = RunDirectory(options.directory), os.environ[JOB_VARIABLE]
    files = JobFiles(directory, job_id)
    threading.Thread(target=_live, args=(files, options.alive_interval_s, over), daemon=True).start()
    attendance = Attendance(options.connection, job_id, options, stop)
    attendance.start()
    if not _patiently(directory.path.is_dir, stop):
        raise RunDirectoryMissingError(f"{directory.path} is not there: its filesystem is not mounted on this node")
    environment = dict(word.partition("=")[::2] for word in options.environment)
    report = run_attempt(directory, environment, options.stall_timeout_s, options.epilogue, stop)
    over.set()
    try:
        _patiently(lambda: files.write_report(report), stop)
    finally:
        attendance.end(report.model_dump_json())


def run_attempt(
    directory: RunDirectory,
    environment: Mapping[str, str],
    stall_timeout_s: float,
    epilogue: Sequence[str],
    stop: StopRequest,
) -> NodeReport:
    """Run one attempt at the stage of a directory, then the site's epilogue, and report how the attempt ended.

    What node or filesystem refuse is tried again here, after pauses; the count of them starts anew with each progress.
    """
    before, oom_kills = _patiently(lambda: checkpoint_marker(directory), stop), num_oom_kills()
    marker, pauses = before, list(PAUSES_S)
    while True:
        end = run_child(
            directory,
            stop=stop,
            environment=environment,
            on_line=say,
            stall_timeout_s=stall_timeout_s,
        )
        earlier, marker = marker, _patiently(lambda: checkpoint_marker(directory), stop)
        pauses = pauses if marker == earlier else list(PAUSES_S)
        if stop.is_set() or end.stalled or not _is_of_surroundings(end.outcome) or not pauses:
            break
        say(f"{end.outcome.evidence}: the same job tries again in {pauses[0]:g} s")
        if stop.wait(pauses.pop(0)):
            break
    report = _report(directory, end, marker != before, oom_kills, stop)
    _run_epilogue(epilogue, stop)
    return report


def parse_options(words: Sequence[str]) -> argparse.Namespace:
    """Read what the job's script says (`kdgat.cluster.script`)."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("scheduler", help="as it was when the job was submitted; --connection says where it is now")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--connection", type=Path, required=True)
    parser.add_argument("--environment", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--epilogue", action="append", default=[], metavar="LINE")
    parser.add_argument("--stall-timeout-s", type=float, required=True)
    parser.add_argument("--alive-interval-s", type=float, required=True)
    parser.add_argument("--on-lost-flow", default="detach")
    for name in ("--host", "--interface", "--local-directory"):
        parser.add_argument(name)
    options, _ = parser.parse_known_args(words)  # the others are meant for Dask's own command
    return options


def node_name() -> str:
    """Return what Slurm calls the node of this job."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _live(files: JobFiles, interval_s: float, over: threading.Event) -> None:
    """Give signs of life; the first names the node, and is tried again where the disk is full."""
    has_begun = False
    while True:
        with contextlib.suppress(OSError):  # a full disk says it where the stage writes what matters
            files.touch() if has_begun else files.begin(node_name())
            has_begun = True
        if over.wait(interval_s):
            return


def _is_of_surroundings(outcome: Outcome | None) -> TypeGuard[Failed]:
    """Tell whether another try in this job may end otherwise; a directory that somebody took over is theirs.

    Nor does the job get another card, or driver.
    """
    if not isinstance(outcome, Failed) or outcome.kind is not FailureKind.ENVIRONMENT:
        return False
    return not any(words in outcome.evidence for words in (TAKEN_OVER, *OF_THE_CARD))


def _patiently(call: Callable[[], Answer], stop: StopRequest) -> Answer:
    """Call what the filesystem answers, again after pauses where it refuses."""

    def wait(error: Exception, pause_s: float) -> None:
        say(f"{error}: again in {pause_s:g} s")
        if stop.is_set():  # Slurm's SIGKILL may be near
            time.sleep(min(pause_s, LEAVING_PAUSE_S))
        else:
            stop.wait(pause_s)

    return patiently(call, PAUSES_S, wait)


def _report(
    directory: RunDirectory, end: ChildEnd, made_progress: bool, oom_kills: int, stop: StopRequest
) -> NodeReport:
    if end.status == -signal.SIGKILL and num_oom_kills() == oom_kills:
        time.sleep(OOM_NOTICE_S)
    return NodeReport(
        status=end.status,
        outcome=end.outcome,
        node=node_name(),
        stop_reason=stop.reason,
        checkpoint=_patiently(directory.newest_checkpoint, stop),
        made_progress=made_progress,
        peak_memory_mib=end.peak_memory_mib,
        was_oom_killed=num_oom_kills() > oom_kills,
        stalled=end.stalled,
    )


def _run_epilogue(lines: Sequence[str], stop: StopRequest) -> None:
    """Run the site's shell lines; what they print goes to the job's output, and their failure fails nothing.

    They end when somebody wants the job to leave: Slurm's SIGKILL may be seconds away, and the report matters more.
    """
    if not lines or stop.is_set():
        return
    try:
        shell = subprocess.Popen(["bash", "-c", "\n".join(lines)], start_new_session=True)
    except OSError as error:
        say(f"epilogue: {error}")
        return
    wait_until(lambda: shell.poll() is not None or stop.is_set(), EPILOGUE_TIMEOUT_S)
    if shell.poll() is None:
        os.killpg(shell.pid, signal.SIGKILL)  # not reaped yet: the number is still the shell's
        shell.wait()
        say(f"epilogue: ended by {stop.reason or f'its limit of {EPILOGUE_TIMEOUT_S:g} s'}")
    elif shell.returncode != 0:
        say(f"epilogue: exit status {shell.returncode}")


if __name__ == "__main__":
    status = EXIT_FAILED
    try:
        main()
        status = 0
    except Exception as error:
        status = EXIT_ENVIRONMENT if is_environment_fault(error) else EXIT_FAILED
        with contextlib.suppress(OSError):
            traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # whatever Dask's threads still do
