"""`kdgat evaluate can`: the detectors of a finished run on any recordings."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kdgat.cli import options

app = typer.Typer(no_args_is_help=True)


@app.callback()
def evaluate() -> None:
    """Score recordings with the detectors of a finished run."""


@app.command()
def can(
    run: Annotated[Path, typer.Option("--run", help="Output directory of `kdgat train can`.")],
    data_root: options.DataRoot,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all metrics here.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Folder below --data-root (default: the run's dataset).")
    ] = None,
    catalog: options.Catalog = None,
    quiet: options.Quiet = False,
) -> None:
    """Score every recording below --data-root that the run was not trained on, by the run's own detector and rule.

    Scenarios that the run has never seen are welcome: each folder `<scenario>/` or file `<scenario>__<recording>` is
    one. F1 stands in the JSON under `scenarios.<scenario>.f1`, and under `f1.<scenario>`.
    """
    from rich.console import Console
    from rich.progress import Progress

    from kdgat.can.evaluate import evaluate_run
    from kdgat.can.results import write_results
    from kdgat.cli.tables import output_console, score_tables

    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=quiet or not terminal.is_terminal) as bars:
        bar = bars.add_task("reading", total=None)

        def show(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        results = evaluate_run(run, data_root, dataset, catalog=catalog, progress=show)
    if json_path is not None:
        write_results(json_path, results)
    if not quiet:
        for note in results.data.notes:
            print(note, file=sys.stderr)
    console = output_console()
    for table in score_tables(results, is_narrow=console.is_terminal):
        console.print(table)
        console.print()
    if json_path is not None:
        console.print(f"results  {json_path.absolute()}", soft_wrap=True)
