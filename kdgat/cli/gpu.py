"""`kdgat gpu`: what this machine's GPU does with the networks of all families."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kdgat.base import UserError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def gpu() -> None:
    """Try what kdgat computes on the GPU of this machine."""


@app.command()
def check(
    out: Annotated[Path, typer.Option("--out", help="Folder for gpu_check.json and gpu_check.md.")] = Path("gpu_check"),
    device: Annotated[Literal["cuda", "cpu"], typer.Option("--device", help="cpu: try the check itself.")] = "cuda",
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="Only this part: card, numbers, repeats, speed, survival, sharing, rapids; several times for more.",
        ),
    ] = None,
) -> None:
    """Compare numbers with the processor, repeat, time, kill and resume, in ten minutes; exit status 1 after an error.

    Both files are written anew after each part, so what is cut off is of use, too. Without the command line, the
    training dependencies are enough: `python -m kdgat.gpu`.
    """
    from kdgat.gpu.check import PARTS, check_gpu

    for name in parts or ():
        if name not in PARTS:
            raise UserError(f"--part {name}: there are {', '.join(PARTS)}")
    report = check_gpu(out, device, parts or tuple(PARTS), say=typer.echo)
    if any(part["error"] for part in report["parts"].values()):
        raise typer.Exit(1)
