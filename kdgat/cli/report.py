"""`kdgat report DIR`: write the HTML report of a run."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.command("report")
def report(
    run_directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Output directory of `kdgat train` (the one with results.json).")
    ],
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Write DIR/report.html: one page that opens without a network, with every table and figure of the run."""
    from kdgat.family.report import write_report  # here, so that --help does not wait for plotly

    path = write_report(run_directory)
    if not quiet:
        typer.echo(str(path))
