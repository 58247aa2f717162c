"""results.json of any family: a model with a version, written atomically, read with errors that name file and fix."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from kdgat.base import Config, write_bytes_atomically
from kdgat.base.kept import read_kept
from kdgat.run.directory import RunError
from kdgat.run.measure import Measure
from kdgat.stage.provenance import git_state

Finite = Annotated[float, Field(allow_inf_nan=False)]
Value = Finite | None
Count = Annotated[int, Field(ge=0)]


class Versioned(Config):
    """A file of results with a version; what reads it refuses a newer one."""

    fix: ClassVar[str] = "run the training command with this --out to its end"

    schema_version: int = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; RunError says what is wrong with it, and the fix."""
        if not path.is_file():
            raise RunError(f"{path} does not exist: {cls.fix}")
        return read_kept(cls, path.read_bytes(), path, cls.fix, RunError)

    def write(self, path: Path) -> None:
        """Write the file atomically, a list of numbers on one line."""
        # Validated again: model_construct or model_copy could have brought NaN past the models, and JSON has no NaN.
        checked = type(self).model_validate(self.model_dump(mode="json"))
        text = json.dumps(checked.model_dump(mode="json"), indent=2, allow_nan=False)
        # A curve on one line instead of 400; a line break within brackets is never part of a JSON string.
        compact = re.sub(r"\[\n[^\[\]{}\"]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text)
        write_bytes_atomically(path, (compact + "\n").encode())

    @classmethod
    def schema_of_file(cls) -> dict[str, Any]:
        """Return the JSON schema of the file."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **cls.model_json_schema(mode="serialization"),
        }

    @classmethod
    def print_schema(cls) -> None:
        """Print the JSON schema of the file."""
        print(json.dumps(cls.schema_of_file(), indent=2))


class RunResults(Versioned):
    """What the results of every family say of where they come from; `origin` fills it."""

    family: str
    created: str = Field(description="ISO 8601 with time zone")
    preset: str | None = None
    revision: str | None = Field(default=None, description="git revision of the code, if known")
    seeds: list[int]

    def measures(self) -> Sequence[Measure]:
        """Return the numbers that runs are compared by, the most important first; here none."""
        return ()


def origin(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `created`, `preset` and `revision` of results that are made now, of a run with this configuration."""
    state = git_state(Path(__file__).parent)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "preset": config.get("preset"),
        "revision": None if state is None else f"{state['revision']}{' with changes' if state['dirty'] else ''}",
    }
