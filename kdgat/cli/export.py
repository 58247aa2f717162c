"""`kdgat export RUN`: a network of a finished run as one file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kdgat.base import UserError
from kdgat.cli import options
from kdgat.cli.detect import require_runtime

app = typer.Typer()


@app.command("export")
def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Output directory of a training, or a registered model's id.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file.")],
    file_format: Annotated[
        Literal["onnx", "torch"], typer.Option("--format", help="onnx for any runtime, or a file that torch loads.")
    ] = "onnx",
    model: Annotated[str, typer.Option("--model", help="Which attention network.")] = "distill_gat",
    seed: Annotated[int | None, typer.Option("--seed", help="Of the run (default: its first).")] = None,
    registry: options.IdRegistry = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Of `kdgat profile --model`: its threshold.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Write a network with its input scaling, features, windows, scaling of scores and threshold in one file.

    `kdgat detect LOG --model FILE` decides by it as by the run.
    """
    require_runtime("export")
    from kdgat.base import check_file
    from kdgat.can.detection.loading import chosen_detector, trained_network
    from kdgat.can.detection.model_file import write_model
    from kdgat.can.evaluation.run import FinishedCanRun
    from kdgat.can.evaluation.vehicle import LEARN, threshold_for
    from kdgat.can.models.names import ENSEMBLE_MEMBERS
    from kdgat.canbus.profile import Profile
    from kdgat.registry import find_model
    from kdgat.run import OutputDirectory

    check_file(out, "--out")
    if model not in ENSEMBLE_MEMBERS:
        raise UserError(f"--model {model}: attention networks are exported; give one of {', '.join(ENSEMBLE_MEMBERS)}")
    finished = FinishedCanRun(OutputDirectory(find_model(run, registry)))
    seed = finished.seeds[0] if seed is None else seed
    detector = chosen_detector(finished, model, seed)
    if profile is not None:
        learned = threshold_for(Profile.read(profile), finished, detector)
        if learned is None:
            raise UserError(
                f"--profile {profile} has no threshold of {model} of seed {seed}: learn it by `{LEARN} --detector "
                f"{model} --seed {seed}`"
            )
        detector = detector.at(learned.operating_point)
    network = trained_network(finished, detector, seed, model)
    parameters = network.parameters
    write_model(out, file_format, network.weights, network.description, parameters)
    if not quiet:
        typer.echo(f"{out}: {parameters.name} of seed {parameters.seed}, {out.stat().st_size / 1024:,.0f} kB")
