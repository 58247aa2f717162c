"""Options that commands of the `lap` family share, and how they become a configuration."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kdgat.lap.config import LapConfig

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of files that `kdgat lap bucket` wrote; without it instances are generated."),
]
Stages = Annotated[
    list[str] | None,
    typer.Option("--stages", help="Which training stages run, as in --stages small_512_only small_1024_only."),
]
TwoInOne = Annotated[bool, typer.Option("--two-in-one", help="Train the first two stages in one job.")]


def lap_config(
    *,
    data: Path | None,
    preset: str,
    stages: Sequence[str] | None,
    seeds: Sequence[int] | None,
    overrides: Sequence[str] | None,
    two_in_one: bool,
) -> "LapConfig":
    """Build the configuration that a command line describes; ConfigurationError names key, value and fix."""
    from kdgat.lap.config import make_config, with_two_in_one

    config = make_config(
        preset,
        overrides or (),
        source=None if data is None else str(data.absolute()),
        stages=stages or None,
        seeds=seeds or None,
    )
    return with_two_in_one(config) if two_in_one else config
