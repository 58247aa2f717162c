"""`kdgat evaluate can`: the detectors of a finished run on any recordings."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdgat.cli import options

if TYPE_CHECKING:
    from kdgat.can.results import Results
    from kdgat.cluster.resources import ResourceRequest
    from kdgat.cluster.site import Site

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
    site: options.SiteName = "local",
    walltime: options.Walltime = None,
    memory: options.Memory = None,
    cores: options.Cores = None,
    gpus: options.Gpus = None,
    quiet: options.Quiet = False,
) -> None:
    """Score every recording below --data-root that the run was not trained on, by the run's own detector and rule.

    Scenarios that the run has never seen are welcome: each folder `<scenario>/` or file `<scenario>__<recording>` is
    one. F1 stands in the JSON under `scenarios.<scenario>.f1`, and under `f1.<scenario>`. With --site NAME a job of a
    cluster does it, with its directory below `evaluations/` of the run.
    """
    from kdgat.can.results import write_results
    from kdgat.cli.tables import output_console, score_tables

    where, request = options.site_and_request(site, walltime=walltime, memory=memory, cores=cores, gpus=gpus)
    if where.scheduler == "local":
        results = _score_here(run, data_root, dataset, catalog, quiet=quiet)
    else:
        results = _score_in_job(run, data_root, dataset, catalog, where, request, quiet=quiet)
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


def _score_here(run: Path, data_root: Path, dataset: str | None, catalog: Path | None, *, quiet: bool) -> "Results":
    from rich.console import Console
    from rich.progress import Progress

    from kdgat.can.evaluate import evaluate_run

    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=quiet or not terminal.is_terminal) as bars:
        bar = bars.add_task("reading", total=None)

        def show(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        return evaluate_run(run, data_root, dataset, catalog=catalog, progress=show)


def _score_in_job(
    run: Path,
    data_root: Path,
    dataset: str | None,
    catalog: Path | None,
    site: "Site",
    request: "ResourceRequest",
    *,
    quiet: bool,
) -> "Results":
    options.require_job_library()
    from flows.single_stage import run_single_stage
    from kdgat.can.evaluate import make_evaluation
    from kdgat.can.results import read_results
    from kdgat.stage.outcome import Finished, exit_status

    directory = make_evaluation(run, data_root, dataset, catalog)
    outcome = run_single_stage(directory.path, site, request, quiet=quiet, like_stage="evaluation")
    if not isinstance(outcome, Finished):
        raise typer.Exit(exit_status(outcome))
    return read_results(directory.path / outcome.artifacts["results"])
