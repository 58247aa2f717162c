"""`kdgat stage run DIR`: run one stage; argparse only, so that it starts with the training dependencies alone."""

import argparse
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdgat.stage.directory import RunDirectory
    from kdgat.stage.outcome import Outcome

PARENT_PROCESS_VARIABLE = "KDGAT_PARENT_PROCESS"
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
BUSY_POLL_S = 0.5


def run(arguments: Sequence[str]) -> int:
    """Parse the words after `kdgat stage` and return the exit status of the stage: 0, 75 or 1."""
    parser = argparse.ArgumentParser(prog="kdgat stage", description="Run one stage from its run directory.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "run",
        help="run the stage described by DIR/spec.json",
        description="Run the stage described by DIR/spec.json. Exit status: 0 finished, 75 paused (checkpoint written, "
        "run it again to go on), 1 failed; DIR/outcome.json says the rest.",
    )
    command.add_argument("directory", type=Path, metavar="DIR", help="run directory that holds spec.json")
    command.add_argument("--quiet", action="store_true", help="print nothing but warnings and errors")
    command.add_argument(
        "--wait-s",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait this long for another process that still writes into DIR (default: fail at once)",
    )
    parsed = parser.parse_args(arguments)
    return run_directory(parsed.directory, quiet=parsed.quiet, wait_s=parsed.wait_s)


def run_directory(path: Path, *, quiet: bool, wait_s: float) -> int:
    """Run the stage in `path`, waiting up to `wait_s` seconds for a previous attempt to leave it."""
    follow_parent_into_death()
    from kdgat.stage.directory import RunDirectory
    from kdgat.stage.outcome import exit_status

    return exit_status(_run_when_free(RunDirectory(path), quiet=quiet, wait_s=wait_s))


def follow_parent_into_death() -> None:
    """Ask for a SIGTERM when the process that started us dies, so that no orphan trains on.

    Only where the parent asked for it by putting its process id into the environment. The signal is the same
    one a cluster sends at walltime: the trainer writes a checkpoint and leaves with status 75.
    """
    parent = os.environ.pop(PARENT_PROCESS_VARIABLE, None)
    if parent is not None and not signal_on_parent_death(signal.SIGTERM, int(parent)):
        os.kill(os.getpid(), signal.SIGTERM)


def signal_on_parent_death(number: signal.Signals, parent: int) -> bool:
    """Ask the kernel (Linux only) to send us a signal when our parent dies; False if it is dead already."""
    if not sys.platform.startswith("linux"):
        return True
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent  # looked at afterwards: it may have died before the kernel knew


def _run_when_free(directory: "RunDirectory", *, quiet: bool, wait_s: float) -> "Outcome":
    from kdgat.stage.errors import StageBusyError
    from kdgat.stage.runner import run_stage

    give_up_at = time.monotonic() + wait_s
    announced = False
    while True:
        try:
            return run_stage(directory, quiet=quiet)
        except StageBusyError as busy:
            if time.monotonic() >= give_up_at:
                raise
            if not announced:
                print(f"waiting: {busy}", file=sys.stderr, flush=True)
                announced = True
            time.sleep(BUSY_POLL_S)
