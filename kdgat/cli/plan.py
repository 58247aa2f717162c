"""`kdgat plan FAMILY`: which stages a training run would consist of."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.base import say
from kdgat.base.text import describe_seconds
from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, FamilyOptions, JobOptions, spread

if TYPE_CHECKING:
    from kdgat.cluster import Estimate, Expectation, ResourceRequest, Resources, Site
    from kdgat.cluster.request import JobRequest
    from kdgat.family import Family, PlanTable
    from kdgat.run import PlannedStage, Run

JOB_HEADINGS: Final = ("walltime", "job memory", "cores", "gpus")
WIDE: Final = 140  # columns in which a stage and its job fit beside each other
TEXTS: Final = ("stage", "needs", "state")
FEW: Final = 3  # names that a sentence has room for
UNKNOWN_IDENTITY: Final = "x" * 8  # of a stage whose inputs are not there yet

PlannedOut = Annotated[Path | None, typer.Option("--out", help="Also say what has finished in this directory.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted or run.")]
Diagram = Annotated[bool, typer.Option("--diagram", help="Print the stages as a Mermaid flowchart, for Markdown.")]


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
        states, took = stages_in(out, may_be_new=dry_run or (out is not None and not out.exists()))
        again = reruns_in(out, run) if out is not None and states else {}
        states |= dict.fromkeys(again, "runs again")
        took = {name: seconds for name, seconds in took.items() if name not in again}
        if diagram:
            from kdgat.run.plan import flowchart

            print(flowchart(run.plan, states))
            return
        if where.scheduler != "local":  # this machine may be none that computes
            from kdgat.cli.flow_run import check_gpus

            check_gpus(run, where, request)
        requests, described = plan_jobs(family, run, given, where, request, out)
        jobs = jobs_of(where, requests)
        times = stage_times(run, requests, took)
        after = [*described.after, *describe_groups((f"Runs again ({why})", name) for name, why in again.items())]
        after += [*describe_jobs(where, jobs), *describe_times(run, requests, took, where)]
        if dry_run:
            print_dry_run(run, where, times, after, jobs, out)
        else:
            if times:
                cells = {one.name: described.cells.get(one.name, [""] * len(described.headings)) for one in run.plan}
                cells = {name: [*row, times.get(name, "")] for name, row in cells.items()}
                described = replace(described, headings=(*described.headings, "time"), cells=cells)
            print_plan(run, described, jobs, states)
            if jobs:
                after += describe_limits((one.stage for one in run.plan), run.resources, where, request)
                after += describe_groups((text, name) for name, made in requests.items() for text in made.changes)
            for sentence in after:
                say(sentence, sys.stdout)
        family.check(run.config, out)

    text = f"List the stages of a run of {family.title}: what each needs, its job (--site), how far it is (--out)."
    text += "\n\nExit status 1, below the plan, where `kdgat train` would refuse what it reads."
    return spread(command, text, of_family=options.options_of(family.options, is_plan=True))


def plan_jobs(
    family: "Family",
    run: "Run",
    given: Mapping[str, Any],
    site: "Site",
    request: "ResourceRequest",
    out: Path | None,
    tried: "Mapping[str, Expectation] | None" = None,
) -> "tuple[dict[str, JobRequest], PlanTable]":
    """Decide what the job of each stage asks for and is expected to take, by name; and return the family's table.

    What a stage will read is not known yet: as much as those before it. Attempts come before what was `tried` here,
    that before the forecast of the family's table, and last comes what it assumes.
    """
    from kdgat.cluster.forecast import Job
    from kdgat.cluster.request import request_of_job
    from kdgat.cluster.usage import RUNS, read_usages, usage_path

    assumed = family.assume(run)
    usages = read_usages(usage_path(site, out or Path(RUNS, "new")).parent)
    found = {}
    for planned in run.plan:
        stated = run.config.stated_amounts(planned.stage)
        rules = {key: one for key, one in assumed.get(planned.name, {}).items() if key not in stated}
        job = Job.of(run.family, planned.stage, planned.config)
        known = {**rules, **(tried or {}).get(planned.name, {})}
        found[planned.name] = request_of_job(job, usages, run.resources, site, request, assumed=known)
    described = family.describe(run, jobs_of(site, found), given)
    for name, estimate in described.times.items():
        walltime = found[name].expected.get("walltime")
        if walltime is None or walltime.coverage is None:
            found[name] = replace(found[name], expected={**found[name].expected, "walltime": estimate})
    return found, described


def jobs_of(site: "Site", requests: "Mapping[str, JobRequest]") -> "dict[str, Resources]":
    """Return what jobs of stages ask for, by name; nothing where stages are processes of this machine."""
    return {} if site.scheduler == "local" else {name: made.resources for name, made in requests.items()}


def stages_in(out: Path | None, *, may_be_new: bool) -> tuple[dict[str, str], dict[str, float]]:
    """Return how far each stage of the run in a directory is, and how many seconds those took that are done, by name.

    Empty without a directory, or with one that is no run yet where that may be.
    """
    from kdgat.run import OutputDirectory
    from kdgat.run.attempts import seconds_run
    from kdgat.run.directory import DONE_STATES

    output = OutputDirectory(out or Path())
    if out is None or (may_be_new and not output.index_path.is_file()):
        return {}, {}
    records = output.read_index().stages
    took = {one.name: seconds_run(output, [one]) for one in records if one.state in DONE_STATES}
    return {one.name: str(one.state) for one in records}, took


def reruns_in(out: Path, run: "Run") -> dict[str, str]:
    """Say why stages that have begun in a directory will begin anew, by name."""
    from kdgat.run import OutputDirectory
    from kdgat.run.rerun import describe_reruns

    output = OutputDirectory(out.absolute())
    return describe_reruns(run, output, output.read_index())


def stage_times(run: "Run", requests: "Mapping[str, JobRequest]", took: Mapping[str, float]) -> dict[str, str]:
    """Write how long stages took, or are expected to take, by name; those of which nothing is known are left out."""
    times = {name: f"took {describe_seconds(seconds)}" for name, seconds in took.items() if seconds}
    for name, estimate in _to_come(run, requests, took).items():
        most = "up to " if estimate.coverage is None else ""  # a rule or a formula, not attempts
        times[name] = f"{most}{describe_seconds(estimate.value)}"
    return times


def _to_come(run: "Run", requests: "Mapping[str, JobRequest]", took: Mapping[str, float]) -> "dict[str, Estimate]":
    known = {one.name: requests[one.name].expected.get("walltime") for one in run.plan if one.name not in took}
    return {name: estimate for name, estimate in known.items() if estimate is not None}


def describe_times(
    run: "Run", requests: "Mapping[str, JobRequest]", took: Mapping[str, float], site: "Site"
) -> list[str]:
    """Say what the times of stages go by, and what they sum up to; of a run of which nothing is known, nothing."""
    from kdgat.run.forecast import last_end

    expected = _to_come(run, requests, took)
    if not expected:
        return ["Nothing is left."] if took and all(one.name in took for one in run.plan) else []
    foreign = "" if site.scheduler == "local" else f", measured in no job of {site.name}"
    said = [
        (f"Time by {one.describe(has_details=False)}{'' if one.is_of_jobs else foreign}", name)
        for name, one in expected.items()
    ]
    said += [("Time unknown", one.name) for one in run.plan if one.name not in {*took, *expected}]
    seconds = {one.name: expected[one.name].value if one.name in expected else 0.0 for one in run.plan}
    order = [(one.name, one.depends_on) for one in run.plan]
    total, least = sum(seconds.values()), last_end(order, seconds, len(order))
    text = f"Sum of {'times left' if took else 'known times'}: {describe_seconds(total)}"
    if site.scheduler != "local":
        count = sum(requests[name].num_jobs or 0 for name in expected)
        text += f" in {count} job{'' if count == 1 else 's'}"
    text += f", at least {describe_seconds(least)} with stages side by side" if least < total else ""
    return [*describe_groups(said, FEW), f"{text}."]


def describe_groups(said: Iterable[tuple[str, str]], most: int | None = None) -> list[str]:
    """Say each text once, with the names of what it is said of; of more than `most` stages, how many they are."""
    groups = dict[str, list[str]]()
    for text, name in said:
        groups.setdefault(text, []).append(name)
    return [
        f"{text}: {', '.join(names) if most is None or len(names) <= most else f'{len(names)} stages'}"
        for text, names in groups.items()
    ]


def print_plan(run: "Run", described: "PlanTable", jobs: "Mapping[str, Resources]", states: Mapping[str, str]) -> None:
    """Print one line per stage: what the family says of it, its job, how far it is, what it needs."""
    from kdgat.cli.tables import output_console, print_rows

    console = output_console()
    has_jobs_beside = bool(jobs) and console.width >= WIDE
    headings = ["stage", *described.headings, *(JOB_HEADINGS if has_jobs_beside else ())]
    headings += ["state", "needs"] if states else ["needs"]
    rows = []
    for planned in run.plan:
        row = [planned.name, *described.cells.get(planned.name, [""] * len(described.headings))]
        row += job_cells(jobs[planned.name]) if has_jobs_beside else []
        row += [states.get(planned.name, "not planned there")] if states else []
        rows.append([*row, ", ".join(planned.depends_on) or described.sources])
    for sentence in described.before:
        say(sentence, sys.stdout)
    print_rows(console, headings, rows, right=set(headings) - set(TEXTS), wrapped=("needs",))
    if jobs and not has_jobs_beside:
        console.print()
        rows = [[name, *job_cells(resources)] for name, resources in jobs.items()]
        print_rows(console, ("stage", *JOB_HEADINGS), rows, right=JOB_HEADINGS)


def job_cells(resources: "Resources") -> list[str]:
    """Write what a stage's job asks for as cells of the table."""
    from kdgat.cluster import format_memory, format_walltime

    gpus = f"{resources.gpus} {resources.gpu_type or ''}".strip() if resources.gpus else ""
    return [format_walltime(resources.walltime_s), format_memory(resources.memory_mib), str(resources.cores), gpus]


