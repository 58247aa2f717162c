"""`kdgat estimate FAMILY`: what `kdgat plan` says of the jobs of stages, with where each number comes from."""

import json
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.base import UserError, say
from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, FamilyOptions, JobOptions, spread
from kdgat.stage.families import EXPERIMENT

if TYPE_CHECKING:
    from kdgat.cluster import Expectation, ResourceRequest, Site
    from kdgat.cluster.request import JobRequest
    from kdgat.family import DataSize, Family
    from kdgat.run import PlannedStage, Run

GIB_MIB: Final = 1024

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
        from kdgat.cli.plan import describe_times, plan_jobs, stage_times, stages_in

        given = of_family.given()
        if calibrate is not None and (out is None or compare):
            raise UserError("--calibrate tries one stage of one run: give its --out DIR, and no --compare")
        options.require_no_file(out)
        where, request = jobs_at.read()
        config = configured.build(family, given, is_plan=True)
        sizes = family.data_sizes(config) if compare else [(family.data_size(config), config)]
        _, took = stages_in(out, may_be_new=True)
        found, lines = [], list[str]()
        for size, one in sizes:
            run = family.plan(one)
            tried: dict[str, Expectation] = {}
            if calibrate is not None and out is not None:
                chosen = stages_called(run, calibrate)
                tried = {planned.name: calibrated(run, planned, where, request, out, seconds) for planned in chosen}
                run = replace(run, plan=chosen)
            requests, _ = plan_jobs(family, run, given, where, request, out, tried)
            command = command_tokens(family, context.obj, given, size.dataset if compare else None)
            times = stage_times(run, requests, took)
            found.append(describe(run, size, requests, times, where, request, shlex.join(command)))
            lines = [] if compare else describe_times(run, requests, took, where)
        if as_json:
            typer.echo(json.dumps(found if compare else found[0], indent=2))
            return
        print_estimates(found)
        for line in lines:
            say(line, sys.stdout)
        own = next(one for one, (_, changed) in zip(found, sizes, strict=True) if changed == config)
        typer.echo(f"\n{own['command']}")

    text = f"Estimate walltime, memory and jobs of {family.title}; `kdgat train` asks for the same."
    return spread(command, text, of_family=options.options_of(family.options, is_plan=True))


def stages_called(run: "Run", name: str) -> "list[PlannedStage]":
    """Return the stages of the first seed that have this name, whole or short; UserError if there are none."""
    first = _without_seeds(run)
    if not (chosen := [one for one in first if name in (one.stage, one.name)]):
        known = ", ".join(dict.fromkeys(one.stage for one in first))
        raise UserError(f"--calibrate {name}: the run has no such stage, choose one of {known}")
    return chosen


def _without_seeds(run: "Run") -> "list[PlannedStage]":
    """Return the stages of the first seed: others take the same."""
    alike = {(one.stage, one.scale, json.dumps(one.config, sort_keys=True)): one for one in reversed(run.plan)}
    return [one for one in run.plan if one in alike.values()]


def calibrated(
    run: "Run", planned: "PlannedStage", site: "Site", request: "ResourceRequest", out: Path, seconds: float
) -> "Expectation":
    """Return what a stage is expected to take after some seconds of it here, with the inputs in `out`.

    Raises:
        UserError: if what the stage reads is not in `out` yet.
        UserError: if it cannot be tried here.
    """
    from kdgat.cluster.forecast import Job, expect
    from kdgat.cluster.request import stage_resources
    from kdgat.cluster.trial import calibrate
    from kdgat.run import OutputDirectory
    from kdgat.run.local import finished_stages
    from kdgat.run.plan import make_spec

    done = finished_stages(run, OutputDirectory(out.absolute()))
    if missing := [other for other in planned.depends_on if other not in done]:
        raise UserError(
            f"--calibrate: {planned.name} reads what {', '.join(missing)} writes, which has not "
            f"finished in {out}: train that first"
        )
    spec = make_spec(run.family, planned, done, run.external_inputs(planned))
    asked = stage_resources(planned.stage, run.resources, site, request)
    typer.echo(f"training {planned.name} for {seconds:.0f} s", err=True)
    usage = calibrate(spec, asked, seconds=seconds)
    found = expect([usage], Job.of(run.family, planned.stage, planned.config, usage.size), asked)
    origin = f"calibration of {seconds:.0f} s on {usage.device}"
    return {amount: replace(one, source=f"{origin}: {one.source}") for amount, one in found.items()}


def command_tokens(family: "Family", tokens: Sequence[str], given: Mapping[str, Any], dataset: str | None) -> list[str]:
    """Return the `kdgat train` that the estimate is for: the same command line, with what training requires besides."""
    own = ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--json", "--compare"):
        own.add_argument(flag, action="store_true")
    names_dataset = dataset is not None and any(option.name == "dataset" for option in family.options)
    for option in ("--calibrate", "--seconds", *(("--dataset",) if names_dataset else ())):
        own.add_argument(option)
    words = ["kdgat", "train", family.name, *own.parse_known_args(tokens[2:])[1]]
    name = Path(given["source"]).stem if family.name == EXPERIMENT else family.name
    required = {one.flag: given.get(one.name, one.plan_default) for one in family.options if one.is_required}
    dataset = (dataset if names_dataset else None) or given.get("dataset")
    added = {**({"--dataset": dataset} if names_dataset else {}), **required, "--out": f"runs/{dataset or name}"}
    said = {word.partition("=")[0] for word in words}
    words += [word for flag, value in added.items() if flag not in said for word in (flag, str(value))]
    return [*words[:2], *words[4:]] if words[2:4] == [EXPERIMENT, "--source"] else words  # as a person writes it


