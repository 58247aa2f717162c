"""Options that several commands share, alone and in groups, and how they become a configuration."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from kdgat.base import UserError

if TYPE_CHECKING:
    from kdgat.canbus.messages import ReadLimits, ReadOptions
    from kdgat.cluster import ResourceRequest, Site
    from kdgat.family import Family, Option
    from kdgat.run import RunConfig


def _require_less(context: typer.Context, value: Path | None) -> Path | None:
    """Require of the command line, where a file has the configuration, nothing that the file can have."""
    for one in context.command.params if value is not None else ():
        one.required = one.required and (one.name == "out" or not one.opts[0].startswith("-"))
    return value


# Whether it was given counts: --config may name one, too.
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="quick, full, or tutorial for the defaults of all keys; quick if none is named."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_require_less,
        help="YAML with keys above the preset's; options and -O win over it.",
    ),
]
Seeds = Annotated[list[int] | None, typer.Option("--seeds", help="Seeds to train with, as in --seeds 0 1 2.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("-O", "--override", metavar="KEY=VALUE", help="Set one key, as in -O training.max_epochs=2."),
]
Root = Annotated[Path | None, typer.Option("--root", help="Folder or file that the data function receives as root.")]
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


@dataclass(frozen=True)
class ConfigOptions:
    """What a run is configured by, beside the options of its family."""

    preset: Preset = None
    config_file: ConfigFile = None
    seeds: Seeds = None
    override: Overrides = None

    def build(
        self, family: "Family", given: Mapping[str, Any], more: Sequence[str] = (), *, is_plan: bool = False
    ) -> "RunConfig":
        """Build the configuration, with `more` overrides on top; errors of `family_config`."""
        from kdgat.family import family_config

        overrides = [*(self.override or ()), *more]
        return family_config(family, self.preset, given, self.seeds, overrides, self.config_file, is_plan=is_plan)


@dataclass(frozen=True)
class JobOptions:
    """Where stages run, and what their jobs ask for there."""

    site: SiteName = "local"
    walltime: Walltime = None
    memory: Memory = None
    cores: Cores = None
    gpus: Gpus = None
    account: Account = None

    def read(self) -> "tuple[Site, ResourceRequest]":
        """Read the site and what the command line asks for there.

        Raises:
            SiteError: if the site is unknown or its file is wrong.
            UserError: if a value cannot be read, or is more than the site grants.
            UserError: if resources are asked for where there are no jobs that could have them.
        """
        from kdgat.base import validate_config
        from kdgat.cluster import ResourceRequest, load_site
        from kdgat.cluster.request import LIMITED, check_command_line
        from kdgat.cluster.site import charged_to

        found = charged_to(load_site(self.site), self.account)
        request = validate_config(ResourceRequest, {key: getattr(self, key) for key in LIMITED})
        explicit = request.explicit_values() | ({} if self.account is None else {"account": self.account})
        if found.scheduler == "local" and explicit:
            given = ", ".join(f"--{key} {value}" for key, value in explicit.items())
            raise UserError(
                f"{given}: with --site {self.site} stages are processes of this machine, which use what it has: "
                "leave the option out, or name a cluster by --site"
            )
        check_command_line(request, found)
        return found, request


@dataclass(frozen=True)
class RunOptions(JobOptions):
    """How a flow runs its stages, and whether this command watches it."""

    parallel_stages: ParallelStages = None
    pool: Pool = 0
    on_lost_flow: OnLostFlow = None
    detach: Detach = False
    replan: Replan = False
    quiet: Quiet = False

    def read(self) -> "tuple[Site, ResourceRequest]":
        """Read the site, with what becomes of its jobs without this command, and what is asked for there."""
        site, request = super().read()
        said = {} if self.on_lost_flow is None else {"on_lost_flow": self.on_lost_flow}
        return site.model_copy(update=said), request


@dataclass(frozen=True)
class RecordingOptions:
    """How a recording is read, where it does not say so itself."""

    channel: Channel = None
    time_unit: TimeUnit = None
    ids: Ids = None
    bytes: Bytes = "hexadecimal"
    drop_echo: DropEcho = False
    max_bad_fraction: MaxBadFraction = 0.01

    def given(self) -> list[str]:
        """Return the names of the options that differ from what they are by default."""
        return [f"--{one.name.replace('_', '-')}" for one in fields(self) if getattr(self, one.name) != one.default]

    def read(self) -> "ReadOptions":
        """Return how a recording is read."""
        from kdgat.canbus.messages import ReadOptions

        return ReadOptions(**self._stated())

    def limits(self) -> "ReadLimits":
        """Return how much damage is passed over."""
        from kdgat.base import validate_config
        from kdgat.canbus import ReadLimits

        return validate_config(ReadLimits, {"max_bad_fraction": self.max_bad_fraction})

    def _stated(self) -> dict[str, Any]:
        of_tables = {"identifiers": self.ids, "payload": self.bytes}
        return {"time_unit": self.time_unit, "drop_echo": self.drop_echo, **of_tables}


@dataclass(frozen=True)
class LabelledRecordingOptions(RecordingOptions):
    """How a recording and its labels are read."""

    label_column: LabelColumn = None
    attack_labels: AttackLabels = None

    def _stated(self) -> dict[str, Any]:
        labels = tuple(word.strip() for word in (self.attack_labels or "").split(",") if word.strip())
        return {**super()._stated(), "label_column": self.label_column, "attack_labels": labels}


@dataclass(frozen=True)
class FamilyOptions:
    """The options of a family: none here, those of one are the fields of what `options_of` returns."""

    def given(self) -> dict[str, Any]:
        """Return the values that the command line gives, by name."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and value is not False and value != []
        }


