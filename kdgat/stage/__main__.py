"""`python -m kdgat.stage DIR`: run one stage with nothing but what training needs."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kdgat.base import say
from kdgat.base.cores import wait_without_spinning
from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import RunDirectoryError, StageBusyError
from kdgat.stage.faults import is_environment_fault
from kdgat.stage.outcome import EXIT_ENVIRONMENT, EXIT_FAILED, Outcome, exit_status
from kdgat.stage.process import follow_parent_into_death, leave
from kdgat.stage.runner import run_stage

BUSY_POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what running a stage takes, for this module and for `kdgat stage run`."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="run directory that holds spec.json")
    parser.add_argument("--quiet", action="store_true", help="print nothing but warnings and errors")
    parser.add_argument(
        "--wait-s",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait this long for another process that still writes into DIR (default: fail at once)",
    )


def run_directory(path: Path, *, quiet: bool, wait_s: float) -> int:
    """Run the stage in `path`, waiting up to `wait_s` seconds for a previous attempt to leave it; return its status."""
    follow_parent_into_death()
    try:
        return exit_status(_run_when_free(RunDirectory(path), quiet=quiet, wait_s=wait_s))
    except Exception as error:
        if not is_environment_fault(error):
            raise
        say(f"error: {error}")
        return EXIT_ENVIRONMENT


def _run_when_free(directory: RunDirectory, *, quiet: bool, wait_s: float) -> Outcome:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage of a directory and return its exit status: 0 finished, 75 paused, 1 failed, 69 not its fault."""
    parser = argparse.ArgumentParser(prog="python -m kdgat.stage", description="Run the stage of a run directory.")
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    wait_without_spinning()
    try:
        return run_directory(parsed.directory, quiet=parsed.quiet, wait_s=parsed.wait_s)
    except RunDirectoryError as error:
        say(f"error: {error}")
        return EXIT_FAILED


if __name__ == "__main__":
    leave(main())
