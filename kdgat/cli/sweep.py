"""`kdgat sweep FAMILY`: train configurations that differ in a few keys, and say which validates best."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, FamilyOptions, RunOptions, spread
from kdgat.stage import garbage_kept

if TYPE_CHECKING:
    from kdgat.family import Family, Space, Sweep
    from kdgat.family.sweep import Outcome
    from kdgat.run import Interval, Measure, OutputDirectory, RunConfig, RunEnd, Table

SHOWN: Final = 50  # trials of a table in a terminal; sweep.json and the folders have all

Grid = Annotated[
    list[str] | None,
    typer.Option("--grid", metavar="KEY=A,B,C", help="Values of one key; all combinations are tried. Repeatable."),
]
Random = Annotated[
    list[str] | None,
    typer.Option(
        "--random", metavar="KEY=FORM", help="Draw one key: uniform:LOW:HIGH, log:LOW:HIGH, int:LOW:HIGH, choice:A,B."
    ),
]
NumTrials = Annotated[int | None, typer.Option("--trials", min=1, help="How many trials in all, with --random.")]
DrawSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Of what is drawn; default 0. Not of training.")]
SpaceFile = Annotated[
    Path | None, typer.Option("--space", metavar="FILE", help="YAML with grid, random, trials, seed; options win.")
]
Objective = Annotated[str | None, typer.Option("--objective", help="What trials are compared by.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the trials; start and write nothing.")]


@dataclass(frozen=True)
class _Request:
    """What a command line says of the trials."""

    space: "Space"
    objective: str


def sweep_command(family: "Family") -> Any:
    """Return the command that sweeps one family."""

    def command(
        context: typer.Context,
        out: options.Out,
        of_family: FamilyOptions,
        grid: Grid = None,
        random: Random = None,
        trials: NumTrials = None,
        seed: DrawSeed = None,
        space: SpaceFile = None,
        objective: Objective = None,
        dry_run: DryRun = False,
        *,
        configured: ConfigOptions,
        how: RunOptions,
    ) -> None:
        from kdgat.cli.flow_run import check_gpus, check_place, detach_or_watch
        from kdgat.family import Space

        site, request = how.read()

        def configure(more: Sequence[str]) -> "RunConfig":
            return configured.build(family, of_family.given(), more)

        wanted = _Request(Space.of(grid or (), random or (), trials, seed, space), objective or family.objectives[0])
        # Mistakes come to light before anything is started.
        planned = plan_sweep(family, configure, wanted, out)
        if dry_run:
            print_trials(planned)
            return
        if site.image is None:
            planned.trials[0].config.require_loggers()
        output = check_place(out, site)
        check_gpus(family.plan(planned.trials[0].config), site, request)
        with site.creating_files(), output.lock():
            planned.write(output)

        def run(**execution: Any) -> "RunEnd":
            with garbage_kept():
                from flows.sweep import run_sweep  # Prefect, which takes seconds

            return run_sweep(output, **execution)

        status = detach_or_watch(planned.run, output, site, context.obj, run, how)
        if not how.detach and output.index_path.is_file():
            with site.creating_files():
                print_outcomes(planned, output)
        raise typer.Exit(status)

    text = (
        f"Try configurations of {family.title}: every combination of --grid, and draws of --random.\n\nTrials are "
        "compared by validation, never by a test. Stages that trials have in common are made once. The same command "
        "again goes on where it stopped, and adds trials if there are more."
    )
    return spread(command, text, of_family=options.options_of(family.options))


def plan_sweep(family: "Family", configured: Any, wanted: _Request, out: Path) -> "Sweep":
    """Check keys, ranges and every trial, and plan the sweep; a ValueError names key, value and fix.

    `configured` returns the configuration that the command line describes, with overrides on top.
    """
    from kdgat.base import UserError
    from kdgat.family import Sweep
    from kdgat.family.summary import SWEEP_FILE
    from kdgat.family.sweep import check_key

    if (out / "run.json").exists() and not (out / SWEEP_FILE).exists():
        raise UserError(f"--out {out} holds a run that is no sweep: choose another folder")
    for key in wanted.space.keys:
        check_key(family.config, key)
    for key, draw in wanted.space.random.items():
        for value in draw.ends:  # a range that leaves what is allowed is wrong, whatever is drawn
            configured([f"{key}={value}"])
    configs = [
        (values, configured([f"{key}={value}" for key, value in values.items()]))
        for values in wanted.space.assignments()
    ]
    family.check(configs[0][1], out)
    configs[0][1].refuse_own_output(out)
    return Sweep.of(family, configs, wanted.objective)


def print_trials(planned: "Sweep") -> None:
    """Print what would be tried, and the stages of all trials."""
    from kdgat.run import Table, counted

    keys = list(planned.trials[0].values)
    rows = [[trial.name, *trial.values.values()] for trial in planned.trials]
    tables = [Table.of(["trial", *keys], rows, counted(len(rows), "trial"), text_columns=(0,))]
    used = {name: 0 for name in (stage.name for stage in planned.run.plan)}
    for fold in planned.folds:
        for name in fold.names.values():
            used[name] += 1
    rows = [[stage.name, str(used[stage.name]), ", ".join(stage.depends_on)] for stage in planned.run.plan]
    alone = sum(len(fold.run.plan) for fold in planned.folds)
    caption = f"{counted(len(rows), 'stage')}, where the trials one by one would have {alone}"
    tables.append(Table.of(["stage", "runs that use it", "needs"], rows, caption, text_columns=(0, 2)))
    _print(tables)
    typer.echo(f"Compared by {planned.objective}. Nothing is started.")


def print_outcomes(planned: "Sweep", output: "OutputDirectory") -> None:
    """Print what came of the trials, the best first, and the command that trains the best configuration."""
    from kdgat.family.summary import TRIALS
    from kdgat.family.sweep import CONFIG_FILE, overrides_beside_file

    outcomes = planned.finish(output)
    _print([outcomes_table(outcomes)])
    if len(outcomes) > SHOWN:
        typer.echo(f"The first {SHOWN} of {len(outcomes)} trials; all are in {output.path / TRIALS}.")
    best = outcomes[0]
    if not best.measures:
        typer.echo("No trial has finished yet.")
        return
    typer.echo(verdict([one for one in outcomes if one.measures]))
    config = output.path / TRIALS / best.trial.name / CONFIG_FILE
    words = ["kdgat", "train", planned.family.name, "--config", str(config), "--out", "RUN"]
    words += [word for override in overrides_beside_file(best.trial.config) for word in ("-O", override)]
    typer.echo(f"best: trial {best.trial.name}; to train it with the tests: {shlex.join(words)}")


def outcomes_table(outcomes: "Sequence[Outcome]") -> "Table":
    """Return one row per trial: what it sets, its measures with half the interval over seeds, or where it stands.

    Where trials have seeds in common, a column has how far each is from the best, seed by seed.
    """
    from kdgat.run import Table

    names = list(dict.fromkeys(measure.name for one in outcomes for measure in one.measures))
    keys = list(outcomes[0].trial.values)
    changes = {one.trial.name: change_from_best(outcomes[0], one) for one in outcomes[1:]}
    is_paired = any(change is not None for change in changes.values())
    rows = []
    for outcome in outcomes[:SHOWN]:
        measured = {measure.name: measure_text(measure) for measure in outcome.measures}
        values = [outcome.trial.values.get(key, "-") for key in keys]
        row = [outcome.trial.name, *values, *(measured.get(name, "-") for name in names)]
        if is_paired:
            change = changes.get(outcome.trial.name)
            row.append("-" if change is None else f"{change.mean:+.4f} +- {change.half:.4f}")
        rows.append([*row, outcome.state])
    header = ["trial", *keys, *names, *(["from the best, by seed"] if is_paired else []), "state"]
    return Table.of(header, rows, "Trials, the best first, by validation", text_columns=(0, len(header) - 1))


def change_from_best(best: "Outcome", other: "Outcome") -> "Interval | None":
    """Return how far the objective of a trial is from the best trial's, seed by seed; None without common seeds."""
    if not best.measures or not other.measures:
        return None
    return best.measures[0].change_to(other.measures[0])


