"""`kdgat plan can`: which stages a training run would consist of."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdgat.cli import options

if TYPE_CHECKING:
    from kdgat.can.config import CanConfig

app = typer.Typer(no_args_is_help=True)


@app.callback()
def plan() -> None:
    """Print the stages a training run consists of, without running them."""


@app.command()
def can(
    dataset: options.Dataset = "synthetic",
    data_root: options.DataRoot = Path("data"),
    preset: options.Preset = "quick",
    hold_out: options.HoldOut = None,
    seeds: options.Seeds = None,
    override: options.Overrides = None,
    catalog: options.Catalog = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also say what has finished in this directory.")] = None,
) -> None:
    """List the stages of a CAN run with what each needs, its size, and how far it is in --out."""
    from rich.table import Table

    from kdgat.can.plan import parameter_counts, plan_can
    from kdgat.can.run import OutputDirectory
    from kdgat.cli.tables import output_console

    config = options.can_config(
        dataset=dataset,
        data_root=data_root,
        catalog=catalog,
        preset=preset,
        hold_out=hold_out,
        seeds=seeds,
        overrides=override,
    )
    records = {record.name: record for record in OutputDirectory(out).read_index().stages} if out else {}
    counts = parameter_counts(config)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("stage", "needs", "epochs", "parameters", *(("state",) if out else ())):
        table.add_column(heading, justify="right" if heading == "parameters" else "left", no_wrap=heading != "needs")
    for planned in plan_can(config):
        epochs = planned.config.get("training", {}).get("max_epochs")
        count = counts.get((planned.stage, planned.scale))
        row = [
            planned.name,
            ", ".join(planned.depends_on) or "recordings",
            "" if epochs is None else f"up to {epochs}",
            "" if count is None else f"{count:,}",
        ]
        if out:
            row.append(str(records[planned.name].state) if planned.name in records else "not planned there")
        table.add_row(*row)
    console = output_console()
    console.print(describe_data(config), soft_wrap=True)
    console.print(table)


def describe_data(config: "CanConfig") -> str:
    """Say in a sentence what the recordings hold, or that they are not there."""
    from kdgat.can.catalog import DatasetError, find_recordings, split_roles
    from kdgat.can.logs import ReadLimits
    from kdgat.can.windows import num_windows

    data = config.data
    limits = ReadLimits(max_bad_fraction=data.max_bad_fraction)
    try:
        found = find_recordings(data.data_root, data.dataset, catalog=data.catalog, limits=limits)
    except DatasetError as error:
        return f"no recordings to count windows in: {error}"
    recordings = split_roles(found, data.hold_out)
    parts = []
    for role, noun in (("train", "training"), ("test", "test")):
        files = [file for file in recordings if file.role == role]
        count = sum(num_windows(file.num_messages, config.windows) for file in files)
        parts.append(f"{len(files)} {noun} recordings ({count:,} windows)")
    copies = f"; {len(recordings.dropped)} copies left out" if recordings.dropped else ""
    share = f"the last {data.validation_fraction:.0%} of each training recording validates"
    return f"{data.dataset}: {', '.join(parts)}{copies}; {share}"
