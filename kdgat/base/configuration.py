"""Configuration that refuses what it does not know: frozen models, presets in YAML, overrides by dotted path."""

import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, ClassVar, Final, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from kdgat.base.errors import UserError
from kdgat.base.text import suggest

KEY = "[key]"  # in pydantic's place of a mapping's key
MAX_SHOWN = 80  # characters of a wrong value
KEPT: Final = {"kept": True}  # context of validation: a kdgat wrote it, a newer one maybe (`kdgat.base.kept`)
M = TypeVar("M", bound=BaseModel)


class ExecutionOnly:
    """Mark a field, in `Annotated`, that changes how a stage is executed and never what it computes."""


class ConfigurationError(UserError):
    """A key or a value of the configuration is wrong; the text names it and the fix."""


class Config(BaseModel):
    """Base of all configuration: frozen, and an unknown key is an error that names the nearest known one.

    >>> class Model(Config):
    ...     layers: int = 2
    >>> apply_overrides(Model(), ["layers=3"])
    Model(layers=3)
    >>> validate_config(Model, {"layer": 3})
    Traceback (most recent call last):
    kdgat.base.configuration.ConfigurationError: unknown key 'layer': did you mean 'layers'?
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, Mapping) and info.context is not KEPT:
            known = _keys_of(cls)
            for key in data:
                if key not in known:
                    raise PydanticCustomError("unknown_key", "{text}", {"text": _refused_key(str(key), known)})
        return data


_SEARCH: Final = "batch_size_mode=tuner searches for the largest batch, fixed takes batch_size"
_NO_TRIALS: Final = "leave it out: the search of batch_size_mode ends by itself"
# Keys of earlier programs -> what is said here instead, where the nearest name would be another thing.
FORMER_KEYS: Final = {
    "optimize_batch_size": _SEARCH,
    "memory_estimation": "give batch_size_mode, as batch_size_mode=trial",
    "graph_memory_safety_factor": "give safety_factor",
    "target_utilization": "give safety_factor",
    "use_adaptive_batch_size_factor": "safety_factor takes one value, or one per dataset",
    "max_batch_size_trials": _NO_TRIALS,
    "max_trials": _NO_TRIALS,
    "steps_per_trial": _NO_TRIALS,
    "min_batch_size": _NO_TRIALS,
    "max_batch_size": _NO_TRIALS,
    "init_val": _NO_TRIALS,
    "use_cugraph": "leave it out: on a GPU attention has a kernel of its own",
    "num_workers": "leave it out: a stage gathers its batches itself, without worker processes",
    "epochs": "give max_epochs",
    "lr": "give training.learning_rate",
    "accumulation_steps": "give accumulate",
    "accumulate_grad_batches": "give accumulate",
    "gradient_clip_val": "give gradient_clip",
    "hidden_channels": "give hidden",
    "num_interactions": "give interactions",
    "num_rbf_centers": "give num_distances",
}


def unknown_key_text(key: str, known: Sequence[str]) -> str:
    """Say that a key is unknown and which one was probably meant."""
    hint = suggest(key, known, f"known keys: {', '.join(sorted(known))}")
    return f"unknown key {key!r}: {hint}"


def _refused_key(key: str, known: Sequence[str]) -> str:
    """Say the same of a key of the configuration, or what has come in its place."""
    former = FORMER_KEYS.get(key.lower())
    return f"unknown key {key!r}: {former}" if former else unknown_key_text(key, known)


def validate_config(model: type[M], data: Mapping[str, Any]) -> M:
    """Make a model from plain data; ConfigurationError lists every wrong key with its value."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigurationError(describe_validation_error(error)) from error


