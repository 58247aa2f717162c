"""Files that are kept on disk, and read by a kdgat of another version, too.

A file says its schema under `schema_version`; one that does not is of schema 1. A schema may get further keys, which
who does not know them ignores. What an older kdgat would misread, as another value of a closed list, is another schema.
"""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from kdgat.base.configuration import KEPT, describe_validation_error
from kdgat.base.errors import UserError

SCHEMA_KEY: Final = "schema_version"
T = TypeVar("T")
MakeError = Callable[[str], Exception]


def refuse_newer(
    content: object, place: object, error: MakeError = UserError, *, known: int = 1, key: str = SCHEMA_KEY
) -> None:
    """Raise `error` for what a newer kdgat has written into a file, told by its schema.

    Args:
        content: of the file, as plain data; what is no mapping says nothing.
        place: the file.
        error: takes the sentence.
        known: the newest schema that is known here.
        key: of the schema.
    """
    version = content.get(key) if isinstance(content, Mapping) else None
    if isinstance(version, Real) and (version if isinstance(version, int) else float(version)) > known:
        raise error(
            f"{place} was written by a newer kdgat ({key} is {version}, this one reads up to {known}): update kdgat"
        )


def read_kept(
    kind: type[T] | TypeAdapter[T],
    data: object,
    place: object,
    advice: str,
    error: MakeError = UserError,
    *,
    key: str = SCHEMA_KEY,
) -> T:
    """Return what a file has, as a model of pydantic.

    Keys that are not known are ignored; a model with `extra="allow"`, of a file that is written again, keeps them.

    Args:
        kind: the model, or what reads one of several; the default of its field `key` is the schema that is known.
        data: the file's JSON as text or bytes, or what was read from it.
        place: the file, for errors.
        advice: what to do about a damaged file.
        error: takes the sentence.
        key: of the schema.

    Raises:
        Exception: `error`, for a file that is damaged, or of another version.
    """
    try:
        content = from_json(data) if isinstance(data, str | bytes) else data
    except ValueError as problem:
        raise error(f"{place} is damaged ({problem}): {advice}") from problem
    field = getattr(kind, "model_fields", {}).get(key)
    refuse_newer(content, place, error, known=field.default if field is not None else 1, key=key)
    keeps = getattr(kind, "model_config", {}).get("extra") == "allow"
    adapter: TypeAdapter[Any] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        found: T = adapter.validate_python(content, extra=None if keeps else "ignore", context=KEPT)
    except ValidationError as problem:
        what = f"{place} is not what this kdgat writes ({describe_validation_error(problem)})"
        # Of a whole file nobody knows whether it is damaged.
        raise error(f"{what}: if another version wrote it, use that one; else {advice}") from problem
    return found
