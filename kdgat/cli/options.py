"""Options that several commands share, and those of a family as its `options` say."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kdgat.base import UserError

if TYPE_CHECKING:
    from kdgat.cluster import ResourceRequest, Site
    from kdgat.family import Family, Option

# Whether it was given counts: --config may name one, too.
Preset = Annotated[str | None, typer.Option("--preset", help="quick, full or tutorial (the defaults). Default: quick.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML with keys above the preset's; options and -O win over it."),
]
Seeds = Annotated[list[int] | None, typer.Option("--seeds", help="Seeds to train with, as in --seeds 0 1 2.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-O", "--override", metavar="KEY=VALUE", help="Set one key, as in -O training.max_epochs=2."),
]
Out = Annotated[Path, typer.Option("--out", help="Output directory; the same one again goes on where it stopped.")]
ParallelStages = Annotated[
    int | None, typer.Option("--parallel-stages", min=1, help="Stages side by side (default: by processors and GPUs).")
]
Pool = Annotated[
    int, typer.Option("--pool", min=0, metavar="N", help="Workers that make the parts of preparations side by side.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")]
Tables = Annotated[bool, typer.Option("--tables", help="All tables of the results: every model, every detail.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
OfFamily = Annotated[str | None, typer.Option("--family", metavar="NAME", help="This family alone.")]
OfStage = Annotated[str | None, typer.Option("--stage", metavar="NAME", help="This stage alone.")]
IdRegistry = Annotated[
    Path | None, typer.Option("--registry", metavar="DIR", help="Where ids are looked up (default: $KDGAT_REGISTRY).")
]
DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder that holds the dataset's folder.")]
Catalog = Annotated[Path | None, typer.Option("--catalog", help="YAML file with entries of your own datasets.")]

Channel = Annotated[
    str | None, typer.Option("--channel", help="Interface or number to take of a log that holds several channels.")
]
TimeUnit = Annotated[
    Literal["s", "ms", "us", "ns", "differences"] | None,
    typer.Option("--time-unit", help="Of the stamps of a table or of candump; differences: s since the row before."),
]
Ids = Annotated[
    Literal["hexadecimal", "decimal"] | None,
    typer.Option("--ids", help="How a table writes identifiers (default: hexadecimal)."),
]
Bytes = Annotated[Literal["hexadecimal", "decimal"], typer.Option("--bytes", help="How a table writes bytes.")]
DropEcho = Annotated[bool, typer.Option("--drop-echo", help="Leave out what comes a second time within a millisecond.")]
MaxBadFraction = Annotated[
    float, typer.Option("--max-bad-fraction", help="Share of bad rows that is dropped, not refused.")
]
LabelColumn = Annotated[
    str | None, typer.Option("--label-column", metavar="NAME", help="Column of a table that says what is an attack.")
]
AttackLabels = Annotated[
    str | None,
    typer.Option("--attack-labels", metavar="WORD,...", help="Words of that column that are attacks, and no others."),
]

SiteName = Annotated[
    str, typer.Option("--site", metavar="NAME", help="Where stages run: local, or a site of `kdgat site list`.")
]
Walltime = Annotated[
    str | None, typer.Option("--walltime", help="Of every stage's jobs, as 16:00:00 (--site other than local).")
]
Memory = Annotated[str | None, typer.Option("--memory", help="Of every stage's jobs, as 128G.")]
Cores = Annotated[int | None, typer.Option("--cores", help="Of every stage's jobs.")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="Of every stage's jobs; 0 for none.")]
Account = Annotated[
    str | None, typer.Option("--account", help="Whom jobs are charged to (default: KDGAT_ACCOUNT, then the site's).")
]
OnLostFlow = Annotated[
    Literal["detach", "stop"] | None,
    typer.Option("--on-lost-flow", help="Jobs whose command is gone: go on, or save and leave (default: the site's)."),
]
Replan = Annotated[
    bool,
    typer.Option("--replan", help="Give up another plan whose jobs are under way, and what they have trained."),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Watch the run in a small job of its own that outlives this terminal.")
]


def family_commands(
    families: "Mapping[str, Family]",
    make: "Callable[[Family], Callable[..., None]]",
    help_of: "Callable[[Family], str]",
    *,
    is_plan: bool = False,
) -> typer.Typer:
    """Return a group with one command per family: what `make` returns, with the family's options and help."""
    group = typer.Typer(no_args_is_help=True)
    for name, family in families.items():
        command = family_command(make(family), family.options, is_plan=is_plan)
        group.command(name, help=help_of(family))(command)
    return group


