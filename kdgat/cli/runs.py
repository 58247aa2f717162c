"""`kdgat runs`: finished and unfinished runs of a folder, beside each other."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdgat.base import UserError, say
from kdgat.base.text import describe_seconds
from kdgat.cli import options

if TYPE_CHECKING:
    from kdgat.family.summary import Group, RunSummary
    from kdgat.run import Measure, StageRecord, Table

app = typer.Typer(no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the output directories of runs lie.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Output directory of `kdgat train`.")]
StageName = Annotated[
    str | None, typer.Argument(metavar="STAGE", help="Of this stage alone: its name, whole or short.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command("list")
def list_runs(folder: Folder = Path("runs"), family: options.OfFamily = None, as_json: AsJson = False) -> None:
    """List the runs in a folder and below, the newest last: state, what is left, how long stages ran, first score."""
    from kdgat.cli.tables import output_console, print_rows
    from kdgat.family import read_runs
    from kdgat.run import counted

    found, unreadable = read_runs(folder, family)
    found.sort(key=lambda run: run.begun)
    if as_json:
        _print_json([_as_json(run) for run in found])
    elif found:
        header = ["run", "family", "data", "preset", "seeds", "started", "took", "state", "first score"]
        rows = [
            [
                _name(run, folder),
                run.index.family,
                run.dataset or "-",
                str(run.index.config.get("preset") or "-"),
                " ".join(map(str, run.seeds)),
                run.begun[:16].replace("T", " "),
                _took(run, run.index.stages),
                ", ".join(filter(None, (run.state, _left(run)))),
                f"{run.measures[0].name} {run.measures[0].text}" if run.measures else "-",
            ]
            for run in found
        ]
        console = output_console()
        console.print(f"{counted(len(rows), 'run')} in {folder}", soft_wrap=True, markup=False)
        print_rows(console, header, rows, wrapped=("seeds", "started", "took", "state", "first score"))
    else:
        typer.echo(f"{folder}: no run in it: `kdgat train FAMILY --out {folder / 'first'}` makes one")
    for text in [*unreadable, *_unwatched(found)]:
        say(text)


@app.command()
def show(
    run: RunPath,
    tables: options.Tables = False,
    as_json: AsJson = False,
) -> None:
    """Show one run: its stages, its scores, the data and the code it was made with, what was set beside the preset."""
    from kdgat.family import find_family, flattened, read_summary
    from kdgat.family.summary import FINISHED
    from kdgat.run import OutputDirectory, Table, counted
    from kdgat.run.attempts import attempts_at

    found, output = read_summary(run), OutputDirectory(run)
    for text in _unwatched([found]):
        say(text)
    if as_json:
        _print_json(_as_json(found))
        return
    if tables:
        family = find_family(found.index.family)
        _print_tables(family.tables(family.results.read(output.results_path)))
        return
    files = f"{found.dataset} ({counted(len(found.data), 'file')})"
    about = [
        ["run", str(run)],
        ["family", found.index.family],
        ["state", found.state],
        ["started", found.begun],
        ["took", _took(found, found.index.stages)],
        *([["left", left.replace(" left", "", 1)]] if (left := _left(found)) else []),
        *([["data", files.strip()]] if found.data or found.dataset else []),
        *([name, text] for name, text in found.code.items()),
    ]
    if found.objective is not None:
        about.append([f"validation: {found.objective.name}", found.objective.text])
    usual = _preset_of(found)
    own = [[key, value] for key, value in flattened(found.index.config).items() if usual.get(key, value) != value]
    stages = [
        [one.name, one.state, _took(found, [one]), str(len(attempts_at(output, one))), _stands(found, one)]
        for one in found.index.stages
    ]
    header = ["stage", "state", "took", "attempts", "why"]
    if not any(row[-1] for row in stages):
        header, stages = header[:-1], [row[:-1] for row in stages]
    shown = [
        Table.of(["", ""], about, "Run", text_columns=(0, 1)),
        Table.of(header, stages, "Stages", text_columns=(0, 1, 4)),
        Table.of(
            ["set beside the preset", "value"], own, f"Preset {found.index.config.get('preset')}", text_columns=(0, 1)
        ),
        Table.of(["score", "value"], [[one.name, one.text] for one in found.measures], "Scores"),
    ]
    _print_tables([table for table in shown if table.rows])
    if (report := output.report_path).is_file():
        typer.echo(f"report   {report}")
    if found.state != FINISHED:
        try:
            command = output.command_path.read_text().strip().removeprefix(f"cd {shlex.quote(str(Path.cwd()))} && ")
        except OSError:  # begun in Python, or by an older version
            command = f"kdgat train {found.index.family} ... --out {shlex.quote(str(run))}, as it was begun"
        typer.echo(f"goes on  {command}")


@app.command()
def why(run: RunPath, stage: StageName = None) -> None:
    """Say why stages ran instead of being taken from an earlier command: which key, input or code differed."""
    from kdgat.run import OutputDirectory, StageState
    from kdgat.run.attempts import attempts_at
    from kdgat.run.rerun import describe_rerun

    output = OutputDirectory(run)
    index = output.read_index()
    for record in index.stages if stage is None else [index.find(stage)]:
        if record.directory is None:
            text = f"has not started ({record.state})"
        elif record.state == StageState.CACHED:
            text = f"was taken from an earlier command{f' ({record.reason})' if record.reason else ''}"
        else:
            text = describe_rerun(output, index, record) or "ran for the first time here"
            if (attempts := len(attempts_at(output, record))) > 1:
                text += f"; attempt {attempts} went on with it"
        typer.echo(f"{record.name}: {text}")


@app.command()
def path(run: RunPath, stage: StageName = None) -> None:
    """Print the run directory of a stage, or of each: its log, checkpoints and metrics lie there."""
    from kdgat.run import OutputDirectory

    output = OutputDirectory(run)
    index = output.read_index()
    if stage is not None:
        typer.echo(str(output.stage_directory(index.find(stage)).path))
        return
    for name, record in index.short_names().items():
        where = f"has not started ({record.state})" if record.directory is None else output.path / record.directory
        typer.echo(f"{name}: {where}")


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Output directories; the first is what others are held to.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say what differed between runs and what that changed; runs that differ in seeds alone count as one.

    Behind a score stands, in brackets, its mean over seeds and half its 95 % interval.
    """
    from kdgat.family import read_summary, verdict
    from kdgat.family.summary import differences, grouped
    from kdgat.run import Table

    read = [read_summary(path) for path in runs]
    families = {run.index.family: run.path for run in read}
    if len(families) > 1:
        named = ", ".join(f"{path} is of {name}" for name, path in families.items())
        raise UserError(f"{named}: runs of one family are compared, because others have nothing in common: choose some")
    groups = grouped(read)
    names = [" + ".join(str(run.path) for run in group.runs) for group in groups]
    if len(groups) < 2:
        raise UserError(_why_not_compared(groups[0], names[0]))
    differing = differences([group.runs[0] for group in groups])
    measured = [group.measures for group in groups]
    if as_json:
        _print_json(
            {
                "runs": [[str(run.path) for run in group.runs] for group in groups],
                "repeated": [str(run.path) for group in groups for run in group.repeated],
                "differences": [{"kind": one.kind, "key": one.key, "values": list(one.values)} for one in differing],
                "scores": [{name: _measure_as_json(one) for name, one in found.items()} for found in measured],
            }
        )
        return
    scores = []
    for name in dict.fromkeys(name for found in measured for name in found):
        row = [found[name].text if name in found else "-" for found in measured]
        first, last = measured[0].get(name), measured[-1].get(name)
        two = len(groups) == 2 and first is not None and last is not None
        scores.append([name, *row, verdict(first, last) if two and first and last else ""])
    validated = _validation_row([group.objective for group in groups])
    header = [f"{number}" for number in range(1, len(names) + 1)]
    tables = [
        Table.of(
            ["", "run"], [[one, name] for one, name in zip(header, names, strict=True)], "Runs", text_columns=(0, 1)
        ),
        Table.of(
            ["what differed", "", *header],
            [[one.key, one.kind, *one.values] for one in differing],
            "What differed",
            text_columns=tuple(range(2 + len(names))),
        ),
        Table.of(
            ["score", *header, "2 against 1" if len(names) == 2 else ""],
            [*scores, *([validated] if validated else [])],
            "What it changed",
            text_columns=(0, len(names) + 1),
        ),
    ]
    _print_tables([table for table in tables if table.rows])
    if not scores:
        states = ", ".join(dict.fromkeys(run.state for group in groups for run in group.runs))
        beside = "what stands above is of validation data" if validated else "nor was any of them validated"
        typer.echo(f"None of these runs has scored tests ({states}); {beside}.")
    for run in (run for group in groups for run in group.repeated):
        seeds = ", ".join(map(str, run.seeds))
        typer.echo(f"{run.path} repeats a seed ({seeds}) of another run of its configuration and is not counted.")


