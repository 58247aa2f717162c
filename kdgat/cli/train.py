"""`kdgat train FAMILY`: the whole flow with one command."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from kdgat.cli import options
from kdgat.stage.process import garbage_kept

if TYPE_CHECKING:
    from kdgat.family.protocol import Family
    from kdgat.run.directory import OutputDirectory
    from kdgat.run.end import RunEnd


def application(families: "Mapping[str, Family]") -> typer.Typer:
    """Return the command group with one command per family."""
    app = typer.Typer(no_args_is_help=True)

    @app.callback()
    def train() -> None:
        """Train, calibrate and evaluate a family of models end to end."""

    for name, family in families.items():
        command = options.family_command(train_command(family), family.options)
        app.command(name, help=family.training_help)(command)
    return app


def train_command(family: "Family") -> Any:
    """Return the command that trains one family."""

    def command(
        context: typer.Context,
        out: options.Out,
        preset: options.Preset = None,
        config_file: options.ConfigFile = None,
        seeds: options.Seeds = None,
        override: options.Overrides = None,
        parallel_stages: options.ParallelStages = None,
        pool: options.Pool = 0,
        site: options.SiteName = "local",
        walltime: options.Walltime = None,
        memory: options.Memory = None,
        cores: options.Cores = None,
        gpus: options.Gpus = None,
        account: options.Account = None,
        on_lost_flow: options.OnLostFlow = None,
        detach: options.Detach = False,
        quiet: options.Quiet = False,
        *,
        given: dict[str, Any],
    ) -> None:
        from kdgat.cli.flow_run import check_place, watch_flow

        where, request = options.site_and_request(
            site, walltime=walltime, memory=memory, cores=cores, gpus=gpus, account=account, on_lost_flow=on_lost_flow
        )
        config = options.family_config(family, preset, given, seeds, override, config_file)
        # Mistakes come to light before anything is started.
        output = check_place(out, where)
        family.plan_into(config, out)
        if where.image is None:  # else the packages are those of the image
            config.require_loggers()
        if detach:
            from flows.detachment import detach as submit

            print(submit(output, where, context.obj))
            return

        def run() -> "RunEnd":
            with garbage_kept():
                from flows.training import run_training  # Prefect: only who trains waits for it

            return run_training(family, config, output, parallel_stages, pool=pool, site=where, command_line=request)

        raise typer.Exit(watch_flow(output, run, lambda done: print_results(family, done), quiet=quiet))

    return command


def print_results(family: "Family", output: "OutputDirectory") -> None:
    """Print what the evaluation measured, and where the report is."""
    from kdgat.cli.tables import output_console, print_tables

    console = output_console()
    results = family.results.read(output.results_path)
    print_tables(console, family.tables(results))
    for sentence in family.conclusions(results):
        console.print(sentence, soft_wrap=True)
    console.print(f"results  {output.results_path}", soft_wrap=True)
    if output.report_path.is_file():
        console.print(f"report   {output.report_path}", soft_wrap=True)
