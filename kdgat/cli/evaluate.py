"""`kdgat evaluate FAMILY`: a finished run on any data, for families that detect something and models of one's own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdgat.base import check_file, say
from kdgat.cli import options
from kdgat.cli.options import JobOptions, spread
from kdgat.stage import garbage_kept

if TYPE_CHECKING:
    from kdgat.cluster import ResourceRequest, Site
    from kdgat.family import Detects, Family, ScoringRequest
    from kdgat.run.results import RunResults
    from kdgat.stage import Finished, RunDirectory

JsonPath = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write all metrics here.")]
Profile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="Judge habits, and the network's scores, by this `kdgat profile`."),
]
Dataset = Annotated[
    str | None, typer.Option("--dataset", help="Folder below --data-root (default: the run's dataset).")
]


def evaluate_command(family: "Family") -> Any:
    """Return the command that evaluates one family; None of one whose runs can only be measured on their own tests."""
    from kdgat.family import Detects

    if family.name == "experiment":
        return spread(evaluate_experiment)
    if not isinstance(family, Detects):
        return None
    detects: Detects = family

    def command(
        run: Annotated[Path, typer.Option("--run", help=f"Output directory of `kdgat train {family.name}`.")],
        data_root: options.DataRoot,
        json_path: JsonPath = None,
        dataset: Dataset = None,
        catalog: options.Catalog = None,
        profile: Profile = None,
        tables: options.Tables = False,
        quiet: options.Quiet = False,
        *,
        jobs_at: JobOptions,
    ) -> None:
        """Score every recording below --data-root that the run was not trained on, by the run's own detector and rule.

        Scenarios that the run has never seen are welcome: each folder `<scenario>/` or file `<scenario>__<recording>`
        is one. F1 stands in the JSON under `scenarios.<scenario>.f1`, and under `f1.<scenario>`. With --site NAME a
        job of a cluster does it, with its directory below `evaluations/` of the run.
        """
        from kdgat.family import ScoringRequest
        from kdgat.run import OutputDirectory

        if json_path is not None:
            check_file(json_path, "--json")
        OutputDirectory(run).read_index()  # before torch is loaded
        where, resources = jobs_at.read()
        request = ScoringRequest(run, data_root, dataset, catalog, profile)
        if where.scheduler == "local":
            results = _score_here(detects, request, quiet=quiet)
        else:
            results = _score_in_job(family, detects, request, where, resources, quiet=quiet)
        if not quiet:
            for note in detects.notes(results):
                say(note)
        _show(family, results, json_path, has_details=tables)

    return spread(command)


def evaluate_experiment(
    run: Annotated[Path, typer.Option("--run", help="Output directory of `kdgat train FILE`.")],
    root: options.Root = None,
    overrides: options.Overrides = None,
    json_path: JsonPath = None,
    quiet: options.Quiet = False,
    *,
    jobs_at: JobOptions,
) -> None:
    """Measure a finished run on other data: on what its data function returns for another --root or -O data.KEY=VALUE.

    The code that it was trained with does it, on the test split; where there is none, on validation. What was measured
    before is not measured again. With --site NAME jobs of a cluster do it.
    """
    from kdgat.experiment.evaluation import OtherData
    from kdgat.family import find_family
    from kdgat.run import EVALUATION, OutputDirectory

    if json_path is not None:
        check_file(json_path, "--json")
    site, resources = jobs_at.read()
    if site.scheduler != "local":
        options.require_job_library()
    data = OtherData.of_run(OutputDirectory(run.absolute()), root, overrides or ())
    with site.creating_files():
        prepared = data.prepare()
        _to_end(prepared, site, resources, quiet=quiet, like_stage="prepare")
        measured = {
            seed: _to_end(directory, site, resources, quiet=quiet, like_stage=EVALUATION)
            for seed, directory in data.evaluations(prepared)
        }
    _show(find_family("experiment"), data.results(measured), json_path)


def _show(family: "Family", results: "RunResults", json_path: Path | None, *, has_details: bool = False) -> None:
    """Write the results where that is asked for, and print them."""
    from kdgat.cli.tables import output_console, print_tables

    console = output_console()
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        results.write(json_path)
    print_tables(console, family.tables(results), has_details=has_details)
    if json_path is not None:
        console.print(f"results  {json_path.absolute()}", soft_wrap=True)


def _score_here(detects: "Detects", request: "ScoringRequest", *, quiet: bool) -> "RunResults":
    from rich.console import Console
    from rich.progress import Progress

    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=quiet or not terminal.is_terminal) as bars:
        bar = bars.add_task("reading", total=None)

        def show(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        with garbage_kept():  # what evaluation loads is none, and arrays are none
            return detects.evaluate(request, show)


def _score_in_job(
    family: "Family",
    detects: "Detects",
    request: "ScoringRequest",
    site: "Site",
    resources: "ResourceRequest",
    *,
    quiet: bool,
) -> "RunResults":
    options.require_job_library()
    from kdgat.run import EVALUATION

    with site.creating_files():
        directory = detects.make_evaluation(request)
    outcome = _to_end(directory, site, resources, quiet=quiet, like_stage=EVALUATION, begins_anew=True)
    return family.results.read(directory.path / outcome.artifacts["results"])


def _to_end(
    directory: "RunDirectory", site: "Site", resources: "ResourceRequest", *, quiet: bool, **how: Any
) -> "Finished":
    """Run a stage; leave with its exit status where it does not finish. `how` is as of `run_single_stage`."""
    from flows.single_stage import run_single_stage
    from kdgat.stage import Finished
    from kdgat.stage.outcome import exit_status

    outcome = run_single_stage(directory.path, site, resources, quiet=quiet, **how)
    if not isinstance(outcome, Finished):
        raise typer.Exit(exit_status(outcome))
    return outcome
