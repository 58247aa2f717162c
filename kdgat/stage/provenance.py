"""Which code, packages, image, data and machine an attempt ran with."""

import contextlib
import json
import logging
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from kdgat.base.files import to_json, write_snapshot
from kdgat.base.kept import refuse_newer
from kdgat.stage.errors import RunDirectoryError
from kdgat.stage.spec import StageSpec

logger = logging.getLogger(__name__)

PACKAGES = (
    "kdgat",
    "torch",
    "torch-geometric",
    "lightning",
    "numpy",
    "h5py",
    "pydantic",
    "safetensors",
    "polars",
    "numba",
    "dask",
    "distributed",
    "cloudpickle",
)
GIT_TIMEOUT_S = 10
# Set by Apptainer inside a container, and by whoever starts an attempt in one.
CONTAINER_VARIABLE: Final = "APPTAINER_CONTAINER"
IMAGE_VARIABLE: Final = "KDGAT_IMAGE"
IMAGE_DIGEST_VARIABLE: Final = "KDGAT_IMAGE_SHA256"
IMAGE_STAMP_VARIABLE: Final = "KDGAT_IMAGE_STAMP"  # size and time of the file that has this digest
IMAGE_STARTED_VARIABLE: Final = "KDGAT_IMAGE_STARTED"  # the same of the file that the node started
# Set for each job: a stage that was given GPUs and sees none is on a broken node, and must not train on the processor.
GPUS_VARIABLE: Final = "KDGAT_GPUS"
# Inside an image there is neither the repository nor git: it says itself what it was built from.
REVISION_VARIABLE: Final = "KDGAT_REVISION"
IMAGE_LABELS: Final = Path("/.singularity.d/labels.json")
REVISION_LABEL: Final = "org.opencontainers.image.revision"
DIRTY_SUFFIX: Final = "-dirty"  # of a revision with changes