@app.command()
def best(
    folder: Folder = Path("runs"),
    family: options.OfFamily = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the best run's path and nothing else.")] = False,
    as_json: AsJson = False,
) -> None:
    """Name the run that validated best, and how the others did; scores on tests choose nothing.

    Compared is what training was stopped by, on validation data, over seeds: a table for each such number of a family.
    Runs that have not finished are listed below: not all of their seeds have trained, or not the stage that counts.
    """
    from kdgat.family import read_runs
    from kdgat.family.summary import FINISHED
    from kdgat.run import Table

    found, unreadable = read_runs(folder, family)
    judged = [run for run in found if run.objective is not None and run.state == FINISHED]
    unfinished = [run for run in found if run.state != FINISHED]
    if not judged:
        stands = "; ".join(f"{_name(run, folder)}: {run.state}" for run in unfinished)
        raise UserError(
            f"{folder}: no run in it has finished training: nothing to choose from{f' ({stands})' if stands else ''}"
        )
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for run in sorted(judged, key=_validated, reverse=True):
        groups.setdefault((run.index.family, run.objective.name if run.objective else ""), []).append(run)
    ordered = sorted(groups.items())
    if as_json:
        _print_json([_as_json(run) for _, runs in ordered for run in runs])
    elif quiet:
        if len(ordered) > 1:
            bests = "; ".join(f"{family}, {name}: {runs[0].path}" for (family, name), runs in ordered)
            raise UserError(f"{folder}: runs that cannot be compared; the best of each: {bests}; choose one")
        typer.echo(str(ordered[0][1][0].path))
    else:
        for (family, name), runs in ordered:
            rows = [[_name(run, folder), run.dataset or "-", run.objective.text] for run in runs if run.objective]
            _print_tables([Table.of(["run", "data", name], rows, f"{family}: the best first, by validation")])
            if len({tuple(sorted(run.data.items())) for run in runs}) > 1:
                say("These runs were made from different data: their validation is not the same either.", sys.stdout)
        for run in unfinished:
            typer.echo(f"Not compared, it has not finished: {_name(run, folder)} ({run.state})")
    for text in unreadable:
        say(text)


