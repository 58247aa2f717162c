"""`kdgat plan FAMILY`: which stages a training run would consist of."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.base import say
from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, FamilyOptions, JobOptions, spread

if TYPE_CHECKING:
    from kdgat.cluster import ResourceRequest, Resources, Site
    from kdgat.cluster.expectation import JobRequest
    from kdgat.family import Family, PlanTable
    from kdgat.run import PlannedStage, Run

JOB_HEADINGS: Final = ("walltime", "job memory", "cores", "gpus")
TIME: Final = "time"  # heading of what stages take
WIDE: Final = 140  # columns in which a stage and its job fit beside each other
TEXTS: Final = ("stage", "needs", "state")
UNKNOWN_IDENTITY: Final = "x" * 8  # of a stage whose inputs are not there yet

PlannedOut = Annotated[Path | None, typer.Option("--out", help="Also say what has finished in this directory.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted or run.")]
Diagram = Annotated[bool, typer.Option("--diagram", help="Print the stages as a Mermaid flowchart, for Markdown.")]


def application(families: "Mapping[str, Family]") -> typer.Typer:
    """Return the command group with one command per family."""
    return options.family_commands(families, plan_command)


def plan_command(family: "Family") -> Any:
    """Return the command that plans one family."""

    def command(
        of_family: FamilyOptions,
        out: PlannedOut = None,
        dry_run: DryRun = False,
        diagram: Diagram = False,
        *,
        configured: ConfigOptions,
        jobs_at: JobOptions,
    ) -> None:
        given = of_family.given()
        options.require_no_file(out)
        where, request = jobs_at.read()
        run = family.plan(configured.build(family, given, is_plan=True))
        if diagram:
            from kdgat.run.plan import flowchart

            print(flowchart(run.plan, states_in(out)))
            return
        if where.scheduler != "local":  # this machine may be none that computes
            from kdgat.cli.flow_run import check_gpus

            check_gpus(run, where, request)
        job_requests = plan_job_requests(run, where, request, out)
        jobs, changes = plan_jobs(where, job_requests)
        described = with_times(run, family.describe(run, jobs, given), job_requests, jobs)
        if dry_run:
            print_dry_run(run, where, described, jobs, out)
            return
        print_plan(run, described, jobs, out)
        if jobs:
            for sentence in describe_limits((one.stage for one in run.plan), run.resources, where, request):
                say(sentence, sys.stdout)
        for sentence, names in changes.items():
            say(f"{sentence}: {', '.join(names)}", sys.stdout)

    text = f"List the stages of a run of {family.title}: what each needs, its job (--site), how far it is (--out)."
    return spread(command, text, of_family=options.options_of(family.options, is_plan=True))


def plan_jobs(
    site: "Site", job_requests: "Mapping[str, JobRequest]"
) -> tuple[dict[str, "Resources"], dict[str, list[str]]]:
    """Return what the job of each stage asks for as far as it is known now, and who asks for what for which reason."""
    if site.scheduler == "local":
        return {}, {}
    jobs: dict[str, Resources] = {}
    changes: dict[str, list[str]] = {}
    for name, made in job_requests.items():
        jobs[name] = made.resources
        for sentence in made.changes:
            changes.setdefault(sentence, []).append(name)
    return jobs, changes


def plan_job_requests(
    run: "Run", site: "Site", request: "ResourceRequest", out: Path | None
) -> dict[str, "JobRequest"]:
    """Decide what the job of each stage asks for, by its name in the plan.

    What a stage will read is not known yet: as much as those before it.
    """
    from kdgat.cluster.expectation import NOTHING, Job, request_of_job
    from kdgat.cluster.usage import RUNS, read_usages, usage_path
    from kdgat.family import find_family

    assumed = find_family(run.family).assume(run)
    usages = read_usages(usage_path(site, out or Path(RUNS, "new")).parent)
    found = {}
    for planned in run.plan:
        job = Job.of(run.family, planned.stage, planned.config, {})
        unstated = assumed.get(planned.name, NOTHING).without(run.config.stated_amounts(planned.stage))
        found[planned.name] = request_of_job(job, usages, run.resources, site, request, assumed=unstated)
    return found


def with_times(
    run: "Run", described: "PlanTable", job_requests: "Mapping[str, JobRequest]", jobs: "Mapping[str, Resources]"
) -> "PlanTable":
    """Return a family's table with how long stages take where that is known: by its own forecast, else by attempts.

    Where nothing is known of any stage the table stays as it is.
    """
    from kdgat.run.progress import describe_seconds

    expected = {name: one.expected.walltime or described.times.get(name) for name, one in job_requests.items()}
    if TIME in described.headings or not any(expected.values()):
        return described
    cells, sources = {}, dict[str, list[str]]()
    for planned in run.plan:
        estimate = expected.get(planned.name)
        text = ""
        if estimate is not None:
            is_rule = estimate.coverage is None  # or a formula, not attempts
            text = f"{'up to ' if is_rule else ''}{describe_seconds(estimate.value)}"
            sources.setdefault(f"Time by {estimate.describe()}", []).append(planned.name)
        before = described.cells.get(planned.name, [""] * len(described.headings))
        cells[planned.name] = [*before, text]
    known = {name: estimate.value for name, estimate in expected.items() if estimate is not None}
    if unknown := [planned.name for planned in run.plan if planned.name not in known]:
        sources["Time unknown"] = unknown
    total = f"Total of known times: {describe_seconds(sum(known.values()))}"
    if jobs:
        count = sum(-(-seconds // jobs[name].walltime_s) for name, seconds in known.items())
        total += f" in {count} job{'' if count == 1 else 's'}"
    after = [*(f"{source}: {', '.join(names)}" for source, names in sources.items()), f"{total}."]
    return replace(described, headings=(*described.headings, TIME), cells=cells, after=[*described.after, *after])


def print_plan(run: "Run", described: "PlanTable", jobs: "Mapping[str, Resources]", out: Path | None) -> None:
    """Print one line per stage: what the family says of it, its job, how far it is, what it needs."""
    from kdgat.cli.tables import output_console, print_rows

    states = states_in(out)
    console = output_console()
    has_jobs_beside = bool(jobs) and console.width >= WIDE
    headings = ["stage", *described.headings, *(JOB_HEADINGS if has_jobs_beside else ())]
    headings += ["state", "needs"] if out else ["needs"]
    rows = []
    for planned in run.plan:
        row = [planned.name, *described.cells.get(planned.name, [""] * len(described.headings))]
        row += job_cells(jobs[planned.name]) if has_jobs_beside else []
        if out:
            row.append(states.get(planned.name, "not planned there"))
        rows.append([*row, ", ".join(planned.depends_on) or described.sources])
    for sentence in described.before:
        say(sentence, sys.stdout)
    print_rows(console, headings, rows, right=set(headings) - set(TEXTS), wrapped=("needs",))
    if jobs and not has_jobs_beside:
        console.print()
        rows = [[name, *job_cells(resources)] for name, resources in jobs.items()]
        print_rows(console, ("stage", *JOB_HEADINGS), rows, right=JOB_HEADINGS)
    for sentence in described.after:
        say(sentence, sys.stdout)


def states_in(out: Path | None) -> dict[str, str]:
    """Return how far each stage of the run in a directory is, by name; empty without one."""
    from kdgat.run import OutputDirectory

    return {record.name: str(record.state) for record in OutputDirectory(out).read_index().stages} if out else {}


def job_cells(resources: "Resources") -> list[str]:
    """Write what a stage's job asks for as cells of the table."""
    from kdgat.cluster import format_memory, format_walltime

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


