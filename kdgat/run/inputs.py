"""The inputs of a stage, where its process finds them."""

from pathlib import Path

from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import StageInputError
from kdgat.stage.spec import StageSpec


def input_path(spec: StageSpec, directory: RunDirectory, name: str) -> Path:
    """Return the file of an input; StageInputError if the spec does not name it."""
    if name not in spec.inputs:
        known = ", ".join(sorted(spec.inputs)) or "none"
        raise StageInputError(f"stage {spec.stage!r} needs an input {name!r} (the spec has: {known}): plan it again")
    return spec.inputs[name].resolve(directory.path)