def describe(
    run: "Run",
    size: "DataSize",
    requests: "Mapping[str, JobRequest]",
    times: Mapping[str, str],
    site: "Site",
    request: "ResourceRequest",
    command: str,
) -> dict[str, Any]:
    """Return an estimate as plain data: what `--json` prints."""
    stages = [
        {**_describe_stage(run, one, requests[one.name], site, request), "time": times.get(one.name)}
        for one in _without_seeds(run)
    ]
    return {
        "family": run.family,
        "dataset": size.dataset,
        "graphs": size.graphs,
        "graphs_source": size.source,
        "complexity": size.complexity,
        "site": site.name,
        "seeds": list(run.config.seeds),
        "stages": stages,
        "command": command,
    }


def _describe_stage(
    run: "Run", planned: "PlannedStage", made: "JobRequest", site: "Site", request: "ResourceRequest"
) -> dict[str, Any]:
    from kdgat.cluster import format_memory, format_walltime

    asked, gpu, time = made.resources, made.expected.get("gpu_memory"), made.expected.get("walltime")
    amounts = {"walltime_s": "walltime", "memory_mib": "memory", "gpu_memory_mib": "gpu_memory"}
    return {
        "stage": planned.stage,
        "name": planned.name,
        "walltime": format_walltime(asked.walltime_s),
        "walltime_hours": round(asked.walltime_s / 3600, 2),
        "memory": format_memory(asked.memory_mib),
        "memory_gib": round(asked.memory_mib / GIB_MIB, 2),
        "cores": asked.cores,
        "gpus": asked.gpus,
        "gpu_memory_gib": None if gpu is None else round(gpu.value / GIB_MIB, 2),
        "jobs": made.num_jobs,
        "expected": {
            key: vars(made.expected[amount]) if amount in made.expected else None for key, amount in amounts.items()
        },
        "sources": {
            "walltime": _source(run, planned, made, site, request, "walltime"),
            "time": None if time is None else time.describe(),
            "memory": _source(run, planned, made, site, request, "memory"),
            "gpu_memory": "not known: no attempt has shown it" if gpu is None else gpu.describe(),
        },
    }


def _source(
    run: "Run", planned: "PlannedStage", made: "JobRequest", site: "Site", request: "ResourceRequest", key: str
) -> str:
    """Say where the amount comes from that a job asks for."""
    from kdgat.cluster.request import LIMITED, configured_request

    number, config = LIMITED[key], run.config
    if getattr(made.resources, number) != getattr(made.asked, number):
        estimate, limit = made.expected[key], getattr(site.limits, number)
        is_limited = limit is not None and estimate.value > limit
        return estimate.describe() + (f"; all that {site.name} grants" if is_limited else "")
    if key in request.explicit_values():
        return "command line"
    if key in config.stated_amounts(planned.stage):
        return "configuration"
    if key in configured_request(planned.stage, config.resources).explicit_values():
        return f"preset {config.preset}"
    if key in configured_request(planned.stage, run.resources).explicit_values():
        return "predicted from the configuration"
    return f"defaults of {site.name}" if key in site.defaults.explicit_values() else "built-in default"


def print_estimates(found: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per stage, and where its amounts come from; of several datasets a line per dataset and stage."""
    from kdgat.cli.plan import describe_groups
    from kdgat.cli.tables import output_console, print_rows

    rows = [
        {
            "dataset": one["dataset"],
            "stage": stage["name"],
            "graphs": "unknown" if one["graphs"] is None else f"{one['graphs']:,}",
            "walltime": stage["walltime"],
            "time": stage["time"] or "unknown",
            "memory": stage["memory"],
            "GPU memory": "" if (gib := stage["gpu_memory_gib"]) is None else f"{gib:.1f}G",
            "jobs": stage["jobs"] or "unknown",
        }
        for one in found
        for stage in one["stages"]
    ]
    first, *others = found
    if not others:
        count = "of unknown size" if first["graphs"] is None else f"{first['graphs']:,} graphs to train on"
        kind = f" ({first['complexity']})" if first["complexity"] else ""
        size = ", ".join(filter(None, (f"{count}{kind}", first["graphs_source"])))
        seeds = f"\nOf {len(first['seeds'])} seeds the first is shown:" if len(first["seeds"]) > 1 else ""
        say(f"{first['dataset'] or first['family']}: {size}{seeds}", sys.stdout)
    left_out = ("time", "GPU memory") if others else ("dataset", "graphs")  # 80 columns have no room for all
    headings = [heading for heading in rows[0] if heading not in left_out and any(row[heading] for row in rows)]
    names = 2 if others else 1
    cells = [[row[heading] for heading in headings] for row in rows]
    print_rows(output_console(), headings, cells, right=headings[names:], num_names=names)
    if others:
        said = [(f"Graphs {one['graphs_source'].partition(':')[0]}", one["dataset"]) for one in found]
    else:
        by = [(one["name"], [one["sources"][key] for key in ("walltime", "time", "memory")]) for one in first["stages"]]
        said = [(f"Walltime, time and memory by {'; '.join(dict.fromkeys(filter(None, of)))}", name) for name, of in by]
    for sentence in describe_groups(said, 1 if len({text for text, _ in said}) == 1 else None):
        say(sentence, sys.stdout)
