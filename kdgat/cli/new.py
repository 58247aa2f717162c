"""`kdgat new FILE`: a model of one's own to begin with."""

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from kdgat.base import UserError

app = typer.Typer()


@app.command("new")
def new(file: Annotated[Path, typer.Argument(metavar="FILE", help="Where it is written, as net.py.")]) -> None:
    """Write a file with a small network and graphs, which runs as it is, to put your own in their place."""
    if file.suffix != ".py":
        raise UserError(f"{file} is no Python file: name one that ends in .py")
    text = (resources.files("kdgat.experiment") / "example.py").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise UserError(f"{file} is there already: name another file") from None
    print(f"written: {file}. Next: kdgat check {file}; kdgat train {file} --out runs/{file.stem}")
