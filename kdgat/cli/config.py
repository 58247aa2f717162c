"""`kdgat config show FAMILY`: the configuration that a command line comes to, and where each value comes from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from kdgat.cli import options
from kdgat.cli.options import ConfigOptions, FamilyOptions, spread

if TYPE_CHECKING:
    from pydantic import BaseModel

    from kdgat.family import Family

DEFAULT: Final = "default"
INDENT: Final = "  "
Explain = Annotated[bool, typer.Option("--explain", help="Every key, with what it means in the place of its origin.")]


class Key(NamedTuple):
    """A key of a configuration; a section's has no value."""

    name: str  # dotted
    value: Any  # the default, or that of a configuration
    meaning: str
    is_section: bool


def application(families: "Mapping[str, Family]") -> typer.Typer:
    """Return the command group, whose `show` has one command per family."""
    app = typer.Typer(no_args_is_help=True)
    text = "Print a configuration as YAML that --config takes; behind each value stands where it comes from."
    app.add_typer(options.family_commands(families, show_command), name="show", help=text)
    return app


def show_command(family: "Family") -> Any:
    """Return the command that shows the configuration of one family."""

    def command(
        of_family: FamilyOptions,
        explain: Explain = False,
        *,
        configured: ConfigOptions,
    ) -> None:
        from kdgat.base.configuration import load_preset
        from kdgat.family import flattened, read_config

        given = of_family.given()
        config = configured.build(family, given, is_plan=True)
        if explain:
            typer.echo("\n".join(explained(keys_of(type(config), config))))
            return
        layers = {f"preset {config.preset}": list(flattened(load_preset(config.preset_package, str(config.preset))))}
        if configured.config_file is not None:
            file = configured.config_file
            layers[str(file)] = list(flattened(read_config(family, file)))
        layers["option"] = [option.key for option in family.options if option.name in given]
        layers["option"] += ["seeds"] if configured.seeds else []
        layers["option"] += ["preset"] if configured.preset else []
        layers["-O"] = [one.partition("=")[0].strip() for one in configured.override or ()]
        typer.echo("\n".join(described(config.model_dump(mode="json"), layers)))

    text = f"Print what a run of {family.title} would be configured by, with the origin of each value."
    return spread(command, text, of_family=options.options_of(family.options, is_plan=True))


def keys_of(model: "type[BaseModel]", config: "BaseModel | None" = None, prefix: str = "") -> Iterator[Key]:
    """Yield all keys of a model with their values in a configuration; without one with defaults, None if required."""
    from pydantic import BaseModel

    from kdgat.base.configuration import model_in

    for name, field in model.model_fields.items():
        value = getattr(config, name) if config is not None else field.get_default(call_default_factory=False)
        if field.is_required() and config is None:
            value = None
        below = {"": model_in(field.annotation)}
        if isinstance(value, Mapping):  # models by names of somebody's choice
            below = {f"{key}.": type(one) for key, one in value.items() if isinstance(one, BaseModel)}
        is_section = any(below.values())
        yield Key(f"{prefix}{name}", None if is_section else value, field.description or "", is_section)
        for key, one in below.items():
            if one is not None:
                if key:
                    yield Key(f"{prefix}{name}.{key[:-1]}", None, "", True)
                found = value[key[:-1]] if key else value
                yield from keys_of(one, found, f"{prefix}{name}.{key}")


def explained(keys: Iterator[Key]) -> Iterator[str]:
    """Yield lines of YAML with what each key means."""
    for key in keys:
        depth = key.name.count(".")
        name = key.name.rpartition(".")[2]
        meaning = f"  # {key.meaning}" if key.meaning else ""
        if key.is_section and depth == 0:
            yield from ("", *([f"# {key.meaning}"] if key.meaning else []), f"{name}:")
        elif key.is_section:
            yield f"{INDENT * depth}{name}:{meaning}"
        else:
            yield f"{INDENT * depth}{name}: {as_yaml(key.value)}{meaning}"


def as_yaml(value: Any) -> str:
    """Write a value as YAML does within a line."""
    from pydantic_core import to_jsonable_python

    from kdgat.base.configuration import write_yaml

    text = write_yaml(to_jsonable_python(value), default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def described(config: Mapping[str, Any], layers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield lines of YAML with the origin of each value behind it, in a column.

    Args:
        config: nested plain data.
        layers: origin -> the dotted keys that it sets, the one that wins last.
    """
    lines = list(_lines(config, layers, ""))
    width = max((len(line) for line, origin in lines if origin), default=0)
    for line, origin in lines:
        yield f"{line:<{min(width, 60)}}  # {origin}" if origin else line


def _lines(config: Mapping[str, Any], layers: Mapping[str, Sequence[str]], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        indent = INDENT * dotted.count(".")
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:", ""
            yield from _lines(value, layers, f"{dotted}.")
        else:
            yield f"{indent}{key}: {as_yaml(value)}", _origin(dotted, layers)


def _origin(key: str, layers: Mapping[str, Sequence[str]]) -> str:
    """Return the last layer that sets a key, or a section that it lies in."""
    setting = [name for name, keys in layers.items() if any(f"{key}.".startswith(f"{one}.") for one in keys if one)]
    return setting[-1] if setting else DEFAULT