def collect_provenance() -> dict[str, object]:
    """Describe this process; what cannot be found out is None."""
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_state(Path(__file__).parent),
        "image": image_state(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "prefix": sys.prefix,
        "platform": platform.platform(),
        "processor": processor_name(),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "arguments": sys.argv,
        "slurm": {
            key: value for key, value in sorted(os.environ.items()) if key.startswith(("SLURM_JOB", "SLURM_ARRAY"))
        },
        "given_gpus": os.environ.get(GPUS_VARIABLE),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def code_difference(path: Path) -> str:
    """Say in what git revision and torch differ between the last attempt in `provenance.json` and this process.

    Empty where they are the same, or where one of them is not known.
    """
    attempts = _attempts_or_none(path)
    if not attempts:
        return ""
    last = attempts[-1]
    git, packages = (dict(one) if isinstance(one := last.get(key), Mapping) else {} for key in ("git", "packages"))
    own = git_state(Path(__file__).parent) or {}
    pairs = {
        "revision": (_short_revision(git), _short_revision(own)),
        "torch": (packages.get("torch"), package_version("torch")),
    }
    return "; ".join(
        f"{name} was {before}, is {now}" for name, (before, now) in pairs.items() if before and now and before != now
    )


def describe_code() -> str:
    """Name the version of this kdgat, and its git revision where that is known."""
    revision = _short_revision(git_state(Path(__file__).parent) or {})
    return f"kdgat {package_version('kdgat') or 'not installed'}" + (f" ({revision})" if revision else "")


def _short_revision(git: Mapping[str, Any]) -> str:
    revision = str(git.get("revision") or "")[:12]
    return revision + DIRTY_SUFFIX if revision and git.get("dirty") else revision


def read_attempts(path: Path) -> list[dict[str, Any]]:
    """Read the attempts of a `provenance.json`, none before the first.

    Raises:
        RunDirectoryError: if it is damaged, or of a newer kdgat.
    """
    try:
        content = json.loads(path.read_bytes())
        refuse_newer(content, path, RunDirectoryError)
        return [dict(attempt) for attempt in content["attempts"]]
    except FileNotFoundError:
        return []
    except RunDirectoryError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(
            f"{path} is damaged ({type(error).__name__}: {error}): remove it, what was trained does not need it"
        ) from error


def _attempts_or_none(path: Path) -> list[dict[str, Any]] | None:
    """Read the attempts; None, with a warning, if that cannot be done."""
    try:
        return read_attempts(path)
    except (OSError, RunDirectoryError) as error:
        logger.warning("%s is left as it is, for it cannot be read: %s", path, error)
        return None


def note_in_attempt(path: Path, **values: object) -> None:
    """Add what an attempt has found out since it began to its record; nothing where none was begun."""
    if attempts := _attempts_or_none(path):
        attempts[-1] |= values
        write_snapshot(path, to_json({"attempts": attempts}))


def record_attempt(path: Path, spec: StageSpec | None = None) -> None:
    """Add this process to the attempts in `provenance.json`, with the hashes of what the stage was asked to do.

    Nothing is resumed from it: where it cannot be written, that is a warning.
    """
    attempts = _attempts_or_none(path)
    if attempts is None:
        return
    record = collect_provenance()
    if spec is not None:
        inputs = {name: source.sha256 for name, source in sorted(spec.inputs.items())}
        record["spec"] = {"identity": spec.identity(), "inputs": inputs}
    before, now = _image_digest(attempts[-1]) if attempts else None, _image_digest(record)
    if before is not None and before != now:
        record["image_changed_from"] = before
        logger.warning("this attempt runs in another image than the last one: sha256 %s, was %s", now, before)
    write_snapshot(path, to_json({"attempts": [*attempts, record]}))


def image_state(environment: Mapping[str, str] = os.environ) -> dict[str, object] | None:
    """Describe the container image that this process runs in; None outside of one.

    Its digest is what was read where the attempt was handed in. If the file is another one when the job begins, the
    digest is not known, and `doubt` says so.
    """
    container = environment.get(CONTAINER_VARIABLE)
    if not container:
        return None
    digest, doubt = environment.get(IMAGE_DIGEST_VARIABLE), None
    read, started = environment.get(IMAGE_STAMP_VARIABLE), environment.get(IMAGE_STARTED_VARIABLE)
    if not digest:
        doubt = "the image could not be read where the attempt was handed in"
    elif started and read != started:
        doubt = f"the file changed before the job began (size and time {read}, then {started}): not sha256 {digest}"
    if doubt is not None:
        logger.warning("the digest of image %s is not known: %s", container, doubt)
    path = environment.get(IMAGE_VARIABLE) or container
    return {"path": path, "sha256": None if doubt else digest, "doubt": doubt}


def _image_digest(record: Mapping[str, Any]) -> str | None:
    image = record.get("image")
    return image.get("sha256") if isinstance(image, dict) else None


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor_name(path: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the model of this machine's processor, None where Linux does not say it."""
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None


def git_state(folder: Path) -> dict[str, object] | None:
    """Return revision and dirtiness of the repository that holds `folder`; None outside of one or without git.

    Inside an image they are those that it was built from.
    """
    # An installed package may lie in somebody's repository, which knows nothing of it.
    revision = ask_git(folder, "rev-parse", "HEAD") if ask_git(folder, "ls-files") else None
    if revision is None:
        return _revision_of_image(os.environ, IMAGE_LABELS)
    return {"revision": revision, "dirty": bool(ask_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _revision_of_image(environment: Mapping[str, str], labels_path: Path) -> dict[str, object] | None:
    if not environment.get(CONTAINER_VARIABLE):
        return None
    stated = environment.get(REVISION_VARIABLE) or ""
    if not stated:
        with contextlib.suppress(OSError, ValueError):
            stated = str(json.loads(labels_path.read_bytes()).get(REVISION_LABEL, ""))
    revision = stated.removesuffix(DIRTY_SUFFIX)
    if revision in ("", "unknown"):
        return None
    return {"revision": revision, "dirty": stated != revision}


def ask_git(folder: Path, *arguments: str) -> str | None:
    """Return what git answers in a folder; None where it cannot, or there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
