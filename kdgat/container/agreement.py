"""Whether an image fits the kdgat that hands stages to it: other versions fail late, or compute something else.

The connection between flow and worker carries pickled calls: Python's minor version, dask, distributed, cloudpickle and
kdgat must be the same on both sides, and so must kdgat's source, which its version does not tell.

The SHA-256 of an image, and what was once found in it, is kept beside it, or in the user's cache where that folder is
read-only: an image has gigabytes, and a run asks before each attempt. It holds as long as size, modification time and
inode of the image do.
"""

import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from kdgat.base import UserError, sha256_of_file, write_bytes_atomically
from kdgat.base.kept import read_kept
from kdgat.container import ImageError, probe
from kdgat.container.apptainer import command_environment, find_apptainer
from kdgat.container.checkout import Checkout
from kdgat.container.layout import cache_folder, without_personal_settings
from kdgat.container.variants import PYTHON_MINOR

PROBE_TIMEOUT_S: Final = 180.0  # a cold image on a network filesystem
_NEEDED: Final = ("dask", "distributed", "cloudpickle", "kdgat")
_WHERE_BOTH_HAVE_IT: Final = ("prefect",)  # no worker needs it
_SHOWN_DIGITS: Final = 12

_BUILD_AGAIN: Final = (
    "build the image again from this kdgat (kdgat image build), or run the kdgat that it was built from"
)
_SAME_PACKAGES: Final = (
    "bring both to the versions of constraints.txt: make install for this machine, kdgat image build for the image"
)
_THIS_PYTHON: Final = (
    f"images have Python {PYTHON_MINOR}: run kdgat from it (make install PYTHON=python{PYTHON_MINOR}; the environment "
    "in .venv must be removed before)"
)
_NOTED_AGAIN: Final = "pip notes the version when it installs, and the source is newer: pip install --editable . again"
NOTES_SUFFIX: Final = ".kdgat.json"
_TORCH: Final = "torch"  # what the probe is asked for, and where the notes have it
_STATE_FIELDS: Final = ("size", "mtime_ns", "inode")


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


class Difference(NamedTuple):
    """What differs, with both sides, and what a user does about it."""

    text: str
    fix: str


def check_agreement(image: Path | str, python: str = "python") -> ImageNotes:
    """Refuse an image whose Python, packages or kdgat are not those of this process; return what is known of it.

    The image is asked once for each state of its file; this side is looked at every time.

    Args:
        image: path of a `.sif` file.
        python: the interpreter in it that is to run stages.

    Raises:
        ImageError: if the image cannot be read or run.
        ImageError: naming every difference with both sides, and the fix.
    """
    notes = image_notes(image)
    inside = notes.contents.get(python, {})
    if not describe_here().keys() <= inside.keys():  # noted by a kdgat that asked for less
        inside = {**inside, **describe_image(image, python)}
        notes = notes.model_copy(update={"contents": {**notes.contents, python: inside}})
        keep_notes(image, notes)
    differences = find_differences(describe_here(), inside)
    if differences:
        texts = "; ".join(difference.text for difference in differences)
        fixes = "; ".join(dict.fromkeys(difference.fix for difference in differences))
        raise ImageError(f"image {image} does not fit the kdgat that runs this command: {texts}. Fix: {fixes}")
    return notes


def torch_of_image(image: Path | str, python: str = "python") -> dict[str, Any]:
    """Return what the torch of an image is built for (`probe.describe_torch`); asked once for each state of its file.

    Raises:
        ImageError: as `check_agreement`.
    """
    notes = image_notes(image)
    inside = notes.contents.get(python, {})
    if _TORCH not in inside:  # no kdgat asked yet, or an older one
        inside = {**inside, _TORCH: describe_image(image, python, _TORCH)}
        keep_notes(image, notes.model_copy(update={"contents": {**notes.contents, python: inside}}))
    return dict(inside[_TORCH])


def check_named_image(
    name: str, python: str = "python", log: Callable[[str], None] = lambda line: None
) -> ImageNotes | None:
    """Check the image that a site file names; where it cannot be found from this machine, say so and return None.

    Args:
        name: path of a `.sif` file; variables in it are those of the node, and may differ here or be unknown.
        python: the interpreter in it, in which variables may stand, too.
        log: gets the sentence that nothing was checked.

    Raises:
        ImageError: as `check_agreement`.
    """
    path = find_image(name)
    if path is None:
        log(
            f"image {name} is not checked against this kdgat, and its digest is not known: it cannot be found from "
            "this machine. If it is another kdgat's, stages fail or differ; give a path that this machine sees, too"
        )
        return None
    return check_agreement(path, os.path.expandvars(python))


