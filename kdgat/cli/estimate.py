"""`kdgat estimate FAMILY`: what the jobs of stages take before any is submitted, and where each number comes from."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.base import UserError, say
from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, FamilyOptions, JobOptions, spread

if TYPE_CHECKING:
    from kdgat.cluster import ResourceRequest, Site
    from kdgat.cluster.expectation import JobRequest
    from kdgat.family import DataSize, Family
    from kdgat.run import PlannedStage, Run

GIB_MIB: Final = 1024
FLAGS: Final = ("--json", "--compare")  # of this command alone
NUMBERS: Final = ("graphs", "walltime", "expected", "memory", "GPU memory", "jobs")  # columns

HistoryOut = Annotated[
    Path | None, typer.Option("--out", help="Output directory of the run: its inputs, and history beside it.")
]
Compare = Annotated[bool, typer.Option("--compare", help="All datasets that are known or there.")]
Calibrate = Annotated[
    str | None,
    typer.Option(
        "--calibrate", metavar="STAGE", help="Train this stage for some seconds here (inputs in --out) and go by that."
    ),
]
Seconds = Annotated[float, typer.Option("--seconds", min=1.0, help="Of training, for --calibrate.")]


def application(families: "Mapping[str, Family]") -> typer.Typer:
    """Return the command group with one command per family."""
    return options.family_commands(families, estimate_command)


def estimate_command(family: "Family") -> Any:
    """Return the command that estimates the stages of one family."""

    def command(
        context: typer.Context,
        of_family: FamilyOptions,
        out: HistoryOut = None,
        compare: Compare = False,
        calibrate: Calibrate = None,
        seconds: Seconds = 20.0,
        as_json: options.AsJson = False,
        *,
        configured: ConfigOptions,
        jobs_at: JobOptions,
    ) -> None:
        given = of_family.given()
        if calibrate is not None and (out is None or compare):
            raise UserError("--calibrate tries one stage of one run: give its --out DIR, and no --compare")
        options.require_no_file(out)
        where, request = jobs_at.read()
        config = configured.build(family, given, is_plan=True)
        sizes = family.data_sizes(config) if compare else [(family.data_size(config), config)]
        found = []
        for size, one in sizes:
            run = family.plan(one)
            job_requests = stage_job_requests(run, where, request, out, calibrate)
            if calibrate is not None:
                assert out is not None
                job_requests = {
                    name: calibrated(run, name, made, where, request, out, seconds)
                    for name, made in job_requests.items()
                }
            of_dataset = size.dataset if compare else None
            tokens = command_tokens(family, context.obj, given, of_dataset)
            found.append(describe(run, size, job_requests, where, request, shlex.join(tokens)))
        if as_json:
            typer.echo(json.dumps(found if compare else found[0], indent=2))
        elif compare:
            print_comparison(found, family.data_size(config).dataset)
        else:
            print_estimate(found[0])

    text = f"Estimate walltime, memory and jobs of {family.title}; `kdgat train` asks for the same."
    return spread(command, text, of_family=options.options_of(family.options, is_plan=True))


def stage_job_requests(
    run: "Run", site: "Site", request: "ResourceRequest", out: Path | None, stage: str | None
) -> dict[str, "JobRequest"]:
    """Decide what jobs of the stages of the first seed ask for, by name in the plan.

    Raises:
        UserError: if there is no stage of this name.
    """
    from kdgat.cli.plan import plan_job_requests

    alike = {(one.stage, one.scale, json.dumps(one.config, sort_keys=True)): one for one in reversed(run.plan)}
    first = [one for one in run.plan if one in alike.values()]  # seeds take the same
    known = dict.fromkeys(one.stage for one in first)
    chosen = [one for one in first if stage in (None, one.stage, one.name)]
    if not chosen:
        raise UserError(f"--calibrate {stage}: the run has no such stage, choose one of {', '.join(known)}")
    return plan_job_requests(replace(run, plan=chosen), site, request, out)


def calibrated(
    run: "Run",
    name: str,
    made: "JobRequest",
    site: "Site",
    request: "ResourceRequest",
    out: Path,
    seconds: float,
) -> "JobRequest":
    """Return what the job of a stage asks for after some seconds of it here, with the inputs in `out`.

    What attempts have shown comes before what a calibration shows.

    Raises:
        UserError: if what the stage reads is not in `out` yet.
        UserError: if it cannot be tried here.
    """
    from kdgat.cluster.calibration import calibrate
    from kdgat.cluster.expectation import Job, request_of_job
    from kdgat.run import OutputDirectory
    from kdgat.run.local import finished_stages
    from kdgat.run.plan import make_spec

    planned = next(one for one in run.plan if one.name == name)
    done = finished_stages(run, OutputDirectory(out.absolute()))
    if missing := [other for other in planned.depends_on if other not in done]:
        raise UserError(
            f"--calibrate: {name} reads what {', '.join(missing)} writes, which has not "
            f"finished in {out}: train that first"
        )
    spec = make_spec(run.family, planned, done, run.external_inputs(planned))
    typer.echo(f"training {name} for {seconds:.0f} s", err=True)
    usage = calibrate(spec, made.asked, seconds=seconds)
    job = Job.of(run.family, planned.stage, planned.config, usage.size)
    found = request_of_job(job, [usage], run.resources, site, request)
    origin = f"calibration of {seconds:.0f} s on {usage.device}"
    expected = found.expected.named(origin)
    return request_of_job(job, [], run.resources, site, request, assumed=made.expected.measured().else_from(expected))


def command_tokens(
    family: "Family",
    tokens: Sequence[str],
    given: Mapping[str, Any],
    dataset: str | None,
) -> list[str]:
    """Return the `kdgat train` that the estimate is for: the same command line, with what training requires besides."""
    names_dataset = dataset is not None and any(option.name == "dataset" for option in family.options)
    left_out = ("--calibrate", "--seconds", *(("--dataset",) if names_dataset else ()))
    kept = [word for word in _without_options(tokens[2:], left_out) if word not in FLAGS]
    command = ["kdgat", "train", family.name, *kept]
    if dataset is not None and names_dataset:
        command += ["--dataset", dataset]
    for option in family.options:
        if option.is_required and not _has(command, option.flag):
            command += [option.flag, str(given.get(option.name, option.plan_default))]
    if not _has(command, "--out"):
        command += ["--out", f"runs/{(names_dataset and dataset) or given.get('dataset', family.name)}"]
    return command


def _has(tokens: Sequence[str], name: str) -> bool:
    return any(word == name or word.startswith(f"{name}=") for word in tokens)


def _without_options(tokens: Sequence[str], names: Sequence[str]) -> list[str]:
    """Leave out options with their values, in both ways to write them."""
    kept: list[str] = []
    is_value = False
    for word in tokens:
        if is_value or word in names:
            is_value = word in names and not is_value
        elif not any(word.startswith(f"{name}=") for name in names):
            kept.append(word)
    return kept


def describe(
    run: "Run",
    size: "DataSize",
    job_requests: "Mapping[str, JobRequest]",
    site: "Site",
    request: "ResourceRequest",
    command: str,
) -> dict[str, Any]:
    """Return an estimate as plain data: what `--json` prints."""
    from kdgat.cluster import format_memory, format_walltime

    stages = []
    of_name = {planned.name: planned for planned in run.plan}
    for name, made in job_requests.items():
        asked, expected = made.resources, made.expected
        planned = of_name[name]
        gpu = expected.gpu_memory
        stages.append(
            {
                "stage": planned.stage,
                "name": name,
                "walltime": format_walltime(asked.walltime_s),
                "walltime_hours": round(asked.walltime_s / 3600, 2),
                "memory": format_memory(asked.memory_mib),
                "memory_gib": round(asked.memory_mib / GIB_MIB, 2),
                "cores": asked.cores,
                "gpus": asked.gpus,
                "gpu_memory_gib": None if gpu is None else round(gpu.value / GIB_MIB, 2),
                "jobs": made.num_jobs,
                "expected": {
                    key: None if one is None else {"value": one.value, "source": one.source, "coverage": one.coverage}
                    for key, one in (
                        ("walltime_s", expected.walltime), ("memory_mib", expected.memory), ("gpu_memory_mib", gpu)
                    )
                },
                "sources": {
                    "walltime": _source(run, planned, made, site, request, "walltime"),
                    "memory": _source(run, planned, made, site, request, "memory"),
                    "gpu_memory": "not known: no attempt has shown it" if gpu is None else gpu.describe(),
                },
            }
        )  # fmt: skip
    return {
        "family": run.family,
        "dataset": size.dataset,
        "graphs": size.graphs,
        "graphs_source": size.source,
        "complexity": size.complexity,
        "site": site.name,
        "stages": stages,
        "command": command,
    }


def _source(
    run: "Run", planned: "PlannedStage", made: "JobRequest", site: "Site", request: "ResourceRequest", key: str
) -> str:
    """Say where the amount comes from that a job asks for."""
    from kdgat.cluster.estimate import configured_request

    attribute = {"walltime": "walltime_s", "memory": "memory_mib"}[key]
    estimate = getattr(made.expected, key)
    config = run.config
    if getattr(made.resources, attribute) != getattr(made.asked, attribute) and estimate is not None:
        source = estimate.describe()
        limit = getattr(site.limits, attribute)
        is_limited = limit is not None and estimate.value > limit
        return f"{source}; all that {site.name} grants" if is_limited else source
    if key in request.explicit_values():
        return "command line"
    if key in config.stated_amounts(planned.stage):
        return "configuration"
    if key in configured_request(planned.stage, run.resources).explicit_values():
        is_preset = key in configured_request(planned.stage, config.resources).explicit_values()
        return f"preset {config.preset}" if is_preset else "predicted from the configuration"
    return f"defaults of {site.name}" if key in site.defaults.explicit_values() else "built-in default"


def print_estimate(found: Mapping[str, Any]) -> None:
    """Print an estimate for people: one stage in a few lines, several as a table."""
    from kdgat.cli.tables import output_console, print_rows

    console = output_console()
    say(_describe_size(found), sys.stdout)
    stages = found["stages"]
    if len(stages) == 1:
        (one,) = stages
        for name, value, source in (
            ("walltime", f"{one['walltime']} ({one['walltime_hours']:.1f} hours)", one["sources"]["walltime"]),
            ("expected", *_expected(one)),
            ("memory", one["memory"], one["sources"]["memory"]),
            ("GPU memory", _gib(one["gpu_memory_gib"]), one["sources"]["gpu_memory"]),
            ("jobs", _number(one["jobs"]), "of this walltime, one going on where the one before it was cut"),
        ):
            say(f"{name:<11} {value:<22} {source}", sys.stdout)
    else:
        rows = []
        stages_of = dict[str, list[str]]()
        for one in stages:
            sources = "; ".join(dict.fromkeys((one["sources"]["walltime"], one["sources"]["memory"])))
            stages_of.setdefault(sources, []).append(one["name"])
            numbers = (_gib(one["gpu_memory_gib"]), _number(one["jobs"]))
            rows.append([one["name"], one["walltime"], _expected(one)[0], one["memory"], *numbers])
        print_rows(console, ("stage", "walltime", "expected", "memory", "GPU memory", "jobs"), rows, right=NUMBERS)
        for sources, names in stages_of.items():  # below, as a column has no room for sentences
            whose = "all" if len(stages_of) == 1 else ", ".join(names)
            say(f"Walltime and memory from {sources}: {whose}", sys.stdout)
    console.print(f"\n{found['command']}", soft_wrap=True, markup=False)


def print_comparison(found: Sequence[Mapping[str, Any]], own: str) -> None:
    """Print a line per dataset and stage, and the command for the one that the command line names."""
    from kdgat.cli.tables import output_console, print_rows

    names = ("dataset", "stage") if any(len(one["stages"]) > 1 for one in found) else ("dataset",)
    rows = []
    for one in found:
        graphs = "unknown" if one["graphs"] is None else f"{one['graphs']:,}"
        counted = "yes" if one["graphs_source"].startswith("counted") else "no"
        for stage in one["stages"]:
            amounts = [graphs, stage["walltime"], stage["memory"], _number(stage["jobs"])]
            named = [one["dataset"], stage["name"]][: len(names)]
            rows.append([*named, *amounts, one["complexity"] or "unknown", counted])
    console = output_console()
    headings = (*names, "graphs", "walltime", "memory", "jobs", "complexity", "counted")
    print_rows(console, headings, rows, right=NUMBERS, num_names=len(names))
    command = next(one["command"] for one in found if one["dataset"] == own)
    console.print(f"\n{command}", soft_wrap=True, markup=False)


def _describe_size(found: Mapping[str, Any]) -> str:
    if found["graphs"] is None:
        return f"{found['dataset'] or found['family']}: {found['graphs_source'] or 'of unknown size'}"
    kind = f" ({found['complexity']})" if found["complexity"] else ""
    return f"{found['dataset']}: {found['graphs']:,} graphs to train on{kind}, {found['graphs_source']}"


def _expected(stage: Mapping[str, Any]) -> tuple[str, str]:
    """Write how long a stage is expected to take, and why."""
    from kdgat.cluster import format_walltime

    found = stage["expected"]["walltime_s"]
    if found is None:
        return "unknown", "no attempt has shown it, and no rule is made for it"
    return format_walltime(found["value"]), found["source"]


def _gib(amount: float | None) -> str:
    return "unknown" if amount is None else f"{amount:.1f}G"


def _number(number: int | None) -> str:
    return "unknown" if number is None else str(number)
