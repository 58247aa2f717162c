"""What a stage is asked to do: the content of `spec.json`."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kdgat.base.configuration import without_keys
from kdgat.base.files import is_gone, not_answered
from kdgat.base.hashes import KnownHashes, sha256_once
from kdgat.stage.errors import EnvironmentFaultError, StageInputError

SCHEMA_VERSION = 1
IDENTITY_DIGITS = 16


class StageInput(BaseModel):
    """One input file, known by its content: the path may change (scratch, another machine), the hash may not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def of_file(cls, path: Path, known: KnownHashes | None = None) -> "StageInput":
        """Describe an existing file, whose hash may be known already."""
        path = Path(path)
        if not path.is_file():
            if not path.exists() and not is_gone(path):
                raise not_answered(path)
            raise StageInputError(f"input {path} is not a file: run the stage that writes it first")
        sha256 = known.find(path) if known is not None else None
        return cls(path=str(path.absolute()), sha256=sha256 or sha256_once(path))

    def resolve(self, base: Path) -> Path:
        """Return the path, relative ones being relative to `base` (the run directory)."""
        return Path(base) / self.path

    def verify(self, base: Path, known: KnownHashes) -> Path:
        """Return the path after checking that the file is there and has this hash.

        A file that was verified before, as `known` has it, and has not changed since, is not read again.

        Raises:
            StageInputError: if the file is missing or its content differs.
            EnvironmentFaultError, OSError: if the filesystem that it lies on is not mounted on this machine, or does
                not answer.
        """
        path = self.resolve(base)
        if not path.is_file():
            if (mount_point := _empty_folder_above(path)) is not None:
                raise EnvironmentFaultError(
                    f"input {path} is not there, because {mount_point} is empty: its filesystem is not mounted here"
                )
            if not path.exists() and not is_gone(path):
                raise not_answered(path)
            raise StageInputError(
                f"input {path} does not exist: run the stage that writes it, or correct inputs.*.path"
            )
        found = known.sha256(path)
        if found != self.sha256:
            raise StageInputError(
                f"input {path} has sha256 {found[:16]}..., the spec was made for {self.sha256[:16]}...: "
                "the file was rewritten since; plan the stage again to get a new run directory"
            )
        return path


def _empty_folder_above(path: Path) -> Path | None:
    """Return the folder in which a path's folders are missing, if it is empty: a mount point without its mount."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    is_empty = folder != path.absolute().parent and folder.is_dir() and not any(folder.iterdir())
    return folder if is_empty else None


class StageSpec(BaseModel):
    """Everything that determines the result of a stage.

    >>> spec = StageSpec(family="can", stage="normal", seed=0, config={"layers": 2})
    >>> spec.directory_name().rpartition("-")[0]
    'normal-large-seed0'
    >>> spec.identity() == spec.model_copy(update={"execution": {"threads": 8}}).identity()
    True
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")  # else NaN becomes null

    schema_version: int = SCHEMA_VERSION
    family: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    stage: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    scale: str = Field("large", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")  # in the name of the run directory
    seed: int
    config: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, StageInput] = Field(default_factory=dict)
    reads: tuple[str, ...] = ()  # absolute paths of what is read beside the inputs; no part of the identity
    execution: dict[str, Any] = Field(default_factory=dict)  # how, not what: changes no result, no part of the identity
    execution_keys: tuple[str, ...] = ()  # dotted keys of `config` of which the same holds; * stands for any item
    code_version: int = Field(1, ge=1)  # of the stage kind: raised by hand when what it computes changes

    def movable(self, directory: Path, root: Path) -> "StageSpec":
        """Return the spec for run directory `directory` with inputs below `root` named relative to it.

        All of `root` can then be copied or moved, and its stages run where it lies.
        """
        inputs = {
            name: source.model_copy(update={"path": os.path.relpath(source.path, directory)})
            if Path(source.path).is_relative_to(root)
            else source
            for name, source in self.inputs.items()
        }
        return self.model_copy(update={"inputs": inputs})

    def identity(self) -> str:
        """Hash the spec without paths and without how it is executed: 16 hex digits that name its run directory."""
        content = self.model_dump(mode="json", exclude={"reads", "execution", "execution_keys"})
        content["config"] = without_keys(self.config, self.execution_keys)
        content["inputs"] = {name: source.sha256 for name, source in self.inputs.items()}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:IDENTITY_DIGITS]

    def directory_name(self) -> str:
        """Name the run directory: stage, scale, seed and the first half of the identity."""
        return f"{self.stage}-{self.scale}-seed{self.seed}-{self.identity()[:8]}"