def find_image(name: str) -> Path | None:
    """Return the file that a site's `image` means on this machine; None where only a node, or a registry, has it."""
    if "://" in name:
        return None
    path = Path(os.path.expandvars(name))
    if "$" in name and ("$" in str(path) or not path.is_file()):
        return None
    return path.absolute()


def describe_here() -> dict[str, str | None]:
    """Describe Python, packages and kdgat of this process."""
    return dict(_describe_once())


def describe_image(image: Path | str, python: str = "python", *words: str) -> dict[str, Any]:
    """Ask the Python of an image what it has; `words` as of `probe`.

    Raises:
        ImageError: if Apptainer is missing, or the image does not run.
    """
    source = Path(probe.__file__).read_text(encoding="utf-8")
    alone = ["--no-mount", "home,cwd", "--pwd", "/"]
    arguments = [str(find_apptainer()), "exec", *alone, str(image), python, "-I", "-c", source, *words]
    try:
        environment = without_personal_settings(command_environment())
        done = subprocess.run(
            arguments, env=environment, capture_output=True, errors="replace", timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageError(f"image {image} cannot be looked into: {error}") from error
    lines = done.stdout.splitlines()
    try:
        found = json.loads(lines[-1] if lines else "")
    except json.JSONDecodeError:
        output = " | ".join(f"{done.stderr}{done.stdout}".strip().splitlines()[-5:])
        status = f"exit status {done.returncode}"
        raise ImageError(f"image {image}: {python} does not run in it ({status}): {output}") from None
    return dict(found)


def find_differences(here: Mapping[str, Any], inside: Mapping[str, Any]) -> list[Difference]:
    """List what differs in a way that a run would suffer from, each with both sides and the fix."""
    found = []
    if _minor(here["python"]) != _minor(inside.get("python")):
        fix = _BUILD_AGAIN if _minor(here["python"]) == PYTHON_MINOR else _THIS_PYTHON
        found.append(Difference(f"Python {_version(inside.get('python'))} in the image, {here['python']} here", fix))
    packages = [name for name in _NEEDED if here[name] != inside.get(name)]
    packages += [name for name in _WHERE_BOTH_HAVE_IT if here[name] and inside.get(name) not in (None, here[name])]
    for name in packages:
        fix = _SAME_PACKAGES
        if name == "kdgat":
            fix = _NOTED_AGAIN if _is_noted_wrongly(here) else _BUILD_AGAIN
        text = f"{name} {_version(inside.get(name))} in the image, {_version(here[name])} here"
        found.append(Difference(text, fix))
    if inside.get("kdgat") is not None and here["source"] != inside.get("source"):
        digests = f"{_short(inside.get('source'))} in the image, {_short(here['source'])} here"
        found.append(Difference(f"source of kdgat {digests} ({here['location']})", _BUILD_AGAIN))
    return found


def _is_noted_wrongly(here: Mapping[str, Any]) -> bool:
    """Return whether this kdgat is a checkout of another version than pip has noted."""
    checkout = Checkout(Path(here["location"] or os.devnull).parent)
    return (checkout.root / "pyproject.toml").is_file() and checkout.version != here["kdgat"]


@functools.cache
def _describe_once() -> tuple[tuple[str, str | None], ...]:
    """Look once: what this process has imported stays what it was, whatever changes on the disk meanwhile."""
    return tuple(probe.describe_environment().items())


def _minor(version: str | None) -> str:
    return ".".join((version or "").split(".")[:2])


def _version(version: str | None) -> str:
    return version or "is missing"


def _short(digest: str | None) -> str:
    return digest[:_SHOWN_DIGITS] if digest else "is missing"


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
        if kept is not None and all(getattr(kept, name) == state[name] for name in _STATE_FIELDS):
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
        return read_kept(ImageNotes, place.read_bytes(), place, "the image is asked again")
    except (OSError, UserError):  # none yet, or of another version
        return None
