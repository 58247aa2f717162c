"""`kdgat train can`: the whole flow with one command. `kdgat train lap` is beside it."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kdgat.cli import options, train_lap

if TYPE_CHECKING:
    from kdgat.can.config import CanConfig
    from kdgat.cluster.resources import ResourceRequest
    from kdgat.cluster.site import Site
    from kdgat.run.directory import OutputDirectory

app = typer.Typer(no_args_is_help=True)

app.command("lap")(train_lap.lap)


@app.callback()
def train() -> None:
    """Train, calibrate and evaluate a family of models end to end."""


@app.command()
def can(
    dataset: options.Dataset,
    data_root: options.DataRoot,
    out: options.Out,
    preset: options.Preset = "quick",
    hold_out: options.HoldOut = None,
    seeds: options.Seeds = None,
    override: options.Overrides = None,
    catalog: options.Catalog = None,
    parallel_stages: options.ParallelStages = None,
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
    from kdgat.can.catalog import find_entry
    from kdgat.can.plan import plan_can
    from kdgat.cli.flow_run import check_place, watch_flow
    from kdgat.run.end import RunEnd

    # Mistakes come to light before anything is started.
    find_entry(config.data.dataset, config.data.data_root, config.data.catalog)
    plan_can(config)
    output = check_place(out, site)

    def run() -> RunEnd:
        from flows.can_ids import run_can_ids  # the one edge from the command line up to the flows

        return run_can_ids(config, output, parallel_stages, site=site, command_line=command_line)

    return watch_flow(output, run, print_scores, quiet=quiet)


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
