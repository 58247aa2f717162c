"""`kdgat calibrate`: set a detector's threshold for one vehicle, from recordings of it that hold no attack."""

from pathlib import Path
from typing import Annotated, Final

import typer

from kdgat.base import UserError
from kdgat.cli.compilation import compilation_told

CALIBRATION_FOLDER: Final = "calibration"

app = typer.Typer(no_args_is_help=True)


@app.command("calibrate")
def calibrate(
    clean: Annotated[
        list[Path], typer.Option("--clean", metavar="LOG", help="Recording without attacks; several may be given.")
    ],
    model: Annotated[
        Path, typer.Option("--model", metavar="RUN", help="Output directory of `kdgat train can`, or registered model.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The calibration (default: RUN/calibration/LOG.json)."),
    ] = None,
    alarms_per_hour: Annotated[
        float | None,
        typer.Option(
            "--alarms-per-hour",
            min=1e-6,
            help="Windows with a false alarm to allow (default: evaluation.alarms_per_hour of the run).",
        ),
    ] = None,
    detector: Annotated[
        str | None, typer.Option("--detector", help="Of the run, as distill_gat (default: what the run decides by).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="That one alone (default: all seeds of the run).")] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", help="Which one to take of logs that have messages of several.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Set the threshold of a detector for one vehicle, from minutes of its traffic that hold no attack.

    `kdgat evaluate can --calibration FILE` uses it, and `kdgat detect`, by default with the student of the first seed:
    `--detector distill_gat --seed 0`. It is never above the default threshold, so a vehicle loses no
    alarm by it. At least 1,000 windows are needed, which is a minute or two of driving.
    """
    from kdgat.base import check_file
    from kdgat.run import OutputDirectory

    path = model / CALIBRATION_FOLDER / f"{clean[0].stem}.json" if out is None else out
    check_file(path, "--out")
    OutputDirectory(model).read_index()
    for log in clean:
        log.stat()  # that there is none is said before anything is loaded
        if path.exists() and path.samefile(log):
            raise UserError(f"--out {path} is the recording --clean {log}, which it would replace: name another file")
    from kdgat.can.evaluation.vehicle import calibrate_run  # torch: only who makes no mistake waits for it

    with compilation_told(quiet=quiet):
        found = calibrate_run(
            model, clean, alarms_per_hour=alarms_per_hour, detector=detector, seed=seed, channel=channel
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    found.write(path)
    if not quiet:
        typer.echo(found.sentence)
    typer.echo(str(path))
