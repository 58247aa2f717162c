"""`kdgat plan FAMILY`: which stages a training run would consist of."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from kdgat.cluster.expectation import Decision
    from kdgat.cluster.resources import ResourceRequest, Resources
    from kdgat.cluster.site import Site
    from kdgat.family.protocol import Family, PlanTable
    from kdgat.run.plan import PlannedStage, Run

JOB_HEADINGS: Final = ("walltime", "job memory", "cores", "gpus")
WIDE: Final = 140  # columns in which a stage and its job fit beside each other
TEXTS: Final = ("stage", "needs", "state")
UNKNOWN_IDENTITY: Final = "x" * 8  # of a stage whose inputs are not there yet

PlannedOut = Annotated[Path | None, typer.Option("--out", help="Also say what has finished in this directory.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted or run.")]


def application(families: "Mapping[str, Family]") -> typer.Typer:
    """Return the command group with one command per family."""
    app = typer.Typer(no_args_is_help=True)

    @app.callback()
    def plan() -> None:
        """Print the stages a training run consists of, without running them."""

    for name, family in families.items():
        text = f"List the stages of a run of {family.title}: what each needs, its job (--site), how far it is (--out)."
        command = options.family_command(plan_command(family), family.options, is_plan=True)
        app.command(name, help=text)(command)
    return app


def plan_command(family: "Family") -> Any:
    """Return the command that plans one family."""

    def command(
        preset: options.Preset = "quick",
        seeds: options.Seeds = None,
        override: options.Overrides = None,
        out: PlannedOut = None,
        dry_run: DryRun = False,
        site: options.SiteName = "local",
        walltime: options.Walltime = None,
        memory: options.Memory = None,
        cores: options.Cores = None,
        gpus: options.Gpus = None,
        *,
        given: dict[str, Any],
    ) -> None:
        where, request = options.site_and_request(site, walltime=walltime, memory=memory, cores=cores, gpus=gpus)
        run = family.plan(options.family_config(family, preset, given, seeds, override))
        if dry_run:
            print_dry_run(run, where, request, out)
            return
        jobs, changes = plan_jobs(run, where, request, out)
        print_plan(run, family.describe(run, jobs, given), jobs, out)
        if jobs:
            for sentence in describe_limits((one.stage for one in run.plan), run.resources, where, request):
                typer.echo(sentence)
        for sentence, names in changes.items():
            typer.echo(f"{sentence}: {', '.join(names)}")

    return command


def plan_jobs(
    run: "Run", site: "Site", request: "ResourceRequest", out: Path | None
) -> tuple[dict[str, "Resources"], dict[str, list[str]]]:
    """Return what the job of each stage asks for as far as it is known now, and who asks for what for which reason."""
    if site.scheduler == "local":
        return {}, {}
    jobs: dict[str, Resources] = {}
    changes: dict[str, list[str]] = {}
    for name, decision in plan_decisions(run, site, request, out).items():
        jobs[name] = decision.resources
        for sentence in decision.changes:
            changes.setdefault(sentence, []).append(name)
    return jobs, changes


def plan_decisions(run: "Run", site: "Site", request: "ResourceRequest", out: Path | None) -> dict[str, "Decision"]:
    """Decide what the job of each stage asks for, by its name in the plan.

    What a stage will read is not known yet: as much as those before it.
    """
    from kdgat.cluster.expectation import NOTHING, Job, decide
    from kdgat.cluster.usage import RUNS, read_usages, usage_path
    from kdgat.family.registry import find_family

    assumed = find_family(run.family).assume(run)
    usages = read_usages(usage_path(site, out or Path(RUNS, "new")).parent)
    found = {}
    for planned in run.plan:
        job = Job.of(run.family, planned.stage, planned.config, {})
        unstated = assumed.get(planned.name, NOTHING).without(run.config.stated_amounts(planned.stage))
        found[planned.name] = decide(job, usages, run.resources, site, request, assumed=unstated)
    return found


def print_plan(run: "Run", described: "PlanTable", jobs: "Mapping[str, Resources]", out: Path | None) -> None:
    """Print one line per stage: what the family says of it, its job, how far it is, what it needs."""
    from kdgat.cli.tables import output_console
    from kdgat.run.directory import OutputDirectory

    records = {record.name: record for record in OutputDirectory(out).read_index().stages} if out else {}
    console = output_console()
    has_jobs_beside = bool(jobs) and console.width >= WIDE
    headings = ["stage", *described.headings, *(JOB_HEADINGS if has_jobs_beside else ())]
    table = _table([*headings, *(["state"] if out else []), "needs"])
    for planned in run.plan:
        row = [planned.name, *described.cells.get(planned.name, [""] * len(described.headings))]
        row += job_cells(jobs[planned.name]) if has_jobs_beside else []
        if out:
            row.append(str(records[planned.name].state) if planned.name in records else "not planned there")
        table.add_row(*row, ", ".join(planned.depends_on) or described.sources)
    for sentence in described.before:
        console.print(sentence, soft_wrap=True, markup=False)
    console.print(table)
    if jobs and not has_jobs_beside:
        table = _table(["stage", *JOB_HEADINGS])
        for name, resources in jobs.items():
            table.add_row(name, *job_cells(resources))
        console.print()
        console.print(table)
    for sentence in described.after:
        console.print(sentence, soft_wrap=True, markup=False)


def _table(headings: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in TEXTS else "right", no_wrap=heading != "needs")
    return table


def job_cells(resources: "Resources") -> list[str]:
    """Write what a stage's job asks for as cells of the table."""
    from kdgat.cluster.resources import format_memory, format_walltime

    gpus = f"{resources.gpus} {resources.gpu_type or ''}".strip() if resources.gpus else ""
    return [format_walltime(resources.walltime_s), format_memory(resources.memory_mib), str(resources.cores), gpus]