def measure_text(measure: "Measure") -> str:
    """Write the mean over seeds, and half its interval where there are several."""
    seeds = measure.seeds
    if seeds is None or seeds.count < 2:
        return f"{measure.value:.4f}"
    return f"{seeds.mean:.4f} +- {seeds.half:.4f}"


def verdict(outcomes: "Sequence[Outcome]") -> str:
    """Say how far the order of the trials can be trusted; all have measures, the best stands first.

    Trials train with the same seeds, so each is compared with the best seed by seed.
    """
    best = outcomes[0].measures[0]
    if best.seeds is None or best.seeds.count < 2:
        return "One seed each: small differences may be chance; --seeds 0 1 2 shows how far seeds differ."
    close = []
    for one in outcomes[1:]:
        change, seeds = change_from_best(outcomes[0], one), one.measures[0].seeds
        if change is not None:
            is_close = change.low <= 0.0 <= change.high
        else:  # of trials with other seeds, or whose single seeds are not known
            is_close = seeds is not None and seeds.low <= best.seeds.high and best.seeds.low <= seeds.high
        if is_close:
            close.append(one.trial.name)
    if not close:
        return "No other trial is within what seeds differ by."
    return f"Within what seeds differ by: {', '.join(close)}."


def _print(tables: "Sequence[Table]") -> None:
    from kdgat.cli.tables import output_console, print_tables

    print_tables(output_console(), tables)
