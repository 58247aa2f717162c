"""`kdgat history`: what the attempts of runs took of what they had asked for."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=False)


@app.command("history")
def history(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where the output directories of runs lie, or their history (runs)."),
    ] = None,
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="Read what this site has noted.")] = None,
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="This family alone.")] = None,
    stage: Annotated[str | None, typer.Option("--stage", metavar="NAME", help="This stage alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object per stage and device.")] = False,
) -> None:
    """Show by stage and device what attempts took of the walltime and memory that they had asked for."""
    import json
    from dataclasses import asdict

    from rich.table import Table

    from kdgat.cli.tables import output_console
    from kdgat.cluster.site import load_site
    from kdgat.cluster.usage import EFFICIENCY_HEADINGS, efficiencies, find_history, read_usages

    folder = find_history(place, load_site(site) if site is not None else None)
    found = efficiencies([one for one in read_usages(folder) if family in (None, one.family)], stage)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    if not found:
        which = " ".join(filter(None, (family, stage)))
        typer.echo(f"{folder}: no attempt{which and f' at {which}'} is noted")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(EFFICIENCY_HEADINGS):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    for one in found:
        table.add_row(*one.cells())
    output_console().print(table)
