"""The source tree that an image is made from: its packages, its locks, and which revision of it this is."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import kdgat
from kdgat.container import ImageError
from kdgat.container.variants import Variant
from kdgat.stage.provenance import ask_git, git_state

# What the wheel is built from. Named one by one: a leftover build/ beside them would be packed, too.
WHEEL_SOURCES: Final = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "kdgat",
    "flows",
    "deployments/prefect.yaml",
    "deployments/sites",
)
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Checkout:
    """A directory with pyproject.toml, constraints.txt and containers/."""

    root: Path

    @cached_property
    def project(self) -> dict[str, Any]:
        """The table [project] of pyproject.toml."""
        return dict(tomllib.loads((self.root / "pyproject.toml").read_text())["project"])

    @property
    def version(self) -> str:
        """Version of the package, as pyproject.toml states it."""
        return str(self.project["version"])

    @property
    def constraints_path(self) -> Path:
        """Versions that were tested together."""
        return self.root / "constraints.txt"

    def definition_path(self, variant: Variant) -> Path:
        """Where the definition lies."""
        return self.root / "containers" / f"{variant.file_stem}.def"

    def lock_path(self, variant: Variant) -> Path:
        """Where the lock lies."""
        return self.root / "containers" / f"{variant.file_stem}.lock"

    def revision(self) -> str:
        """Return the git revision, with `-dirty` if files differ from it; `unknown` without git.

        A file that git does not know counts where the wheel would hold it.
        """
        state = git_state(self.root)
        if state is None:
            return _UNKNOWN
        untracked = ask_git(self.root, "status", "--porcelain", "--untracked-files=normal", "--", *WHEEL_SOURCES)
        is_dirty = state["dirty"] or untracked is None or untracked
        return f"{state['revision']}{'-dirty' if is_dirty else ''}"

    def source(self) -> str:
        """Return where the source is: pyproject.toml's Source or Repository, else git's origin; no secret."""
        urls = {str(key).lower(): str(url) for key, url in self.project.get("urls", {}).items()}
        url = urls.get("source") or urls.get("repository") or ask_git(self.root, "remote", "get-url", "origin")
        return public_url(url) if url else _UNKNOWN


def find_checkout(root: Path | None = None) -> Checkout:
    """Return the checkout in `root`, or the one that this module was imported from.

    Raises:
        ImageError: if there is none, as beside an installed wheel.
    """
    found = (root or Path(kdgat.__file__).parents[1]).absolute()
    missing = [name for name in ("pyproject.toml", "constraints.txt", "containers") if not (found / name).exists()]
    if missing:
        raise ImageError(
            f"{found} is no checkout of kdgat ({', '.join(missing)} missing): images are made from a source tree; "
            "name it with --checkout DIR"
        )
    return Checkout(found)


def public_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; `unknown` for a path on this machine."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https", "ssh", "git") and parts.hostname:
        port = f":{parts.port}" if parts.port else ""
        return urlunsplit((parts.scheme, f"{parts.hostname}{port}", parts.path, "", ""))
    host, colon, path = url.partition(":")
    if colon and "/" not in host and not path.startswith("/") and parts.scheme in ("", host):  # git@host:owner/name
        return f"ssh://{host.rpartition('@')[2]}/{path}"
    return _UNKNOWN
