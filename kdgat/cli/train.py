"""`kdgat train FAMILY`: the whole flow with one command."""

import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from kdgat.base import say
from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, FamilyOptions, RunOptions, spread
from kdgat.stage import garbage_kept

if TYPE_CHECKING:
    from kdgat.family import Family
    from kdgat.run import OutputDirectory, RunEnd


def train_command(family: "Family") -> Any:
    """Return the command that trains one family."""

    def command(
        context: typer.Context,
        out: options.Out,
        of_family: FamilyOptions,
        *,
        configured: ConfigOptions,
        how: RunOptions,
    ) -> None:
        from kdgat.cli.flow_run import check_gpus, check_place, detach_or_watch

        site, request = how.read()
        config = configured.build(family, of_family.given())
        # Mistakes come to light before anything is started.
        output = check_place(out, site)
        planned = family.plan_into(config, out)
        check_gpus(planned, site, request)
        if site.image is None:  # else the packages are those of the image
            config.require_loggers()

        def run(**execution: Any) -> "RunEnd":
            with garbage_kept():
                from flows.training import run_training  # Prefect, which takes seconds

            return run_training(family, config, output, **execution)

        show = partial(print_results, family)
        raise typer.Exit(detach_or_watch(planned, output, site, context.obj, run, how, show))

    return spread(command, family.training_help, of_family=options.options_of(family.options))


def print_results(family: "Family", output: "OutputDirectory") -> None:
    """Print what the evaluation measured, and where the report is."""
    from kdgat.cli.tables import output_console, print_tables

    console = output_console()
    results = family.results.read(output.results_path)
    tables = family.tables(results)
    print_tables(console, tables, has_details=False)
    for sentence in family.conclusions(results):
        say(sentence, sys.stdout)
    console.print(f"results  {output.results_path}", soft_wrap=True)
    if output.report_path.is_file():
        console.print(f"report   {output.report_path}", soft_wrap=True)
    if any(table.is_detail for table in tables):
        console.print(f"details  kdgat runs show {shlex.quote(str(output.path))} --tables", soft_wrap=True)
