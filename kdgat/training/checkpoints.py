"""Checkpoints that survive a kill at any moment: written aside, hashed, renamed; the last two are kept."""

import hashlib
import io
import logging
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch

from kdgat.base import UserError, sha256_of_file, write_bytes_atomically
from kdgat.base.files import list_folder, remove_temporary_files
from kdgat.base.kept import refuse_newer
from kdgat.stage import RunDirectory

logger = logging.getLogger(__name__)

CHECKPOINT_PATTERN = re.compile(r"checkpoint-(\d{8})\.pt")
NUM_KEPT = 2
SET_ASIDE = ".damaged"
ARRAY_KEY = "__numpy__"


class CheckpointError(UserError):
    """A checkpoint cannot be written or does not fit what wants to resume from it."""


class Checkpoints:
    """The numbered checkpoints of one fit; a number is never used twice."""

    def __init__(self, directory: RunDirectory, name: str = "") -> None:
        self.directory = directory
        self.path = directory.checkpoints_path / name if name else directory.checkpoints_path

    def write(self, state: Mapping[str, Any]) -> Path:
        """Write `state` as the newest checkpoint and drop all but the last two.

        Raises:
            OwnerLostError: if another process took the run directory over meanwhile.
            CheckpointError: if the state holds something that `torch.load(weights_only=True)` would refuse.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        buffer = io.BytesIO()
        torch.save(portable(dict(state)), buffer)
        data = buffer.getbuffer()
        numbers = self._numbers()
        target = self._file(numbers[-1] + 1 if numbers else 1)
        # The hash comes first: whoever finds the checkpoint under its name also finds what to verify it with.
        write_bytes_atomically(_hash_path(target), (hashlib.sha256(data).hexdigest() + "\n").encode())
        write_bytes_atomically(target, data, before_rename=self.directory.check_owner)
        for number in numbers[: max(len(numbers) + 1 - NUM_KEPT, 0)]:
            self._file(number).unlink(missing_ok=True)
            _hash_path(self._file(number)).unlink(missing_ok=True)
        return target

    def load_newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest undamaged checkpoint, None before the first was written; damaged newer ones are set aside.

        Raises:
            CheckpointError: if there are checkpoints and none can be read: weeks of work start again only when asked;
                or if a newer kdgat has written the newest one.
        """
        damaged: dict[Path, str] = {}
        for number in reversed(self._numbers()):
            path = self._file(number)
            problem = _damage(path)
            if problem is None:
                for one, why in damaged.items():
                    logger.warning("checkpoint %s is damaged (%s): going back to the one before", one.name, why)
                    self.directory.check_owner()
                    with suppress(FileNotFoundError):
                        one.replace(one.with_suffix(SET_ASIDE))
                state = restored(torch.load(path, map_location="cpu", weights_only=True))
                refuse_newer(state, path, CheckpointError)
                return path, state
            damaged[path] = problem
        found = damaged | {path: "set aside as damaged" for path in list_folder(self.path, f"*{SET_ASIDE}")}
        if found:
            raise CheckpointError(
                f"no checkpoint in {self.path} can be resumed from "
                f"({'; '.join(f'{path.name}: {why}' for path, why in found.items())}): put a good copy in their place, "
                "or remove that folder to train from the start"
            )
        return None

    def _numbers(self) -> list[int]:
        if not self.path.is_dir():
            return []
        found = (CHECKPOINT_PATTERN.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _file(self, number: int) -> Path:
        return self.path / f"checkpoint-{number:08d}.pt"

    def _remove_leftovers(self) -> None:
        """Remove what a killed writer left: temporary files, and hashes whose checkpoint was never renamed."""
        remove_temporary_files(self.path)
        for entry in self.path.glob("*.pt.sha256"):
            if not entry.with_suffix("").exists():
                entry.unlink(missing_ok=True)


def _hash_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _damage(path: Path) -> str | None:
    """State what is wrong with a checkpoint file, None if nothing is."""
    try:
        expected = _hash_path(path).read_bytes().strip().decode("ascii", "replace")
    except FileNotFoundError:
        expected = ""
    try:
        if expected:
            return None if sha256_of_file(path) == expected else "its sha256 differs"
        with ZipFile(path) as archive:  # copied back without its hash: torch has noted a checksum of each part inside
            if (bad := archive.testzip()) is not None:
                return f"its sha256 file is missing or empty, and {bad} in it is damaged"
    except FileNotFoundError:
        return "it vanished"
    except (BadZipFile, EOFError, zlib.error) as error:
        return f"its sha256 file is missing or empty, and it is damaged: {error}"
    logger.warning("%s has no sha256 file, or an empty one; the checksums in it are right, so it is taken", path.name)
    return None


def portable(value: Any, key: str = "checkpoint") -> Any:
    """Replace numpy values by what `torch.load(weights_only=True)` accepts; CheckpointError names anything else."""
    if isinstance(value, np.ndarray):
        if value.dtype == object or value.dtype.kind in "USVMm":
            raise CheckpointError(f"{key} is a numpy array of {value.dtype}: keep numbers, or a list of plain values")
        return {ARRAY_KEY: torch.from_numpy(np.array(value, copy=True))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {name: portable(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(portable(item, f"{key}[{index}]") for index, item in enumerate(value))
    if isinstance(value, torch.Tensor):
        return value.detach()
    if value is None or type(value) in (bool, int, float, str, bytes):  # none derived from them, as an enumeration is
        return value
    raise CheckpointError(f"{key} is a {type(value).__name__}: keep tensors, numpy arrays and plain Python values only")


def restored(value: Any) -> Any:
    """Undo `portable`."""
    if isinstance(value, dict):
        return (
            value[ARRAY_KEY].numpy() if ARRAY_KEY in value else {name: restored(item) for name, item in value.items()}
        )
    if isinstance(value, (list, tuple)):
        return type(value)(restored(item) for item in value)
    return value
