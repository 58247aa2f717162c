"""`kdgat stage run DIR`: run one stage; argparse only, so that it starts with the training dependencies alone."""

import argparse
from collections.abc import Sequence

from kdgat.stage.__main__ import add_arguments, run_directory


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
    add_arguments(command)
    parsed = parser.parse_args(arguments)
    return run_directory(parsed.directory, quiet=parsed.quiet, wait_s=parsed.wait_s)
