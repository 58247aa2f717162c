"""`kdgat stage run DIR`: run one stage; argparse only, so that it starts with the training dependencies alone."""

import argparse
from collections.abc import Sequence

from kdgat.base import UserError
from kdgat.stage.__main__ import add_arguments, run_directory
from kdgat.stage.outcome import exit_status

JOB_OPTIONS = ("walltime", "memory", "cores", "gpus", "account")


def run(arguments: Sequence[str]) -> int:
    """Parse the words after `kdgat stage` and return the exit status of the stage: 0, 75, 69 or 1."""
    parser = argparse.ArgumentParser(prog="kdgat stage", description="Run one stage from its run directory.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "run",
        help="run the stage described by DIR/spec.json",
        description="Run the stage described by DIR/spec.json, here or as jobs of a cluster. Exit status: 0 finished, "
        "75 paused (checkpoint written, run it again to go on), 69 for no fault of its own (a full disk, a directory "
        "that is locked or not there), 1 failed; DIR/outcome.json says the rest.",
    )
    add_arguments(command)
    jobs = command.add_argument_group("as jobs of a cluster, watched to the end of the stage")
    jobs.add_argument("--site", metavar="NAME", help="local, or a site of `kdgat site list` (default: this process)")
    jobs.add_argument("--walltime", metavar="TIME", help="of each job, as 16:00:00")
    jobs.add_argument("--memory", metavar="SIZE", help="of each job, as 128G")
    jobs.add_argument("--cores", type=int, metavar="N", help="of each job")
    jobs.add_argument("--gpus", type=int, metavar="N", help="of each job; 0 for none")
    jobs.add_argument("--account", metavar="NAME", help="that each job is charged to")
    parsed = parser.parse_args(arguments)
    if parsed.site is not None:
        return _run_at_site(parsed)
    for name in JOB_OPTIONS:
        if getattr(parsed, name) is not None:
            raise UserError(
                f"--{name} {getattr(parsed, name)}: without --site the stage is this process, which uses what the "
                "machine has: leave the option out, or name a cluster by --site"
            )
    return run_directory(parsed.directory, quiet=parsed.quiet, wait_s=parsed.wait_s)


def _run_at_site(parsed: argparse.Namespace) -> int:
    # A compute node has none of what is imported here.
    from kdgat.cli.options import JobOptions, require_job_library

    site, request = JobOptions(parsed.site, **{name: getattr(parsed, name) for name in JOB_OPTIONS}).read()
    if site.scheduler == "local":
        return run_directory(parsed.directory, quiet=parsed.quiet, wait_s=parsed.wait_s)
    if parsed.wait_s:
        raise UserError(f"--wait-s {parsed.wait_s:g}: a job waits by itself: leave the option out with --site")
    require_job_library()
    from flows.single_stage import run_single_stage

    return exit_status(run_single_stage(parsed.directory, site, request, quiet=parsed.quiet))
