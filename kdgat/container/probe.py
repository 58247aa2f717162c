"""What Python, packages and code a machine or an image has; its text runs in an image's own Python, with nothing else.

Standard library alone, therefore, and no import of kdgat: the image may hold another version of it, or none. As a
program it prints JSON; with the word `torch` what `describe_torch` found, which takes seconds, and with `labels` an
image's labels of that.
"""

import hashlib
import json
import platform
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any

PACKAGES = ("kdgat", "dask", "distributed", "cloudpickle", "prefect")
# By CUDA's major version, the least driver that starts what is built for it: within one, any of that or later.
LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
LEAST_DRIVERS_OF_RAPIDS = {12: 535}  # of version 26.10, by its documentation
MADE_SUFFIX = ".schema.json"  # the build of a wheel makes these from the source; a checkout has none
SOURCE_SUFFIXES = (".py", ".yaml", ".json", ".html", ".css", ".js", ".gz", ".typed")  # what a wheel of kdgat holds


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


def describe_torch() -> dict[str, Any]:
    """Return torch's version, the CUDA or HIP that it is built for, and what GPUs it has code for; needs no GPU.

    `architectures` are as torch has them, sm_70 for binaries and compute_90 for PTX; `driver` is the least one that it
    starts with, 0 where that is not known.
    """
    import torch

    cuda = torch.version.cuda
    major = int(cuda.partition(".")[0]) if cuda else 0
    of_rapids = LEAST_DRIVERS_OF_RAPIDS.get(major, 0) if util.find_spec("cudf") else 0
    return {
        "torch": str(torch.__version__),
        "cuda": cuda,
        "hip": torch.version.hip,
        "architectures": (torch._C._cuda_getArchFlags() or "").split() if cuda else [],
        "driver": max(LEAST_DRIVERS.get(major, 0), of_rapids),
    }


def labels_of(build: dict[str, Any]) -> list[str]:
    """Return the labels of an image with such a torch, as Apptainer reads them; none where it has no CUDA."""
    values = {"architectures": " ".join(build["architectures"]), "driver": build["driver"]}
    return [f"kdgat.gpu.{name} {value}" for name, value in values.items() if value]


def hash_of_source(folder: Path) -> str:
    """Hash names and contents of a package's files; what only running leaves behind does not count."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
        is_made = path.name.endswith(MADE_SUFFIX)
        if path.suffix in SOURCE_SUFFIXES and not is_made and not hidden and path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["torch"]:
            print(json.dumps(describe_torch()))
        case ["labels"]:
            sys.stdout.writelines(f"{line}\n" for line in labels_of(describe_torch()))
        case _:
            print(json.dumps(describe_environment()))