@app.command()
def usage(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where the output directories of runs lie, or their history (runs)."),
    ] = None,
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="Read what this site has noted.")] = None,
    family: options.OfFamily = None,
    stage: options.OfStage = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object per stage and device.")] = False,
) -> None:
    """Show by stage and device what attempts took of the walltime and memory that they had asked for."""
    from kdgat.cli.tables import output_console, print_rows
    from kdgat.cluster import format_walltime, load_site
    from kdgat.cluster.usage import efficiencies, find_history, read_usages
    from kdgat.run.attempts import filled_columns

    folder = find_history(place, load_site(site) if site is not None else None)
    chosen = [one for one in read_usages(folder) if family in (None, one.family) and stage in (None, one.stage)]
    found = efficiencies(chosen)
    if as_json:
        _print_json(found)
        return
    if not found:
        which = " ".join(filter(None, (family, stage)))
        typer.echo(f"{folder}: no attempt{which and f' at {which}'} is noted")
        return

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.0%}"

    rows = [
        {
            "stage": f"{one['family']} {one['stage']}",
            "device": one["device"],
            "attempts": str(one["attempts"]),
            "runs": str(one["runs"]),
            "median walltime": format_walltime(round(one["wall_s"])),
            "of walltime": share(one["walltime_share"]),
            "peak memory": f"{one['rss_mib']}M" if one["rss_mib"] else "",
            "of memory": share(one["memory_share"]),
            "GiB h unused": "" if one["walltime_share"] is None else f"{one['wasted_gib_hours']:.1f}",
            "GPU busy": share(one["gpu_busy"]),
            "in the queue": "" if one["queue_s"] is None else format_walltime(round(one["queue_s"])),
        }
        for one in found
    ]
    rows = filled_columns(rows)
    headings = ["of asked" if heading.startswith("of ") else heading for heading in rows[0]]
    print_rows(output_console(), headings, [list(row.values()) for row in rows], right=headings[2:])


def _validated(run: RunSummary) -> float:
    """Return what a run is sorted by: the larger, the better."""
    assert run.objective is not None
    return run.objective.value if run.objective.is_higher_better else -run.objective.value


