"""`kdgat plan lap`: stages, memory, hours and jobs of a progressive training run."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdgat.cli import lap_options, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kdgat.cluster.resources import ResourceRequest
    from kdgat.cluster.site import Site
    from kdgat.lap.config import LapConfig
    from kdgat.lap.schedule import Counts, Forecast, Rates
    from kdgat.run.plan import Run

JOB_HEADINGS: Final = ("walltime", "memory of job", "cores", "gpus")
UNKNOWN_IDENTITY: Final = "x" * 8  # of a stage whose inputs are not there yet


def lap(
    preset: options.Preset = "quick",
    stages: lap_options.Stages = None,
    seeds: options.Seeds = None,
    data: lap_options.Data = None,
    override: options.Overrides = None,
    two_in_one: lap_options.TwoInOne = False,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Rates that `kdgat lap analyze --memory --json FILE` measured.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also say what has finished in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted or run.")] = False,
    site: options.SiteName = "local",
    walltime: options.Walltime = None,
    memory: options.Memory = None,
    cores: options.Cores = None,
    gpus: options.Gpus = None,
) -> None:
    """List the stages of a progressive LAP run: sizes, batches, predicted memory and hours, and which share a job."""
    where, request = options.site_and_request(site, walltime=walltime, memory=memory, cores=cores, gpus=gpus)
    config = lap_options.lap_config(
        data=data, preset=preset, stages=stages, seeds=seeds, overrides=override, two_in_one=two_in_one
    )

    from kdgat.lap.schedule import count_files, forecast, read_rates
    from kdgat.lap.specs import lap_run

    run = lap_run(config)
    if dry_run:
        print_dry_run(run, where, request, out)
        return
    rates = read_rates(measured) if measured is not None else default_rates(run, where, request)
    counts = None if config.data.source is None else count_files(config)
    forecasts = forecast(config, run.plan, rates, counts)
    print_plan(run, forecasts, counts, out, where, request)
    print_jobs(config, forecasts, rates, walltime_of(run, where, request))


def default_rates(run: "Run", site: "Site", request: "ResourceRequest") -> "Rates":
    """Choose rates by where training will run: on a GPU where jobs ask for one, or this machine has one."""
    from kdgat.cluster.estimate import stage_resources
    from kdgat.lap.plan import members
    from kdgat.lap.schedule import RATES, rates_here

    if site.scheduler == "local":
        return rates_here()
    trains = [planned.stage for planned in run.plan if members(planned)]
    has_gpu = all(stage_resources(stage, run.resources, site, request).gpus for stage in trains)
    return RATES["gpu" if has_gpu else "cpu"]


def print_plan(
    run: "Run",
    forecasts: "Sequence[Forecast]",
    counts: "Counts | None",
    out: Path | None,
    site: "Site",
    request: "ResourceRequest",
) -> None:
    """Print one line per stage."""
    from rich.table import Table

    from kdgat.cli.plan import describe_limits, job_cells
    from kdgat.cli.tables import output_console
    from kdgat.cluster.estimate import stage_resources
    from kdgat.lap.config import LapConfig
    from kdgat.lap.schedule import describe_bytes, describe_hours
    from kdgat.run.directory import OutputDirectory

    config = run.config
    assert isinstance(config, LapConfig)
    records = {record.name: record for record in OutputDirectory(out).read_index().stages} if out else {}
    has_jobs = site.scheduler != "local"
    headings = ["stage", "instances", "batch", "steps", "memory", "time"]
    headings += [*JOB_HEADINGS] if has_jobs else []
    headings += [*(["state"] if out else []), "needs"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        is_text = heading in ("stage", "needs", "state")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != "needs")
    for planned, one in zip(run.plan, forecasts, strict=True):
        row = [
            planned.name,
            f"{one.num_instances:,}",
            "" if one.num_graphs is None else f"{one.num_graphs} of n={config.progression[one.stages[-1]].size}",
            "" if one.num_steps is None else f"{one.num_steps:,}",
            describe_bytes(one.peak_bytes),
            describe_hours(one.seconds),
        ]
        if has_jobs:
            row += job_cells(stage_resources(planned.stage, run.resources, site, request))
        if out:
            row.append(str(records[planned.name].state) if planned.name in records else "not planned there")
        row.append(", ".join(planned.depends_on) or ("files" if counts is not None else "nothing"))
        table.add_row(*row)
    console = output_console()
    console.print(table)
    if has_jobs:
        names = (planned.stage for planned in run.plan)
        for sentence in describe_limits(names, run.resources, site, request):
            console.print(sentence, soft_wrap=True)


def walltime_of(run: "Run", site: "Site", request: "ResourceRequest") -> int:
    """Return the shortest walltime of the training stages' jobs, in seconds; 8 hours where there are no jobs."""
    from kdgat.cluster.estimate import stage_resources
    from kdgat.lap.plan import members
    from kdgat.lap.schedule import DEFAULT_WALLTIME_S

    if site.scheduler == "local":
        return DEFAULT_WALLTIME_S
    trains = [planned.stage for planned in run.plan if members(planned)]
    return min(stage_resources(stage, run.resources, site, request).walltime_s for stage in trains)