def describe_jobs(site: "Site", jobs: "Mapping[str, Resources]") -> list[str]:
    """Say whom jobs are charged to, where they wait and how long they last; nothing where there are none."""
    from kdgat.cluster import format_walltime

    if not jobs:
        return []
    partitions = dict.fromkeys(site.partition_of(one.gpus) or "of Slurm's choice" for one in jobs.values())
    walltimes = [format_walltime(seconds) for seconds in sorted({one.walltime_s for one in jobs.values()})]
    account = site.account or "not named (--account NAME)"
    text = f"Jobs of {site.name}: account {account}, partition {' or '.join(partitions)}, walltime "
    return [f"{text}{' to '.join(dict.fromkeys([walltimes[0], walltimes[-1]]))}."]


def describe_limits(
    names: Iterable[str], requests: "Mapping[str, ResourceRequest]", site: "Site", command_line: "ResourceRequest"
) -> list[str]:
    """Say which stages get less than their configuration asks for, one sentence per key."""
    from kdgat.cluster.request import held_to_limits

    return describe_groups(
        (f"{key} {granted} instead of {wanted}, as {site.name} grants no more", stage)
        for stage in dict.fromkeys(names)
        for key, (wanted, granted) in held_to_limits(stage, requests, site, command_line).items()
    )


def print_dry_run(
    run: "Run",
    site: "Site",
    times: Mapping[str, str],
    after: Sequence[str],
    jobs: "Mapping[str, Resources]",
    out: Path | None,
) -> None:
    """Print the command or the job script of every stage, and how long it takes; nothing is started or written."""
    from kdgat.cluster.child import child_command
    from kdgat.stage import RunDirectory

    output = (out or Path("OUT")).absolute()
    print(
        "# Nothing is started. A stage starts when those it needs have finished; the last 8 characters of its\n"
        f"# directory hash its inputs, {UNKNOWN_IDENTITY} where they are not there yet."
    )
    for planned in run.plan:
        directory = output / "stages" / _directory_name(run, planned)
        needs = ", ".join(planned.depends_on) or "no other stage"
        takes = f"; time: {times[planned.name]}" if planned.name in times else ""
        print(f"\n# {planned.name}: needs {needs}{takes}")
        if site.scheduler == "local":
            print(shlex.join(child_command(RunDirectory(directory))))
        else:
            from flows.dask_jobs import job_script  # where dask-jobqueue is

            print(job_script(site, jobs[planned.name], directory, output / "slurm"))
    lines = [line for sentence in after for line in sentence.split("\n") if line]
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
