"""`kdgat config show FAMILY`: the configuration that a command line comes to, and where each value comes from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from kdgat.cli import options
from kdgat.cli.option_groups import ConfigOptions, spread

if TYPE_CHECKING:
    from kdgat.family import Family

DEFAULT: Final = "default"
INDENT: Final = "  "


def application(families: "Mapping[str, Family]") -> typer.Typer:
    """Return the command group, whose `show` has one command per family."""
    app = typer.Typer(no_args_is_help=True)
    show = options.family_commands(
        families,
        show_command,
        lambda one: f"Print what a run of {one.title} would be configured by, with the origin of each value.",
        is_plan=True,
    )
    text = "Print a configuration as YAML that --config takes; behind each value stands where it comes from."
    app.add_typer(show, name="show", help=text)
    return app


def show_command(family: "Family") -> Any:
    """Return the command that shows the configuration of one family."""

    def command(
        *,
        configured: ConfigOptions,
        given: dict[str, Any],
    ) -> None:
        from kdgat.base.configuration import load_preset
        from kdgat.family import flattened

        config = configured.build(family, given, is_plan=True)
        layers = {f"preset {config.preset}": list(flattened(load_preset(config.preset_package, str(config.preset))))}
        if configured.config_file is not None:
            file = configured.config_file
            layers[str(file)] = list(flattened(options.read_config(family, file)))
        layers["option"] = [option.key for option in family.options if option.name in given]
        layers["option"] += ["seeds"] if configured.seeds else []
        layers["option"] += ["preset"] if configured.preset else []
        layers["-O"] = [one.partition("=")[0].strip() for one in configured.override or ()]
        typer.echo("\n".join(described(config.model_dump(mode="json"), layers)))

    return spread(command)


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
    from kdgat.base.configuration import write_yaml

    for key, value in config.items():
        dotted = f"{prefix}{key}"
        indent = INDENT * dotted.count(".")
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:", ""
            yield from _lines(value, layers, f"{dotted}.")
        else:
            text = write_yaml(value, default_flow_style=True, width=10_000)
            yield f"{indent}{key}: {text.removesuffix('...' + chr(10)).strip()}", _origin(dotted, layers)


def _origin(key: str, layers: Mapping[str, Sequence[str]]) -> str:
    """Return the last layer that sets a key, or a section that it lies in."""
    setting = [name for name, keys in layers.items() if any(f"{key}.".startswith(f"{one}.") for one in keys if one)]
    return setting[-1] if setting else DEFAULT
