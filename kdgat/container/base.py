"""What an image is built upon: a file on this machine, or an image of a registry, named so that it cannot change."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.base.files import sha256_of_file
from kdgat.container.apptainer import check_image
from kdgat.container.errors import ImageError

_ARGUMENT: Final = re.compile(r"^\s*BASE=(\S+)$", re.MULTILINE)
_DIGEST: Final = re.compile(r"@(sha256:[0-9a-f]{64})$")
_FILE_IN_CONTEXT: Final = "base.sif"


@dataclass(frozen=True)
class Base:
    """Bootstrap agent and base as the definition's arguments want them, and what the labels say."""

    agent: str
    reference: str
    name: str
    digest: str
    file: Path | None = None


def default_base(definition: Path) -> str:
    """Return the base that a definition names in its %arguments."""
    found = _ARGUMENT.search(definition.read_text())
    if found is None:
        raise ImageError(f"{definition} names no base: write BASE=REPOSITORY@sha256:... into its %arguments")
    return found[1]


def choose_base(text: str) -> Base:
    """Understand what `--base` says: a .sif file, or `[docker://]repository@sha256:...`.

    Raises:
        ImageError: if the file is missing, or the reference may mean another image tomorrow.
    """
    if text.startswith("docker://"):
        return _docker(text.removeprefix("docker://"))
    if "://" in text:
        raise ImageError(f"--base {text}: only docker:// and .sif files can be a base")
    if text.endswith(".sif") or text.startswith((".", "/", "~")) or Path(text).exists():
        path = check_image(Path(text).expanduser())
        return Base("localimage", _FILE_IN_CONTEXT, path.name, f"sha256:{sha256_of_file(path)}", path)
    return _docker(text)


def _docker(reference: str) -> Base:
    found = _DIGEST.search(reference)
    if found is None:
        name = reference.partition("@")[0]
        raise ImageError(
            f"--base {reference} has no digest, so it may be another image tomorrow: write "
            f"{_without_tag(name)}@sha256:... (skopeo inspect docker://{name} says it)"
        )
    name = _without_tag(reference[: found.start()])
    # A tag beside the digest says nothing, and Apptainer refuses both together.
    return Base("docker", f"{name}@{found[1]}", name, found[1])


def _without_tag(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"