def describe_limits(
    names: Iterable[str], requests: "Mapping[str, ResourceRequest]", site: "Site", command_line: "ResourceRequest"
) -> list[str]:
    """Say which stages get less than their configuration asks for, one sentence per key."""
    from kdgat.cluster.estimate import held_to_limits

    stages: dict[tuple[str, str, str], list[str]] = {}
    for stage in dict.fromkeys(names):
        for key, (wanted, granted) in held_to_limits(stage, requests, site, command_line).items():
            stages.setdefault((key, str(wanted), str(granted)), []).append(stage)
    return [
        f"{key} {granted} instead of {wanted}, as {site.name} grants no more: {', '.join(names)}"
        for (key, wanted, granted), names in stages.items()
    ]


def print_dry_run(run: "Run", site: "Site", request: "ResourceRequest", out: Path | None) -> None:
    """Print the command or the job script of every stage; nothing is started or written."""
    from kdgat.cluster.child import child_command
    from kdgat.stage.directory import RunDirectory

    output = (out or Path("OUT")).absolute()
    jobs, _ = plan_jobs(run, site, request, out)
    print(
        "# Nothing is started. A stage starts when those it needs have finished; the last 8 characters of its\n"
        f"# directory hash its inputs, {UNKNOWN_IDENTITY} where they are not there yet."
    )
    for planned in run.plan:
        directory = output / "stages" / _directory_name(run, planned)
        print(f"\n# {planned.name}: needs {', '.join(planned.depends_on) or 'no other stage'}")
        if site.scheduler == "local":
            print(shlex.join(child_command(RunDirectory(directory))))
        else:
            from flows.job_scripts import job_script  # where dask-jobqueue is

            print(job_script(site, jobs[planned.name], directory, output / "slurm"))


def _directory_name(run: "Run", planned: "PlannedStage") -> str:
    """Name the run directory of a stage as far as it is known before anything has run."""
    from kdgat.run.plan import make_spec

    if not planned.inputs:
        try:
            return make_spec(run.family, planned, {}, run.external_inputs(planned)).directory_name()
        except (ValueError, OSError):  # the data are not there yet: their hashes are not known
            pass
    return f"{planned.stage}-{planned.scale}-seed{planned.seed}-{UNKNOWN_IDENTITY}"
