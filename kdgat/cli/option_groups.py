"""Options that belong together and that several commands take: declared once, handed on as one value."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from kdgat.cli import options

if TYPE_CHECKING:
    from kdgat.canbus.messages import ReadLimits, ReadOptions
    from kdgat.cluster import ResourceRequest, Site
    from kdgat.family import Family
    from kdgat.run import RunConfig


@dataclass(frozen=True)
class ConfigOptions:
    """What a run is configured by, beside the options of its family."""

    preset: options.Preset = None
    config_file: options.ConfigFile = None
    seeds: options.Seeds = None
    override: options.Overrides = None

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

    site: options.SiteName = "local"
    walltime: options.Walltime = None
    memory: options.Memory = None
    cores: options.Cores = None
    gpus: options.Gpus = None
    account: options.Account = None

    def read(self) -> "tuple[Site, ResourceRequest]":
        """Read the site and what is asked for there; errors of `options.site_and_request`."""
        return options.site_and_request(**self._asked())

    def _asked(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(JobOptions)}


@dataclass(frozen=True)
class RunOptions(JobOptions):
    """How a flow runs its stages, and whether this command watches it."""

    parallel_stages: options.ParallelStages = None
    pool: options.Pool = 0
    on_lost_flow: options.OnLostFlow = None
    detach: options.Detach = False
    replan: options.Replan = False
    quiet: options.Quiet = False

    def _asked(self) -> dict[str, Any]:
        return {**super()._asked(), "on_lost_flow": self.on_lost_flow}


@dataclass(frozen=True)
class RecordingOptions:
    """How a recording is read, where it does not say so itself."""

    channel: options.Channel = None
    time_unit: options.TimeUnit = None
    ids: options.Ids = None
    bytes: options.Bytes = "hexadecimal"
    drop_echo: options.DropEcho = False
    max_bad_fraction: options.MaxBadFraction = 0.01

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

    label_column: options.LabelColumn = None
    attack_labels: options.AttackLabels = None

    def _stated(self) -> dict[str, Any]:
        labels = tuple(word.strip() for word in (self.attack_labels or "").split(",") if word.strip())
        return {**super()._stated(), "label_column": self.label_column, "attack_labels": labels}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes each option of its groups by itself: parameters whose annotation is one of these."""
    own = inspect.signature(command).parameters
    groups: dict[str, Any] = {name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)}

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{option.name: values.pop(option.name) for option in fields(group)})
        command(**values)

    signature: list[inspect.Parameter] = []
    for name, one in own.items():
        if name in groups:
            signature += [_parameter(option) for option in fields(groups[name])]
        else:
            signature.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _parameter(option: "Field[Any]") -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, kind, default=option.default, annotation=option.type)
