"""Fill a family's configuration from a preset, from what somebody said, and from single keys on top.

In a family's configuration `training` holds for every stage of a run, and `training_of` says in what single stages
differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from kdgat.base import Config, validate_config
from kdgat.base.configuration import apply_overrides, load_preset

ConfigType = TypeVar("ConfigType", bound=Config)


def fill_preset(
    model: type[ConfigType],
    package: str,
    preset: str,
    given: Mapping[str, Any],
    overrides: Sequence[str] = (),
    differences: Mapping[str, Mapping[str, Any]] | None = None,
) -> ConfigType:
    """Build a configuration from what somebody said, a preset for what they left out, and overrides on top.

    What is said of `training.<key>` holds for every stage: it also takes the place of a difference for that key which
    the preset states in `training_of`. What is said of `training_of.<stage>.<key>` holds for one stage.

    Args:
        model: the family's configuration.
        package: of the family, where its presets are.
        preset: name of the preset.
        given: plain data with the keys that were said, at any depth.
        overrides: `dotted.key=value` each, as for `-O` on the command line.
        differences: what stages differ in where the preset says nothing of them.

    Raises:
        ConfigurationError: naming key, value and fix.
    """
    content = load_preset(package, preset)
    stated = given.get("training")
    common = _with_mode({*_common_keys(overrides), *(stated if isinstance(stated, Mapping) else ())})
    content["training_of"] = _without(_merged(differences or {}, content.get("training_of", {})), common)
    return apply_overrides(validate_config(model, {**_merged(content, given), "preset": preset}), overrides)


def complete(
    config: ConfigType,
    package: str,
    preset: str | None,
    overrides: Sequence[str],
    differences: Mapping[str, Mapping[str, Any]] | None = None,
) -> ConfigType:
    """Return a configuration whose unset keys are those of a preset, with overrides on top; see `fill_preset`.

    Without a preset too an override of `training.<key>` holds for every stage, as on the command line.

    Raises:
        ConfigurationError: naming key, value and fix.
    """
    if preset is not None:
        return fill_preset(type(config), package, preset, config.model_dump(exclude_unset=True), overrides, differences)
    if not overrides:
        return config
    common = _without(config.model_dump()["training_of"], _common_keys(overrides))
    return apply_overrides(config.model_copy(update={"training_of": common}), overrides)


def _common_keys(overrides: Sequence[str]) -> set[str]:
    """Name the keys of `training` that overrides set for every stage."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    return _with_mode({key.removeprefix("training.") for key in keys if key.startswith("training.")})


def _with_mode(keys: set[str]) -> set[str]:
    """Return the keys, and `mode` beside `monitor`: of another metric, another end may be the better one."""
    return keys | {"mode"} if "monitor" in keys else keys


def _without(differences: Mapping[str, Mapping[str, Any]], common: set[str]) -> dict[str, dict[str, Any]]:
    """Return what stages differ in, without the keys that hold for every stage."""
    return {
        stage: {key: value for key, value in own.items() if key not in common} for stage, own in differences.items()
    }


def _merged(content: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested plain data in which `given` wins, key by key at any depth."""
    merged = dict(content)
    for key, value in given.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return merged