def describe_validation_error(error: ValidationError) -> str:
    """Turn pydantic's report into one line per mistake: dotted key, value, reason."""
    lines = []
    details = error.errors(include_url=False)
    places = [detail["loc"] for detail in details]
    for detail in details:
        if any(len(place) > len(detail["loc"]) and place[: len(detail["loc"])] == detail["loc"] for place in places):
            continue  # said of a list or section because of an item that has a line of its own
        key = ".".join(str(part) for part in detail["loc"] if part != KEY)
        if KEY in detail["loc"]:  # the place ends with the key itself
            lines.append(f"{key}: {_with_reason('the key', _shortened(detail['input']), detail)}")
        elif detail["type"] == "unknown_key":
            lines.append(f"{key + ': ' if key else ''}{detail['msg']}")
        elif detail["type"] == "missing":
            lines.append(f"{key}: required, but not given")
        elif detail["type"] == "value_error" and isinstance(detail["input"], Mapping):
            # A check of keys beside each other names them itself; the whole section would bury what it says.
            lines.append(f"{key + ': ' if key else ''}{detail['msg'].removeprefix('Value error, ')}")
        else:
            lines.append(_with_reason(key, _shortened(detail["input"]), detail))
    return "; ".join(lines)


def _shortened(value: Any) -> str:
    """Write a value as it was given; of a whole section or a long text so much that it is recognised."""
    written = repr(value)
    return written if len(written) <= MAX_SHOWN else f"{written[:MAX_SHOWN]}..."


_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = (  # tag, what is so, and its first characters: the core schema of YAML 1.2, less numbers as 010
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


class _PlainLoader(yaml.SafeLoader):
    """Read YAML as people mean it; a key that stands twice is an error, for the first would be lost without a word.

    YAML 1.1 makes 64 of 0100, False of `no`, 57600 of 16:00:00, and a date of 2026-11-25. Here these stay text, and the
    field says what they are: one of numbers takes 0100 for 100, one of text keeps it. Keys are what is written.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {"<": [(_TAG + "merge", re.compile("<<"))]}

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Look at the keys before others are merged into them; a node that is merged into several comes here again."""
        lines: dict[str, int] = {}
        own = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge"]
        for key in () if hasattr(node, "is_read") else own:
            key.tag, line = _TAG + "str", key.start_mark.line + 1
            if key.value in lines:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} stands twice, in lines {lines[key.value]} and {line}: remove one"
                )
            lines[key.value] = line
        vars(node)["is_read"] = True
        super().flatten_mapping(node)


class _PlainDumper(yaml.SafeDumper):
    """Write YAML that both this and other readers take for the same: text that looks like a number has quotes."""


for _kind, _pattern, _first in _PLAIN:
    for _class in (_PlainLoader, _PlainDumper):
        _class.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), _first)


def read_yaml(text: str) -> Any:
    """Parse YAML, in which numbers, true, false and null are as in YAML 1.2; raises `yaml.YAMLError`."""
    return yaml.load(text, Loader=_PlainLoader)  # a subclass of the safe loader


def write_yaml(value: Any, **options: Any) -> str:
    """Write plain data as YAML that `read_yaml` reads back the same; options are those of `yaml.dump`."""
    text: str = yaml.dump(value, Dumper=_PlainDumper, allow_unicode=True, **options)
    return text


def describe_yaml_error(error: yaml.YAMLError) -> str:
    """Say in one line what is no YAML, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or error
    reason = " ".join(str(problem).split())
    return reason if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {reason}; mend it there"


_WRITE: Final = {  # by pydantic's type of a mistake: its own words are for people who write Python
    "int": "write a whole number",
    "float": "write a number",
    "finite_number": "write a finite number",
    "bool": "write true or false",
    "string": "write text, in quotes where it looks like a number",
    "list": "write a list, as [a, b]",
    "tuple": "write a list, as [a, b]",
    "dict": "write keys with values, as {{key: value}}",
    "model": "write keys with values, as {{key: value}}",
    "literal_error": "choose {expected}",
    "greater_than": "write more than {gt}",
    "greater_than_equal": "write {ge} or more",
    "less_than": "write less than {lt}",
    "less_than_equal": "write {le} or less",
}


def _reason_of(detail: Any) -> str:
    kind = detail["type"]
    fix = _WRITE.get(kind) or _WRITE.get(re.sub("_(type|parsing|parsing_size|from_float)$", "", kind))
    return detail["msg"].removeprefix("Value error, ") if fix is None else fix.format_map(detail.get("ctx", {}))


def _with_reason(key: str, written: str, detail: Any) -> str:
    """Write `key=value: reason`, without pydantic's words, and once if a check of ours begins with `key=value` too."""
    reason = _reason_of(detail)
    own = f"{key.rpartition('.')[2]}={detail['input']!r} "
    return f"{key}={written} {reason.removeprefix(own)}" if reason.startswith(own) else f"{key}={written}: {reason}"


