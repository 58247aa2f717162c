"""What every `kdgat train` command does around its flow: check the place, show how it goes, say how it ended."""

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kdgat
from kdgat.base import UserError, say
from kdgat.run.end import EXIT_STOPPED

if TYPE_CHECKING:
    from rich.console import Console

    from kdgat.cli.display import Place
    from kdgat.cli.options import RunOptions
    from kdgat.cluster import ResourceRequest, Site
    from kdgat.run import OutputDirectory, Run, RunEnd

EXIT_FAILED: Final = 1

# Prefect's own log goes to its API, where its UI shows it; this command's terminal belongs to the display.
QUIET_PREFECT: Final = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}


def check_place(out: Path, site: "Site") -> "OutputDirectory":
    """Return the output directory, after everything that can be refused before a flow starts.

    Raises:
        UserError: if nothing can be written there.
        RunError: if another command trains into it.
        SiteError, UserError: if jobs cannot be submitted from here, or not with this output directory.
        UserError: if there is no Prefect.
    """
    from kdgat.base import check_folder
    from kdgat.cluster.script import require_one_word
    from kdgat.cluster.site import require_usable
    from kdgat.run import OutputDirectory, RunError

    output = OutputDirectory(out.absolute())
    output.require_allowed()
    check_folder(out, "--out")
    try:
        output.require_free()
    except RunError as error:
        if watching := _watching(output, site):
            raise RunError(f"--out {out}: {watching}") from error
        raise
    if "PREFECT_API_URL" not in os.environ:  # the database of the embedded server lies there
        check_folder(Path(tempfile.gettempdir()), "TMPDIR")
    require_usable(site)
    _require_own_flows()
    if site.scheduler == "slurm" and site.image is not None:
        from kdgat.container.agreement import check_named_image

        check_named_image(site.image, site.python or "python", say)
    if site.scheduler == "slurm":
        require_one_word(output.slurm_path)
    if importlib.util.find_spec("prefect") is None:
        raise UserError("Prefect is not installed: pip install 'kdgat[all]'")
    for name, value in QUIET_PREFECT.items():
        os.environ.setdefault(name, value)
    return output


def check_gpus(run: "Run", site: "Site", request: "ResourceRequest") -> None:
    """Refuse GPUs that the torch of the nodes cannot use; what cannot be known from here is said.

    Raises:
        SiteError, ImageError: naming card, torch and fix.
    """
    from flows.node_image import check_gpus_of_run

    check_gpus_of_run(run, site, request, say)


def _watching(output: "OutputDirectory", site: "Site") -> str | None:
    """Say which job of a cluster watches the run, where one does."""
    if site.scheduler != "slurm":
        return None
    from kdgat.cluster import Slurm
    from kdgat.cluster.scheduler import describe_watching
    from kdgat.cluster.script import watcher_names

    return describe_watching(watcher_names(output.path), Slurm().queue() or {})


def detach_or_watch(
    planned: "Run",
    output: "OutputDirectory",
    site: "Site",
    words: Sequence[str],
    run: Callable[..., "RunEnd"],
    how: "RunOptions",
    print_results: Callable[["OutputDirectory"], None] = lambda output: None,
) -> int:
    """Give a flow to a job that outlives this terminal, or run it and print what it came to; return the exit status.

    The job repeats `words`, this command line; `run` executes the plan by a flow and returns when it has ended.
    """
    request = how.read()[1]

    def run_ahead(_: "Console") -> "RunEnd":
        from flows.open_run import head_start

        parallel_stages, pool = how.parallel_stages, how.pool
        with head_start(planned, output, site, request, parallel_stages, pool):
            return run(parallel_stages=parallel_stages, pool=pool, site=site, command_line=request)

    if how.replan:
        with site.creating_files():
            output.give_up_plan()
    if how.detach:
        from flows.detachment import detach as submit

        print(submit(output, site, words))
    with site.creating_files():
        output.note_command(words)
    if how.detach:
        return 0
    end = watch_flow(output, run_ahead, quiet=how.quiet)
    return EXIT_STOPPED if end is None else report_end(end, output, print_results)


def _require_own_flows() -> None:
    """Refuse another package of the name `flows`, before it runs."""
    spec, own = importlib.util.find_spec("flows"), Path(kdgat.__file__).parents[1] / "flows" / "__init__.py"
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != own.resolve():
        place = None if spec is None else spec.origin or list(spec.submodule_search_locations or ())
        raise UserError(
            f"the package `flows` that Python finds, {place}, is not kdgat's, {own}: take its folder out of PYTHONPATH "
            "(or uninstall the package that brought it), or install kdgat in an environment of its own"
        )


def watch_flow(
    place: "Place",
    run: Callable[["Console"], "RunEnd"],
    *,
    again: str = "the same command",
    afterwards: str | None = None,
    quiet: bool,
) -> "RunEnd | None":
    """Run a flow and show how it goes; return how it ended, None where it was stopped while no stage was running.

    `place` may be a function that names the run once it is known; `again` is what continues it from there. What `run`
    prints goes to the console.
    """
    from rich.console import Console

    from kdgat.cli.display import RESULTS, watched

    started, console = time.time(), Console(stderr=True)
    try:
        with watched(place, console, quiet=quiet, afterwards=afterwards or RESULTS):
            end = run(console)
    except KeyboardInterrupt:  # before the first stage or after the last
        say(f"stopped; {again} goes on from there")
        return None
    output = place() if callable(place) else place
    if not quiet and output is not None:
        print_attempts(output, started)
    return end


def report_end(end: "RunEnd", output: "OutputDirectory", print_results: Callable[["OutputDirectory"], None]) -> int:
    """Print how the flow ended; return the exit status."""
    from kdgat.run import EVALUATION, StageState

    if end.state == "completed":
        if any(record.stage == EVALUATION for record in output.read_index().stages):
            print_results(output)
        else:
            say(end.message, sys.stdout)
        return 0
    if end.state == "stopped":
        say(f"{end.message}; the same command goes on from there")
        return EXIT_STOPPED
    failed = [record for record in output.read_index().stages if record.state == StageState.FAILED]
    for record in failed:
        say(f"error: {record.name}: {record.reason}")
        if record.directory is not None and output.stage_directory(record).log_path.is_file():
            print(f"log:   {output.stage_directory(record).log_path}", file=sys.stderr)
    if failed and output.slurm_path.is_dir():
        print(f"what jobs printed: {output.slurm_path}", file=sys.stderr)
    if not failed:
        say(f"error: {end.message}")
    return EXIT_FAILED


def print_attempts(output: "OutputDirectory", started: float) -> None:
    """Print the attempts since `started` (seconds since the epoch) at stages that took more than one."""
    from kdgat.cli.tables import attempts_table, output_console
    from kdgat.run.attempts import attempt_rows, repeated_rows

    try:
        rows = repeated_rows(attempt_rows(output, started))
    except (OSError, ValueError) as error:  # of what the files say, for whoever looks
        say(f"no table of attempts: {error}")
        return
    if rows:
        console = output_console(sys.stderr)
        console.print()
        console.print(attempts_table(rows))
        console.print()
