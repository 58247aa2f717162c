"""Options that several commands of the `can` family share, and how they become a configuration."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kdgat.can.config import CanConfig

Dataset = Annotated[str, typer.Option("--dataset", help="Name in the catalog, or of a folder under --data-root.")]
DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder that holds the dataset's folder.")]
Catalog = Annotated[Path | None, typer.Option("--catalog", help="YAML file with entries of your own datasets.")]
Preset = Annotated[str, typer.Option("--preset", help="quick, full or tutorial (explains every key).")]
HoldOut = Annotated[
    list[str] | None,
    typer.Option("--hold-out", help="Vehicle or word in recording names: never trained on, tested on. Repeatable."),
]
Seeds = Annotated[list[int] | None, typer.Option("--seeds", help="Seeds to train with, as in --seeds 0 1 2.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-O", "--override", metavar="KEY=VALUE", help="Set one key, as in -O training.max_epochs=2."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")]


def can_config(
    *,
    dataset: str,
    data_root: Path,
    catalog: Path | None,
    preset: str,
    hold_out: Sequence[str] | None,
    seeds: Sequence[int] | None,
    overrides: Sequence[str] | None,
) -> "CanConfig":
    """Build the configuration that a command line describes; ConfigurationError names key, value and fix."""
    from kdgat.can.config import make_config

    data: dict[str, object] = {"dataset": dataset, "data_root": str(data_root.absolute())}
    if catalog is not None:
        data["catalog"] = str(catalog.absolute())
    if hold_out:
        data["hold_out"] = list(hold_out)
    return make_config(preset, overrides or (), data=data, seeds=seeds or None)
