"""The configuration of an experiment: what every run has, and the arguments of its module and of its data function."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pydantic import ConfigDict, Field, create_model, model_validator

from kdgat.base import Config, ConfigurationError, validate_config
from kdgat.experiment.declaration import PREPARE, Experiment, ExperimentError
from kdgat.experiment.source import SUFFIX, load_experiment, read_source
from kdgat.run import EVALUATION, RunConfig

ROOT: Final = "root"  # the argument of a data function that receives a path
UNCHANGED: Final = "tutorial"  # the preset that leaves all defaults
# What a parameter without an annotation takes, by its default.
_USUAL: Final = {bool: bool, int: int | float, float: float, str: str}
SECTIONS: Final = {"model": "module", "data": "data"}  # of the configuration -> what of the experiment takes them


class ExperimentConfig(RunConfig):
    """Hold everything that a run of an experiment depends on."""

    preset_package: ClassVar[str] = "kdgat.experiment"

    # A deployment runs in another folder than that of the person who starts it: its server takes no other paths.
    source: str = Field(
        description="Python file, or package.module:name, that holds the Experiment; `train FILE`",
        json_schema_extra={"pattern": r"^/.*\.py$|^[A-Za-z_][\w.]*:\w+$"},
    )
    root: str | None = Field(
        None,
        description="folder or file that the data function receives as root; --root",
        json_schema_extra={"pattern": "^/"},
    )
    same_code: str | None = Field(
        None,
        description="output directory of a run whose stages' code this one is taken to have; --same-code",
        json_schema_extra={"pattern": "^/"},
    )
    model: dict[str, Any] = Field(default={}, description="arguments of the module, as -O model.hidden=128")
    data: dict[str, Any] = Field(default={}, description="arguments of the data function, as -O data.largest=64")

    @property
    def experiment(self) -> Experiment:
        """Return what the file declares."""
        return load_experiment(read_source(self.source))

    def stage_names(self) -> Sequence[str]:
        """Name the preparation, the stages of training and the evaluation."""
        return [PREPARE, *self.trained_stages(), EVALUATION]

    def trained_stages(self) -> Sequence[str]:
        """Name the stages of training."""
        return [stage.name for stage in self.experiment.stages]

    @classmethod
    def preset_content(cls, preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a preset with the settings of training that the experiment and its stages declare."""
        content = super().preset_content(preset, given)
        if not isinstance(given.get("source"), str):
            return content  # which is refused, by the name of the key
        experiment = load_experiment(read_source(given["source"]))
        content["training"] = {**content.get("training", {}), **experiment.training}
        content["training_of"] = {stage.name: dict(stage.training) for stage in experiment.stages if stage.training}
        return content

    def completed(self, preset: str | None = None, overrides: Sequence[str] = ()) -> Self:
        """Return it as every family's; what the experiment declares holds where no preset is named, too."""
        return super().completed(preset or (UNCHANGED if self.preset is None else None), overrides)

    @model_validator(mode="before")
    @classmethod
    def _make_absolute(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and str(content.get("source", "")).endswith(SUFFIX):
            return {**content, "source": str(Path(content["source"]).absolute())}
        return content

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        for stage in self.experiment.stages:
            for section in SECTIONS:
                self.arguments(section, stage.name)
        return self

    def arguments(self, section: str, stage: str) -> dict[str, Any]:
        """Return the arguments, as plain data, of `model` or `data` in a stage, with their defaults.

        What the configuration gives wins over what a stage declares, as -O training.<key> does.

        Raises:
            ConfigurationError: naming key, value and fix.
        """
        experiment = self.experiment
        known = arguments_of(getattr(experiment, SECTIONS[section]))
        given = {**getattr(experiment.stage(stage), section), **getattr(self, section)}
        try:
            return validate_config(known, given).model_dump(mode="json")
        except ConfigurationError as error:
            raise ConfigurationError(f"{section}: {error}") from None


@lru_cache(maxsize=64)
def arguments_of(function: Callable[..., Any]) -> type[Config]:
    """Return the model of what a function, or constructor, takes as plain data, without `root`.

    A default that is no plain data (a loss, an activation) stays with the code; a parameter without an annotation takes
    what is like its default, and without either anything.
    """
    fields: dict[str, Any] = {}
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise ExperimentError(
            f"an annotation of {function.__qualname__} cannot be read ({error}): import it"
        ) from error
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name == ROOT:
            continue
        if parameter.default is not parameter.empty and not _is_plain(parameter.default):
            continue
        annotation = _USUAL.get(type(parameter.default), Any)
        if parameter.annotation is not parameter.empty:
            annotation = parameter.annotation
        default = ... if parameter.default is parameter.empty else parameter.default
        if default is None:
            annotation = annotation | None
        fields[name] = (annotation, default)
    return create_model("Arguments", __base__=_Arguments, **fields)


class _Arguments(Config):
    model_config = ConfigDict(protected_namespaces=(), arbitrary_types_allowed=True)


def typed_arguments(function: Callable[..., Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data as the types that a function is annotated with: a list as the tuple, a text as the enum."""
    model = arguments_of(function)
    found, fields = validate_config(model, plain), model.model_fields
    required = {name: plain[name] for name, field in fields.items() if field.is_required()}
    usual = validate_config(model, required).model_dump(mode="json")
    # A default stays the function's own: plain data know no tuples, and no numbers as keys.
    return {name: getattr(found, name) for name in fields if name in required or plain[name] != usual[name]}


def takes_root(function: Callable[..., Any]) -> bool:
    """Return whether a data function wants to know where its data lie."""
    return ROOT in inspect.signature(function).parameters


def _is_plain(value: Any) -> bool:
    if isinstance(value, Enum):
        return True
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