def options_of(own: "Sequence[Option]", *, is_plan: bool = False) -> type[FamilyOptions]:
    """Return the group of a family's own options; with `is_plan`, what training requires has a default."""
    kept = [one for one in own if is_plan or not one.plan_only]
    described = []
    for one in kept:
        default = MISSING if one.is_required and not is_plan else False if one.type is bool else None
        described.append((one.name, _annotation(one, is_plan), field(default=default)))
    return make_dataclass("FamilyOptions", described, bases=(FamilyOptions,), frozen=True, kw_only=True)


def spread(command: Callable[..., None], text: str | None = None, **groups: type) -> Callable[..., None]:
    """Return a command that takes each option of its groups by itself: parameters whose annotation is a dataclass.

    `groups` has those that a family adds, by name of the parameter, and `text` the help where no docstring has it.
    """
    own = inspect.signature(command).parameters
    annotations = {name: one.annotation for name, one in own.items()}
    groups = {name: one for name, one in annotations.items() if isinstance(one, type) and is_dataclass(one)} | groups
    taken: list[tuple[str, Any, Any]] = []
    for name, one in own.items():
        if name in groups:
            taken += [(option.name, option.type, field(default=option.default)) for option in fields(groups[name])]
        else:
            default = MISSING if one.default is one.empty else one.default
            taken.append((name, one.annotation, field(default=default)))
    together = make_dataclass(
        command.__name__, taken, kw_only=True, namespace={"__doc__": text or command.__doc__, "__module__": __name__}
    )

    @wraps(together, updated=())  # whose signature the parser reads
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{option.name: values.pop(option.name) for option in fields(group)})
        command(**values)

    return run


class Command(TyperCommand):
    """A command that names at once whatever is missing on its command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line; typer alone would name the first parameter that is missing."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as raised:
            error: Any = raised
            params: list[Any] = self.params
            missing = [one for one in params if one.required and one.name not in ctx.params]  # what is given is there
            if hasattr(error, "param_type") and len(missing) > 1:  # else something is given, and wrong
                names = [one.opts[0] if one.opts[0].startswith("-") else one.metavar for one in missing]
                error.param_type, error.param_hint = "arguments", ", ".join(map(repr, names))
            raise


def name_all_missing(group: typer.Typer) -> None:
    """Let the commands of a group, and of those below it, name at once whatever is missing."""
    for command in group.registered_commands:
        command.cls = Command
    for below in group.registered_groups:
        if below.typer_instance is not None:
            name_all_missing(below.typer_instance)


def family_commands(
    families: "Mapping[str, Family]", make: "Callable[[Family], Callable[..., None] | None]"
) -> typer.Typer:
    """Return a group with one command per family: what `make` returns, unless that is None."""
    group = typer.Typer(no_args_is_help=True)
    for name, family in families.items():
        if command := make(family):
            group.command(name)(command)
    return group


def _annotation(option: "Option", is_plan: bool) -> Any:
    kind: Any = list[option.type] if option.is_many else option.type  # type: ignore[name-defined]
    text = f"{option.help} Or by --config." if option.is_required and not is_plan else option.help
    text += f" Default: {option.plan_default}." if is_plan and option.plan_default is not None else ""
    return Annotated[kind if kind is bool else kind | None, typer.Option(option.flag, help=text)]


def require_no_file(out: Path | None) -> None:
    """Refuse an output directory that is a file, or lies below one; whether anything is in it is another question."""
    if out is not None and (found := next((one for one in (out, *out.parents) if one.is_file()), None)):
        raise UserError(f"--out {out}: {found} is a file: name the folder of a run")


def require_job_library() -> None:
    """Refuse to go on where jobs cannot be watched because the part of the package that does it is missing."""
    if importlib.util.find_spec("dask_jobqueue") is None:
        raise UserError("--site needs dask-jobqueue, which is not installed: pip install 'kdgat[all]'")