def load_preset(package: str, name: str) -> dict[str, Any]:
    """Read `<name>.yaml` from the `presets` folder of a package (or from the package itself)."""
    folder = resources.files(package)
    if (folder / "presets").is_dir():
        folder = folder / "presets"
    names = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    if name not in names:
        raise ConfigurationError(f"preset {name!r} is unknown in {package}: choose one of {', '.join(names) or 'none'}")
    content = read_yaml((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigurationError(f"preset {name!r} in {package} is not a mapping of keys to values")
    return content


def apply_overrides(config: M, overrides: Sequence[str]) -> M:
    """Return a copy of `config` with `dotted.key=value` applied, each value typed by its field.

    Raises:
        ConfigurationError: naming key, value, expected type and fix.
    """
    data = config.model_dump()
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise ConfigurationError(
                f"override {override!r} has no key=value form: write for instance training.max_epochs=2"
            )
        _set(data, type(config), key.strip().split("."), text.strip())
    return validate_config(type(config), data)


def _set(data: dict[str, Any], model: type[BaseModel], path: list[str], text: str) -> None:
    """Set one value inside nested plain data, walking the models beside it."""
    where: Any = data
    annotation: Any = model
    for depth, part in enumerate(path):
        dotted = ".".join(path[: depth + 1])
        while typing.get_origin(annotation) is typing.Annotated:  # constraints on the whole are checked at the end
            annotation = typing.get_args(annotation)[0]
        inner = model_in(annotation)
        if inner is not None:
            known = _keys_of(inner)
            if part not in known:
                raise ConfigurationError(f"override {'.'.join(path)}={text}: {_refused_key(part, known)}")
            part, annotation = _field_type(inner, part)
        elif typing.get_origin(annotation) in (dict, Mapping) or annotation is dict:
            annotation = (*typing.get_args(annotation), Any, Any)[1]
        elif annotation is not Any:
            raise _no_keys(path, depth, text, type_name(annotation), where)
        if depth == len(path) - 1:
            where[part] = _typed(dotted, text, annotation)
            return
        if where.get(part) is None:
            where[part] = {}
        where = where[part]
        if not isinstance(where, dict):
            raise _no_keys(path, depth + 1, text, repr(where), where)


def _no_keys(path: Sequence[str], depth: int, text: str, kind: str, value: Any) -> ConfigurationError:
    whole = ".".join(path[:depth])
    fix = f"; give the whole of it: {whole}={json.dumps(value, default=str)}" if isinstance(value, list | tuple) else ""
    return ConfigurationError(f"override {'.'.join(path)}={text}: {whole} is {kind} and has no keys{fix}")


def _typed(key: str, text: str, annotation: Any) -> Any:
    """Read `text` as YAML and, if the field refuses that, as it stands (`name=123` for a text field)."""
    try:
        parsed = read_yaml(text)
    except yaml.YAMLError:
        parsed = text
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    details: list[Any] = []
    for candidate in (parsed, text):
        try:
            adapter.validate_python(candidate)
        except ValidationError as error:
            details = details or list(error.errors(include_url=False))
            continue
        return candidate
    if details[0]["type"] == "value_error":  # from a check of ours, which names value and fix
        raise ConfigurationError(f"override {_with_reason(key, text, details[0])}")
    expected = type_name(annotation)
    wanted = " or ".join(dict.fromkeys(map(_reason_of, details)))
    if expected.startswith(("[", "{")):
        wanted = f"{wanted}, as {expected}" if details[0]["loc"] else f"write {expected}"
    elif expected.endswith("or null"):
        wanted += " or null"
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    raise ConfigurationError(f"override {key}={shown}: {wanted}")


def type_name(annotation: Any) -> str:
    """Write a type as a person would: `int`, `float or null`, `one of 'a', 'b'`, `[<int>, ...]`."""
    if annotation is type(None):
        return "null"
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(part) for part in typing.get_args(annotation))
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(value) for value in typing.get_args(annotation))
    if origin is typing.Annotated:
        return type_name(typing.get_args(annotation)[0])
    parts = [part for part in typing.get_args(annotation) if part is not Ellipsis]
    if origin in (tuple, list, Sequence) and parts:
        names = [f"<{type_name(part)}>" for part in parts]
        return f"[{', '.join(names if len(names) > 1 else [*names, '...'])}]"
    if origin in (dict, Mapping) and len(parts) == 2:
        return f"{{<{type_name(parts[0])}>: <{type_name(parts[1])}>, ...}}"
    if origin is not None:
        return str(annotation).replace("typing.", "")
    return getattr(annotation, "__name__", str(annotation))


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [*model.model_fields, *(field.alias for field in model.model_fields.values() if field.alias)]