def _why_not_compared(group: Group, names: str) -> str:
    """Say of runs that are all alike in what they have in common, and what to do."""
    if len(group.runs) == 1:
        return f"{names}: one run alone: name two or more"
    seeds = {tuple(run.seeds) for run in group.runs}
    but = "their seeds" if len(seeds) > 1 else "nothing"
    return (
        f"{names}: these runs differ in {but}: configuration, data and code are the same. Name runs that differ in "
        "more, or look at one by `kdgat runs show`"
    )


def _validation_row(objectives: Sequence[Measure | None]) -> list[str] | None:
    """Return what runs were validated by, if all of them were by the same number."""
    from kdgat.family import verdict

    known = [one for one in objectives if one is not None]
    if len(known) != len(objectives) or len({one.name for one in known}) != 1:
        return None
    last = verdict(known[0], known[1]) if len(known) == 2 else ""
    return [f"validation: {known[0].name}", *(one.text for one in known), last]


def _unwatched(runs: Sequence[RunSummary]) -> list[str]:
    """Say in a line each which runs jobs were to watch, that are not done and that none watches any more."""
    from flows.watcher import SCRIPT, describe_unwatched
    from kdgat.cluster import Slurm
    from kdgat.family.summary import FINISHED
    from kdgat.run import OutputDirectory

    outputs = [(run, OutputDirectory(run.path.absolute())) for run in runs if run.state != FINISHED]
    detached = [(run, output) for run, output in outputs if _is_there(output.slurm_path / SCRIPT)]
    queue = Slurm().queue() if detached else None  # asked once for all
    said = [(run, describe_unwatched(output, queue)) for run, output in detached]
    return [f"{run.path} is not done ({run.state}): {text}" for run, text in said if text is not None]


def _took(run: RunSummary, stages: Sequence[StageRecord]) -> str:
    """Write how long stages of a run ran, a time in which several did counted once; - where no attempt is noted."""
    from kdgat.run import OutputDirectory
    from kdgat.run.attempts import seconds_run

    seconds = seconds_run(OutputDirectory(run.path), stages)
    return describe_seconds(seconds) if seconds else "-"


def _left(run: RunSummary) -> str:
    """Write what is left of a run that goes on; empty of any other."""
    from kdgat.run import OutputDirectory
    from kdgat.run.forecast import forecast

    found = forecast(OutputDirectory(run.path), run.index)
    return "" if found.remaining is None else found.describe()


def _stands(run: RunSummary, record: StageRecord) -> str:
    """Write where a running stage is, else why it ended as it did."""
    from kdgat.run import OutputDirectory, StageState
    from kdgat.run.forecast import FRESH_S, fresh_progress
    from kdgat.run.progress import describe_progress

    if record.state != StageState.RUNNING or record.directory is None:
        return record.reason
    progress = fresh_progress(OutputDirectory(run.path).stage_directory(record), time.time() - FRESH_S)
    return describe_progress(progress) or record.reason


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:  # that it cannot be told is said of this run alone
        return True
    return True


def _preset_of(run: RunSummary) -> dict[str, str]:
    """Return what the run's preset says by dotted key; empty where it had none that is known here."""
    from kdgat.base import ConfigurationError
    from kdgat.family import find_family, flattened

    preset = run.index.config.get("preset")
    if not isinstance(preset, str):
        return {}
    try:
        config = find_family(run.index.family).config.from_preset(preset, _required(run.index.config))
    except ConfigurationError:  # of another version
        return {}
    return flattened(config.model_dump(mode="json"))


def _required(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a configuration cannot do without: which data."""
    data = config.get("data")
    return {"data": data} if isinstance(data, dict) else {}


def _name(run: RunSummary, folder: Path) -> str:
    return str(run.path.relative_to(folder)) if run.path != folder else str(folder)


def _as_json(run: RunSummary) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "family": run.index.family,
        "dataset": run.dataset,
        "preset": run.index.config.get("preset"),
        "seeds": run.seeds,
        "created": run.begun,
        "state": run.state,
        "validation": None if run.objective is None else _measure_as_json(run.objective),
        "scores": {one.name: _measure_as_json(one) for one in run.measures},
        "data": dict(run.data),
        "code": dict(run.code),
        "config": run.index.config,
    }


def _measure_as_json(one: Measure) -> dict[str, Any]:
    seeds = None if one.seeds is None else one.seeds.model_dump()
    return {"name": one.name, "value": one.value, "seeds": seeds, "is_higher_better": one.is_higher_better}


def _print_json(content: object) -> None:
    typer.echo(json.dumps(content, indent=2, allow_nan=False))


def _print_tables(tables: Sequence[Table]) -> None:
    from kdgat.cli.tables import output_console, print_tables

    print_tables(output_console(), tables)
