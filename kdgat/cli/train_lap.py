"""`kdgat train lap`: progressive training of warm starts, with one command."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kdgat.cli import lap_options, options

if TYPE_CHECKING:
    from kdgat.cluster.resources import ResourceRequest
    from kdgat.cluster.site import Site
    from kdgat.lap.config import LapConfig
    from kdgat.run.directory import OutputDirectory


def lap(
    out: options.Out,
    preset: options.Preset = "quick",
    stages: lap_options.Stages = None,
    seeds: options.Seeds = None,
    data: lap_options.Data = None,
    override: options.Overrides = None,
    two_in_one: lap_options.TwoInOne = False,
    parallel_stages: options.ParallelStages = None,
    site: options.SiteName = "local",
    walltime: options.Walltime = None,
    memory: options.Memory = None,
    cores: options.Cores = None,
    gpus: options.Gpus = None,
    quiet: options.Quiet = False,
) -> None:
    """Train networks that warm-start linear assignment, from small matrices to large, and measure what they save.

    A command that was stopped or killed goes on where it was when it is given again; so does one with more --stages.
    With --site NAME each stage runs in jobs of a cluster, and goes on in the next one where the walltime cut it;
    `kdgat plan lap` prints what they ask for.
    """
    where, request = options.site_and_request(site, walltime=walltime, memory=memory, cores=cores, gpus=gpus)
    config = lap_options.lap_config(
        data=data, preset=preset, stages=stages, seeds=seeds, overrides=override, two_in_one=two_in_one
    )
    status = train_lap(config, out, parallel_stages=parallel_stages, quiet=quiet, site=where, command_line=request)
    raise typer.Exit(status)


def train_lap(
    config: "LapConfig",
    out: Path,
    *,
    parallel_stages: int | None,
    quiet: bool,
    site: "Site",
    command_line: "ResourceRequest",
) -> int:
    """Run the flow, show how it goes and print what it measured; return the exit status."""
    from kdgat.cli.flow_run import check_place, watch_flow
    from kdgat.lap.errors import StartError
    from kdgat.lap.specs import lap_run
    from kdgat.run.end import RunEnd

    if config.start_from is not None and Path(config.start_from).resolve() == out.resolve():
        # Its index, which names the weights, would be replaced by that of this command.
        raise StartError(
            f"start_from={config.start_from} is --out itself: name the stages before by --stages too (what has "
            "finished there is not trained again), or choose another --out"
        )
    lap_run(config)  # mistakes come to light before anything is started
    output = check_place(out, site)

    def run() -> RunEnd:
        from flows.progressive import run_progressive  # as `kdgat.cli.train` has its edge up to the flows

        return run_progressive(config, output, parallel_stages, site=site, command_line=command_line)

    return watch_flow(output, run, print_results, quiet=quiet)


def print_results(output: "OutputDirectory") -> None:
    """Print what the evaluation measured, and where the report is."""
    from kdgat.cli.lap_tables import lap_tables
    from kdgat.cli.tables import output_console
    from kdgat.lap.results import read_results

    console = output_console()
    results = read_results(output.results_path)
    for table in lap_tables(results):
        console.print(table)
        console.print()
    for sentence in results.conclusions.values():
        console.print(sentence, soft_wrap=True)
    console.print(f"results  {output.results_path}", soft_wrap=True)
    if output.report_path.is_file():
        console.print(f"report   {output.report_path}", soft_wrap=True)
