"""`kdgat runs usage`: what the attempts of runs took of what they had asked for."""

from pathlib import Path
from typing import Annotated

import typer

from kdgat.cli import options


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
    import json
    from dataclasses import asdict

    from kdgat.cli.tables import output_console, print_rows
    from kdgat.cluster import load_site
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
    rows = [one.cells() for one in found]
    print_rows(output_console(), EFFICIENCY_HEADINGS, rows, right=EFFICIENCY_HEADINGS[2:])