def print_jobs(config: "LapConfig", forecasts: "Sequence[Forecast]", rates: "Rates", walltime_s: int) -> None:
    """Say which stages share a job, which more would fit together, and how long all of it takes."""
    from kdgat.cli.tables import output_console
    from kdgat.cluster.resources import format_walltime
    from kdgat.lap.schedule import describe_hours, num_jobs, pack

    console = output_console()
    how = "measured" if rates.is_measured else "estimated"
    console.print(f"\nTime is {how} for {rates.device}; steps up to the last epoch, early stopping ends sooner.")
    training = [one for one in forecasts if one.is_training]
    of_one_seed = training[: len(config.groups())]
    for one in of_one_seed:
        count = num_jobs(one.seconds, walltime_s)
        jobs = "1 job" if count == 1 else f"{count} jobs, each going on where the one before was cut"
        console.print(f"{' + '.join(one.stages)}: {jobs} of {format_walltime(walltime_s)}", soft_wrap=True)
    fitting = [job for job in pack(of_one_seed, walltime_s) if len(job.stages) > 1]
    if [job.stages for job in fitting] != [group for group in config.groups() if len(group) > 1] and fitting:
        groups = ", ".join(f"[{', '.join(job.stages)}]" for job in fitting)
        text = f"These fit into one job of {format_walltime(walltime_s)} together: -O 'jobs=[{groups}]'"
        console.print(text, soft_wrap=True, markup=False)
    total = sum(one.seconds for one in forecasts)
    count = sum(num_jobs(one.seconds, walltime_s) for one in forecasts)
    seeds = f" for {len(config.seeds)} seeds" if len(config.seeds) > 1 else ""
    console.print(f"Total: {describe_hours(total)} in {count} jobs{seeds}, preparation and evaluation included.")


def print_dry_run(run: "Run", site: "Site", request: "ResourceRequest", out: Path | None) -> None:
    """Print the command or the job script of every stage; nothing is started or written."""
    from kdgat.cluster.child import child_command
    from kdgat.stage.directory import RunDirectory

    output = (out or Path("OUT")).absolute()
    print(
        "# Nothing is started. A stage starts when those it needs have finished; the last 8 characters of its\n"
        f"# directory hash its inputs, {UNKNOWN_IDENTITY} where they are not there yet."
    )
    for planned in run.plan:
        directory = output / "stages" / _directory_name(run, planned.name)
        print(f"\n# {planned.name}: needs {', '.join(planned.depends_on) or 'no other stage'}")
        if site.scheduler == "local":
            print(shlex.join(child_command(RunDirectory(directory))))
        else:
            from flows.job_scripts import job_script  # where dask-jobqueue is
            from kdgat.cluster.estimate import stage_resources

            resources = stage_resources(planned.stage, run.resources, site, request)
            print(job_script(site, resources, directory, output / "slurm"))


def _directory_name(run: "Run", name: str) -> str:
    """Name the run directory of a stage as far as it is known before anything has run."""
    from kdgat.run.plan import make_spec

    planned = next(planned for planned in run.plan if planned.name == name)
    if not planned.inputs:
        return make_spec(run.family, planned, {}, run.external_inputs(planned)).directory_name()
    return f"{planned.stage}-{planned.scale}-seed{planned.seed}-{UNKNOWN_IDENTITY}"
