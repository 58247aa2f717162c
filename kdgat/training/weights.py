"""Weights for the next stage: one small safetensors file that carries its own configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from kdgat.base import UserError, write_bytes_atomically, write_json_atomically
from kdgat.base.kept import refuse_newer
from kdgat.base.text import describe_pickled
from kdgat.stage import RunDirectory, StageInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

# One metadata key: safetensors writes several in no fixed order, and equal weights shall be equal files.
METADATA_KEY = "kdgat"
SUFFIX = ".safetensors"
OF_THE_SAME_MODEL = "keep the configuration of that model, or start from scratch"


class WeightsError(UserError):
    """A weights file is missing, damaged or was not written by this package."""


def save_weights(
    directory: RunDirectory, model: nn.Module, config: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write `weights.safetensors` (with its configuration inside) and `model.json` (the same, to read).

    Args:
        directory: where.
        model: whose state_dict to write.
        config: plain data from which the model can be built again.
        metadata: what else is worth knowing: monitored metric, epoch.
    """
    from safetensors.torch import save  # imports torch, which a plan that reads a description does without

    description = {"config": dict(config), **dict(metadata or {})}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    directory.check_owner()
    write_bytes_atomically(
        directory.weights_path, save(tensors, {METADATA_KEY: json.dumps(description, sort_keys=True)})
    )
    write_json_atomically(directory.model_config_path, description)
    return directory.weights_path


def load_weights(path: Path | str | RunDirectory) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read (state_dict, config) from a run directory or a weights file.

    Raises:
        WeightsError: if there are no weights; a stage never starts from scratch without a word.
    """
    tensors, description = read_weights(path)
    return tensors, description["config"]


def read_weights(path: Path | str | RunDirectory) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read (state_dict, description), where the description holds `config` and what `save_weights` got as metadata."""
    description = read_description(path)
    with _opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, description  # noqa: SIM118 - not a dict


def read_arrays(path: Path | str | RunDirectory) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read (arrays by name, config) without torch; errors as in `load_weights`."""
    description = read_description(path)
    with _opened(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, description["config"]  # noqa: SIM118 - not a dict


def read_description(path: Path | str | RunDirectory) -> dict[str, Any]:
    """Read what a weights file says about itself, without torch; errors as in `load_weights`."""
    with _opened(path, "np") as file:
        text = (file.metadata() or {}).get(METADATA_KEY, "null")
    try:
        description = json.loads(text)
    except ValueError as error:
        raise WeightsError(f"{_file_of(path)} is damaged ({error}): run the stage that writes it again") from error
    if not isinstance(description, dict) or not isinstance(description.get("config"), dict):
        raise WeightsError(f"{_file_of(path)} was not written by kdgat: its header has no {METADATA_KEY!r} entry")
    refuse_newer(description, _file_of(path), WeightsError)
    return description


@contextmanager
def _opened(path: Path | str | RunDirectory, framework: str) -> Iterator[Any]:
    file_path = _file_of(path)
    if not file_path.is_file():
        raise WeightsError(f"{file_path} does not exist: run the stage that trains this model first")
    try:
        with safe_open(file_path, framework=framework) as file:
            yield file
    except SafetensorError as error:
        if file_path.suffix != SUFFIX:
            advice = f"name the --out of `kdgat train`, or a weights{SUFFIX} of one of its stages"
            problem = describe_pickled(file_path, advice) or f"is no file of weights: {advice}"
            raise WeightsError(f"{file_path} {problem}") from error
        raise WeightsError(f"{file_path} is damaged ({error}): run the stage that writes it again") from error


def _file_of(path: Path | str | RunDirectory) -> Path:
    path = path.path if isinstance(path, RunDirectory) else Path(path)
    return RunDirectory(path).weights_path if path.is_dir() else path


def first_difference(found: Any, expected: Any, name: str = "") -> str:
    """State where, by the dotted path below `name`, and how nested plain data differ; empty where they do not."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            dotted = f"{name}.{key}" if name else key
            if different := first_difference(found.get(key), expected.get(key), dotted):
                return different
        return ""
    return "" if found == expected else f"{name} is {expected} and was {found}"


def check_start(path: Path, found: Any, expected: Any, name: str = "", advice: str = OF_THE_SAME_MODEL) -> None:
    """Raise StageInputError, naming the key, where weights to start from are described otherwise than expected."""
    if different := first_difference(found, expected, name):
        raise StageInputError(f"{path} cannot be started from, {different}: {advice}")
