"""The configuration of a run as people give it: options of the family, a preset, a file, single keys on top."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from kdgat.base import ConfigurationError, UserError
from kdgat.base.configuration import describe_yaml_error, read_yaml
from kdgat.base.files import read_utf8
from kdgat.base.place import describe_os_error
from kdgat.family.protocol import Family
from kdgat.run import RunConfig


def family_config(
    family: Family,
    preset: str | None,
    given: Mapping[str, Any],
    seeds: Sequence[int] | None,
    overrides: Sequence[str] | None,
    config: Path | Mapping[str, Any] | None = None,
    *,
    is_plan: bool = False,
) -> RunConfig:
    """Build the configuration that a command line, or a call, describes; ConfigurationError names key, value and fix.

    A preset that is given wins over that of `config`, a file or its content, which wins over `quick`. With `is_plan`,
    what training requires and neither `given` nor `config` has gets its default of a plan.
    """
    content = read_config(family, config) if isinstance(config, Path) else deepcopy(dict(config or {}))
    if is_plan:
        given = {**_plan_defaults(family, content), **given}
    of_file = content.pop("preset", None)
    of_options = ["preset "] if preset else []  # how mistakes begin that are none of the file
    preset = str(preset or of_file or "quick")
    if seeds:
        content["seeds"] = list(seeds)
    before: list[str] = []
    for option in family.options:
        if option.key == "" or option.name not in given:
            continue
        value = given[option.name]
        value = str(value.absolute()) if isinstance(value, Path) else value
        if option.is_override:
            before.append(f"{option.key}={json.dumps(value)}")
            continue
        *sections, key = option.key.split(".")
        where = content
        for section in sections:
            if where.get(section) is None:  # not there, or without a key below it
                where[section] = {}
            where = where[section]
            if not isinstance(where, dict):
                file = f" {config}" if isinstance(config, Path) else ""
                raise UserError(f"--config{file}: {section} is {where!r}, write its keys below it")
        where[key] = value
        of_options.append(option.key)
    try:
        if isinstance(config, Path):
            family.config.from_preset(preset, content)
    except ConfigurationError as error:
        if str(error).startswith(tuple(of_options)):
            raise
        raise ConfigurationError(f"--config {config}: {error}") from error
    built: RunConfig = family.config.from_preset(preset, content, [*before, *(overrides or ())])
    for option in family.options:
        if option.apply is not None and option.name in given:
            built = option.apply(built, given[option.name])
    return built


def _plan_defaults(family: Family, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return by option what a plan takes for required values that `content`, a file of configuration, does not give."""
    defaults = {}
    for option in family.options:
        where: Any = content
        for key in option.key.split("."):
            where = where.get(key) if isinstance(where, Mapping) else None
        if option.plan_default is not None and where is None:
            defaults[option.name] = option.plan_default
    return defaults


def read_config(family: Family, path: Path) -> dict[str, Any]:
    """Read a file of configuration; a path in it that an option could give is taken from the file's folder."""
    try:
        content = read_yaml(read_utf8(path))
    except UserError as error:
        raise ConfigurationError(f"--config {error}") from error
    except OSError as error:
        raise ConfigurationError(f"--config {describe_os_error(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--config {path} is no YAML: {describe_yaml_error(error)}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"--config {path} is not a mapping of keys to values: `kdgat config show {family.name}` prints one"
        )
    for option in family.options:
        *sections, key = option.key.split(".")
        where: Any = content
        for section in sections:
            where = where.get(section) if isinstance(where, dict) else None
        if option.type is Path and isinstance(where, dict) and isinstance(where.get(key), str):
            where[key] = str((path.parent / where[key]).absolute())
    return content