def _field_type(model: type[BaseModel], key: str) -> tuple[str, Any]:
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            # Constraints (ge=0, ...) live in the metadata: without them a bad value would only be met later.
            annotation: Any = field.annotation
            for constraint in field.metadata:
                annotation = typing.Annotated[annotation, constraint]
            return name, annotation
    raise AssertionError(key)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the one model that an annotation is or optionally holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        found = [model for part in typing.get_args(annotation) if (model := model_in(part)) is not None]
        return found[0] if len(found) == 1 else None
    return None


def execution_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """List the dotted keys of a model that are marked `ExecutionOnly`, at any depth; `*` stands for the items of one.

    They are no part of a stage's identity: a finished stage stays finished when one of them changes.
    """
    found: list[str] = []
    for name, field in model.model_fields.items():
        if any(mark is ExecutionOnly or isinstance(mark, ExecutionOnly) for mark in field.metadata):
            found.append(name)
            continue
        inner = model_in(field.annotation)
        if inner is not None:
            found += [f"{name}.{key}" for key in execution_keys(inner)]
        elif typing.get_origin(field.annotation) in (tuple, list, dict):
            models = [item for part in typing.get_args(field.annotation) if (item := model_in(part)) is not None]
            found += [f"{name}.*.{key}" for item in models for key in execution_keys(item)]
    return tuple(found)


def without_keys(data: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a copy of nested plain data without these dotted keys; `*` stands for every item of a list or mapping."""
    left = dict(data)
    heads: dict[str, list[str]] = {}
    for key in keys:
        head, _, rest = key.partition(".")
        heads.setdefault(head, []).append(rest)
    for head, rests in heads.items():
        for name in list(left) if head == "*" else [head] if head in left else []:
            if "" in rests:
                del left[name]
            elif isinstance(left[name], Mapping):
                left[name] = without_keys(left[name], rests)
            elif isinstance(left[name], Sequence) and not isinstance(left[name], str):
                items = without_keys({str(place): item for place, item in enumerate(left[name])}, rests)
                left[name] = list(items.values())
    return left


def numbers_of(data: Any, key: str) -> list[int]:
    """List the values of a key at any depth of plain data, but for null: a stage may train several models.

    >>> numbers_of({"fits": [{"training": {"num_ranks": 2}}, {"training": {"num_ranks": None}}]}, "num_ranks")
    [2]
    """
    return [int(value) for value in values_of(data, key)]


def values_of(data: Any, key: str) -> list[Any]:
    """List the values of a key at any depth of plain data, but for null."""
    if isinstance(data, Mapping):
        own = [data[key]] if data.get(key) is not None else []
        return own + [value for item in data.values() for value in values_of(item, key)]
    return [value for item in data for value in values_of(item, key)] if isinstance(data, list | tuple) else []
