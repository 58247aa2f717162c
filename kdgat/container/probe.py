"""What Python, packages and code a machine or an image has; its text runs in an image's own Python, with nothing else.

Standard library alone, therefore, and no import of kdgat: the image may hold another version of it, or none.
"""

import hashlib
import json
import platform
from importlib import metadata, util
from pathlib import Path

PACKAGES = ("kdgat", "dask", "distributed", "cloudpickle", "prefect")
SOURCE_SUFFIXES = (".py", ".yaml", ".json", ".html", ".css", ".js", ".typed")  # what a wheel of kdgat holds


def describe_environment() -> dict[str, str | None]:
    """Return Python's version, those of the packages that both sides need, and the hash of kdgat's source."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    specification = util.find_spec("kdgat")
    folders = list(specification.submodule_search_locations or []) if specification is not None else []
    found["location"] = folders[0] if folders else None
    found["source"] = hash_of_source(Path(folders[0])) if folders else None
    return found


def hash_of_source(folder: Path) -> str:
    """Hash names and contents of a package's files; what only running leaves behind does not count."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
        if path.suffix in SOURCE_SUFFIXES and not hidden and path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    print(json.dumps(describe_environment()))