def family_command(
    command: Callable[..., None], options: "Sequence[Option]", *, is_plan: bool = False
) -> Callable[..., None]:
    """Return a command that has the options of a family, too, and hands their values on as the mapping `given`.

    Values that were not given are left out. With `is_plan`, what training requires has a default.
    """
    of_family = [option for option in options if is_plan or not option.plan_only]
    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "given"]
    parameters = [_parameter(option, is_plan) for option in of_family]
    required = [one for one in own if one.default is inspect.Parameter.empty]
    optional = [*parameters, *(one for one in own if one.default is not inspect.Parameter.empty)]

    def run(**values: Any) -> None:
        given = {option.name: values.pop(option.name) for option in of_family}
        missing = [option for option in of_family if option.is_required and not _is_given(given[option.name])]
        if missing and not is_plan and values.get("config_file") is None:
            raise typer.BadParameter("required, unless --config gives it", param_hint=f"--{_written(missing[0])}")
        command(**values, given={name: value for name, value in given.items() if _is_given(value)})

    signature = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*required, *optional)]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature}
    run.__doc__ = command.__doc__
    return run


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != []


def _parameter(option: "Option", is_plan: bool) -> inspect.Parameter:
    default: Any = False if option.type is bool else None
    kind: Any = list[option.type] if option.is_many else option.type  # type: ignore[name-defined]
    if default is None:
        kind = kind | None
    text = f"{option.help} Required." if option.is_required and not is_plan else option.help
    text += f" Default: {option.plan_default}." if is_plan and option.plan_default is not None else ""
    annotation = Annotated[kind, typer.Option(f"--{_written(option)}", help=text)]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _written(option: "Option") -> str:
    return option.name.replace("_", "-")


def require_no_file(out: Path | None) -> None:
    """Refuse an output directory that is a file, or lies below one; whether anything is in it is another question."""
    if out is not None and (found := next((one for one in (out, *out.parents) if one.is_file()), None)):
        raise UserError(f"--out {out}: {found} is a file: name the folder of a run")


def require_job_library() -> None:
    """Refuse to go on where jobs cannot be watched because the part of the package that does it is missing."""
    if importlib.util.find_spec("dask_jobqueue") is None:
        raise UserError("--site needs dask-jobqueue, which is not installed: pip install 'kdgat[all]'")


def site_and_request(
    site: str,
    *,
    walltime: str | None,
    memory: str | None,
    cores: int | None,
    gpus: int | None,
    account: str | None = None,
    on_lost_flow: Literal["detach", "stop"] | None = None,
) -> "tuple[Site, ResourceRequest]":
    """Read the site and what the command line asks for there.

    Raises:
        SiteError: if the site is unknown or its file is wrong.
        UserError: if a value cannot be read, or is more than the site grants.
        UserError: if resources are asked for where there are no jobs that could have them.
    """
    from kdgat.cluster import load_site
    from kdgat.cluster.estimate import check_command_line
    from kdgat.cluster.resources import make_request
    from kdgat.cluster.site import charged_to

    found = charged_to(load_site(site), account)
    if on_lost_flow is not None:
        found = found.model_copy(update={"on_lost_flow": on_lost_flow})
    request = make_request(walltime=walltime, memory=memory, cores=cores, gpus=gpus)
    explicit = request.explicit_values() | ({} if account is None else {"account": account})
    if found.scheduler == "local" and explicit:
        given = ", ".join(f"--{key} {value}" for key, value in explicit.items())
        raise UserError(
            f"{given}: with --site {site} stages are processes of this machine, which use what it has: "
            "leave the option out, or name a cluster by --site"
        )
    check_command_line(request, found)
    return found, request