def print_dry_run(
    run: "Run", site: "Site", described: "PlanTable", jobs: "Mapping[str, Resources]", out: Path | None
) -> None:
    """Print the command or the job script of every stage, and how long it takes; nothing is started or written."""
    from kdgat.cluster.child import child_command
    from kdgat.stage import RunDirectory

    output = (out or Path("OUT")).absolute()
    place = described.headings.index(TIME) if TIME in described.headings else None
    times = {name: cells[place] for name, cells in described.cells.items() if place is not None and cells[place]}
    print(
        "# Nothing is started. A stage starts when those it needs have finished; the last 8 characters of its\n"
        f"# directory hash its inputs, {UNKNOWN_IDENTITY} where they are not there yet."
    )
    for planned in run.plan:
        directory = output / "stages" / _directory_name(run, planned)
        needs = ", ".join(planned.depends_on) or "no other stage"
        takes = f"; takes {times[planned.name]}" if planned.name in times else ""
        print(f"\n# {planned.name}: needs {needs}{takes}")
        if site.scheduler == "local":
            print(shlex.join(child_command(RunDirectory(directory))))
        else:
            from flows.dask_jobs import job_script  # where dask-jobqueue is

            print(job_script(site, jobs[planned.name], directory, output / "slurm"))
    lines = [line for sentence in described.after for line in sentence.split("\n") if line]
    if not times:
        lines.append(f"How long stages take is not known yet: `kdgat estimate {run.family} --calibrate` tries one.")
    print("\n" + "\n".join(f"# {line}" for line in lines))


def _directory_name(run: "Run", planned: "PlannedStage") -> str:
    """Name the run directory of a stage as far as it is known before anything has run."""
    from kdgat.run.plan import make_spec

    if not planned.inputs:
        try:
            return make_spec(run.family, planned, {}, run.external_inputs(planned)).directory_name()
        except (ValueError, OSError):  # the data are not there yet: their hashes are not known
            pass
    return f"{planned.stage}-{planned.scale}-seed{planned.seed}-{UNKNOWN_IDENTITY}"
