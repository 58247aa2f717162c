"""`kdgat train can`: the whole flow with one command."""

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdgat.cli import options

if TYPE_CHECKING:
    from kdgat.can.config import CanConfig
    from kdgat.cluster.resources import ResourceRequest
    from kdgat.cluster.site import Site
    from kdgat.run.directory import OutputDirectory
    from kdgat.run.end import RunEnd

app = typer.Typer(no_args_is_help=True)

EXIT_FAILED: Final = 1
EXIT_STOPPED: Final = 130  # what a shell reports for a command that Ctrl-C ended

# Prefect's own log goes to its API, where its UI shows it; this command's terminal belongs to the display.
QUIET_PREFECT: Final = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}


class MissingDependencyError(ValueError):
    """A part of the package that this command needs is not installed."""


@app.callback()
def train() -> None:
    """Train, calibrate and evaluate a family of models end to end."""


@app.command()
def can(
    dataset: options.Dataset,
    data_root: options.DataRoot,
    out: Annotated[Path, typer.Option("--out", help="Output directory; the same one again goes on where it stopped.")],
    preset: options.Preset = "quick",
    hold_out: options.HoldOut = None,
    seeds: options.Seeds = None,
    override: options.Overrides = None,
    catalog: options.Catalog = None,
    parallel_stages: Annotated[
        int | None, typer.Option("--parallel-stages", min=1, help="Stages side by side (default: by processors).")
    ] = None,
    site: options.SiteName = "local",
    walltime: options.Walltime = None,
    memory: options.Memory = None,
    cores: options.Cores = None,
    gpus: options.Gpus = None,
    quiet: options.Quiet = False,
) -> None:
    """Train CAN intrusion detectors: recordings in, an evaluated and calibrated detector and a report out.

    A command that was stopped or killed goes on where it was when it is given again. With --site NAME each stage runs
    in a job of a cluster; what a job asks for is in the configuration (`resources`), and `kdgat plan can` prints it.
    """
    where, request = options.site_and_request(site, walltime=walltime, memory=memory, cores=cores, gpus=gpus)
    config = options.can_config(
        dataset=dataset,
        data_root=data_root,
        catalog=catalog,
        preset=preset,
        hold_out=hold_out,
        seeds=seeds,
        overrides=override,
    )
    status = train_can(config, out, parallel_stages=parallel_stages, quiet=quiet, site=where, command_line=request)
    raise typer.Exit(status)


def train_can(
    config: "CanConfig",
    out: Path,
    *,
    parallel_stages: int | None,
    quiet: bool,
    site: "Site",
    command_line: "ResourceRequest",
) -> int:
    """Run the flow, show how it goes and print what it scores; return the exit status."""
    from rich.console import Console

    from kdgat.can.catalog import find_entry
    from kdgat.can.plan import plan_can
    from kdgat.cli.display import watched
    from kdgat.cluster.script import require_one_word
    from kdgat.cluster.site import require_usable
    from kdgat.run.directory import OutputDirectory

    # Mistakes come to light before anything is started.
    find_entry(config.data.dataset, config.data.data_root, config.data.catalog)
    plan_can(config)
    require_usable(site)
    if site.scheduler == "slurm" and site.image is not None:
        from kdgat.image.agreement import check_named_image

        check_named_image(site.image, site.python or "python", lambda line: print(line, file=sys.stderr))
    output = OutputDirectory(out.absolute())
    if site.scheduler == "slurm":
        require_one_word(output.slurm_path)
    if importlib.util.find_spec("prefect") is None:
        raise MissingDependencyError("Prefect is not installed: pip install 'kdgat[all]'")
    for name, value in QUIET_PREFECT.items():
        os.environ.setdefault(name, value)

    console = Console(stderr=True)
    from flows.can_ids import run_can_ids  # the one edge from the command line up to the flows

    started = time.time()
    try:
        with watched(output, console, quiet=quiet):
            end = run_can_ids(config, output, parallel_stages, site=site, command_line=command_line)
    except KeyboardInterrupt:  # while no stage was running: before the first or after the last
        print("stopped; the same command goes on from there", file=sys.stderr)
        return EXIT_STOPPED
    if not quiet:
        print_attempts(output, started)
    return _report_end(end, output)


def _report_end(end: "RunEnd", output: "OutputDirectory") -> int:
    """Print how the flow ended; return the exit status."""
    from kdgat.run.directory import StageState

    if end.state == "completed":
        if any(record.stage == "evaluation" for record in output.read_index().stages):
            print_scores(output)
        else:
            print(end.message)
        return 0
    if end.state == "stopped":
        print(f"{end.message}; the same command goes on from there", file=sys.stderr)
        return EXIT_STOPPED
    failed = [record for record in output.read_index().stages if record.state == StageState.FAILED]
    for record in failed:
        print(f"error: {record.name}: {record.reason}", file=sys.stderr)
        if record.directory is not None and output.stage_directory(record).log_path.is_file():
            print(f"log:   {output.stage_directory(record).log_path}", file=sys.stderr)
    if failed and output.slurm_path.is_dir():
        print(f"what jobs printed: {output.slurm_path}", file=sys.stderr)
    if not failed:
        print(f"error: {end.message}", file=sys.stderr)
    return EXIT_FAILED


def print_attempts(output: "OutputDirectory", started: float) -> None:
    """Print the attempts since `started` (seconds since the epoch) at stages that took more than one."""
    from kdgat.cli.tables import attempts_table, error_console
    from kdgat.run.attempts import attempt_rows, repeated_rows

    rows = repeated_rows(attempt_rows(output, started))
    if rows:
        console = error_console()
        console.print()
        console.print(attempts_table(rows))
        console.print()


def print_scores(output: "OutputDirectory") -> None:
    """Print the table of scores and where the report is."""
    from kdgat.can.results import read_results
    from kdgat.cli.tables import output_console, score_tables

    console = output_console()
    for table in score_tables(read_results(output.results_path), is_narrow=console.is_terminal):
        console.print(table)
        console.print()
    console.print(f"results  {output.results_path}", soft_wrap=True)
    if output.report_path.is_file():
        console.print(f"report   {output.report_path}", soft_wrap=True)
