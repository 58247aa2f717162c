"""Options that several commands of the `can` family share, and how they become a configuration."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kdgat.can.config import CanConfig
    from kdgat.cluster.resources import ResourceRequest
    from kdgat.cluster.site import Site

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
Out = Annotated[Path, typer.Option("--out", help="Output directory; the same one again goes on where it stopped.")]
ParallelStages = Annotated[
    int | None, typer.Option("--parallel-stages", min=1, help="Stages side by side (default: by processors).")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")]

SiteName = Annotated[
    str, typer.Option("--site", metavar="NAME", help="Where stages run: local, or a site of `kdgat site list`.")
]
Walltime = Annotated[
    str | None, typer.Option("--walltime", help="Of every stage's jobs, as 16:00:00 (--site other than local).")
]
Memory = Annotated[str | None, typer.Option("--memory", help="Of every stage's jobs, as 128G.")]
Cores = Annotated[int | None, typer.Option("--cores", help="Of every stage's jobs.")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="Of every stage's jobs; 0 for none.")]


class OptionError(ValueError):
    """Options contradict each other, or need what is not installed; the text names them and the fix."""


def require_job_library() -> None:
    """Refuse to go on where jobs cannot be watched because the part of the package that does it is missing."""
    if importlib.util.find_spec("dask_jobqueue") is None:
        raise OptionError("--site needs dask-jobqueue, which is not installed: pip install 'kdgat[all]'")


def site_and_request(
    name: str, *, walltime: str | None, memory: str | None, cores: int | None, gpus: int | None
) -> "tuple[Site, ResourceRequest]":
    """Read the site and what the command line asks for there.

    Raises:
        SiteError: if the site is unknown or its file is wrong.
        ResourceError: if a value cannot be read, or is more than the site grants.
        OptionError: if resources are asked for where there are no jobs that could have them.
    """
    from kdgat.cluster.estimate import check_command_line
    from kdgat.cluster.resources import make_request
    from kdgat.cluster.site import load_site

    site = load_site(name)
    request = make_request(walltime=walltime, memory=memory, cores=cores, gpus=gpus)
    if site.scheduler == "local" and (said := request.said()):
        given = ", ".join(f"--{key} {value}" for key, value in said.items())
        raise OptionError(
            f"{given}: with --site {name} stages are processes of this machine, which use what it has: "
            "leave the option out, or name a cluster by --site"
        )
    check_command_line(request, site)
    return site, request


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
