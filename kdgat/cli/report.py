"""`kdgat report DIR`: write the HTML report of a run."""

import json
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
    path = write_report(run_directory)
    if not quiet:
        typer.echo(str(path))


def write_report(run_directory: Path) -> Path:
    """Write the report of a run of whatever family and return its path."""
    # Here, so that --help does not wait for plotly.
    if family_of(run_directory) == "lap":
        from kdgat.report import lap

        return lap.write_report(run_directory)
    from kdgat.report import page

    return page.write_report(run_directory)


def family_of(run_directory: Path) -> str:
    """Say of which family a run is: by run.json, else by what its results hold; "can" where neither is readable.

    The report of that family then says in its own words what is wrong with the directory.
    """
    for name in ("run.json", "results.json"):
        path = run_directory / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError):
            continue
        if isinstance(content, dict):
            return str(content.get("family", "lap" if "conclusions" in content else "can"))
    return "can"
