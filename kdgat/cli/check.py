"""`kdgat check FILE`: whether a training of one's own model, killed and resumed, ends with the same weights."""

from typing import Annotated

import typer

from kdgat.base import UserError
from kdgat.cli import options

app = typer.Typer()


@app.command("check")
def check(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Python file, or package.module:name.")],
    root: options.Root = None,
    overrides: options.Overrides = None,
) -> None:
    """Train some steps of each stage whole, and again killed four times, and compare every weight bit by bit.

    Exit status 1 where they differ: the first tensor and step that do are named.
    """
    from kdgat.experiment.check import check as run_check
    from kdgat.family import family_config, find_family

    given = {"source": source, **({} if root is None else {"root": root})}
    config = family_config(find_family("experiment"), None, given, None, overrides)
    problems = []
    for found in run_check(config):  # type: ignore[arg-type] # the family's own
        print(f"{found.stage}: {found.what}: {'FAILED' if found.problem else 'the same weights, bit for bit'}")
        problems += [f"{found.stage}: {found.problem}"] if found.problem else []
    if problems:
        raise UserError("; ".join(problems))
