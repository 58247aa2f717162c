"""Which code, packages and machine an attempt ran with."""

import json
import os
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from kdgat.stage.files import write_json_atomically

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
)
GIT_TIMEOUT_S = 10


def collect_provenance() -> dict[str, object]:
    """Describe this process; what cannot be found out is None."""
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_state(Path(__file__).parent),
        "packages": {name: package_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "arguments": sys.argv,
        "slurm": {
            key: value for key, value in sorted(os.environ.items()) if key.startswith(("SLURM_JOB", "SLURM_ARRAY"))
        },
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def record_attempt(path: Path) -> None:
    """Add this process to the attempts in `provenance.json`."""
    try:
        attempts = json.loads(path.read_text())["attempts"]
    except FileNotFoundError:
        attempts = []
    write_json_atomically(path, {"attempts": [*attempts, collect_provenance()]})


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, object] | None:
    """Return revision and dirtiness of the repository that holds `folder`; None outside of one or without git."""
    revision = _git(folder, "rev-parse", "HEAD")
    if revision is None:
        return None
    return {"revision": revision, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
