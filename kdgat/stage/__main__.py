"""`python -m kdgat.stage DIR`: run one stage with nothing but what training needs."""

import argparse
import sys

from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import RunDirectoryError, StageBusyError
from kdgat.stage.outcome import EXIT_FAILED, exit_status
from kdgat.stage.runner import run_stage


def main(arguments: list[str] | None = None) -> int:
    """Run the stage of a directory and return its exit status: 0 finished, 75 paused, 1 failed."""
    parser = argparse.ArgumentParser(prog="kdgat stage run", description="Run the stage of a run directory.")
    parser.add_argument("directory", help="directory that holds spec.json")
    parser.add_argument("--quiet", action="store_true", help="log to the run directory only")
    parsed = parser.parse_args(arguments)
    try:
        return exit_status(run_stage(RunDirectory(parsed.directory), quiet=parsed.quiet))
    except (StageBusyError, RunDirectoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
