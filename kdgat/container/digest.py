"""The SHA-256 of an image, and what was once found in it: an image has gigabytes, and a run asks before each attempt.

It is kept beside the image, or in the user's cache where that folder is read-only, and holds as long as size,
modification time and inode of the image do.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kdgat.base.files import sha256_of_file, write_bytes_atomically
from kdgat.container.errors import ImageError
from kdgat.container.layout import cache_folder

NOTES_SUFFIX: Final = ".kdgat.json"
_FIELDS: Final = ("size", "mtime_ns", "inode")


class ImageNotes(BaseModel):
    """What is known of one state of an image's file."""

    model_config = ConfigDict(extra="forbid")

    size: int  # bytes
    mtime_ns: int  # since the epoch
    inode: int
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    contents: dict[str, dict[str, Any]] = Field(default_factory=dict)  # by the Python in it that was asked

    @property
    def stamp(self) -> str:
        """Tell states of the file apart by what `stat -Lc %s:%Y` says of it on any machine."""
        return f"{self.size}:{self.mtime_ns // 1_000_000_000}"


def image_digest(path: Path | str) -> str:
    """Return the SHA-256 of an image as 64 hex digits, read from what was kept if the file has not changed since.

    Raises:
        ImageError: if there is no such file, it is a folder, or it changes while it is read.
    """
    return image_notes(path).sha256


def image_notes(path: Path | str) -> ImageNotes:
    """Return what is known of an image; its content is read where nothing is, or the file has changed.

    Raises:
        ImageError: as `image_digest`.
    """
    path = Path(path).absolute()
    state = _state(path)
    for place in _places(path):
        kept = _read(place)
        if kept is not None and all(getattr(kept, name) == state[name] for name in _FIELDS):
            return kept
    digest = sha256_of_file(path)
    if _state(path) != state:
        raise ImageError(f"image {path} changed while it was read: wait until it is built or copied, then repeat")
    notes = ImageNotes(**state, sha256=digest)
    keep_notes(path, notes)
    return notes


def keep_notes(path: Path | str, notes: ImageNotes) -> None:
    """Keep what is known of an image where the next process finds it; where nothing can be written, it is lost."""
    content = (notes.model_dump_json(indent=2) + "\n").encode()
    for place in _places(Path(path).absolute()):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_bytes_atomically(place, content)
        except OSError:  # a read-only folder, a full quota: the next place
            continue
        return


def _places(path: Path) -> list[Path]:
    """Return where notes are kept, the first one winning."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return [path.with_name(f".{path.name}{NOTES_SUFFIX}"), cache_folder("images") / f"{path.name}-{name}{NOTES_SUFFIX}"]


def _state(path: Path) -> dict[str, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise ImageError(
            f"image {path} is not there: build it (kdgat image build cpu, or gpu), or correct its path"
        ) from None
    if path.is_dir():
        raise ImageError(f"image {path} is a folder: a run needs one file that can be told from another; build .sif")
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}


def _read(place: Path) -> ImageNotes | None:
    try:
        return ImageNotes.model_validate(json.loads(place.read_bytes()))
    except (OSError, ValidationError, json.JSONDecodeError, UnicodeDecodeError):  # none yet, or of another version
        return None
